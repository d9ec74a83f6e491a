// Augmentations of single pixels: plain loops for the compiler's vectoriser, included by one file
// for each instruction set (target.h). Floating point is rounded after each operation, so that all
// levels give the same bytes.
#pragma once

namespace fastdata {
namespace {

void invert_and_mask(uint8_t* pixels, size_t n, int threshold, uint8_t mask) {
  const uint8_t first = static_cast<uint8_t>(threshold), flip = threshold > 255 ? 0 : 255;
  for (size_t i = 0; i < n; i++)
    pixels[i] = static_cast<uint8_t>((pixels[i] ^ (pixels[i] >= first ? flip : 0)) & mask);
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
    // The part of `high` that each channel lacks, in parts of the saturation: trapezia along the
    // hue.
    const float t = static_cast<float>(6 * turned);
    const float saturation = static_cast<float>(static_cast<int>(s)), v = static_cast<float>(high);
    r_row[i] = hue_channel(v, saturation, 510.f - magnitude(t - 765.f));
    g_row[i] = hue_channel(v, saturation, magnitude(t - 510.f) - 255.f);
    b_row[i] = hue_channel(v, saturation, magnitude(t - 1020.f) - 255.f);
  }
}

void reverse(const uint8_t* __restrict row, int n, uint8_t* __restrict out) {
  for (int x = 0; x < n; x++) out[x] = row[n - 1 - x];
}

}  // namespace
}  // namespace fastdata
