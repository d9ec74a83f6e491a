// The inverse DCT on kLanes128 blocks at a time, one block in each 128-bit lane.
// Included after simd_avx2.h or simd_avx512.h. idct_scalar.cpp is the readable form;
// here each rotation is a multiply-add of pairs, with the sums of constants that
// libjpeg-turbo's jidctint-*.asm explains.
#pragma once

namespace fastdata {
namespace {

/// A pair of 16-bit constants for madd.
FASTDATA_INLINE I pair(int a, int b) {
  return set32(static_cast<int>(static_cast<uint16_t>(a) |
                                static_cast<uint32_t>(static_cast<uint16_t>(b)) << 16));
}

/// Half of idct_columns: the sum and difference of inputs 0 and 4, then inputs in pairs, then the
/// sums of inputs 7 and 3, 5 and 1, as words; the eight outputs as 32-bit integers.
template <int kShift, bool kCorner>
FASTDATA_INLINE void idct_pairs(I e04, I e26, I o17, I o35, I z34, I* out) {
  const I round = set32(1 << (kShift - 1));
  const I e0 = madd_add(round, e04, pair(1 << kIdctBits, 0));
  const I e1 = kCorner ? e0 : madd_add(round, e04, pair(0, 1 << kIdctBits));
  const I e2 = madd(e26, pair(kF0_541196100, kF0_541196100 - kF1_847759065));
  const I e3 = madd(e26, pair(kF0_541196100 + kF0_765366865, kF0_541196100));
  const I t10 = add32(e0, e3), t13 = sub32(e0, e3), t11 = add32(e1, e2), t12 = sub32(e1, e2);
  // The rotation's common factor is multiplied out (z5 = (z3 + z4) * 1.1758...).
  const I z3 = madd(z34, pair(kF1_175875602 - kF1_961570560, kF1_175875602));
  const I z4 = madd(z34, pair(kF1_175875602, kF1_175875602 - kF0_390180644));
  const I o0 = madd_add(z3, o17, pair(-kF0_899976223, kF0_298631336 - kF0_899976223));
  const I o1 = madd_add(z4, o35, pair(-kF2_562915447, kF2_053119869 - kF2_562915447));
  const I o2 = madd_add(z3, o35, pair(kF3_072711026 - kF2_562915447, -kF2_562915447));
  const I o3 = madd_add(z4, o17, pair(kF1_501321110 - kF0_899976223, -kF0_899976223));
  out[0] = sra32<kShift>(add32(t10, o3));
  out[7] = sra32<kShift>(sub32(t10, o3));
  out[1] = sra32<kShift>(add32(t11, o2));
  out[6] = sra32<kShift>(sub32(t11, o2));
  out[2] = sra32<kShift>(add32(t12, o1));
  out[5] = sra32<kShift>(sub32(t12, o1));
  out[3] = sra32<kShift>(add32(t13, o0));
  out[4] = sra32<kShift>(sub32(t13, o0));
}

/// Eight-point transforms down the columns of v[0..7]; kCorner: v[4..7] are zero.
template <int kShift, bool kCorner>
FASTDATA_INLINE void idct_columns(I* v) {
  const I v5 = kCorner ? zero() : v[5], v6 = kCorner ? zero() : v[6];
  const I v7 = kCorner ? zero() : v[7];
  // Words that wrap: Note [Overflow].
  const I sum = kCorner ? v[0] : add16(v[0], v[4]), difference = kCorner ? v[0] : sub16(v[0], v[4]);
  const I z3 = kCorner ? v[3] : add16(v7, v[3]), z4 = kCorner ? v[1] : add16(v5, v[1]);
  I low[8], high[8];
  idct_pairs<kShift, kCorner>(lo16(sum, difference), lo16(v[2], v6), lo16(v[1], v7), lo16(v[3], v5),
                              lo16(z3, z4), low);
  idct_pairs<kShift, kCorner>(hi16(sum, difference), hi16(v[2], v6), hi16(v[1], v7), hi16(v[3], v5),
                              hi16(z3, z4), high);
  for (int i = 0; i < 8; i++) v[i] = packs32(low[i], high[i]);
}

/// Transposes each lane's 8x8 words; kCorner: only v[0..3] of the result are needed.
template <bool kCorner>
FASTDATA_INLINE void transpose(I* v) {
  const I a0 = lo16(v[0], v[1]), a1 = hi16(v[0], v[1]), a2 = lo16(v[2], v[3]);
  const I a3 = hi16(v[2], v[3]), a4 = lo16(v[4], v[5]), a5 = hi16(v[4], v[5]);
  const I a6 = lo16(v[6], v[7]), a7 = hi16(v[6], v[7]);
  const I b0 = lo32(a0, a2), b1 = hi32(a0, a2), b2 = lo32(a4, a6), b3 = hi32(a4, a6);
  v[0] = lo64(b0, b2);
  v[1] = hi64(b0, b2);
  v[2] = lo64(b1, b3);
  v[3] = hi64(b1, b3);
  if (kCorner) return;
  const I b4 = lo32(a1, a3), b5 = hi32(a1, a3), b6 = lo32(a5, a7), b7 = hi32(a5, a7);
  v[4] = lo64(b4, b6);
  v[5] = hi64(b4, b6);
  v[6] = lo64(b5, b7);
  v[7] = hi64(b5, b7);
}

/// The scalar path for lanes that `idct_lanes` leaves: `size` rows and columns of each. Columns
/// right of a corner belong to no block. Note [Overflow]
FASTDATA_NOINLINE void idct_one_by_one(const I* v, int size, const uint16_t* quantisation,
                                       uint8_t* out, size_t stride) {
  for (int i = 0; i < kLanes128; i++) {
    int16_t block[64] = {};
    for (int r = 0; r < size; r++) {
      int16_t row[kLanes128 * 8];
      store(row, v[r]);
      std::memcpy(block + 8 * r, row + 8 * i, size * sizeof *row);
    }
    idct_block_scalar(block, quantisation, out + 8 * i, stride);
  }
}

/// Rows of coefficients, one block in each 128-bit lane, to rows of samples; kCorner: only
/// v[0..3] are given, the others are zero.
template <bool kCorner>
FASTDATA_INLINE void idct_lanes(I* v, const uint16_t* quantisation, uint8_t* out, size_t stride) {
  constexpr int kRows = kCorner ? 4 : 8;
  const I row0 = mullo16(v[0], broadcast128(quantisation));
  if (FASTDATA_UNLIKELY(any_outside<kMaxUnshifted>(row0)))
    return idct_one_by_one(v, kRows, quantisation, out, stride);
  v[0] = row0;
  for (int r = 1; r < kRows; r++) v[r] = mullo16(v[r], broadcast128(quantisation + 8 * r));
  for (int r = kRows; r < 8; r++) v[r] = zero();
  idct_columns<kColumnShift, kCorner>(v);
  transpose<kCorner>(v);
  idct_columns<kRowShift, kCorner>(v);

  // v[c] is column c. Narrow to bytes, then transpose these.
  const I p0 = packs16(v[0], v[2]), p1 = packs16(v[1], v[3]);
  const I p2 = packs16(v[4], v[6]), p3 = packs16(v[5], v[7]);
  const I a0 = lo8(p0, p1), a1 = hi8(p0, p1), a2 = lo8(p2, p3), a3 = hi8(p2, p3);
  const I b0 = lo16(a0, a1), b1 = hi16(a0, a1), b2 = lo16(a2, a3), b3 = hi16(a2, a3);
  const I level = set8(128);
  store_halves(out, out + stride, add8(lo32(b0, b2), level));
  store_halves(out + 2 * stride, out + 3 * stride, add8(hi32(b0, b2), level));
  store_halves(out + 4 * stride, out + 5 * stride, add8(lo32(b1, b3), level));
  store_halves(out + 6 * stride, out + 7 * stride, add8(hi32(b1, b3), level));
}

/// kLanes128 blocks side by side. Clears their coefficients.
template <bool kCorner>
FASTDATA_NOINLINE void idct_blocks(int16_t* const* blocks, const uint16_t* quantisation,
                                   uint8_t* out, size_t stride) {
  constexpr int kRows = kCorner ? 4 : 8;
  I v[8];
  for (int r = 0; r < kRows; r++) v[r] = load_lanes(blocks, 8 * r);
  for (int i = 0; i < kLanes128; i++)
    for (int bytes = 0; bytes < kRows * 16; bytes += kVectorBytes)
      store(reinterpret_cast<uint8_t*>(blocks[i]) + bytes, zero());
  idct_lanes<kCorner>(v, quantisation, out, stride);
}

FASTDATA_INLINE void idct_dc_blocks(int16_t* const* blocks, uint16_t quantum, uint8_t* out,
                                    size_t stride) {
  uint64_t samples[kLanes128];
  for (int i = 0; i < kLanes128; i++) {
    samples[i] = 0x0101010101010101u * idct_dc_only(blocks[i][0], quantum);
    blocks[i][0] = 0;
  }
  for (int r = 0; r < 8; r++) std::memcpy(out + r * stride, samples, sizeof samples);
}

void idct_row(const BlockRow& row, const uint16_t quantisation[64], uint8_t* out, size_t stride) {
  alignas(64) int16_t nothing[64] = {};  // for places beyond the row's end
  for (int x = 0; x < row.blocks; x += kLanes128, out += 8 * kLanes128) {
    int16_t* blocks[kLanes128];
    int last = 0;
    for (int i = 0; i < kLanes128; i++) {
      blocks[i] = nothing;
      if (x + i >= row.blocks) continue;
      const int index = row.index(x + i);
      blocks[i] = row.coefficients + static_cast<size_t>(index) * 64;
      last = last > row.last[index] ? last : row.last[index];
    }
    if (last == 0)
      idct_dc_blocks(blocks, quantisation[0], out, stride);
    else if (last <= kLastInCorner)
      idct_blocks<true>(blocks, quantisation, out, stride);
    else
      idct_blocks<false>(blocks, quantisation, out, stride);
  }
}

}  // namespace
}  // namespace fastdata
