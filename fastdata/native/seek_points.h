// Seek points: places in the entropy-coded data of a baseline JPEG from which it can be
// decoded. docs/formats/seek-points.md lays down the bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "common.h"
#include "entropy.h"
#include "jpeg_header.h"
#include "status.h"

namespace fastdata {

/// Decodes the whole scan, which proves that it is whole, and packs a seek point for the
/// first MCU of each row and every `stride` pixels from there.
Status build_seek_points(ByteSpan jpeg, int stride, std::vector<uint8_t>& packed);

/// A packed table, read in place. Untrusted: `open` checks that it has the right size and
/// was made from this JPEG's header and length; the positions may still be lies, which
/// the decoder survives.
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
