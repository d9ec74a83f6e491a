// Pillow's filters, and their weights for outputs of few taps: plain loops for the compiler's
// vectoriser, as every image's crop needs its own. The arithmetic
// equals resample.cpp's build_filtered, operation by operation.
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
  constexpr int kLanes = 32;  // outputs side by side; more than a compiler would unroll
  const double filterscale = of.scale < 1.0 ? 1.0 : of.scale, ss = 1.0 / filterscale;
  const double support = Kernel::kSupport * filterscale;
  const int32_t inputs = of.inputs;
  for (int at = 0; at < count; at += kLanes) {
    const int lanes = count - at < kLanes ? count - at : kLanes;
    double center[kLanes], sum[kLanes], normal[kLanes], k[kFewTaps][kLanes];
    int32_t begin[kLanes], end[kLanes];
    for (int i = 0; i < kLanes; i++) {
      const int output = at + (i < lanes ? i : 0);  // the lanes to spare do what the first one does
      center[i] = (of.first + output + 0.5) * of.scale;
      const auto from = static_cast<int32_t>(center[i] - support + 0.5);
      const auto to = static_cast<int32_t>(center[i] + support + 0.5);
      begin[i] = from < 0 ? 0 : from;
      // Where a centre was rounded, one tap more than `most` may lie within the support, just.
      const int32_t last = to > inputs ? inputs : to;
      end[i] = last > begin[i] + of.most ? begin[i] + of.most : last;
      sum[i] = 0.0;
    }
    for (int t = 0; t < of.most; t++)
      for (int i = 0; i < kLanes; i++) {
        const double weight = Kernel{}((t + begin[i] - center[i] + 0.5) * ss);
        k[t][i] = begin[i] + t < end[i] ? weight : 0.0;
        sum[i] += k[t][i];
      }
    for (int i = 0; i < kLanes; i++)
      normal[i] = 1.0 / sum[i];  // the tap at the centre has more than nothing
    for (int t = 0; t < of.most; t++) {
      int32_t rounded[kLanes];
      for (int i = 0; i < kLanes; i++) {
        const double scaled = k[t][i] * normal[i] * of.one;
        const double half = Kernel::kOvershoots && scaled < 0 ? -0.5 : 0.5;
        rounded[i] = static_cast<int32_t>(scaled + half);
      }
      std::memcpy(weights + static_cast<size_t>(t) * count + at, rounded, lanes * sizeof *rounded);
    }
    for (int i = 0; i < lanes; i++) {
      first[at + i] = begin[i];
      taps[at + i] = end[i] - begin[i];
    }
  }
}

}  // namespace
}  // namespace fastdata
