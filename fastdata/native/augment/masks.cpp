#include "augment/masks.h"

#include "resample/resample.h"

namespace fastdata {

Status draw_mask(const Drawn& image, const MaskFills& fills, Drawn& mask) {
  if (image.width < 1) return {Code::bad_parameters, "its image is unfit for the operations"};
  mask.calls.clear();
  mask.erasures.clear();
  mask.width = image.width;
  mask.height = image.height;
  for (const Call& call : image.calls) {
    const auto found = fills.find(call.mask_fill);
    const auto add_filled = [&](auto by) -> Status {
      if (found == fills.end()) return {Code::bad_parameters, "a fill that its mask cannot have"};
      by.red = found->second[0];
      by.green = found->second[1];
      by.blue = found->second[2];
      mask.calls.push_back(Call::of(by));
      return {};
    };
    const auto add_warp = [&](auto by) {
      by.interpolation = 0;
      return add_filled(by);
    };
    Status status;
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
      case Operation::pad: status = add_filled(call.as<operations::Pad>()); break;
      case Operation::tensor_affine:
      case Operation::warp_masks: status = add_warp(call.as<operations::TensorAffine>()); break;
      case Operation::perspective:
      case Operation::tensor_perspective:
        status = add_warp(call.as<operations::TensorPerspective>());
        break;
      default: break;  // of colours, or of boxes; or of an image that is no tensor
    }
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace fastdata
