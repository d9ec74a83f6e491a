// The NEON path: every aarch64 processor, so the file needs no region (target.h).
#if defined(__aarch64__)
#include <arm_neon.h>

#include <cmath>
#include <cstring>

#include "jpeg/bit_reader.h"
#include "simd/kernels.h"

#include "simd/simd_neon.h"

#include "jpeg/colour_core.h"
#include "jpeg/bands_core.h"
#include "jpeg/entropy_core.h"
#include "jpeg/unstuff_core.h"
#include "resample/windows_core.h"
#include "resample/horizontal_neon.h"
#include "resample/horizontal_core.h"
#include "jpeg/idct_neon.h"
#include "augment/mix_core.h"
#include "augment/warp_taps_core.h"

namespace fastdata {
namespace {
/// 64 entries of the table at a time; an index beyond them leaves what is there.
void look_up(uint8_t* pixels, size_t n, const uint8_t* table) {
  uint8x16x4_t quarters[4];
  for (int q = 0; q < 4; q++) quarters[q] = vld1q_u8_x4(table + 64 * q);
  const uint8x16_t step = vdupq_n_u8(64);
  for (size_t i = 0; i < n; i += 16) {
    uint8x16_t index = vld1q_u8(pixels + i);
    uint8x16_t found = vqtbl4q_u8(quarters[0], index);
    for (int q = 1; q < 4; q++) {
      index = vsubq_u8(index, step);
      found = vqtbx4q_u8(found, quarters[q], index);
    }
    vst1q_u8(pixels + i, found);
  }
}

/// Sixteen sums of weighted bytes, for the weights' upper halves and for the lower.
struct Sums {
  int32x4_t high[4], low[4];

  template <int kTap>
  FASTDATA_INLINE void add(const uint8_t* row, int16x4_t weights) {
    const uint8x16_t bytes = vld1q_u8(row);
    const int16x8_t words[2] = {vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))),
                                vreinterpretq_s16_u16(vmovl_high_u8(bytes))};
    for (int i = 0; i < 2; i++) {
      const int16x4_t first = vget_low_s16(words[i]), second = vget_high_s16(words[i]);
      high[2 * i] = vmlal_lane_s16(high[2 * i], first, weights, kTap);
      high[2 * i + 1] = vmlal_lane_s16(high[2 * i + 1], second, weights, kTap);
      low[2 * i] = vmlal_lane_s16(low[2 * i], first, weights, 2 + kTap);
      low[2 * i + 1] = vmlal_lane_s16(low[2 * i + 1], second, weights, 2 + kTap);
    }
  }
};

/// As vertical_core.h, but a multiply-add by one lane needs no rows side by side.
void vertical(const Axis& axis, int output, const uint8_t* rows, size_t stride, int n,
              uint8_t* out) {
  constexpr int kHalf = kWideWeightBits / 2;
  const int32x4_t round = vdupq_n_s32(1 << (kWideWeightBits - 1));
  const int taps = axis.taps[output];
  const WeightPair* pairs = axis.pairs_of(output);
  rows += static_cast<size_t>(axis.first[output] - axis.begin) * stride;
  for (int x = 0; x < n; x += 16) {
    Sums sums;
    for (int i = 0; i < 4; i++) {
      sums.high[i] = vdupq_n_s32(0);
      sums.low[i] = round;
    }
    const uint8_t* row = rows + x;
    for (int t = 0; t < taps; t += 2, row += 2 * stride) {
      int16_t halves[4];  // high, high, low, low
      static_assert(sizeof halves == sizeof(WeightPair));
      std::memcpy(halves, &pairs[t / 2], sizeof halves);
      const int16x4_t weights = vld1_s16(halves);
      sums.add<0>(row, weights);
      if (t + 1 < taps) sums.add<1>(row + stride, weights);
    }
    int16x8_t words[2];  // the sums shifted by 16
    for (int i = 0; i < 4; i++)
      sums.low[i] = vaddq_s32(sums.low[i], vshlq_n_s32(sums.high[i], kHalf));
    for (int i = 0; i < 2; i++)
      words[i] = vuzp2q_s16(vreinterpretq_s16_s32(sums.low[2 * i]),
                            vreinterpretq_s16_s32(sums.low[2 * i + 1]));
    vst1q_u8(out + x, vqshrun_high_n_s16(vqshrun_n_s16(words[0], kWideWeightBits - 16), words[1],
                                         kWideWeightBits - 16));
  }
}

}  // namespace
}  // namespace fastdata

#include "simd/table_core.h"

namespace fastdata {

constinit const Kernels kNeonKernels = kernels_of(Level::neon);

}  // namespace fastdata
#endif
