// Augmentations as torchvision does them to tensors of bytes: in single precision, truncated.
// Plain loops for the compiler's vectoriser, included by one file for each instruction set
// (target.h). `second`: torchvision.transforms.v2 adds its products fused, and has reciprocals
// where v1 divides.
#pragma once

namespace fastdata {
namespace {

template <bool kFused>
FASTDATA_INLINE float product_sum(float a, float b, float c) {
  return kFused ? __builtin_fmaf(a, b, c) : a * b + c;
}

FASTDATA_INLINE uint8_t truncated_byte(float value) {
  value = value > 0.f ? value : 0.f;
  value = value < 255.f ? value : 255.f;
  return static_cast<uint8_t>(static_cast<int>(value));
}

template <bool kSecond>
FASTDATA_INLINE int tensor_grey_of(int r, int g, int b) {
  const float red = static_cast<float>(r) * 0.2989f;
  const float both = product_sum<kSecond>(static_cast<float>(g), 0.587f, red);
  return static_cast<int>(product_sum<kSecond>(static_cast<float>(b), 0.114f, both));
}

template <bool kSecond>
FASTDATA_INLINE void tensor_grey_as(const uint8_t* __restrict r, const uint8_t* __restrict g,
                                    const uint8_t* __restrict b, size_t n,
                                    uint8_t* __restrict out) {
  for (size_t i = 0; i < n; i++)
    out[i] = static_cast<uint8_t>(tensor_grey_of<kSecond>(r[i], g[i], b[i]));
}

void tensor_grey(bool second, const uint8_t* r, const uint8_t* g, const uint8_t* b, size_t n,
                 uint8_t* out) {
  if (second)
    tensor_grey_as<true>(r, g, b, n, out);
  else
    tensor_grey_as<false>(r, g, b, n, out);
}

template <bool kSecond>
FASTDATA_INLINE void tensor_saturate_as(uint8_t* __restrict r, uint8_t* __restrict g,
                                        uint8_t* __restrict b, size_t n, float factor, float rest) {
  for (size_t i = 0; i < n; i++) {
    const float grey = static_cast<float>(tensor_grey_of<kSecond>(r[i], g[i], b[i]));
    // v1 multiplies by `rest` first, v2 adds that product fused.
    const float part = grey * rest;
    const auto blended = [=](int value) {
      const float product = static_cast<float>(value) * factor;
      return truncated_byte(kSecond ? __builtin_fmaf(grey, rest, product) : product + part);
    };
    r[i] = blended(r[i]);
    g[i] = blended(g[i]);
    b[i] = blended(b[i]);
  }
}

void tensor_saturate(bool second, uint8_t* r, uint8_t* g, uint8_t* b, size_t n, float factor,
                     float rest) {
  if (second)
    tensor_saturate_as<true>(r, g, b, n, factor, rest);
  else
    tensor_saturate_as<false>(r, g, b, n, factor, rest);
}

/// Sharpens all but the row's ends; the blurred value is that of Pillow's filter (mix_scalar.h).
template <bool kSecond>
FASTDATA_INLINE void tensor_sharpen_as(const uint8_t* __restrict above,
                                       const uint8_t* __restrict row,
                                       const uint8_t* __restrict below, int n, float factor,
                                       float rest, uint8_t* __restrict out) {
  for (int x = 1; x < n - 1; x++) {
    const int around = above[x - 1] + above[x] + above[x + 1] + row[x - 1] + row[x + 1] +
                       below[x - 1] + below[x] + below[x + 1];
    const int smooth = static_cast<uint16_t>((around + 5 * row[x] + 6) * 5042 >> 16);
    const float centre = static_cast<float>(row[x]), blurred = static_cast<float>(smooth);
    out[x] = truncated_byte(kSecond ? __builtin_fmaf(blurred - centre, rest, centre)
                                    : factor * centre + rest * blurred);
  }
}

void tensor_sharpen(bool second, const uint8_t* above, const uint8_t* row, const uint8_t* below,
                    int n, float factor, float rest, uint8_t* out) {
  if (second)
    tensor_sharpen_as<true>(above, row, below, n, factor, rest, out);
  else
    tensor_sharpen_as<false>(above, row, below, n, factor, rest, out);
}

FASTDATA_INLINE float whole_part(float x) {  // the floor, of what fits an int
  const float t = static_cast<float>(static_cast<int>(x));
  return t > x ? t - 1.f : t;
}

FASTDATA_INLINE float within_one(float x) {
  x = x > 0.f ? x : 0.f;
  return x < 1.f ? x : 1.f;
}

/// torchvision's _rgb2hsv and _hsv2rgb.
template <bool kSecond>
FASTDATA_INLINE void tensor_turn_hue_as(uint8_t* __restrict r_row, uint8_t* __restrict g_row,
                                        uint8_t* __restrict b_row, size_t n, float turn) {
  const auto unit = [](int value) {
    const float x = static_cast<float>(value);
    return kSecond ? x * (1.f / 255.f) : x / 255.f;
  };
  for (size_t i = 0; i < n; i++) {
    const float r = unit(r_row[i]), g = unit(g_row[i]), b = unit(b_row[i]);
    const float low_rg = r < g ? r : g, high_rg = r < g ? g : r;
    const float low = low_rg < b ? low_rg : b, high = high_rg > b ? high_rg : b;
    const bool grey = high == low;
    const float range = high - low, divisor = grey ? 1.f : range;
    const float saturation = range / (grey ? 1.f : high);
    const float rc = (high - r) / divisor, gc = (high - g) / divisor, bc = (high - b) / divisor;
    const float from_g = (2.f + rc) - bc, from_b = (4.f + gc) - rc;
    const float sextant = high == r ? bc - gc : high == g ? from_g : from_b;
    float h = (kSecond ? sextant * (1.f / 6.f) : sextant / 6.f) + 1.f;
    h = h - whole_part(h);
    h = h + turn;
    h = h - whole_part(h);
    const float h6 = h * 6.f, floor = whole_part(h6), f = h6 - floor;
    const float sf = saturation * f, dull = 1.f - saturation;
    const float p = within_one(high * dull), q = within_one(high * (1.f - sf));
    const float t = within_one(high * (kSecond ? sf + dull : 1.f - saturation * (1.f - f)));
    const int which = static_cast<int>(floor);  // 6 is 0 again
    const float red = which == 1 ? q : which == 4 ? t : ((which == 2) | (which == 3)) ? p : high;
    const float green = ((which == 1) | (which == 2)) ? high : which == 3 ? q : which >= 4 ? p : t;
    const float blue = which < 2 ? p : which == 2 ? t : which == 5 ? q : high;
    const bool turned_round = which == 6;
    constexpr float kBytes = 255.999f;
    r_row[i] = static_cast<uint8_t>(static_cast<int>(red * kBytes));
    g_row[i] = static_cast<uint8_t>(static_cast<int>((turned_round ? t : green) * kBytes));
    b_row[i] = static_cast<uint8_t>(static_cast<int>((turned_round ? p : blue) * kBytes));
  }
}

void tensor_turn_hue(bool second, uint8_t* r, uint8_t* g, uint8_t* b, size_t n, float turn) {
  if (second)
    tensor_turn_hue_as<true>(r, g, b, n, turn);
  else
    tensor_turn_hue_as<false>(r, g, b, n, turn);
}

void add_weighted(const uint8_t* __restrict pixels, size_t n, float weight,
                  float* __restrict sums) {
  for (size_t i = 0; i < n; i++) sums[i] = sums[i] + weight * static_cast<float>(pixels[i]);
}

void to_floats(const uint8_t* __restrict pixels, size_t n, float* __restrict out) {
  for (size_t i = 0; i < n; i++) out[i] = static_cast<float>(pixels[i]);
}

void to_bytes(const float* __restrict sums, size_t n, uint8_t* __restrict out) {
  for (size_t i = 0; i < n; i++) out[i] = truncated_byte(sums[i]);
}

}  // namespace
}  // namespace fastdata
