// Masks follow the operations of their image, as torchvision's v2 moves them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "augment/drawing.h"

namespace fastdata {

/// Bytes of 0 and of each value that masks are filled with, as channels of an image.
using MaskFills = std::map<double, std::array<uint8_t, 3>>;

/// Returns the operations of each image's mask: nearest pixels, fills of its own, and no colours.
/// It fails as its image does; bad_parameters: `fills` lack a value.
std::vector<Drawn> draw_masks(const std::vector<Drawn>& images, const MaskFills& fills);

}  // namespace fastdata
