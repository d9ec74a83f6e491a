// Weighted sums of packed pixels, a channel at a time: for levels without warp_taps_x86.h.
#pragma once

namespace fastdata {
namespace {

FASTDATA_INLINE int first_of(int32_t pair) { return static_cast<int16_t>(pair); }
FASTDATA_INLINE int second_of(int32_t pair) { return pair >> 16; }
FASTDATA_INLINE int channel_of(uint32_t pixel, int c) { return pixel >> 8 * c & 255; }

FASTDATA_INLINE int pair_sum(const uint32_t* pixels, int c, int32_t pair) {
  return channel_of(pixels[0], c) * first_of(pair) + channel_of(pixels[1], c) * second_of(pair);
}

void take_bilinear(const Warp& warp, const WarpBlock& block, uint32_t* out) {
  for (int i = 0; i < kWarpBlock; i++) {
    const uint32_t* upper = warp.pixels + block.offset[i];
    const uint32_t* lower = upper + warp.pitch;
    uint32_t pixel = 0;
    for (int c = 0; c < 3; c++) {
      const int sum = pair_sum(upper, c, block.pairs[0][i]) + pair_sum(lower, c, block.pairs[1][i]);
      pixel |= static_cast<uint32_t>(sum >> kWarpBits) << 8 * c;
    }
    out[i] = pixel;
  }
}

/// Rows are summed to 6 more bits than a byte has.
void take_bicubic(const Warp& warp, const WarpBlock& block, uint32_t* out) {
  for (int i = 0; i < kWarpBlock; i++) {
    const uint32_t* first = warp.pixels + block.offset[i] - warp.pitch - 1;
    uint32_t pixel = 0;
    for (int c = 0; c < 3; c++) {
      int rows[4];
      for (int t = 0; t < 4; t++) {
        const uint32_t* row = first + static_cast<ptrdiff_t>(t) * warp.pitch;
        const int sum =
            pair_sum(row, c, block.pairs[0][i]) + pair_sum(row + 2, c, block.pairs[1][i]);
        rows[t] = (sum + 128) >> (kWarpBits - 6);
      }
      const int32_t upper = block.pairs[2][i], lower = block.pairs[3][i];
      int value = rows[0] * first_of(upper) + rows[1] * second_of(upper) +
                  rows[2] * first_of(lower) + rows[3] * second_of(lower);
      value >>= kWarpBits + 6;
      pixel |= static_cast<uint32_t>(value < 0 ? 0 : value > 255 ? 255 : value) << 8 * c;
    }
    out[i] = pixel;
  }
}

}  // namespace
}  // namespace fastdata
