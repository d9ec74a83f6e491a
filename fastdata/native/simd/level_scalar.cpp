// The plain path, for any processor. The vector paths must agree with it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "jpeg/bit_reader.h"
#include "simd/kernels.h"

#include "jpeg/bands_core.h"
#include "jpeg/entropy_core.h"

namespace fastdata {
namespace {
constexpr int kVectorBytes = 16;  // any processor's, where the compiler makes vectors
}
}  // namespace fastdata

#include "augment/mix_scalar.h"
#include "augment/warp_taps_core.h"

namespace fastdata {
namespace {

Unstuffed unstuff(const uint8_t* source, const uint8_t* end, uint8_t* out, uint8_t* out_end) {
  while (source < end && out < out_end) {
    const size_t room = std::min<size_t>(end - source, out_end - out);
    const auto* ff = static_cast<const uint8_t*>(std::memchr(source, 0xFF, room));
    const size_t count = ff ? ff - source : room;
    std::memcpy(out, source, count);
    out += count;
    source += count;
    if (!ff) continue;
    if (source + 1 < end && source[1] != 0) return {source, out, true};
    *out++ = 0xFF;
    source += source + 1 < end ? 2 : 1;
  }
  return {source, out, false};
}

/// jdcolor.c: R = Y + 1.402 Cr, G = Y - 0.34414 Cb - 0.71414 Cr, B = Y + 1.772 Cb, with
/// the constants times 2^16, rounded.
void ycc_to_rgb(const uint8_t* __restrict y_row, const uint8_t* __restrict cb_row,
                const uint8_t* __restrict cr_row, int n, uint8_t* __restrict r,
                uint8_t* __restrict g, uint8_t* __restrict b) {
  constexpr int kHalf = 1 << 15;
  const auto to_byte = [](int v) { return static_cast<uint8_t>(v < 0 ? 0 : v > 255 ? 255 : v); };
  for (int x = 0; x < n; x++) {
    const int y = y_row[x], cb = cb_row[x] - 128, cr = cr_row[x] - 128;
    r[x] = to_byte(y + ((91881 * cr + kHalf) >> 16));
    g[x] = to_byte(y + ((-22554 * cb - 46802 * cr + kHalf) >> 16));
    b[x] = to_byte(y + ((116130 * cb + kHalf) >> 16));
  }
}

void look_up(uint8_t* pixels, size_t n, const uint8_t* table) {
  for (size_t i = 0; i < n; i++) pixels[i] = table[pixels[i]];
}

void idct_row(const BlockRow& row, const uint16_t quantisation[64], uint8_t* out, size_t stride) {
  idct_row_scalar(row, quantisation, out, stride);
}

void plan_horizontal(const Axis& axis, HorizontalPlan& plan) { plan.axis = &axis; }

template <bool kWide>
void horizontal_weighed(const Axis& axis, const uint8_t* const* planes, int plane_count,
                        uint8_t* out, size_t out_stride) {
  for (int p = 0; p < plane_count; p++, out += out_stride) {
    for (int i = 0; i < axis.outputs; i++) {
      const uint8_t* __restrict source = planes[p] + axis.first[i] - axis.begin;
      const auto* __restrict weights = axis.weights_of<kWide>(i);
      const ptrdiff_t taps = axis.taps[i];
      int sum = 0;
      for (ptrdiff_t t = 0; t < taps; t++) sum += source[t] * weights[t];
      out[i] = round_to_byte<kBitsOf<kWide>>(sum);
    }
  }
}

void horizontal(const HorizontalPlan& plan, const uint8_t* const* planes, int plane_count,
                uint8_t* out, size_t out_stride) {
  if (plan.axis->wide)
    horizontal_weighed<true>(*plan.axis, planes, plane_count, out, out_stride);
  else
    horizontal_weighed<false>(*plan.axis, planes, plane_count, out, out_stride);
}

void vertical(const Axis& axis, int output, const uint8_t* rows, size_t stride, int n,
              uint8_t* out) {
  const int32_t* weights = axis.weights_of<true>(output);
  rows += static_cast<size_t>(axis.first[output] - axis.begin) * stride;
  constexpr ptrdiff_t kBatch = 64;
  for (ptrdiff_t x = 0; x < n; x += kBatch) {
    int sums[kBatch] = {};
    for (int t = 0; t < axis.taps[output]; t++) {
      const uint8_t* __restrict row = rows + static_cast<size_t>(t) * stride + x;
      for (ptrdiff_t i = 0; i < kBatch; i++) sums[i] += row[i] * weights[t];
    }
    for (ptrdiff_t i = 0; i < kBatch; i++) out[x + i] = round_to_byte<kWideWeightBits>(sums[i]);
  }
}

}  // namespace
}  // namespace fastdata

#include "simd/table_core.h"

namespace fastdata {

constinit const Kernels kScalarKernels = kernels_of(Level::scalar);

}  // namespace fastdata
