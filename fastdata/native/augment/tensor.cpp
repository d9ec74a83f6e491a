// Operations as torchvision.transforms.v2 does them to tensors of bytes, which round otherwise than
// Pillow's.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "augment/operations.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

uint8_t truncated(float value) { return static_cast<uint8_t>(std::clamp(value, 0.f, 255.f)); }

/// The image's grey plane: its own, or one in the scratch.
const uint8_t* grey_of(Canvas& canvas) {
  const Planes& image = canvas.image();
  if (image.channels == 1) return image.data;
  uint8_t* out = canvas.scratch.reserve(image.plane_size());
  kernels().tensor_grey(image.plane(0), image.plane(1), image.plane(2), image.plane_size(), out);
  return out;
}

}  // namespace

Status tensor_grayscale(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorGrayscale>();
  int channels;
  if (!whole_number(by.channels, 1, 3, channels) || channels == 2)
    return {Code::bad_parameters, "grayscale has 1 or 3 channels"};
  const Planes& image = canvas.image();
  const uint8_t* grey = grey_of(canvas);
  Planes next;
  if (Status s = canvas.begin(image.width, image.height, channels, next); !s.ok()) return s;
  for (int c = 0; c < channels; c++) std::memcpy(next.plane(c), grey, next.plane_size());
  canvas.swap();
  return {};
}

Status tensor_contrast(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorContrast>();
  if (!is_factor(by.factor)) return kBadFactor;
  const Planes& image = canvas.image();
  const uint8_t* grey = grey_of(canvas);
  uint64_t sum = 0;
  for (int y = 0; y < image.height; y++) sum += kernels().sum(grey + y * image.stride, image.width);
  const auto pixels = static_cast<float>(static_cast<int64_t>(image.width) * image.height);
  const float mean = static_cast<float>(sum) / pixels;
  const auto factor = static_cast<float>(by.factor), rest = static_cast<float>(1.0 - by.factor);
  uint8_t table[256];
  for (int i = 0; i < 256; i++)
    table[i] = truncated(std::fma(mean, rest, factor * static_cast<float>(i)));
  kernels().look_up(image.data, image.size(), table);
  return {};
}

Status tensor_saturation(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorSaturation>();
  if (!is_factor(by.factor)) return kBadFactor;
  const Planes& image = canvas.image();
  if (image.channels == 3)
    kernels().tensor_saturate(image.plane(0), image.plane(1), image.plane(2), image.plane_size(),
                              static_cast<float>(by.factor), static_cast<float>(1.0 - by.factor));
  return {};
}

Status tensor_sharpness(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorSharpness>();
  if (!is_factor(by.factor)) return kBadFactor;
  const Planes& image = canvas.image();
  const int width = image.width, height = image.height;
  if (width < 3 || height < 3) return {};
  Planes next;
  if (Status s = canvas.begin(width, height, image.channels, next); !s.ok()) return s;
  for (int c = 0; c < image.channels; c++)
    for (int y = 0; y < height; y++) {
      const uint8_t* row = image.row(c, y);
      uint8_t* out = next.row(c, y);
      if (y == 0 || y == height - 1) {
        std::memcpy(out, row, width);
        continue;
      }
      kernels().tensor_sharpen(row - image.stride, row, row + image.stride, width,
                               static_cast<float>(1.0 - by.factor), out);
      out[0] = row[0];
      out[width - 1] = row[width - 1];
    }
  canvas.swap();
  return {};
}

Status tensor_hue(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorHue>();
  if (!(by.turns >= -0.5 && by.turns <= 0.5))
    return {Code::bad_parameters, "a hue factor outside -0.5 to 0.5"};
  const Planes& image = canvas.image();
  if (image.channels == 3)
    kernels().tensor_turn_hue(image.plane(0), image.plane(1), image.plane(2), image.plane_size(),
                              static_cast<float>(by.turns));
  return {};
}

Status tensor_autocontrast(const Call&, Canvas& canvas) {
  const Planes& image = canvas.image();
  for (int c = 0; c < image.channels; c++) {
    uint8_t low = 255, high = 0;
    for (int y = 0; y < image.height; y++)
      kernels().find_range(image.row(c, y), image.width, &low, &high);
    if (high <= low) continue;
    const auto range = static_cast<float>(high - low);
    // torch divides a number by a tensor by way of reciprocals.
    const float scale = range * static_cast<float>(1.0 / 255);
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = truncated(static_cast<float>(i - low) / scale);
    kernels().look_up(image.plane(c), image.plane_size(), table);
  }
  return {};
}

}  // namespace fastdata
