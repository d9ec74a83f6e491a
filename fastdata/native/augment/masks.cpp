#include "augment/masks.h"

#include <type_traits>

#include "resample/resample.h"

namespace fastdata {
namespace {

Drawn draw_mask(const Drawn& image, const MaskFills& fills) {
  Drawn mask{{}, {}, image.width, image.height, image.status};
  for (const Call& call : image.calls) {
    const auto fill = fills.find(call.mask_fill);
    if (fill == fills.end()) {
      mask.status = {Code::bad_parameters, "a fill that its mask cannot have"};
      break;
    }
    const auto add_filled = [&](auto by) {
      by.red = fill->second[0];
      by.green = fill->second[1];
      by.blue = fill->second[2];
      if constexpr (!std::is_same_v<decltype(by), operations::Pad>) by.interpolation = 0;
      mask.calls.push_back(Call::of(by));
    };
    switch (call.operation) {
      case Operation::flip_horizontal:
      case Operation::flip_vertical:
      case Operation::crop:
      case Operation::iou_crop: mask.calls.push_back(call); break;
      case Operation::resize: {
        auto by = call.as<operations::Resize>();
        by.filter = static_cast<double>(kMaskFilter);
        mask.calls.push_back(Call::of(by));
        break;
      }
      case Operation::pad: add_filled(call.as<operations::Pad>()); break;
      case Operation::tensor_affine:
      case Operation::warp_masks: add_filled(call.as<operations::TensorAffine>()); break;
      case Operation::perspective:
      case Operation::tensor_perspective:
        add_filled(call.as<operations::TensorPerspective>());
        break;
      default: break;
    }
  }
  return mask;
}

}  // namespace

std::vector<Drawn> draw_masks(const std::vector<Drawn>& images, const MaskFills& fills) {
  std::vector<Drawn> masks;
  masks.reserve(images.size());
  for (const Drawn& image : images) masks.push_back(draw_mask(image, fills));
  return masks;
}

}  // namespace fastdata
