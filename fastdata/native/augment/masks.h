// Masks follow the operations of their image, as torchvision's v2 moves them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "augment/drawing.h"

namespace fastdata {

/// Values that masks are filled with, 0 too, and the bytes of each: channels of an image.
using MaskFills = std::map<double, std::array<uint8_t, 3>>;

/// Returns the operations of masks by those of their images: nearest pixels, fills of their own,
/// and no colours. They fail as the images; bad_parameters: `fills` lack one.
std::vector<Drawn> draw_masks(const std::vector<Drawn>& images, const MaskFills& fills);

}  // namespace fastdata
