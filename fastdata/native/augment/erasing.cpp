#include "augment/erasing.h"

#include <algorithm>

#include "draws.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

constexpr int kPeriod = Kernels::kPeriod;

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

void erase(const Erasure& erasure, const Output& output, Buffer& scratch) {
  const size_t item = size_of(output.type), area = size_t(erasure.width) * erasure.height;
  const bool planar = output.plane_stride != 0;
  const int planes = planar ? output.channels : 1, channels = planar ? 1 : 3;
  const int count = erasure.width * channels;  // values a row of each plane
  float values[kPeriod];
  const float* noise[3] = {};  // a plane each, so that it is the same in either layout
  double base[3];
  std::copy_n(erasure.values, 3, base);
  if (erasure.noise == Erasure::Noise::channels) {
    float one[64];  // normals() writes blocks of 64
    for (int channel = 0; channel < 3; channel++) {
      kernels().normals(one, 1, draw_bits(erasure.key, channel));
      base[channel] += erasure.deviations[channel] * one[0];
    }
  }
  if (erasure.noise == Erasure::Noise::pixels) {
    const size_t plane = round_up(area, 64);
    float* all = scratch.reserve<float>(3 * plane);
    for (int channel = 0; channel < 3; channel++) {
      kernels().normals(all + channel * plane, area, draw_bits(erasure.key, channel));
      noise[channel] = all + channel * plane;
    }
  }
  for (int plane = 0; plane < planes; plane++) {
    for (int y = 0; y < erasure.height; y++) {
      auto* row = static_cast<uint8_t*>(output.data) + plane * output.plane_stride +
                  (erasure.top + y) * output.row_stride + erasure.left * channels * item;
      for (int begin = 0; begin < count; begin += kPeriod) {
        const int n = std::min(kPeriod, count - begin);
        for (int i = 0; i < n; i++) {
          const int channel = planar ? plane : (begin + i) % 3, x = (begin + i) / channels;
          values[i] = static_cast<float>(base[channel]);
          if (erasure.noise == Erasure::Noise::pixels)
            values[i] += static_cast<float>(erasure.deviations[channel]) *
                         noise[channel][size_t(y) * erasure.width + x];
        }
        put(values, n, output.type, row + begin * item);
      }
    }
  }
}

}  // namespace fastdata
