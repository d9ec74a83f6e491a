// Seek points: places in the entropy-coded data of a baseline JPEG from which it can be
// decoded. docs/formats/seek-points.md lays down the bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "common.h"
#include "jpeg/entropy.h"
#include "jpeg/jpeg_header.h"
#include "resample/pixels.h"
#include "status.h"

namespace fastdata {

/// Checks that a packed table is of this JPEG: its header, its length, each point as decoding the
/// whole scan reaches it, and all checksums of version 2.
Status check_seek_points(ByteSpan packed, ByteSpan jpeg);

/// The seek points of one image, or why it has none.
struct SeekPoints {
  Status status;
  std::vector<uint8_t> packed;
};

/// JPEGs of so many bytes get tables of version 2, with which parts of them can be read and
/// checked: reading smaller ones whole takes no longer.
constexpr size_t kPartialBytes = size_t{256} << 10;

/// Decodes each image's whole scan, which proves that it is whole, and packs a seek point for
/// the first MCU of each row and every `stride` pixels from there, twice as many in images of
/// 16 strides and more. Several images are decoded in turns, which takes five sixths of the time:
/// a scan without seek points is one stream.
std::vector<SeekPoints> build_seek_points(const std::vector<ByteSpan>& jpegs, int stride);

/// Segments that follow one another, from `first` to before `end`, and the bytes that they are.
struct SegmentRun {
  int first = 0, end = 0;
  ByteRange bytes;
};

/// A packed table, read in place. Untrusted: `open` checks that it has the right size and
/// was made from this JPEG's header and length; the positions may still be lies, which
/// the decoder survives (docs/design/0007-native-bounds.md).
class SeekTable {
 public:
  Status open(ByteSpan packed, ByteSpan jpeg, const JpegHeader& header);

  /// Opens a table of version 2 without its JPEG. Then `parts` and the functions after it may be
  /// called.
  Status open(ByteSpan packed);

  size_t jpeg_size() const { return jpeg_size_; }
  int width() const { return width_; }
  int height() const { return height_; }
  /// The MCUs that decoding a box of pixels needs.
  McuBox mcus_of(const Box& box) const;
  /// Lists the bytes that decoding these MCUs needs, ascending: the header, then a range for each
  /// row. False: they lie outside the scan.
  bool parts(const McuBox& mcus, std::vector<ByteRange>& parts);
  /// One range for all rows, without the header; it includes the bytes beside the MCUs.
  bool run_of(const McuBox& mcus, SegmentRun& run);
  /// Whether these parts of the JPEG have their checksums.
  bool is_sound(const McuBox& mcus, const uint8_t* jpeg);
  bool has_checksums() const { return checksums_ > 0; }
  /// Whether the bytes match the checksums of all segments in the run.
  bool is_sound(const SegmentRun& run, ByteSpan bytes);
  size_t header_size() const { return layout_.scan_offset; }
  uint32_t header_crc() const;

  int interval() const { return interval_; }  // in MCUs
  int points_per_row() const { return points_per_row_; }
  int size() const { return size_; }

  /// Points must be asked for in ascending order (positions are stored as differences).
  EntryPoint point(int index);
  /// The position alone, rounded up to whole bytes; for the number of points, where the scan ends.
  size_t byte_after(int index);

 private:
  struct Layout {
    int component_count, mcus_per_row, mcu_rows;
    size_t scan_offset, components_at;
  };
  Status lay_out(ByteSpan packed, const Layout& layout);
  void rewind();
  uint64_t position(int index);
  /// `bytes` are the JPEG's from byte `at` on.
  bool are_sound(int first, int end, ByteSpan bytes, size_t at);

  ByteSpan packed_;
  Layout layout_{};
  // Of version 2.
  int width_ = 0, height_ = 0, mcu_width_ = 8, mcu_height_ = 8;
  size_t jpeg_size_ = 0, scan_end_ = 0;  // the scan ends there at the latest
  size_t checksums_ = 0;                 // where they are; 0: there are none
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
