#include <algorithm>
#include <cstring>

#include "jpeg/idct.h"

namespace fastdata {
namespace {

int saturate16(int value) { return std::clamp(value, -32768, 32767); }
uint8_t to_sample(int value) { return static_cast<uint8_t>(std::clamp(value + 128, 0, 255)); }

/// The sum of two words, as a word. Note [Overflow]
uint32_t add_words(uint32_t a, uint32_t b) { return static_cast<uint32_t>(wrap16(a + b)); }

/// Eight values, `step` apart, in place. Unsigned, because hostile coefficients make the
/// sums wrap, here as in the vector code.
template <int kShift>
FASTDATA_INLINE void idct_1d(uint32_t* v, int step) {
  // Even part: the rotation by sqrt(2) * c6.
  const uint32_t y2 = v[2 * step], y6 = v[6 * step];
  const uint32_t z1 = (y2 + y6) * kF0_541196100;
  const uint32_t e2 = z1 - y6 * kF1_847759065;
  const uint32_t e3 = z1 + y2 * kF0_765366865;
  const uint32_t e0 = add_words(v[0], v[4 * step]) << kIdctBits;
  const uint32_t e1 = add_words(v[0], -v[4 * step]) << kIdctBits;
  const uint32_t t10 = e0 + e3, t13 = e0 - e3, t11 = e1 + e2, t12 = e1 - e2;

  // Odd part, per figure 8 of the paper: i0..i3 = y7, y5, y3, y1.
  const uint32_t i0 = v[7 * step], i1 = v[5 * step], i2 = v[3 * step], i3 = v[step];
  const uint32_t s1 = (i0 + i3) * kF0_899976223;
  const uint32_t s2 = (i1 + i2) * kF2_562915447;
  const uint32_t z3 = add_words(i0, i2), z4 = add_words(i1, i3);
  const uint32_t s5 = (z3 + z4) * kF1_175875602;
  const uint32_t s3 = s5 - z3 * kF1_961570560;
  const uint32_t s4 = s5 - z4 * kF0_390180644;
  const uint32_t o0 = i0 * kF0_298631336 - s1 + s3;
  const uint32_t o1 = i1 * kF2_053119869 - s2 + s4;
  const uint32_t o2 = i2 * kF3_072711026 - s2 + s3;
  const uint32_t o3 = i3 * kF1_501321110 - s1 + s4;

  const auto descale = [](uint32_t sum) {
    const int value = static_cast<int32_t>(sum + (1u << (kShift - 1))) >> kShift;
    return static_cast<uint32_t>(saturate16(value));
  };
  v[0] = descale(t10 + o3);
  v[7 * step] = descale(t10 - o3);
  v[step] = descale(t11 + o2);
  v[6 * step] = descale(t11 - o2);
  v[2 * step] = descale(t12 + o1);
  v[5 * step] = descale(t12 - o1);
  v[3 * step] = descale(t13 + o0);
  v[4 * step] = descale(t13 - o0);
}

}  // namespace

void idct_block_scalar(const int16_t* coefficients, const uint16_t quantisation[64], uint8_t* out,
                       size_t stride) {
  uint32_t work[64];
  for (int i = 0; i < 64; i++)
    work[i] =
        static_cast<uint32_t>(wrap16(static_cast<uint32_t>(coefficients[i] * quantisation[i])));
  if (std::all_of(coefficients + 8, coefficients + 64, [](int16_t c) { return c == 0; })) {
    for (int i = 64; i-- > 0;) work[i] = static_cast<uint32_t>(wrap16(work[i % 8] << 2));
  } else {
    for (int x = 0; x < 8; x++) idct_1d<kColumnShift>(work + x, 8);
  }
  for (int y = 0; y < 8; y++) idct_1d<kRowShift>(work + 8 * y, 1);
  for (int y = 0; y < 8; y++)
    for (int x = 0; x < 8; x++)
      out[y * stride + x] = to_sample(static_cast<int32_t>(work[8 * y + x]));
}

void idct_row_scalar(const BlockRow& row, const uint16_t quantisation[64], uint8_t* out,
                     size_t stride) {
  for (int x = 0; x < row.blocks; x++, out += 8) {
    const int index = row.index(x);
    int16_t* block = row.coefficients + static_cast<size_t>(index) * 64;
    if (row.last[index] == 0) {
      const uint8_t value = idct_dc_only(block[0], quantisation[0]);
      for (int y = 0; y < 8; y++) std::memset(out + y * stride, value, 8);
      block[0] = 0;
    } else {
      idct_block_scalar(block, quantisation, out, stride);
      std::memset(block, 0, 64 * sizeof *block);
    }
  }
}

}  // namespace fastdata
