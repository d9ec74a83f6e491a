// Affine and perspective transforms of tensors (grid.h): plain loops for the compiler's vectoriser,
// included by one file for each instruction set, behind warp_core.h.
#pragma once

namespace fastdata {
namespace {

/// To the nearest integer, ties to even, of what is below 2^22.
FASTDATA_INLINE float nearest_even(float x) {
  constexpr float kShift = 0x1.8p23f;
  return (x + kShift) - kShift;
}

FASTDATA_INLINE float find_place(const float* row, float a, float b, bool fused) {
  const float x = a * row[0];
  return (fused ? __builtin_fmaf(b, row[1], x) : x + b * row[1]) + row[2];
}

/// Where pixels x and on of row y come from, in pixels of the source. In single precision and in
/// the order of torch's operations (bmm, grid_sample), so that the same pixel is nearest.
template <bool kPerspective>
FASTDATA_INLINE void find_places(const Grid& grid, int x, int y, float* __restrict u,
                                 float* __restrict v) {
  const float half_width = static_cast<float>(grid.width) * 0.5f;
  const float half_height = static_cast<float>(grid.height) * 0.5f;
  const float first_x = kPerspective ? 0.5f : 0.5f - half_width;
  const float first_y = kPerspective ? 0.5f : 0.5f - half_height;
  const float b = static_cast<float>(y) + first_y;
  float m[3][3];
  for (int i = 0; i < 9; i++) m[i / 3][i % 3] = grid.rows[i / 3][i % 3];
  for (int i = 0; i < kWarpBlock; i++) {
    const float a = static_cast<float>(x + i) + first_x;
    float across = find_place(m[0], a, b, grid.fused), down = find_place(m[1], a, b, grid.fused);
    if (kPerspective) {
      const float depth = find_place(m[2], a, b, grid.fused);
      across = across / depth - 1.f;
      down = down / depth - 1.f;
    }
    u[i] = (across + 1.f) * half_width - 0.5f;
    v[i] = (down + 1.f) * half_height - 0.5f;
  }
}

struct GridBlock {
  alignas(64) float u[kWarpBlock], v[kWarpBlock];
  alignas(64) int32_t offset[kWarpBlock];
  alignas(64) float weights[4][kWarpBlock];
  alignas(64) uint32_t taps[4][kWarpBlock];
};

/// Weights of neighbours outside the source are 0.
FASTDATA_INLINE void weigh(const Grid& grid, GridBlock& block) {
  const int width = grid.width, height = grid.height;
  const float wide = static_cast<float>(width), high = static_cast<float>(height);
  for (int i = 0; i < kWarpBlock; i++) {
    float u = block.u[i], v = block.v[i];
    const bool inside = (u > -1.f) & (u < wide) & (v > -1.f) & (v < high);
    u = inside ? u : 0.f;
    v = inside ? v : 0.f;
    const float left = whole_part(u), top = whole_part(v);
    const float right_part = u - left, lower_part = v - top;
    const float here = inside ? 1.f : 0.f;
    const float w0 = left < 0.f ? 0.f : (1.f - right_part) * here;
    const float w1 = left + 1.f < wide ? right_part * here : 0.f;
    const float h0 = top < 0.f ? 0.f : 1.f - lower_part;
    const float h1 = top + 1.f < high ? lower_part : 0.f;
    block.weights[0][i] = h0 * w0;
    block.weights[1][i] = h0 * w1;
    block.weights[2][i] = h1 * w0;
    block.weights[3][i] = h1 * w1;
    block.offset[i] =
        (static_cast<int>(top) + kWarpBorder) * grid.pitch + static_cast<int>(left) + kWarpBorder;
  }
}

/// A channel of the block: outside the source, and in part along its edges, the fill.
template <bool kFilled>
FASTDATA_INLINE void sum_taps(const GridBlock& block, int shift, float fill,
                              uint8_t* __restrict out) {
  for (int i = 0; i < kWarpBlock; i++) {
    const float w0 = block.weights[0][i], w1 = block.weights[1][i];
    const float w2 = block.weights[2][i], w3 = block.weights[3][i];
    const auto value = [&](int t) {
      return static_cast<float>(static_cast<int>(block.taps[t][i] >> shift & 255));
    };
    float sum = value(0) * w0 + value(1) * w1 + value(2) * w2 + value(3) * w3;
    if (kFilled) {
      const float mask = w0 + w1 + w2 + w3;
      sum = sum * mask + (1.f - mask) * fill;
    }
    out[i] = truncated_byte(nearest_even(sum));
  }
}

FASTDATA_INLINE void take_nearest(const Grid& grid, GridBlock& block, const uint32_t* fill) {
  const int width = grid.width, height = grid.height, pitch = grid.pitch;
  const float wide = static_cast<float>(width), high = static_cast<float>(height);
  for (int i = 0; i < kWarpBlock; i++) {
    float u = block.u[i], v = block.v[i];
    const bool near = (u > -1.f) & (u < wide) & (v > -1.f) & (v < high);
    const int column = static_cast<int>(nearest_even(near ? u : -1.f));
    const int row = static_cast<int>(nearest_even(near ? v : -1.f));
    const bool inside = (column >= 0) & (column < width) & (row >= 0) & (row < height);
    block.offset[i] = inside ? (row + kWarpBorder) * pitch + column + kWarpBorder : -1;
  }
  for (int i = 0; i < kWarpBlock; i++) {
    const int at = block.offset[i];
    block.taps[0][i] = *(at < 0 ? fill : grid.pixels + at);
  }
}

void grid_row(const Grid& grid, int y, uint8_t* const* rows, int channels) {
  GridBlock block;
  const uint32_t fill = static_cast<uint32_t>(grid.fill[0]) |
                        static_cast<uint32_t>(grid.fill[1]) << 8 |
                        static_cast<uint32_t>(grid.fill[2]) << 16;
  for (int x = 0; x < grid.width; x += kWarpBlock) {
    if (grid.perspective)
      find_places<true>(grid, x, y, block.u, block.v);
    else
      find_places<false>(grid, x, y, block.u, block.v);
    if (grid.interpolation == Interpolation::nearest) {
      take_nearest(grid, block, &fill);
      unpack<0>(block.taps[0], rows[0] + x);
      if (channels == 1) continue;
      unpack<1>(block.taps[0], rows[1] + x);
      unpack<2>(block.taps[0], rows[2] + x);
      continue;
    }
    weigh(grid, block);
    for (int i = 0; i < kWarpBlock; i++) {
      const uint32_t* at = grid.pixels + block.offset[i];
      block.taps[0][i] = at[0];
      block.taps[1][i] = at[1];
      block.taps[2][i] = at[grid.pitch];
      block.taps[3][i] = at[grid.pitch + 1];
    }
    for (int c = 0; c < channels; c++) {
      if (grid.filled)
        sum_taps<true>(block, 8 * c, static_cast<float>(grid.fill[c]), rows[c] + x);
      else
        sum_taps<false>(block, 8 * c, 0.f, rows[c] + x);
    }
  }
}

}  // namespace
}  // namespace fastdata
