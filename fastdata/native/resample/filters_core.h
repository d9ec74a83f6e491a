// Pillow's filters, and their weights for outputs of few taps: plain loops for the compiler's
// vectoriser, as a crop resized to some 224 pixels needs them anew for every image. The arithmetic
// is that of resample.cpp's build_filtered, operation by operation.
#pragma once

namespace fastdata {
namespace {

// Each with its support, the half-width at scale 1, and whether it has weights below zero.
struct Bilinear {
  static constexpr double kSupport = 1.0;
  static constexpr bool kOvershoots = false;
  FASTDATA_INLINE double operator()(double x) const {
    x = std::abs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
  }
};

struct Cubic {
  static constexpr double kSupport = 2.0;
  static constexpr bool kOvershoots = true;
  FASTDATA_INLINE double operator()(double x) const {
    constexpr double a = -0.5;
    x = std::abs(x);
    const double inner = ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    const double outer = (((x - 5) * x + 8) * x - 4) * a;
    return x < 1.0 ? inner : x < 2.0 ? outer : 0.0;
  }
};

template <typename Kernel>
void few_taps(const FewTaps& of, int count, int32_t* __restrict first, int32_t* __restrict taps,
              int32_t* __restrict weights) {
  constexpr int kTaps = kFewTaps<Kernel>;
  const double filterscale = of.scale < 1.0 ? 1.0 : of.scale, ss = 1.0 / filterscale;
  const double support = Kernel::kSupport * filterscale;
  const int32_t inputs = of.inputs;
  for (int i = 0; i < count; i++) {
    const double center = (of.first + i + 0.5) * of.scale;
    int32_t begin = static_cast<int32_t>(center - support + 0.5);
    int32_t end = static_cast<int32_t>(center + support + 0.5);
    begin = begin < 0 ? 0 : begin;
    end = end > inputs ? inputs : end;
    first[i] = begin;
    taps[i] = end - begin;
    double k[kTaps], sum = 0.0;
    for (int t = 0; t < kTaps; t++) {
      const double weight = Kernel{}((t + begin - center + 0.5) * ss);
      k[t] = begin + t < end ? weight : 0.0;
      sum += k[t];
    }
    const double normal = 1.0 / sum;  // the tap at the centre has more than nothing
    for (int t = 0; t < kTaps; t++) {
      const double scaled = k[t] * normal * of.one;
      const double half = Kernel::kOvershoots && scaled < 0 ? -0.5 : 0.5;
      weights[t * count + i] = static_cast<int32_t>(scaled + half);
    }
  }
}

}  // namespace
}  // namespace fastdata
