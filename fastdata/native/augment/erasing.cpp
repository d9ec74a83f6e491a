#include "augment/erasing.h"

#include <algorithm>
#include <cmath>

#include "draws.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

constexpr int kPeriod = Kernels::kPeriod;

/// Normally distributed number `index` of a key: Box and Muller's, two from two draws.
float normal(uint64_t key, uint64_t index) {
  const uint64_t pair = index & ~uint64_t{1};
  const double radius = std::sqrt(-2 * std::log(1 - draw_uniform(key, pair)));
  const double angle = 6.283185307179586477 * draw_uniform(key, pair + 1);
  return static_cast<float>(radius * (index & 1 ? std::sin(angle) : std::cos(angle)));
}

/// Converts up to kPeriod values, by the kernels that normalise: zeros, scaled, and an offset.
void put(const float* values, int n, DataType type, void* out) {
  static constexpr uint8_t kZeros[kPeriod] = {};
  static constexpr float kNone[kPeriod] = {};
  const Kernels& k = kernels();
  switch (type) {
    case DataType::uint8:
      for (int i = 0; i < n; i++)
        static_cast<uint8_t*>(out)[i] = static_cast<uint8_t>(std::clamp(values[i], 0.0f, 255.0f));
      break;
    case DataType::float32: k.to_float32(kZeros, n, kNone, values, static_cast<float*>(out)); break;
    case DataType::float16:
      k.to_float16(kZeros, n, kNone, values, static_cast<uint16_t*>(out));
      break;
    case DataType::bfloat16:
      k.to_bfloat16(kZeros, n, kNone, values, static_cast<uint16_t*>(out));
      break;
  }
}

}  // namespace

void erase(const Erasure& erasure, const Output& output) {
  const size_t item = size_of(output.type);
  const bool planar = output.plane_stride != 0;
  const int planes = planar ? 3 : 1, channels = planar ? 1 : 3;
  const int count = erasure.width * channels;  // values a row of each plane
  float values[kPeriod];
  for (int plane = 0; plane < planes; plane++) {
    for (int y = 0; y < erasure.height; y++) {
      auto* row = static_cast<uint8_t*>(output.data) + plane * output.plane_stride +
                  (erasure.top + y) * output.row_stride + erasure.left * channels * item;
      for (int begin = 0; begin < count; begin += kPeriod) {
        const int n = std::min(kPeriod, count - begin);
        for (int i = 0; i < n; i++) {
          const int channel = planar ? plane : (begin + i) % 3, x = (begin + i) / channels;
          values[i] = static_cast<float>(erasure.values[channel]);
          if (erasure.noise) {
            // The same noise in either layout.
            const uint64_t index =
                (static_cast<uint64_t>(channel) * erasure.height + y) * erasure.width + x;
            values[i] +=
                static_cast<float>(erasure.deviations[channel]) * normal(erasure.key, index);
          }
        }
        put(values, n, output.type, row + begin * item);
      }
    }
  }
}

}  // namespace fastdata
