#include "augment/blur.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "augment/geometric.h"
#include "augment/point.h"
#include "portable.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

struct BlurWeights {
  int radius;
  uint16_t weights[kMaxBlurKernel / 2 + 1];
};

/// torchvision's _get_gaussian_kernel1d, in integers; weights that come to nothing are dropped.
BlurWeights blur_weights(int kernel, double sigma) {
  BlurWeights blur{};
  double sum = 0;
  const int half = kernel / 2;
  const auto density = [=](int t) {
    return portable_exp(std::max(-0.5 * (t / sigma) * (t / sigma), -700.0));
  };
  for (int t = -half; t <= half; t++) sum += density(t);
  int left = 1 << 15;
  for (int t = 1; t <= half; t++) {
    const auto weight = static_cast<uint16_t>(std::lround(density(t) / sum * (1 << 16)));
    if (weight == 0) break;
    blur.weights[t] = weight;
    blur.radius = t;
    left -= weight;
  }
  blur.weights[0] = static_cast<uint16_t>(left);
  return blur;
}

/// The index that stands at i, from -n + 1 to 2n - 2, if those outside mirror those inside.
int mirrored(int i, int n) { return i < 0 ? -i : i < n ? i : 2 * (n - 1) - i; }

}  // namespace

Status gaussian_blur(const Call& call, Canvas& canvas) {
  const Planes& image = canvas.image();
  int kernel[2];
  for (int i = 0; i < 2; i++) {
    if (!whole_number(call.values[i], 1, kMaxBlurKernel, kernel[i]) || kernel[i] % 2 == 0)
      return {Code::bad_parameters, "a kernel's size must be odd, 1 to 255"};
    // Below the first, no weight but the middle one's is left.
    if (!(call.values[2 + i] > 0)) return {Code::bad_parameters, "sigma must be above 0"};
  }
  if (kernel[0] / 2 >= image.width || kernel[1] / 2 >= image.height)
    return {Code::bad_parameters, "half the kernel is as large as the image"};
  const BlurWeights across = blur_weights(kernel[0], call.values[2]);
  const BlurWeights down = blur_weights(kernel[1], call.values[3]);
  Planes next;
  if (Status s = canvas.begin(image.width, image.height, image.channels, next); !s.ok()) return s;

  const size_t margin = round_up(static_cast<size_t>(across.radius), 32);
  uint16_t* row = canvas.scratch.reserve<uint16_t>(image.stride + 2 * margin) + margin;
  const uint8_t* rows[kMaxBlurKernel];
  for (int c = 0; c < image.channels; c++)
    for (int y = 0; y < image.height; y++) {
      for (int t = -down.radius; t <= down.radius; t++)
        rows[down.radius + t] = image.row(c, mirrored(y + t, image.height));
      kernels().blur_columns(rows + down.radius, down.weights, down.radius, image.stride, row);
      for (int t = 1; t <= across.radius; t++) {
        row[-t] = row[t];
        row[image.width - 1 + t] = row[image.width - 1 - t];
      }
      kernels().blur_row(row, across.weights, across.radius, image.stride, next.row(c, y));
    }
  canvas.swap();
  return {};
}

}  // namespace fastdata
