// The inverse DCT of blocks in zig-zag order, as entropy_vector.h leaves them: idct_core.h
// behind a permutation. Included by level_avx512.cpp, inside its region.
#pragma once

namespace fastdata {
namespace {

/// Where the coefficients of rows 0-3, then those of rows 4-7, are in zig-zag order.
struct ZigzagOrder {
  alignas(64) uint16_t index[kBlockSize];
};

constexpr ZigzagOrder zigzag_order() {
  ZigzagOrder order{};
  for (uint16_t k = 0; k < kBlockSize; k++) order.index[kNaturalOrder[k]] = k;
  return order;
}
constexpr ZigzagOrder kZigzag = zigzag_order();

/// The 128-bit lanes of four vectors, transposed.
FASTDATA_INLINE void transpose_lanes(const I* in, I* out) {
  constexpr int kLower = 0x44, kUpper = 0xEE, kEven = 0x88, kOdd = 0xDD;
  const I a = _mm512_shuffle_i32x4(in[0], in[1], kLower);
  const I b = _mm512_shuffle_i32x4(in[2], in[3], kLower);
  const I c = _mm512_shuffle_i32x4(in[0], in[1], kUpper);
  const I d = _mm512_shuffle_i32x4(in[2], in[3], kUpper);
  out[0] = _mm512_shuffle_i32x4(a, b, kEven);
  out[1] = _mm512_shuffle_i32x4(a, b, kOdd);
  out[2] = _mm512_shuffle_i32x4(c, d, kEven);
  out[3] = _mm512_shuffle_i32x4(c, d, kOdd);
}

/// Four blocks side by side. Clears their coefficients.
FASTDATA_INLINE void idct_blocks_zigzag(int16_t* const* blocks, const uint16_t* quantisation,
                                        uint8_t* out, size_t stride) {
  I first[4], second[4];
  for (int i = 0; i < 4; i++) {
    first[i] = load(blocks[i]);
    second[i] = load(blocks[i] + 32);
  }
  const I any_first =
      _mm512_or_si512(_mm512_or_si512(first[0], first[1]), _mm512_or_si512(first[2], first[3]));
  const I any_second =
      _mm512_or_si512(_mm512_or_si512(second[0], second[1]), _mm512_or_si512(second[2], second[3]));
  const uint32_t set = _mm512_test_epi16_mask(any_first, any_first);
  const bool more = _mm512_test_epi16_mask(any_second, any_second) != 0;
  if (!more && set <= 1) {
    idct_dc_blocks(blocks, quantisation[0], out, stride);
    return;
  }
  I rows[8], v[8];
  for (int i = 0; i < 4; i++) store(blocks[i], zero());
  if (!more && set >> (kLastInCorner + 1) == 0) {
    // Indices from 32 on wrap, in columns that a corner does not have.
    for (int i = 0; i < 4; i++) rows[i] = _mm512_permutexvar_epi16(load(kZigzag.index), first[i]);
    transpose_lanes(rows, v);
    idct_lanes<true>(v, quantisation, out, stride);
    return;
  }
  for (int i = 0; i < 4; i++) {
    store(blocks[i] + 32, zero());
    rows[i] = _mm512_permutex2var_epi16(first[i], load(kZigzag.index), second[i]);
    rows[4 + i] = _mm512_permutex2var_epi16(first[i], load(kZigzag.index + 32), second[i]);
  }
  transpose_lanes(rows, v);
  transpose_lanes(rows + 4, v + 4);
  idct_lanes<false>(v, quantisation, out, stride);
}

void idct_row_zigzag(const BlockRow& row, const uint16_t quantisation[64], uint8_t* out,
                     size_t stride) {
  const auto block = [&](int x) {
    return row.coefficients + static_cast<size_t>(row.index(x)) * kBlockSize;
  };
  int x = 0;
  for (; x + 4 <= row.blocks; x += 4, out += 32) {
    int16_t* const blocks[4] = {block(x), block(x + 1), block(x + 2), block(x + 3)};
    idct_blocks_zigzag(blocks, quantisation, out, stride);
  }
  if (x == row.blocks) return;
  // The block right of the last one may have been decoded before.
  alignas(64) int16_t nothing[kBlockSize] = {};
  uint8_t samples[8 * 32];
  int16_t* blocks[4];
  const int left = row.blocks - x;
  for (int i = 0; i < 4; i++) blocks[i] = i < left ? block(x + i) : nothing;
  idct_blocks_zigzag(blocks, quantisation, samples, 32);
  for (int y = 0; y < 8; y++) std::memcpy(out + y * stride, samples + 32 * y, 8 * left);
}

}  // namespace
}  // namespace fastdata
