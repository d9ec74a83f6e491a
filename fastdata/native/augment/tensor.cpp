// Operations as torchvision does them to tensors of bytes, which round otherwise than Pillow's; and
// mixtures of images, as its AugMix makes them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "augment/operations.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

constexpr Status kBadVersion{Code::bad_parameters, "a version of torchvision's other than 1 or 2"};

/// Whether v2's arithmetic is asked for; false if neither is.
bool read_version(double value, bool& second) {
  int version;
  if (!whole_number(value, 1, 2, version)) return false;
  second = version == 2;
  return true;
}

constexpr Status kBadPart{Code::bad_parameters, "a factor outside 0 to 1"};
bool is_part(double value) { return value >= 0 && value <= 1; }

uint8_t truncated(float value) { return static_cast<uint8_t>(std::clamp(value, 0.f, 255.f)); }

/// torchvision's _blend of single values: factor * value + (1 - factor) * other.
struct Blend {
  bool second;
  float factor, rest;

  uint8_t operator()(int value, float other) const {
    const float product = factor * static_cast<float>(value);
    return truncated(second ? std::fma(other, rest, product) : product + rest * other);
  }
};

Status read_blend(double factor, double version, Blend& blend) {
  if (!is_factor(factor)) return kBadFactor;
  if (!read_version(version, blend.second)) return kBadVersion;
  blend.factor = static_cast<float>(factor);
  blend.rest = static_cast<float>(1.0 - factor);
  return {};
}

constexpr Status kNotMixed{Code::bad_parameters,
                           "an image of another size than it is mixed with, or with none"};

/// Pillow's Image.blend of two images, with a factor of 0 to 1. `out` may be either.
void blend_images(const uint8_t* from, const uint8_t* to, size_t n, float factor, uint8_t* out) {
  for (size_t i = 0; i < n; i++)
    out[i] = static_cast<uint8_t>(static_cast<int>(static_cast<float>(from[i]) +
                                                   factor * static_cast<float>(to[i] - from[i])));
}

/// The image's grey plane: its own, or one in the scratch.
const uint8_t* grey_of(Canvas& canvas, bool second) {
  const Planes& image = canvas.image();
  if (image.channels == 1) return image.data;
  uint8_t* out = canvas.scratch.reserve(image.plane_size());
  kernels().tensor_grey(second, image.plane(0), image.plane(1), image.plane(2), image.plane_size(),
                        out);
  return out;
}

}  // namespace

Status tensor_grayscale(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorGrayscale>();
  bool second;
  int channels;
  if (!whole_number(by.channels, 1, 3, channels) || channels == 2)
    return {Code::bad_parameters, "grayscale has 1 or 3 channels"};
  if (!read_version(by.version, second)) return kBadVersion;
  const Planes& image = canvas.image();
  const uint8_t* grey = grey_of(canvas, second);
  Planes next;
  if (Status s = canvas.begin(image.width, image.height, channels, next); !s.ok()) return s;
  for (int c = 0; c < channels; c++) std::memcpy(next.plane(c), grey, next.plane_size());
  canvas.swap();
  return {};
}

Status tensor_contrast(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorContrast>();
  Blend blend;
  if (Status s = read_blend(by.factor, by.version, blend); !s.ok()) return s;
  const Planes& image = canvas.image();
  const uint8_t* grey = grey_of(canvas, blend.second);
  uint64_t sum = 0;
  for (int y = 0; y < image.height; y++) sum += kernels().sum(grey + y * image.stride, image.width);
  const auto pixels = static_cast<float>(static_cast<int64_t>(image.width) * image.height);
  const float mean = static_cast<float>(sum) / pixels;
  uint8_t table[256];
  for (int i = 0; i < 256; i++) table[i] = blend(i, mean);
  kernels().look_up(image.data, image.size(), table);
  return {};
}

Status tensor_saturation(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorSaturation>();
  Blend blend;
  if (Status s = read_blend(by.factor, by.version, blend); !s.ok()) return s;
  const Planes& image = canvas.image();
  if (image.channels == 3)
    kernels().tensor_saturate(blend.second, image.plane(0), image.plane(1), image.plane(2),
                              image.plane_size(), blend.factor, blend.rest);
  return {};
}

