// Affine and perspective transforms: plain loops for the compiler's vectoriser. Included by one
// file for each instruction set, behind warp_taps_core.h or warp_taps_x86.h.
#pragma once

namespace fastdata {
namespace {

/// Where pixels x and on of row y come from.
void find_fixed(const Warp& warp, int x, int y, WarpBlock& block) {
  const uint32_t x_step = warp.fixed[0], y_step = warp.fixed[3];
  const uint32_t u =
      warp.fixed[2] + static_cast<uint32_t>(y) * warp.fixed[1] + static_cast<uint32_t>(x) * x_step;
  const uint32_t v =
      warp.fixed[5] + static_cast<uint32_t>(y) * warp.fixed[4] + static_cast<uint32_t>(x) * y_step;
  const int width = warp.width, height = warp.height, fill = warp.fill;
  const uint32_t pitch = static_cast<uint32_t>(warp.pitch);
  for (uint32_t i = 0; i < kWarpBlock; i++) {
    const int column = static_cast<int>(u + i * x_step) >> 16;
    const int row = static_cast<int>(v + i * y_step) >> 16;
    const bool inside = (column >= 0) & (column < width) & (row >= 0) & (row < height);
    // Unsigned: of places outside it may overflow.
    const uint32_t at =
        static_cast<uint32_t>(row + kWarpBorder) * pitch + static_cast<uint32_t>(column);
    block.offset[i] = inside ? static_cast<int>(at + kWarpBorder) : fill;
  }
}

/// The cubic's weights (Geometry.c, BICUBIC) for the second to fourth of four taps, of 2^14; the
/// first gets what is left.
FASTDATA_INLINE void cubic_pairs(int part, int32_t& first, int32_t& second) {
  constexpr float kOne = 1 << kWarpBits;
  const float d = static_cast<float>(part) * (1 / kOne);
  const float d2 = d * d, d3 = d2 * d;
  const int w0 = static_cast<int>((d2 + d2 - d - d3) * kOne - 0.5f);
  const int w2 = static_cast<int>((d + d2 - d3) * kOne + 0.5f);
  const int w3 = static_cast<int>((d3 - d2) * kOne - 0.5f);
  const int w1 = (1 << kWarpBits) - w0 - w2 - w3;
  first = (w0 & 0xFFFF) | w1 << 16;
  second = (w2 & 0xFFFF) | w3 << 16;
}

/// The same in double precision, in the order of Pillow's operations, so that the same pixels count
/// as outside; and the taps' weights.
template <bool kPerspective, Interpolation kInterpolation>
void find(const Warp& warp, int x, int y, WarpBlock& block) {
  const double* a = warp.coefficients;
  const double a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3], a4 = a[4], a5 = a[5];
  const double a6 = a[6], a7 = a[7];
  const double row_centre = y + 0.5, width = warp.width, height = warp.height;
  const int pitch = warp.pitch, fill = warp.fill;
  for (int i = 0; i < kWarpBlock; i++) {
    const double centre = x + i + 0.5;
    double u = a0 * centre + a1 * row_centre + a2, v = a3 * centre + a4 * row_centre + a5;
    if (kPerspective) {
      const double depth = a6 * centre + a7 * row_centre + 1;
      u /= depth;
      v /= depth;
    }
    const bool inside = (u >= 0) & (u < width) & (v >= 0) & (v < height);
    u = inside ? u : 0;
    v = inside ? v : 0;
    if (kInterpolation == Interpolation::nearest) {
      const int row = static_cast<int>(v) + kWarpBorder, column = static_cast<int>(u) + kWarpBorder;
      block.offset[i] = inside ? row * pitch + column : fill;
      continue;
    }
    constexpr int kOne = 1 << kWarpBits;
    // Taps begin half a pixel before; the border keeps what is truncated positive.
    u += kWarpBorder - 0.5;
    v += kWarpBorder - 0.5;
    const int column = static_cast<int>(u * kOne), row = static_cast<int>(v * kOne);
    const int right = column & (kOne - 1), below = row & (kOne - 1);
    const int at = (row >> kWarpBits) * pitch + (column >> kWarpBits);
    block.offset[i] = inside ? at : fill;
    if (kInterpolation == Interpolation::bilinear) {
      const int both = (right * below + kOne / 2) >> kWarpBits;
      block.pairs[0][i] = (kOne - right - below + both) | (right - both) << 16;
      block.pairs[1][i] = (below - both) | both << 16;
    } else {
      cubic_pairs(right, block.pairs[0][i], block.pairs[1][i]);
      cubic_pairs(below, block.pairs[2][i], block.pairs[3][i]);
    }
  }
}

template <Interpolation kInterpolation>
FASTDATA_INLINE void find(const Warp& warp, int x, int y, WarpBlock& block) {
  if (warp.projection == Projection::perspective)
    find<true, kInterpolation>(warp, x, y, block);
  else
    find<false, kInterpolation>(warp, x, y, block);
}

void take_nearest(const Warp& warp, const WarpBlock& block, uint32_t* __restrict out) {
  const uint32_t* __restrict pixels = warp.pixels;
  for (int i = 0; i < kWarpBlock; i++) out[i] = pixels[block.offset[i]];
}

template <int kChannel>
FASTDATA_INLINE void unpack(const uint32_t* __restrict packed, uint8_t* __restrict out) {
  for (int i = 0; i < kWarpBlock; i++) out[i] = static_cast<uint8_t>(packed[i] >> 8 * kChannel);
}

void warp_row(const Warp& warp, int y, uint8_t* const* rows, int channels) {
  WarpBlock block;
  alignas(64) uint32_t packed[kWarpBlock];
  for (int x = 0; x < warp.outputs; x += kWarpBlock) {
    if (warp.interpolation == Interpolation::bilinear) {
      find<Interpolation::bilinear>(warp, x, y, block);
      take_bilinear(warp, block, packed);
    } else if (warp.interpolation == Interpolation::bicubic) {
      find<Interpolation::bicubic>(warp, x, y, block);
      take_bicubic(warp, block, packed);
    } else {
      if (warp.projection == Projection::fixed)
        find_fixed(warp, x, y, block);
      else
        find<Interpolation::nearest>(warp, x, y, block);
      take_nearest(warp, block, packed);
    }
    unpack<0>(packed, rows[0] + x);
    if (channels == 1) continue;
    unpack<1>(packed, rows[1] + x);
    unpack<2>(packed, rows[2] + x);
  }
}

void pack(const uint8_t* __restrict r, const uint8_t* __restrict g, const uint8_t* __restrict b,
          int n, uint32_t* __restrict out) {
  for (int x = 0; x < n; x++)
    out[x] = static_cast<uint32_t>(r[x]) | static_cast<uint32_t>(g[x]) << 8 |
             static_cast<uint32_t>(b[x]) << 16;
}

}  // namespace
}  // namespace fastdata
