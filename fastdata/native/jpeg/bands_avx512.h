// Correcting the coefficients of a block in a refining scan (bands_core.h). Included by
// level_avx512.cpp, inside its region.
#pragma once

namespace fastdata {
namespace {

FASTDATA_INLINE uint64_t reverse_bits(uint64_t v) {
  v = (v >> 1 & 0x5555555555555555) | (v & 0x5555555555555555) << 1;
  v = (v >> 2 & 0x3333333333333333) | (v & 0x3333333333333333) << 2;
  v = (v >> 4 & 0x0F0F0F0F0F0F0F0F) | (v & 0x0F0F0F0F0F0F0F0F) << 4;
  return __builtin_bswap64(v);
}

/// The zig-zag index of each place in a block.
struct ZigzagBytes {
  alignas(64) uint8_t index[kBlockSize];
};
constexpr ZigzagBytes zigzag_bytes() {
  ZigzagBytes order{};
  for (int k = 0; k < kBlockSize; k++) order.index[kNaturalOrder[k]] = static_cast<uint8_t>(k);
  return order;
}
constexpr ZigzagBytes kZigzagBytes = zigzag_bytes();

/// Moves the coefficients in `mask`, bits in zig-zag order, away from zero by 2^low.
FASTDATA_INLINE void correct_block(int16_t* coefficients, uint64_t mask, int low) {
  const __m512i natural =
      _mm512_permutexvar_epi8(_mm512_load_si512(kZigzagBytes.index), _mm512_movm_epi8(mask));
  const uint64_t places = _mm512_movepi8_mask(natural);
  const __m512i step = _mm512_set1_epi16(static_cast<int16_t>(1 << low));
  for (int half = 0; half < 2; half++) {
    int16_t* at = coefficients + 32 * half;
    const __m512i values = _mm512_loadu_si512(at);
    const auto these = static_cast<__mmask32>(places >> (32 * half));
    const __mmask32 negative = _mm512_movepi16_mask(values);
    __m512i corrected = _mm512_mask_add_epi16(values, these & ~negative, values, step);
    corrected = _mm512_mask_sub_epi16(corrected, these & negative, values, step);
    _mm512_storeu_si512(at, corrected);
  }
}

}  // namespace
}  // namespace fastdata
