// Taking a tensor's pixels from elsewhere in it: affine and perspective transforms as torchvision
// does them to tensors, by torch's grid_sample.
#pragma once

#include <cstdint>

#include "augment/warp.h"

namespace fastdata {

/// A transform to an image of the source's size. What is outside counts as 0, and with a fill the
/// image, a layer of ones beside it, is laid over the fill.
struct Grid {
  bool perspective;
  bool fused;                   // products are added without rounding them before
  Interpolation interpolation;  // nearest or bilinear
  float rows[3][3];             // x, y (and the depth) of places from -1 to 1, as torch has them
  int width, height;
  int32_t pitch;           // of the packed source (Note [Packed pixels])
  const uint32_t* pixels;  // the packed source
  bool filled;
  int fill[3];
};

/// Row y of the result, into a padded row of each plane.
using GridRow = void (*)(const Grid& grid, int y, uint8_t* const* rows, int channels);

}  // namespace fastdata
