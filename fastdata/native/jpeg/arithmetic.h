// Arithmetic entropy decoding: the adaptive binary decoder and the statistics of coefficients
// (ITU-T T.81, annex D, F.2.4 and G.2).
#pragma once

#include <cstdint>

#include "common.h"
#include "jpeg/jpeg_header.h"
#include "jpeg/scans.h"

namespace fastdata {

/// Decodes the blocks of one scan in order. What is no code of a coefficient, where libjpeg warns,
/// is a failure: `error` says why.
///
/// Where a marker stands, zeros follow as long as they are asked for, as in libjpeg: encoders
/// leave out the zeros at a segment's end, however many (T.81, D.1.8), so that data that was cut
/// off there cannot be told from whole.
class ArithmeticDecoder {
 public:
  /// At byte `from` of the JPEG, a scan's first or one behind a restart marker: all statistics and
  /// predictors are those of a beginning. `header`: the scan's, which must outlive all calls.
  void open(ByteSpan jpeg, const JpegHeader& header, const Scan& scan, size_t from);

  /// No marker before this byte is left unread.
  size_t offset() const { return static_cast<size_t>(pos_ - jpeg_.data); }

  const char* error() const { return error_; }

  /// One block of the scan's component `i`, of which `nonzero` is the mask (bands.h). Its
  /// coefficients, in natural order, are not kept if `block` is null.
  bool decode(int i, uint64_t& nonzero, int16_t* block);

 private:
  // A statistics bin: the place of its estimate in a table. No uint8_t, which any pointer's target
  // may be, so that the compiler could not keep the decoder in registers.
  using Bin = uint16_t;

  bool decode_dc(int i, int16_t* block);
  bool decode_first(int i, uint64_t& nonzero, int16_t* block);
  bool refine(int i, uint64_t& nonzero, int16_t* block);
  bool magnitude(Bin* bin, uint32_t category, uint32_t& value);
  int decide(Bin& bin);
  int decide_evenly();
  void load();
  uint8_t next_byte();
  bool fail(const char* why);

  ByteSpan jpeg_;
  const uint8_t* pos_ = nullptr;
  const JpegHeader* header_ = nullptr;
  Scan scan_;
  const char* error_ = nullptr;

  // The code register less the interval's base, behind its point `count_` bits that are loaded
  // ahead; the interval's size, 2^16 for 1.5 of the standard's.
  uint64_t code_ = 0;
  uint32_t range_ = 0;
  int count_ = 0;

  uint32_t predictor_[kMaxComponents];
  int category_[kMaxComponents];  // of the difference before: the first of its bins
  Bin dc_[kArithmeticTables][64], ac_[kArithmeticTables][256];
};

}  // namespace fastdata
