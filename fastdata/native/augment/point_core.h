// Augmentations of single pixels and of their nearest neighbours: plain loops for the compiler's
// vectoriser, included by one file for each instruction set (target.h). Floating point is rounded
// after each operation, so that all levels give the same bytes.
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

uint64_t sum(const uint8_t* row, int n) {
  constexpr int kBatch = 1 << 16;  // whose sum fits 32 bits
  uint64_t total = 0;
  for (int x = 0; x < n; x += kBatch) {
    const int end = n - x < kBatch ? n : x + kBatch;
    uint32_t part = 0;
    for (int i = x; i < end; i++) part += row[i];
    total += part;
  }
  return total;
}

void find_range(const uint8_t* row, int n, uint8_t* low, uint8_t* high) {
  uint8_t least = *low, most = *high;
  for (int i = 0; i < n; i++) {
    least = row[i] < least ? row[i] : least;
    most = row[i] > most ? row[i] : most;
  }
  *low = least;
  *high = most;
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

/// A channel of Pillow's hsv2rgb: round(v * (1 - s / 255 * part / 255)). The product is below 2^24,
/// so exact; that the rest rounds as Pillow's does was tried for all values.
FASTDATA_INLINE uint8_t hue_channel(float v, float s, float part) {
  part = part > 0.f ? part : 0.f;
  part = part < 255.f ? part : 255.f;
  const float value = v * (65025.f - s * part) * (1.f / 65025.f) + 0.5f;
  return static_cast<uint8_t>(static_cast<int>(value));
}

FASTDATA_INLINE float magnitude(float x) { return x < 0.f ? -x : x; }

/// Pillow's rgb2hsv, the hue turned by `shift` of 256, and hsv2rgb (Convert.c). Hue is h = +-1, 3
/// or 5, plus or minus the middle channel's distance from the greatest: the same floats as
/// Pillow's, which takes the difference of two such distances, one of them 1, in double precision.
void turn_hue(uint8_t* __restrict r_row, uint8_t* __restrict g_row, uint8_t* __restrict b_row,
              size_t n, int shift) {
  for (size_t i = 0; i < n; i++) {
    const int r = r_row[i], g = g_row[i], b = b_row[i];
    const int low_rg = r < g ? r : g, high_rg = r < g ? g : r;
    const int low = low_rg < b ? low_rg : b, high = high_rg > b ? high_rg : b;
    const int middle = r + g + b - low - high;
    const int range = high > low ? high - low : 1;
    const float distance = static_cast<float>(high - middle) / static_cast<float>(range);
    // The sextant: which channel is the greatest, which the least.
    const int base_r = b == low ? 1 : -1, sign_r = b == low ? -1 : 1;
    const int base_g = b == low ? 1 : 3, sign_g = b == low ? 1 : -1;
    const int base_b = g == low ? 5 : 3, sign_b = g == low ? -1 : 1;
    const int base_gb = g == high ? base_g : base_b, base = r == high ? base_r : base_gb;
    const int sign_gb = g == high ? sign_g : sign_b, sign = r == high ? sign_r : sign_gb;
    float h = (static_cast<float>(base) + static_cast<float>(sign) * distance) / 6.f;
    h = h < 0.f ? h + 1.f : h;
    const float s =
        static_cast<float>(high - low) / static_cast<float>(high > 0 ? high : 1) * 255.f;
    const int turned = (static_cast<int>(h * 255.f) + shift) & 255;
    // What each channel lacks of `high`, in parts of the saturation: trapezia along the hue.
    const float t = static_cast<float>(6 * turned);
    const float saturation = static_cast<float>(static_cast<int>(s)), v = static_cast<float>(high);
    r_row[i] = hue_channel(v, saturation, 510.f - magnitude(t - 765.f));
    g_row[i] = hue_channel(v, saturation, magnitude(t - 510.f) - 255.f);
    b_row[i] = hue_channel(v, saturation, magnitude(t - 1020.f) - 255.f);
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

void reverse(const uint8_t* __restrict row, int n, uint8_t* __restrict out) {
  for (int x = 0; x < n; x++) out[x] = row[n - 1 - x];
}

}  // namespace
}  // namespace fastdata
