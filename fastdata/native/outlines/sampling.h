// Pixels of an image that its crops, resizes, flips and pads leave, as rows and columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "augment/operations.h"
#include "geometry/cut.h"
#include "status.h"

namespace fastdata {

/// Pixels of a mask, each a pixel of the first mask, or a fill. Resizes take the nearest pixel as
/// torch does, whatever their filter.
class Sampling {
 public:
  /// The row or column of the first mask, or below 0: -1 - the fill's number. Of the fills of a
  /// pixel's row and of its column, the one with the greater number is its value.
  const std::vector<int32_t>& columns() const { return columns_; }
  const std::vector<int32_t>& rows() const { return rows_; }
  const std::vector<uint8_t>& fills() const { return fills_; }
  int width() const { return static_cast<int>(columns_.size()); }
  int height() const { return static_cast<int>(rows_.size()); }

  /// Begins with all pixels of a mask. Throws std::bad_alloc, as the others do.
  void begin(int width, int height);
  /// Cuts, resizes, cuts and mirrors; `fill` takes the place of what lies outside. bad_region: the
  /// cut has no pixels.
  Status move(const Cut& cut, uint8_t fill);
  /// Does what the operation does; false in `done`: it is not one of rows and columns.
  Status move(const Call& call, bool& done);

 private:
  std::vector<int32_t> columns_, rows_, other_;
  std::vector<uint8_t> fills_;

  int32_t add_fill(uint8_t value);
  static void crop(std::vector<int32_t>& places, int64_t first, int count, int32_t outside);
  void resize(std::vector<int32_t>& places, int count);
  Status crop(const operations::Crop& by);
  Status pad(const operations::Pad& by);
};

}  // namespace fastdata
