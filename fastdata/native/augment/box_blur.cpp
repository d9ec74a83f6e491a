// Pillow's ImageFilter.GaussianBlur: three passes of a box along each axis, edges repeated.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "augment/operations.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

constexpr int kPasses = 3;
constexpr double kMaxSigma = 50;
constexpr int kMaxBoxTaps = 2 * 64 + 3;  // a box's radius is below 1.1 sigma + 1

struct BoxWeights {
  int radius;  // of the taps of full weight
  uint32_t weight, edge_weight;
};

/// Pillow's _gaussian_blur_radius and ImagingHorizontalBoxBlur, in their types.
BoxWeights box_weights(float sigma) {
  const float variance = sigma * sigma / kPasses;
  const float length = static_cast<float>(std::sqrt(12.0 * variance + 1.0));
  const float whole = static_cast<float>(std::floor((length - 1.0) / 2.0));
  float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
  part /= 6 * (variance - (whole + 1) * (whole + 1));
  const float radius = whole + part;
  BoxWeights box{};
  box.radius = static_cast<int>(radius);
  box.weight = static_cast<uint32_t>(static_cast<float>(1 << 24) / (radius * 2 + 1));
  box.edge_weight = ((1u << 24) - static_cast<uint32_t>(box.radius * 2 + 1) * box.weight) / 2;
  return box;
}

}  // namespace

Status box_blur(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::BoxBlur>();
  if (!(by.sigma >= 0 && by.sigma <= kMaxSigma))
    return {Code::bad_parameters, "a standard deviation outside 0 to 50"};
  if (by.sigma == 0) return {};
  const BoxWeights box = box_weights(static_cast<float>(by.sigma));
  const int reach = box.radius + 1, count = 2 * reach + 1;
  const uint8_t* taps[kMaxBoxTaps];
  const size_t margin = round_up(static_cast<size_t>(reach), 64);
  uint8_t* row = canvas.scratch.reserve<uint8_t>(canvas.image().stride + 2 * margin) + margin;
  for (int pass = 0; pass < kPasses; pass++) {
    const Planes& image = canvas.image();
    for (int t = 0; t < count; t++) taps[t] = row + t - reach;
    for (int c = 0; c < image.channels; c++)
      for (int y = 0; y < image.height; y++) {
        uint8_t* pixels = image.row(c, y);
        std::memcpy(row, pixels, image.width);
        std::memset(row - reach, pixels[0], reach);
        std::memset(row + image.width, pixels[image.width - 1], reach);
        kernels().box_row(taps, count, image.stride, box.weight, box.edge_weight, pixels);
      }
  }
  for (int pass = 0; pass < kPasses; pass++) {
    const Planes& image = canvas.image();
    const auto write = [&](int c, int y, uint8_t* out) {
      for (int t = 0; t < count; t++)
        taps[t] = image.row(c, std::clamp(y + t - reach, 0, image.height - 1));
      kernels().box_row(taps, count, image.stride, box.weight, box.edge_weight, out);
    };
    if (Status s = canvas.make(image.width, image.height, write); !s.ok()) return s;
  }
  return {};
}

}  // namespace fastdata
