// One pass of a Gaussian blur, in vectors of the compiler's, included by one file for each
// instruction set (target.h). As a plain loop it would keep its sums in memory: 1.8 ms where these
// take 0.25.
#pragma once

namespace fastdata {
namespace {

typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef float FloatsInRow __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

FASTDATA_INLINE Floats floats_at(const float* at) {
  return *reinterpret_cast<const FloatsInRow*>(at);
}

void blur_row(const float* const* taps, const float* weights, int radius, size_t n, float start,
              float* out) {
  constexpr size_t kLanes = kVectorBytes / sizeof(float), kVectors = 32 / kLanes;
  for (size_t x = 0; x < n; x += kVectors * kLanes) {
    Floats sums[kVectors];
    for (size_t i = 0; i < kVectors; i++)
      sums[i] = start + weights[0] * floats_at(taps[0] + x + i * kLanes);
    for (int t = 1; t <= radius; t++) {
      const float *left = taps[-t] + x, *right = taps[t] + x;
      for (size_t i = 0; i < kVectors; i++)
        sums[i] += weights[t] * (floats_at(left + i * kLanes) + floats_at(right + i * kLanes));
    }
    for (size_t i = 0; i < kVectors; i++)
      *reinterpret_cast<FloatsInRow*>(out + x + i * kLanes) = sums[i];
  }
}

/// One pass of a box blur, a plain loop. Pillow's arithmetic (BoxBlur.c): weights are parts of
/// 2^24, those of the outermost taps apart.
void box_row(const uint8_t* const* taps, int count, size_t n, uint32_t weight, uint32_t edge_weight,
             uint8_t* __restrict out) {
  constexpr size_t kBatch = 64;
  const uint8_t *first = taps[0], *last = taps[count - 1];
  for (size_t x = 0; x < n; x += kBatch) {
    uint16_t sums[kBatch] = {};
    for (int t = 1; t < count - 1; t++)
      for (size_t i = 0; i < kBatch; i++) sums[i] = static_cast<uint16_t>(sums[i] + taps[t][x + i]);
    for (size_t i = 0; i < kBatch; i++) {
      const uint32_t edges = static_cast<uint32_t>(first[x + i]) + last[x + i];
      out[x + i] =
          static_cast<uint8_t>((sums[i] * weight + edges * edge_weight + (1u << 23)) >> 24);
    }
  }
}

}  // namespace
}  // namespace fastdata
