// Masks follow the operations of their image, as torchvision's v2 moves them.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "augment/drawing.h"

namespace fastdata {

/// Values that masks are filled with, 0 too, and the bytes of each: channels of an image.
using MaskFills = std::map<double, std::array<uint8_t, 3>>;

/// Makes of the operations of an image those of its mask: nearest pixels, fills of its own, and no
/// colours. Fails as the image's drawing; bad_parameters: `fills` lack one.
Status draw_mask(const Drawn& image, const MaskFills& fills, Drawn& mask);

}  // namespace fastdata
