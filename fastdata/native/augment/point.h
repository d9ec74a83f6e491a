// Operations on single pixels, and on what an image's histogram says of them. Each as
// torchvision.transforms.functional does it to a Pillow image, to the bit; values as operations.h
// has them, finite.
#pragma once

#include "augment/operations.h"

namespace fastdata {

Status brightness(const Call& call, Canvas& canvas);
Status contrast(const Call& call, Canvas& canvas);
Status saturation(const Call& call, Canvas& canvas);
Status sharpness(const Call& call, Canvas& canvas);
Status hue(const Call& call, Canvas& canvas);
Status grayscale(const Call& call, Canvas& canvas);
Status posterize(const Call& call, Canvas& canvas);
Status solarize(const Call& call, Canvas& canvas);
Status solarize_add(const Call& call, Canvas& canvas);
Status autocontrast(const Call& call, Canvas& canvas);
Status equalize(const Call& call, Canvas& canvas);
Status invert(const Call& call, Canvas& canvas);
Status permute(const Call& call, Canvas& canvas);

// Pillow's enhancers take any factor; beyond this one floats may overflow.
constexpr double kMaxFactor = 1e6;
constexpr Status kBadFactor{Code::bad_parameters, "a factor outside 0 to 1e6"};

inline bool is_factor(double value) { return value >= 0 && value <= kMaxFactor; }

/// Whether a value is an integer within [least, most]; if so, that integer.
inline bool whole_number(double value, int least, int most, int& number) {
  if (!(value >= least && value <= most)) return false;
  number = static_cast<int>(value);
  return number == value;
}

}  // namespace fastdata