Status tensor_sharpness(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorSharpness>();
  Blend blend;
  if (Status s = read_blend(by.factor, by.version, blend); !s.ok()) return s;
  const Planes& image = canvas.image();
  const int width = image.width, height = image.height;
  if (width < 3 || height < 3) return {};
  // v1 blends what has no neighbours with itself, which may lose a level.
  const auto alone = [&](uint8_t value) { return blend.second ? value : blend(value, value); };
  return canvas.make(width, height, [&](int c, int y, uint8_t* out) {
    const uint8_t* row = image.row(c, y);
    if (y == 0 || y == height - 1) {
      std::transform(row, row + width, out, alone);
      return;
    }
    kernels().tensor_sharpen(blend.second, row - image.stride, row, row + image.stride, width,
                             blend.factor, blend.rest, out);
    out[0] = alone(row[0]);
    out[width - 1] = alone(row[width - 1]);
  });
}

Status tensor_hue(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorHue>();
  bool second;
  if (!(by.turns >= -0.5 && by.turns <= 0.5))
    return {Code::bad_parameters, "a hue factor outside -0.5 to 0.5"};
  if (!read_version(by.version, second)) return kBadVersion;
  const Planes& image = canvas.image();
  if (image.channels == 3)
    kernels().tensor_turn_hue(second, image.plane(0), image.plane(1), image.plane(2),
                              image.plane_size(), static_cast<float>(by.turns));
  return {};
}

Status tensor_autocontrast(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorAutocontrast>();
  bool second;
  if (!read_version(by.version, second)) return kBadVersion;
  const Planes& image = canvas.image();
  for (int c = 0; c < image.channels; c++) {
    uint8_t low = 255, high = 0;
    for (int y = 0; y < image.height; y++)
      kernels().find_range(image.row(c, y), image.width, &low, &high);
    if (high <= low) continue;
    const auto range = static_cast<float>(high - low);
    // torch divides a number by a tensor by way of reciprocals.
    const float scale = second ? range * static_cast<float>(1.0 / 255) : 1.f / range * 255.f;
    uint8_t table[256];
    for (int i = 0; i < 256; i++) {
      const auto above = static_cast<float>(i - low);
      table[i] = truncated(second ? above / scale : above * scale);
    }
    kernels().look_up(image.plane(c), image.plane_size(), table);
  }
  return {};
}

Status mix_begin(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::MixBegin>();
  if (!(std::abs(by.weight) <= 1)) return {Code::bad_parameters, "a weight outside -1 to 1"};
  canvas.mix.begin(canvas.image(), static_cast<float>(by.weight));
  return {};
}

Status mix_add(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::MixAdd>();
  if (!(std::abs(by.weight) <= 1)) return {Code::bad_parameters, "a weight outside -1 to 1"};
  const Planes& image = canvas.image();
  if (!canvas.mix.fits(image)) return kNotMixed;
  kernels().add_weighted(image.data, image.size(), static_cast<float>(by.weight),
                         canvas.mix.sums.get<float>());
  std::memcpy(image.data, canvas.mix.original.get(), image.size());
  return {};
}

Status mix_blend(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::MixBlend>();
  if (!is_part(by.factor)) return kBadPart;
  const Planes& image = canvas.image();
  if (!canvas.mix.fits(image)) return kNotMixed;
  const size_t size = image.size();
  float* sums = canvas.mix.sums.get<float>();
  uint8_t* sum = canvas.scratch.reserve(size);
  kernels().to_bytes(sums, size, sum);
  blend_images(sum, image.data, size, static_cast<float>(by.factor), sum);
  std::copy_n(sum, size, sums);
  std::memcpy(image.data, canvas.mix.original.get(), size);
  return {};
}

Status mix_end(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::MixEnd>();
  if (!is_part(by.factor)) return kBadPart;
  const Planes& image = canvas.image();
  if (!canvas.mix.fits(image)) return kNotMixed;
  const size_t size = image.size();
  kernels().to_bytes(canvas.mix.sums.get<float>(), size, image.data);
  if (by.factor < 1)
    blend_images(canvas.mix.original.get(), image.data, size, static_cast<float>(by.factor),
                 image.data);
  canvas.mix.clear();
  return {};
}

}  // namespace fastdata
