// The inverse DCT: libjpeg's accurate integer one ("islow", jidctint.c), after
// C. Loeffler, A. Ligtenberg and G. Moschytz, "Practical fast 1-D DCT algorithms with
// 11 multiplications" (ICASSP 1989).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common.h"

namespace fastdata {

// The constants: round(x * 2^13).
constexpr int kIdctBits = 13;
constexpr int kF0_298631336 = 2446;
constexpr int kF0_390180644 = 3196;
constexpr int kF0_541196100 = 4433;
constexpr int kF0_765366865 = 6270;
constexpr int kF0_899976223 = 7373;
constexpr int kF1_175875602 = 9633;
constexpr int kF1_501321110 = 12299;
constexpr int kF1_847759065 = 15137;
constexpr int kF1_961570560 = 16069;
constexpr int kF2_053119869 = 16819;
constexpr int kF2_562915447 = 20995;
constexpr int kF3_072711026 = 25172;
// The columns are scaled up by 2^2 between the passes; the rows' results are scaled
// down by that and by the 8 of the two-dimensional transform.
constexpr int kColumnShift = kIdctBits - 2;
constexpr int kRowShift = kIdctBits + 2 + 3;

/// Order of a block's coefficients: row by row, as streams in turns leave them, or as in the scan,
/// as the vector leaves them (entropy_vector.h).
enum class CoefficientOrder { natural, zigzag };

/// One row of blocks of one component, as the entropy decoder left them: MCU by MCU,
/// this component's blocks between the other components'.
struct BlockRow {
  int16_t* coefficients;  // of the row's first block
  uint8_t* last;          // its last zig-zag index; null in zig-zag order
  int blocks;             // in this row
  int per_mcu;            // this component's blocks in this row of an MCU: 1 or 2
  int mcu_stride;         // blocks in an MCU

  int index(int x) const { return per_mcu == 1 ? x * mcu_stride : (x >> 1) * mcu_stride + (x & 1); }
};

/// Blocks whose last zig-zag index is at most this have nothing outside the upper left
/// 4x4 coefficients.
constexpr int kLastInCorner = 9;

/// Transforms a row of blocks to 8 rows of samples, and clears the coefficients. Rows
/// may be written up to 24 bytes beyond the last block (Note [Padded rows];
/// docs/design/0007-native-bounds.md).
using IdctRow = void (*)(const BlockRow& row, const uint16_t quantisation[64], uint8_t* out,
                         size_t stride);

/// One block in natural order to 8 rows of 8 samples, on the scalar path. It keeps the
/// coefficients.
void idct_block_scalar(const int16_t* coefficients, const uint16_t quantisation[64], uint8_t* out,
                       size_t stride);

/// The scalar path's IdctRow.
void idct_row_scalar(const BlockRow& row, const uint16_t quantisation[64], uint8_t* out,
                     size_t stride);

// Note [Overflow]: coefficients that no encoder makes, times quantisation tables that none writes,
// overflow. What libjpeg-turbo's vector code for x86-64 (jidctint-avx2.asm) then gives is the
// oracle, on every level. It works on words: products wrap, as do the sums of two inputs that
// each pass begins with, and the results of a pass saturate. If a block's rows 1 to 7 are zero, the
// first pass is a shift by 2 instead, which wraps; that makes a difference only beyond
// kMaxUnshifted, where the vector paths leave the block to the scalar one.
constexpr int kMaxUnshifted = 1 << 13;  // of row 0: from -kMaxUnshifted, below kMaxUnshifted

FASTDATA_INLINE int16_t wrap16(uint32_t value) { return static_cast<int16_t>(value); }

/// A block that is its DC coefficient alone has one value throughout. Note [Overflow]
FASTDATA_INLINE uint8_t idct_dc_only(int16_t dc, uint16_t quantum) {
  const int value = wrap16(static_cast<uint32_t>(dc * quantum) << 2);
  const int level = ((value + 16) >> 5) + 128;
  return static_cast<uint8_t>(level < 0 ? 0 : level > 255 ? 255 : level);
}

}  // namespace fastdata
