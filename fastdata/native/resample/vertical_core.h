// The vertical pass in vectors. Included after simd_avx2.h or simd_avx512.h.
#pragma once

namespace fastdata {
namespace {

/// Rows are taken in pairs: a byte of each, side by side as words, times a pair of
/// weights, with a sum for the weights' upper halves and one for the lower.
void vertical(const Axis& axis, int output, const uint8_t* rows, size_t stride, int n,
              uint8_t* out) {
  const I round = set32(1 << (kWideWeightBits - 1));
  const int taps = axis.taps[output];
  const WeightPair* pairs = axis.pairs_of(output);
  rows += static_cast<size_t>(axis.first[output] - axis.begin) * stride;
  for (int x = 0; x < n; x += kVectorBytes) {
    I high[4] = {zero(), zero(), zero(), zero()};
    I low[4] = {round, round, round, round};
    const uint8_t* row = rows + x;
    for (int t = 0; t < taps; t += 2, row += 2 * stride) {
      const I w_high = set32(pairs[t / 2].high), w_low = set32(pairs[t / 2].low);
      // Behind the last tap the weight is zero, but there may be no row.
      const I first = load(row), second = load(t + 1 < taps ? row + stride : row);
      const I a = lo8(first, second), b = hi8(first, second);
      const I words[4] = {lo8(a, zero()), hi8(a, zero()), lo8(b, zero()), hi8(b, zero())};
      for (int i = 0; i < 4; i++) {
        high[i] = madd_add(high[i], words[i], w_high);
        low[i] = madd_add(low[i], words[i], w_low);
      }
    }
    for (int i = 0; i < 4; i++)
      low[i] = sra32<kWideWeightBits>(add32(low[i], sll32<kWideWeightBits / 2>(high[i])));
    store(out + x, packus16(packs32(low[0], low[1]), packs32(low[2], low[3])));
  }
}

}  // namespace
}  // namespace fastdata
