// Gaussian blur: plain loops for the compiler's vectoriser, included by one file for each
// instruction set (target.h).
#pragma once

namespace fastdata {
namespace {

constexpr int kBlurBatch = 64;

/// What kBlurBits more bits than a byte leave of the truncation of `radius` + 1 products, on
/// average.
FASTDATA_INLINE uint16_t blur_bias(int radius) { return static_cast<uint16_t>((radius + 1) / 2); }

FASTDATA_INLINE uint16_t upper_half(uint16_t a, uint16_t b) {
  return static_cast<uint16_t>(static_cast<uint32_t>(a) * b >> 16);
}

void blur_columns(const uint8_t* const* rows, const uint16_t* weights, int radius, size_t n,
                  uint16_t* __restrict out) {
  for (size_t x = 0; x < n; x += kBlurBatch) {
    uint16_t sums[kBlurBatch];
    for (int i = 0; i < kBlurBatch; i++) sums[i] = blur_bias(radius);
    for (int t = 0; t <= radius; t++) {
      const uint8_t* __restrict above = rows[-t] + x;
      const uint8_t* __restrict below = rows[t] + x;
      const uint16_t weight = weights[t];
      for (int i = 0; i < kBlurBatch; i++) {
        const uint16_t pair = static_cast<uint16_t>((above[i] + below[i]) << kBlurBits);
        sums[i] = static_cast<uint16_t>(sums[i] + upper_half(pair, weight));
      }
    }
    for (int i = 0; i < kBlurBatch; i++) out[x + i] = sums[i];
  }
}

void blur_row(const uint16_t* row, const uint16_t* weights, int radius, size_t n,
              uint8_t* __restrict out) {
  for (size_t x = 0; x < n; x += kBlurBatch) {
    uint16_t sums[kBlurBatch];
    for (int i = 0; i < kBlurBatch; i++) sums[i] = blur_bias(radius) + (1 << (kBlurBits - 1));
    for (int t = 0; t <= radius; t++) {
      const uint16_t* __restrict left = row + x - t;
      const uint16_t* __restrict right = row + x + t;
      const uint16_t weight = weights[t];
      for (int i = 0; i < kBlurBatch; i++) {
        const uint16_t pair = static_cast<uint16_t>(left[i] + right[i]);
        sums[i] = static_cast<uint16_t>(sums[i] + upper_half(pair, weight));
      }
    }
    for (int i = 0; i < kBlurBatch; i++) out[x + i] = static_cast<uint8_t>(sums[i] >> kBlurBits);
  }
}

}  // namespace
}  // namespace fastdata
