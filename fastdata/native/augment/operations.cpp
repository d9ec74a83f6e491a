#include "augment/operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "augment/geometric.h"
#include "augment/point.h"
#include "augment/tensor.h"

namespace fastdata {
namespace {

using Run = Status (*)(const Call& call, Canvas& canvas);

constexpr Run run_of(Operation operation) {
  switch (operation) {
    case Operation::brightness: return brightness;
    case Operation::contrast: return contrast;
    case Operation::saturation: return saturation;
    case Operation::sharpness: return sharpness;
    case Operation::hue: return hue;
    case Operation::grayscale: return grayscale;
    case Operation::posterize: return posterize;
    case Operation::solarize: return solarize;
    case Operation::solarize_add: return solarize_add;
    case Operation::autocontrast: return autocontrast;
    case Operation::equalize: return equalize;
    case Operation::invert: return invert;
    case Operation::permute: return permute;
    case Operation::affine: return affine;
    case Operation::perspective: return perspective;
    case Operation::flip_horizontal: return flip_horizontal;
    case Operation::flip_vertical: return flip_vertical;
    case Operation::gaussian_blur: return gaussian_blur;
    case Operation::box_blur: return box_blur;
    case Operation::gaussian_noise: return gaussian_noise;
    case Operation::crop: return crop;
    case Operation::resize: return resize;
    case Operation::pad: return pad;
    case Operation::tensor_contrast: return tensor_contrast;
    case Operation::tensor_saturation: return tensor_saturation;
    case Operation::tensor_sharpness: return tensor_sharpness;
    case Operation::tensor_hue: return tensor_hue;
    case Operation::tensor_grayscale: return tensor_grayscale;
    case Operation::tensor_autocontrast: return tensor_autocontrast;
    case Operation::tensor_affine: return tensor_affine;
    case Operation::tensor_perspective: return tensor_perspective;
    case Operation::mix_begin: return mix_begin;
    case Operation::mix_add: return mix_add;
    case Operation::mix_blend: return mix_blend;
    case Operation::mix_end: return mix_end;
  }
  return nullptr;
}

}  // namespace

bool parse_operation(std::string_view name, Operation& operation) {
  for (size_t i = 0; i < kOperationCount; i++)
    if (name == kOperations[i].name) {
      operation = static_cast<Operation>(i);
      return true;
    }
  return false;
}

Status augment(const Call& call, Canvas& canvas) {
  if (static_cast<size_t>(call.operation) >= kOperationCount)
    return {Code::bad_parameters, "no such operation"};
  for (int i = 0; i < info_of(call.operation).values; i++)
    if (!std::isfinite(call.values[i])) return {Code::bad_parameters, "a value that is not finite"};
  return run_of(call.operation)(call, canvas);
}

}  // namespace fastdata
