// All scans of a progressive JPEG, to the coefficients of a region.
#pragma once

#include <cstdint>

#include "buffer.h"
#include "common.h"
#include "jpeg/bands.h"
#include "jpeg/entropy.h"
#include "jpeg/huffman.h"
#include "jpeg/jpeg_header.h"
#include "jpeg/restart.h"
#include "jpeg/scans.h"
#include "status.h"

namespace fastdata {

/// The default limit of scans; images with more are not decoded.
constexpr int kUsualMaxScans = 64;

/// Decodes one image at a time, with memory that it keeps for the next. For one thread.
///
/// Each scan is decoded from its beginning to the region's last row. Of blocks outside the region
/// only their masks are kept (bands.h), eight bytes instead of 128.
class CoefficientDecoder {
 public:
  /// Coefficients kept at a time: 512 MiB of them.
  static constexpr size_t kMaxCoefficients = size_t{1} << 28;

  /// `header`: as read_header left it. An image of more than `max_scans`
  /// scans, or with too few for its pixels to be certain, is `unsupported`.
  Status decode(ByteSpan jpeg, const JpegHeader& header, const McuBox& box, int max_scans);

  /// The blocks of a row of a component, y from the region's first: their coefficients, 64 each in
  /// natural order, which the caller must leave zero; the zig-zag index of each one's last that is
  /// not zero. In components of interleaved scans, the last row and column may have blocks beyond
  /// the image, of any coefficients. Valid until the next row is asked for.
  int16_t* coefficients(int component, int y) const;
  uint8_t* last(int component, int y);

  const ScanReader& reader() const { return reader_; }

  /// Frees what a very large image needed.
  void trim(size_t keep);

 private:
  /// One component's blocks.
  struct Blocks {
    int h = 1, v = 1;                                            // in an MCU of the frame
    int first_col = 0, end_col = 0, first_row = 0, end_row = 0;  // of the region
    int columns = 0;  // of the component, those beyond the image included
    Buffer coefficients, nonzero;

    uint64_t* masks(int x, int y) const {
      return nonzero.get<uint64_t>() + static_cast<size_t>(y) * columns + x;
    }
    int16_t* row(int y) const {  // the region's first block in that row
      return coefficients.get<int16_t>() +
             static_cast<size_t>(y - first_row) * (end_col - first_col) * kBlockSize;
    }
    /// Null outside the region.
    int16_t* block(int x, int y) const {
      if (x < first_col || x >= end_col || y < first_row || y >= end_row) return nullptr;
      return row(y) + static_cast<size_t>(x - first_col) * kBlockSize;
    }
  };

  Status plan(const McuBox& box);
  Status decode_scan(const Scan& scan);
  Status build_tables(const Scan& scan);
  bool decode_mcus(const Scan& scan, int row, int col, int count);
  /// Calls decode(i, x, y) for each block of these MCUs: of the scan's component `i`, in the frame.
  template <typename Decode>
  bool each_block(int row, int col, int count, Decode decode);
  bool decode_dc(const Scan& scan, int row, int col, int count);
  bool refine_dc(const Scan& scan, int row, int col, int count);
  bool decode_band(const Scan& scan, int row, int col, int count);

  ByteSpan jpeg_;
  const JpegHeader* frame_ = nullptr;
  ScanReader reader_;
  Blocks blocks_[kMaxComponents];
  bool dirty_ = false;  // coefficients are left from a failed image

  Stream stream_;
  ScanPosition position_;
  BandScan band_;
  HuffmanTable table_[kMaxComponents];  // of a DC scan's components, or of the one AC scan's
  alignas(64) uint32_t dc_lookup_[kMaxComponents][1 << kDcLookupBits];
  alignas(64) uint32_t band_lookup_[1 << kAcLookupBits];
  Buffer buffer_, last_;
};

}  // namespace fastdata
