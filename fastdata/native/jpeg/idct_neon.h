// The inverse DCT with NEON, one block at a time. idct_scalar.cpp is the readable form,
// idct_core.h has the same sums of products; NEON multiplies words by one word and adds
// 32-bit products without interleaving the inputs first, which is what differs.
#pragma once

namespace fastdata {
namespace {

// Hostile coefficients make products and sums wrap. GCC's intrinsics for signed vectors are
// plain operators, whose overflow is undefined; those for unsigned ones wrap.
FASTDATA_INLINE int16x8_t mullo16(int16x8_t a, uint16x8_t b) {
  return vreinterpretq_s16_u16(vmulq_u16(vreinterpretq_u16_s16(a), b));
}
FASTDATA_INLINE int16x4_t add16(int16x4_t a, int16x4_t b) {
  return vreinterpret_s16_u16(vadd_u16(vreinterpret_u16_s16(a), vreinterpret_u16_s16(b)));
}
FASTDATA_INLINE int16x4_t sub16(int16x4_t a, int16x4_t b) {
  return vreinterpret_s16_u16(vsub_u16(vreinterpret_u16_s16(a), vreinterpret_u16_s16(b)));
}
FASTDATA_INLINE int32x4_t add32(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_u32(vaddq_u32(vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b)));
}
FASTDATA_INLINE int32x4_t sub32(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_u32(vsubq_u32(vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b)));
}

/// Eight-point transforms of four columns: v[i] holds their i-th inputs, out[i] takes
/// their i-th outputs, with the rounding's half added but unshifted, wrapped as on
/// the other paths. kCorner: v[4..7] are zero.
template <int kShift, bool kCorner>
FASTDATA_INLINE void idct_four(const int16x4_t* v, int32x4_t* out) {
  const int32x4_t round = vdupq_n_s32(1 << (kShift - 1));
  // Words that wrap: Note [Overflow] in idct.h.
  int16x4_t sum = v[0], difference = v[0], z3 = v[3], z4 = v[1];
  if constexpr (!kCorner) {
    sum = add16(v[0], v[4]);
    difference = sub16(v[0], v[4]);
    z3 = add16(v[7], v[3]);
    z4 = add16(v[5], v[1]);
  }
  const int32x4_t e0 = add32(round, vshll_n_s16(sum, kIdctBits));
  const int32x4_t e1 = kCorner ? e0 : add32(round, vshll_n_s16(difference, kIdctBits));
  int32x4_t e2 = vmull_n_s16(v[2], kF0_541196100);
  int32x4_t e3 = vmull_n_s16(v[2], kF0_541196100 + kF0_765366865);
  // The parts of z3 and z4 in the odd outputs, then those of each input.
  int32x4_t o02 = vmull_n_s16(z3, kF1_175875602 - kF1_961570560);
  int32x4_t o13 = vmull_n_s16(z3, kF1_175875602);
  o02 = vmlal_n_s16(o02, z4, kF1_175875602);
  o13 = vmlal_n_s16(o13, z4, kF1_175875602 - kF0_390180644);
  int32x4_t o0 = vmlal_n_s16(o02, v[1], -kF0_899976223);
  int32x4_t o1 = vmlal_n_s16(o13, v[3], -kF2_562915447);
  int32x4_t o2 = vmlal_n_s16(o02, v[3], kF3_072711026 - kF2_562915447);
  int32x4_t o3 = vmlal_n_s16(o13, v[1], kF1_501321110 - kF0_899976223);
  if constexpr (!kCorner) {
    e2 = vmlal_n_s16(e2, v[6], kF0_541196100 - kF1_847759065);
    e3 = vmlal_n_s16(e3, v[6], kF0_541196100);
    o0 = vmlal_n_s16(o0, v[7], kF0_298631336 - kF0_899976223);
    o1 = vmlal_n_s16(o1, v[5], kF2_053119869 - kF2_562915447);
    o2 = vmlal_n_s16(o2, v[5], -kF2_562915447);
    o3 = vmlal_n_s16(o3, v[7], -kF0_899976223);
  }
  const int32x4_t t10 = add32(e0, e3), t13 = sub32(e0, e3);
  const int32x4_t t11 = add32(e1, e2), t12 = sub32(e1, e2);
  out[0] = add32(t10, o3);
  out[7] = sub32(t10, o3);
  out[1] = add32(t11, o2);
  out[6] = sub32(t11, o2);
  out[2] = add32(t12, o1);
  out[5] = sub32(t12, o1);
  out[3] = add32(t13, o0);
  out[4] = sub32(t13, o0);
}

