// The horizontal pass of AVX2 and NEON: which of the ways of horizontal_avx2.h or horizontal_neon.h
// an axis takes. Included after one of them.
#pragma once

namespace fastdata {
namespace {

// The passes of AVX2 and NEON, from the fastest down; which one depends on the axis alone.
enum HorizontalMode {
  kBytes,       // 13-bit weights, up to 4 taps, 8 neighbouring outputs within 16 source bytes
  kWords,       // 4 neighbouring outputs within 16 source bytes
  kDotProduct,  // anything: one output at a time
};

bool windows_fit(const Axis& axis, int count, int bytes) {
  for (int i = 0; i < axis.outputs; i += count)
    if (window_of(axis, i, count).size > bytes) return false;
  return true;
}

void plan_horizontal(const Axis& axis, HorizontalPlan& plan) {
  plan.axis = &axis;
  if (!axis.wide && axis.max_taps <= 4 && windows_fit(axis, 8, 16)) {
    plan.mode = kBytes;
    plan_bytes(axis, plan);
  } else if (windows_fit(axis, 4, 16)) {
    plan.mode = kWords;
    if (axis.wide)
      plan_words<true>(axis, plan);
    else
      plan_words<false>(axis, plan);
  } else {
    plan.mode = kDotProduct;
  }
}

template <bool kWide>
void horizontal_dots(const Axis& axis, const uint8_t* const* planes, int plane_count, uint8_t* out,
                     size_t out_stride) {
  for (int i = 0; i < axis.outputs; i++)
    for (int p = 0; p < plane_count; p++) {
      const uint8_t* source = planes[p] + axis.first[i] - axis.begin;
      const int sum = kWide ? wide_dot_product(axis, i, source) : dot_product(axis, i, source);
      out[p * out_stride + i] = round_to_byte<kBitsOf<kWide>>(sum);
    }
}

template <bool kWide>
void horizontal_weighed(const HorizontalPlan& plan, const uint8_t* const* planes, int plane_count,
                        uint8_t* out, size_t out_stride) {
  if (plan.mode == kWords)
    horizontal_words<kWide>(plan, planes, plane_count, out, out_stride);
  else
    horizontal_dots<kWide>(*plan.axis, planes, plane_count, out, out_stride);
}

void horizontal(const HorizontalPlan& plan, const uint8_t* const* planes, int plane_count,
                uint8_t* out, size_t out_stride) {
  if (plan.mode == kBytes)
    horizontal_bytes(plan, planes, plane_count, out, out_stride);
  else if (plan.axis->wide)
    horizontal_weighed<true>(plan, planes, plane_count, out, out_stride);
  else
    horizontal_weighed<false>(plan, planes, plane_count, out, out_stride);
}

}  // namespace
}  // namespace fastdata
