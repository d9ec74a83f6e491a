// Weighted sums of a pixel's channels and of its neighbours, as the vector paths (mix_core.h) must
// have them.
#pragma once

namespace fastdata {
namespace {

/// Pillow's L of RGB (Convert.c, L24): ITU-R 601-2 with weights times 2^16.
FASTDATA_INLINE int grey_of(int r, int g, int b) {
  return (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16;
}

/// Pillow's blend (Blend.c): from `from` on, `factor` times the way to `to`, clamped, truncated.
FASTDATA_INLINE uint8_t blend(int from, int to, float factor) {
  float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  value = value > 0.f ? value : 0.f;
  value = value < 255.f ? value : 255.f;
  return static_cast<uint8_t>(static_cast<int>(value));
}

void grey(const uint8_t* __restrict r, const uint8_t* __restrict g, const uint8_t* __restrict b,
          size_t n, uint8_t* __restrict out) {
  for (size_t i = 0; i < n; i++) out[i] = static_cast<uint8_t>(grey_of(r[i], g[i], b[i]));
}

void saturate(uint8_t* __restrict r, uint8_t* __restrict g, uint8_t* __restrict b, size_t n,
              float factor) {
  for (size_t i = 0; i < n; i++) {
    const int grey = grey_of(r[i], g[i], b[i]);
    r[i] = blend(grey, r[i], factor);
    g[i] = blend(grey, g[i], factor);
    b[i] = blend(grey, b[i], factor);
  }
}

/// Pillow's ImageFilter.SMOOTH, a sum over 3 x 3 of which the centre counts five times, over 13,
/// rounded; and the blend from there. The sum is at most 3315: 5042 / 2^16 divides it exactly.
void sharpen(const uint8_t* __restrict above, const uint8_t* __restrict row,
             const uint8_t* __restrict below, int n, float factor, uint8_t* __restrict out) {
  out[0] = row[0];
  out[n - 1] = row[n - 1];
  for (int x = 1; x < n - 1; x++) {
    const int around = above[x - 1] + above[x] + above[x + 1] + row[x - 1] + row[x + 1] +
                       below[x - 1] + below[x] + below[x + 1];
    const int smooth = static_cast<uint16_t>((around + 5 * row[x] + 6) * 5042 >> 16);
    out[x] = blend(smooth, row[x], factor);
  }
}

}  // namespace
}  // namespace fastdata
