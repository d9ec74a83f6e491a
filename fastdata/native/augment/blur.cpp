#include "augment/blur.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "augment/operations.h"
#include "portable.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

struct BlurWeights {
  int radius;
  float weights[kMaxBlurKernel / 2 + 1];
};

/// torchvision's _get_gaussian_kernel1d; weights that a sum of floats loses are dropped.
BlurWeights blur_weights(int kernel, double sigma) {
  BlurWeights blur{};
  double sum = 0;
  const int half = kernel / 2;
  const auto density = [=](int t) {
    return portable_exp(std::max(-0.5 * (t / sigma) * (t / sigma), -700.0));
  };
  for (int t = -half; t <= half; t++) sum += density(t);
  for (int t = 0; t <= half; t++) {
    blur.weights[t] = static_cast<float>(density(t) / sum);
    if (blur.weights[t] < 0x1p-24f) break;
    blur.radius = t;
  }
  return blur;
}

/// Maps index i, from -n + 1 to 2n - 2, into a row of n that is mirrored at both ends.
int mirrored(int i, int n) { return i < 0 ? -i : i < n ? i : 2 * (n - 1) - i; }

}  // namespace

Status gaussian_blur(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::GaussianBlur>();
  const Planes& image = canvas.image();
  int kernel[2];
  const auto is_side = [](double size, int& side) {
    return whole_number(size, 1, kMaxBlurKernel, side) && side % 2 == 1;
  };
  if (!is_side(by.width, kernel[0]) || !is_side(by.height, kernel[1]))
    return {Code::bad_parameters, "a kernel's size must be odd, 1 to 255"};
  // Below the first, no weight but the middle one's is left.
  if (!(by.sigma_x > 0 && by.sigma_y > 0)) return {Code::bad_parameters, "sigma must be above 0"};
  if (kernel[0] / 2 >= image.width || kernel[1] / 2 >= image.height)
    return {Code::bad_parameters, "half the kernel is as large as the image"};
  const BlurWeights across = blur_weights(kernel[0], by.sigma_x);
  const BlurWeights down = blur_weights(kernel[1], by.sigma_y);
  if (across.radius == 0 && down.radius == 0) return {};
  Planes next;
  if (Status s = canvas.begin(image.width, image.height, image.channels, next); !s.ok()) return s;

  // The horizontal pass of the rows that the vertical one needs, and a row with its margins.
  const int reach = down.radius, count = 2 * reach + 1;
  const size_t margin = round_up(static_cast<size_t>(across.radius), 32);
  const size_t n = round_up(static_cast<size_t>(image.width), 32);
  float* rows = canvas.scratch.reserve<float>((count + 2) * n + 2 * margin);
  float *sums = rows + count * n, *row = sums + n + margin;
  const float *beside[kMaxBlurKernel], *above[kMaxBlurKernel];
  for (int t = 0; t <= 2 * across.radius; t++) beside[t] = row + t - across.radius;
  for (int c = 0; c < image.channels; c++)
    for (int y = 0, done = 0; y < image.height; y++) {
      for (; done < std::min(y + reach + 1, image.height); done++) {
        kernels().to_floats(image.row(c, done), n, row);
        for (int t = 1; t <= across.radius; t++) {
          row[-t] = row[t];
          row[image.width - 1 + t] = row[image.width - 1 - t];
        }
        kernels().blur_row(beside + across.radius, across.weights, across.radius, n, 0,
                           rows + done % count * n);
      }
      for (int t = 0; t < count; t++)
        above[t] = rows + mirrored(y + t - reach, image.height) % count * n;
      kernels().blur_row(above + reach, down.weights, reach, n, 0.5f, sums);
      kernels().to_bytes(sums, n, next.row(c, y));
    }
  canvas.swap();
  return {};
}

}  // namespace fastdata