// Transposition's steps: neighbouring elements of two vectors, the even ones and the odd.
FASTDATA_INLINE void swap16(int16x8_t& a, int16x8_t& b) {
  const int16x8_t even = vtrn1q_s16(a, b);
  b = vtrn2q_s16(a, b);
  a = even;
}
FASTDATA_INLINE void swap32(int16x8_t& a, int16x8_t& b) {
  const int32x4_t x = vreinterpretq_s32_s16(a), y = vreinterpretq_s32_s16(b);
  a = vreinterpretq_s16_s32(vtrn1q_s32(x, y));
  b = vreinterpretq_s16_s32(vtrn2q_s32(x, y));
}
FASTDATA_INLINE void swap64(int16x8_t& a, int16x8_t& b) {
  const int64x2_t x = vreinterpretq_s64_s16(a), y = vreinterpretq_s64_s16(b);
  a = vreinterpretq_s16_s64(vtrn1q_s64(x, y));
  b = vreinterpretq_s16_s64(vtrn2q_s64(x, y));
}

/// Each of v[0..3] as a row of two 4x4 matrices, both transposed in place.
FASTDATA_INLINE void transpose_quarters(int16x8_t* v) {
  swap16(v[0], v[1]);
  swap16(v[2], v[3]);
  swap32(v[0], v[2]);
  swap32(v[1], v[3]);
}

/// Columns of the dequantised coefficients, shifted and saturated to words, transposed:
/// v[c] is column c, over the eight rows. Only v[0..3] if kCorner, as the others are zero.
template <bool kCorner>
FASTDATA_INLINE void idct_columns(int16x8_t* v) {
  constexpr int kRows = kCorner ? 4 : 8;
  int16x4_t half[8];
  int32x4_t low[8], high[8];
  for (int r = 0; r < kRows; r++) half[r] = vget_low_s16(v[r]);
  idct_four<kColumnShift, kCorner>(half, low);
  if constexpr (kCorner) {
    // Rows r and r + 4 side by side: what the transposition would put there.
    for (int r = 0; r < 4; r++)
      v[r] = vqshrn_high_n_s32(vqshrn_n_s32(low[r], kColumnShift), low[r + 4], kColumnShift);
    transpose_quarters(v);
  } else {
    for (int r = 0; r < 8; r++) half[r] = vget_high_s16(v[r]);
    idct_four<kColumnShift, false>(half, high);
    for (int r = 0; r < 8; r++)
      v[r] = vqshrn_high_n_s32(vqshrn_n_s32(low[r], kColumnShift), high[r], kColumnShift);
    transpose_quarters(v);
    transpose_quarters(v + 4);
    for (int c = 0; c < 4; c++) swap64(v[c], v[c + 4]);
  }
}

/// The rows' transforms: out[x] takes column x of the samples, less 128, over the rows.
template <bool kCorner>
FASTDATA_INLINE void idct_rows(const int16x8_t* v, int8x8_t* out) {
  constexpr int kInputs = kCorner ? 4 : 8;
  static_assert(kRowShift > 16);
  int16x4_t half[8];
  int32x4_t low[8], high[8];
  for (int c = 0; c < kInputs; c++) half[c] = vget_low_s16(v[c]);
  idct_four<kRowShift, kCorner>(half, low);
  for (int c = 0; c < kInputs; c++) half[c] = vget_high_s16(v[c]);
  idct_four<kRowShift, kCorner>(half, high);
  for (int x = 0; x < 8; x++) {
    // The upper words of both, which are the sums shifted by 16.
    const int16x8_t words =
        vuzp2q_s16(vreinterpretq_s16_s32(low[x]), vreinterpretq_s16_s32(high[x]));
    out[x] = vqshrn_n_s16(words, kRowShift - 16);
  }
}

