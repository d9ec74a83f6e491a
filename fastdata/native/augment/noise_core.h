// Gaussian noise: a plain loop for the compiler's vectoriser, included by one file for each
// instruction set (target.h). Nothing of the C library, whose functions differ in the last bit
// from one version to the next.
#pragma once

namespace fastdata {
namespace {

/// Wellons' lowbias32 (hash prospector, 2018).
FASTDATA_INLINE uint32_t scrambled(uint32_t x) {
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

/// -2 ln((bits + 1) / 2^24) of the upper 24 bits: 2 atanh of what is left of a mantissa in
/// [1/sqrt 2, sqrt 2).
FASTDATA_INLINE float minus_two_logs(uint32_t bits) {
  const float u = static_cast<float>(static_cast<int>(bits >> 8) + 1);
  int word;
  std::memcpy(&word, &u, 4);
  constexpr int kSqrtHalf = 0x3F3504F3;  // as a float's bits
  const int exponent = (word - kSqrtHalf) >> 23;
  word -= exponent << 23;
  float mantissa;
  std::memcpy(&mantissa, &word, 4);
  const float s = (mantissa - 1.f) / (mantissa + 1.f), s2 = s * s;
  const float series =
      s * (2.f + s2 * (0.66666667f + s2 * (0.4f + s2 * (0.28571429f + s2 * 0.22222222f))));
  const float log = series + static_cast<float>(exponent - 24) * 0.69314718f;
  return -2.f * log > 0.f ? -2.f * log : 0.f;
}

/// Box and Muller: two values of N(0, 1) from two uniform ones.
FASTDATA_INLINE void normal_pair(uint32_t first, uint32_t second, float& a, float& b) {
  const float radius = std::sqrt(minus_two_logs(first));
  // A part of a turn, as quarters from -2 to 2, and what is left of the nearest.
  const float quarters = static_cast<float>(static_cast<int>(second) >> 8) * 0x1p-22f;
  const int nearest = static_cast<int>(quarters + 2.5f) - 2;
  const float r = quarters - static_cast<float>(nearest), r2 = r * r;
  const float sine =
      r * (1.57079633f +
           r2 * (-0.645964098f + r2 * (0.0796926262f + r2 * (-0.00468175414f + r2 * 0.00016044f))));
  const float cosine =
      1.f + r2 * (-1.23370055f + r2 * (0.253669508f + r2 * (-0.0208634807f + r2 * 0.00091926f)));
  const bool odd = nearest & 1;
  const float x = odd ? -sine : cosine, y = odd ? cosine : sine;
  const float sign = nearest & 2 ? -1.f : 1.f;
  a = radius * (x * sign);
  b = radius * (y * sign);
}

constexpr int kNormalBlock = 64;

/// Values `begin` and on of N(0, 1).
FASTDATA_INLINE void normal_block(size_t begin, uint64_t key, float* __restrict out) {
  const uint32_t from = static_cast<uint32_t>(begin) + static_cast<uint32_t>(key);
  const uint32_t high = static_cast<uint32_t>(key >> 32);
  constexpr uint32_t kPairs = kNormalBlock / 2;
  for (uint32_t i = 0; i < kPairs; i++) {
    const uint32_t first = scrambled(from + i);
    normal_pair(first, scrambled(first + high), out[i], out[kPairs + i]);
  }
}

/// Values of N(0, 1), n of them; writes up to 63 more.
void normals(float* out, size_t n, uint64_t key) {
  for (size_t begin = 0; begin < n; begin += kNormalBlock) normal_block(begin, key, out + begin);
}

void add_noise(uint8_t* pixels, size_t n, uint64_t key, float mean, float sigma, bool clip) {
  const int least = clip ? 0 : -32768, most = clip ? 255 : 32767;
  alignas(64) float values[kNormalBlock];
  for (size_t begin = 0; begin < n; begin += kNormalBlock) {
    normal_block(begin, key, values);
    uint8_t* __restrict out = pixels + begin;
    for (int i = 0; i < kNormalBlock; i++) {
      // Truncated, as torchvision does.
      const int value = out[i] + static_cast<int>(mean + values[i] * sigma);
      out[i] = static_cast<uint8_t>(value < least ? least : value > most ? most : value);
    }
  }
}

}  // namespace
}  // namespace fastdata
