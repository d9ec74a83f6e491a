// Gaussian blur in two passes. Each sums pairs of pixels that lie as far from the middle as each
// other, times a weight of 16 bits, in words of 16 bits: bytes with kBlurBits more.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastdata {

constexpr int kBlurBits = 7;
// Up to here, what the products' truncation adds up to stays below a level (blur_bias).
constexpr int kMaxBlurKernel = 255;

/// What a pass adds for the truncation of its `radius` + 1 products: half a unit for each.
constexpr int blur_bias(int radius) { return (radius + 1) / 2; }

/// One row, times 2^kBlurBits, of the vertical pass. rows[-radius] to rows[radius] are read, n
/// bytes of each; weights[t] is that of rows[-t] and of rows[t], times 2^16: they sum to 2^15.
using BlurColumns = void (*)(const uint8_t* const* rows, const uint16_t* weights, int radius,
                             size_t n, uint16_t* out);

/// The horizontal pass of such a row, of which row[-radius] to row[n + radius - 1] are read. n is a
/// multiple of 64.
using BlurRow = void (*)(const uint16_t* row, const uint16_t* weights, int radius, size_t n,
                         uint8_t* out);

}  // namespace fastdata
