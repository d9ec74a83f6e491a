// Seek points: places in the entropy-coded data of a baseline JPEG from which it can be
// decoded. docs/formats/seek-points.md lays down the bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "common.h"
#include "jpeg/entropy.h"
#include "jpeg/jpeg_header.h"
#include "status.h"

namespace fastdata {

/// The seek points of one image, or why it has none.
struct SeekPoints {
  Status status;
  std::vector<uint8_t> packed;
};

/// Decodes each image's whole scan, which proves that it is whole, and packs a seek point for
/// the first MCU of each row and every `stride` pixels from there. Several images are decoded
/// in turns, which takes five sixths of the time: a scan without seek points is one stream.
std::vector<SeekPoints> build_seek_points(const std::vector<ByteSpan>& jpegs, int stride);

/// A packed table, read in place. Untrusted: `open` checks that it has the right size and
/// was made from this JPEG's header and length; the positions may still be lies, which
/// the decoder survives (docs/design/0007-native-bounds.md).
class SeekTable {
 public:
  Status open(ByteSpan packed, ByteSpan jpeg, const JpegHeader& header);

  int interval() const { return interval_; }  // in MCUs
  int points_per_row() const { return points_per_row_; }
  int size() const { return size_; }

  /// Points must be asked for in ascending order (positions are stored as differences).
  EntryPoint point(int index);
  /// The position alone, rounded up to whole bytes.
  size_t byte_after(int index);

 private:
  uint64_t position(int index);

  ByteSpan packed_;
  int interval_ = 0, points_per_row_ = 0, size_ = 0;
  int component_count_ = 0;
  uint64_t min_delta_ = 0;
  unsigned delta_bits_ = 0;
  size_t deltas_ = 0, predictors_ = 0;  // offsets in bits
  int16_t predictor_min_[kMaxComponents] = {};
  unsigned predictor_bits_[kMaxComponents] = {}, point_bits_ = 0;
  int cursor_ = 0;
  uint64_t cursor_position_ = 0;
};

}  // namespace fastdata
