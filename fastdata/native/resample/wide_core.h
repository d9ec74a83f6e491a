// The horizontal pass with Pillow's 22-bit weights (Note [Weights]): plain loops for the
// compiler's vectoriser, included by one file for each instruction set (target.h).
#pragma once

namespace fastdata {
namespace {

void horizontal_wide(const Axis& axis, const uint8_t* const* planes, int plane_count, uint8_t* out,
                     size_t out_stride) {
  for (int i = 0; i < axis.outputs; i++) {
    const int32_t* __restrict weights = axis.wide_weights_of(i);
    const ptrdiff_t taps = axis.taps[i];
    for (int p = 0; p < plane_count; p++) {
      const uint8_t* __restrict source = planes[p] + axis.first[i] - axis.begin;
      int sum = 0;
      for (ptrdiff_t t = 0; t < taps; t++) sum += source[t] * weights[t];
      out[p * out_stride + i] = round_to_byte<kWideWeightBits>(sum);
    }
  }
}

}  // namespace
}  // namespace fastdata
