// Reduced-size inverse DCTs: libjpeg's jidctred.c, 4x4, 2x2 and 1x1 samples a block.
#include <algorithm>
#include <cstring>

#include "jpeg/idct.h"
#include "jpeg/jpeg_header.h"

namespace fastdata {
namespace {

// More constants of jidctred.c, times 2^13.
constexpr int kF0_211164243 = 1730;
constexpr int kF0_509795579 = 4176;
constexpr int kF0_601344887 = 4926;
constexpr int kF0_720959822 = 5906;
constexpr int kF0_850430095 = 6967;
constexpr int kF1_061594337 = 8697;
constexpr int kF1_272758580 = 10426;
constexpr int kF1_451774981 = 11893;
constexpr int kF2_172734803 = 17799;
constexpr int kF3_624509785 = 29692;

uint8_t to_sample(int value) { return static_cast<uint8_t>(std::clamp(value + 128, 0, 255)); }
uint32_t saturate16(int value) { return static_cast<uint32_t>(std::clamp(value, -32768, 32767)); }

int descale(uint32_t sum, int shift) {
  return static_cast<int32_t>(sum + (1u << (shift - 1))) >> shift;
}

/// Four values from the coefficients 0, 1, 2, 3, 5, 6, 7 of `v`, `step` apart.
void idct4_1d(const uint32_t* v, int step, int shift, int* out) {
  const uint32_t even = v[0] << (kIdctBits + 1);
  const uint32_t rotated = v[2 * step] * kF1_847759065 - v[6 * step] * kF0_765366865;
  const uint32_t t10 = even + rotated, t12 = even - rotated;
  const uint32_t z1 = v[7 * step], z2 = v[5 * step], z3 = v[3 * step], z4 = v[step];
  const uint32_t o0 =
      z4 * kF1_061594337 - z3 * kF2_172734803 + z2 * kF1_451774981 - z1 * kF0_211164243;
  const uint32_t o2 =
      z4 * kF2_562915447 + z3 * kF0_899976223 - z2 * kF0_601344887 - z1 * kF0_509795579;
  out[0] = descale(t10 + o2, shift);
  out[3] = descale(t10 - o2, shift);
  out[1] = descale(t12 + o0, shift);
  out[2] = descale(t12 - o0, shift);
}

/// Two values from the coefficients 0, 1, 3, 5, 7.
void idct2_1d(const uint32_t* v, int step, int shift, int* out) {
  const uint32_t even = v[0] << (kIdctBits + 2);
  const uint32_t odd = v[step] * kF3_624509785 - v[3 * step] * kF1_272758580 +
                       v[5 * step] * kF0_850430095 - v[7 * step] * kF0_720959822;
  out[0] = descale(even + odd, shift);
  out[1] = descale(even - odd, shift);
}

// On overflow (Note [Overflow] in idct.h) libjpeg-turbo's jidctred-sse2.asm is the oracle, too.

void idct_4x4(const int16_t* coefficients, const uint32_t* dequantised, uint8_t* out,
              size_t stride) {
  uint32_t work[4 * 8];
  // It does not read row 4.
  const auto zero = [&](int begin, int end) {
    return std::all_of(coefficients + begin, coefficients + end, [](int16_t c) { return c == 0; });
  };
  const bool row0_alone = zero(8, 32) && zero(40, 64);
  for (int x = 0; x < 8; x++) {
    int column[4];
    idct4_1d(dequantised + x, 8, kIdctBits - 2 + 1, column);
    for (int y = 0; y < 4; y++)
      work[8 * y + x] =
          row0_alone ? static_cast<uint32_t>(wrap16(dequantised[x] << 2)) : saturate16(column[y]);
  }
  for (int y = 0; y < 4; y++) {
    int row[4];
    idct4_1d(work + 8 * y, 1, kIdctBits + 2 + 3 + 1, row);
    for (int x = 0; x < 4; x++) out[y * stride + x] = to_sample(row[x]);
  }
}

void idct_2x2(const uint32_t* dequantised, uint8_t* out, size_t stride) {
  uint32_t work[2 * 8];
  for (int x = 0; x < 8; x++) {
    int column[2];
    idct2_1d(dequantised + x, 8, kIdctBits, column);
    // It leaves column 0 as it is.
    for (int y = 0; y < 2; y++)
      work[8 * y + x] = x == 0 ? static_cast<uint32_t>(column[y]) : saturate16(column[y]);
  }
  for (int y = 0; y < 2; y++) {
    int row[2];
    idct2_1d(work + 8 * y, 1, kIdctBits + 2 + 3 + 2, row);
    for (int x = 0; x < 2; x++) out[y * stride + x] = to_sample(row[x]);
  }
}

/// jidctred.c itself, which wraps in its table of limits, of 10 bits.
uint8_t idct_1x1(int dc) {
  const uint32_t level = static_cast<uint32_t>(descale(static_cast<uint32_t>(dc), 3));
  return to_sample(static_cast<int32_t>(level << 22) >> 22);
}

}  // namespace

void idct_row_scaled(const BlockRow& row, const uint16_t quantisation[64], int size, uint8_t* out,
                     size_t stride) {
  for (int x = 0; x < row.blocks; x++, out += size) {
    int16_t* block = row.coefficients + static_cast<size_t>(row.index(x)) * 64;
    if (row.last == nullptr) {  // zig-zag order
      int16_t scanned[64];
      std::memcpy(scanned, block, sizeof scanned);
      for (int i = 0; i < 64; i++) block[kNaturalOrder[i]] = scanned[i];
    }
    uint32_t work[64];
    for (int i = 0; i < 64; i++)
      work[i] = static_cast<uint32_t>(wrap16(static_cast<uint32_t>(block[i] * quantisation[i])));
    if (size == 1)
      *out = idct_1x1(block[0] * quantisation[0]);
    else if (size == 2)
      idct_2x2(work, out, stride);
    else
      idct_4x4(block, work, out, stride);
    std::memset(block, 0, 64 * sizeof *block);
  }
}

}  // namespace fastdata
