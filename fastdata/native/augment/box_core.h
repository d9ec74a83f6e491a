// One pass of a box blur: a plain loop for the compiler's vectoriser, included by one file for each
// instruction set (target.h).
#pragma once

namespace fastdata {
namespace {

/// Pillow's arithmetic (BoxBlur.c): weights are parts of 2^24, those of the outermost taps apart.
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
