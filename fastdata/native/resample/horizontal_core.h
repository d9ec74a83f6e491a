// The horizontal pass of AVX2 and NEON: which of the ways of horizontal_avx2.h or horizontal_neon.h
// an axis takes. Included after one of them.
#pragma once

namespace fastdata {
namespace {

// The passes of AVX2 and NEON with 13-bit weights, from the fastest down; which one depends on
// the axis alone.
enum HorizontalMode {
  kBytes,       // up to 4 taps, 8 neighbouring outputs within 16 source bytes
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
  if (axis.wide) return;
  if (axis.max_taps <= 4 && windows_fit(axis, 8, 16)) {
    plan.mode = kBytes;
    plan_bytes(axis, plan);
  } else if (windows_fit(axis, 4, 16)) {
    plan.mode = kWords;
    plan_words(axis, plan);
  } else {
    plan.mode = kDotProduct;
  }
}

void horizontal(const HorizontalPlan& plan, const uint8_t* const* planes, int plane_count,
                uint8_t* out, size_t out_stride) {
  if (plan.axis->wide) return horizontal_wide(*plan.axis, planes, plane_count, out, out_stride);
  switch (plan.mode) {
    case kBytes: return horizontal_bytes(plan, planes, plane_count, out, out_stride);
    case kWords: return horizontal_words(plan, planes, plane_count, out, out_stride);
    default: return horizontal_dots(plan, planes, plane_count, out, out_stride);
  }
}

}  // namespace
}  // namespace fastdata