FASTDATA_INLINE void store_two_rows(uint8_t* out, size_t stride, int32x4_t rows) {
  const uint8x16_t samples = veorq_u8(vreinterpretq_u8_s32(rows), vdupq_n_u8(128));
  vst1_u8(out, vget_low_u8(samples));
  vst1_u8(out + stride, vget_high_u8(samples));
}

/// One block. Clears its coefficients.
template <bool kCorner>
FASTDATA_INLINE void idct_block(int16_t* block, const uint16_t* quantisation, uint8_t* out,
                                size_t stride) {
  constexpr int kRows = kCorner ? 4 : 8;
  int16x8_t v[8];
  const int16x8_t row0 = mullo16(vld1q_s16(block), vld1q_u16(quantisation));
  const uint16x8_t shifted = vaddq_u16(vreinterpretq_u16_s16(row0), vdupq_n_u16(kMaxUnshifted));
  if (FASTDATA_UNLIKELY(vmaxvq_u16(shifted) >= 2 * kMaxUnshifted)) {  // Note [Overflow]
    idct_block_scalar(block, quantisation, out, stride);
    std::memset(block, 0, 64 * sizeof *block);
    return;
  }
  for (int r = 0; r < kRows; r++) {
    v[r] = mullo16(vld1q_s16(block + 8 * r), vld1q_u16(quantisation + 8 * r));
    vst1q_s16(block + 8 * r, vdupq_n_s16(0));
  }
  idct_columns<kCorner>(v);
  int8x8_t column[8];
  idct_rows<kCorner>(v, column);

  // Transpose the bytes: pairs of columns, then fours, then eights.
  int16x8_t pair[4];  // [i]: columns 2i and 2i + 1
  for (int i = 0; i < 4; i++) {
    const int8x8x2_t zipped = vzip_s8(column[2 * i], column[2 * i + 1]);
    pair[i] = vreinterpretq_s16_s8(vcombine_s8(zipped.val[0], zipped.val[1]));
  }
  const int32x4_t left0 = vreinterpretq_s32_s16(vzip1q_s16(pair[0], pair[1]));
  const int32x4_t left4 = vreinterpretq_s32_s16(vzip2q_s16(pair[0], pair[1]));
  const int32x4_t right0 = vreinterpretq_s32_s16(vzip1q_s16(pair[2], pair[3]));
  const int32x4_t right4 = vreinterpretq_s32_s16(vzip2q_s16(pair[2], pair[3]));
  store_two_rows(out, stride, vzip1q_s32(left0, right0));
  store_two_rows(out + 2 * stride, stride, vzip2q_s32(left0, right0));
  store_two_rows(out + 4 * stride, stride, vzip1q_s32(left4, right4));
  store_two_rows(out + 6 * stride, stride, vzip2q_s32(left4, right4));
}

void idct_row(const BlockRow& row, const uint16_t quantisation[64], uint8_t* out, size_t stride) {
  for (int x = 0; x < row.blocks; x++, out += 8) {
    const int index = row.index(x);
    int16_t* block = row.coefficients + static_cast<size_t>(index) * 64;
    const int last = row.last[index];
    if (last == 0) {
      const uint8x8_t samples = vdup_n_u8(idct_dc_only(block[0], quantisation[0]));
      for (int r = 0; r < 8; r++) vst1_u8(out + r * stride, samples);
      block[0] = 0;
    } else if (last <= kLastInCorner) {
      idct_block<true>(block, quantisation, out, stride);
    } else {
      idct_block<false>(block, quantisation, out, stride);
    }
  }
}

}  // namespace
}  // namespace fastdata
