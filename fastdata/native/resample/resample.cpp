#include "resample/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "simd/kernels.h"

#include "resample/filters_core.h"

namespace fastdata {
namespace {

struct Lanczos {
  static constexpr double kSupport = 3.0;
  static constexpr bool kOvershoots = true;
  static double sinc(double x) {
    constexpr double kPi = 3.14159265358979323846;
    if (x == 0.0) return 1.0;
    x *= kPi;
    return std::sin(x) / x;
  }
  double operator()(double x) const { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }
};

/// Rounds weights that sum to 1 to integers that sum to 2^13: each to nearest, and what
/// is then missing goes to the largest. Many small ones are rounded as a running sum
/// instead, so that no tap bears the error of all.
void quantise(const double* weights, int taps, int16_t* out) {
  constexpr int kOne = 1 << kWeightBits;
  if (taps > 16) {
    double sum = 0;
    int done = 0;
    for (int i = 0; i < taps; i++) {
      sum += weights[i];
      const int upto = static_cast<int>(std::lround(sum * kOne));
      out[i] = static_cast<int16_t>(upto - done);
      done = upto;
    }
    return;
  }
  int sum = 0, largest = 0;
  for (int i = 0; i < taps; i++) {
    const double scaled = weights[i] * kOne;
    const int weight = static_cast<int>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    out[i] = static_cast<int16_t>(weight);
    sum += weight;
    if (out[i] > out[largest]) largest = i;
  }
  out[largest] = static_cast<int16_t>(out[largest] + kOne - sum);
}

/// Rounds each weight to 22 bits.
void quantise(const double* weights, int taps, int32_t* out) {
  for (int i = 0; i < taps; i++) {
    const double scaled = weights[i] * (1 << kWideWeightBits);
    out[i] = static_cast<int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  }
}

/// Calls `use` with the axis's weights, narrow or wide, and the sum of an output's.
template <typename Use>
void with_weights(Axis& axis, Use use) {
  if (axis.wide)
    use(axis.wide_weights, 1 << kWideWeightBits);
  else
    use(axis.weights, 1 << kWeightBits);
}

/// Drops taps that came to nothing: they would only make the vector paths' windows wider.
template <typename T>
void trim(T* weights, int32_t& first, int32_t& taps) {
  int used = taps, skipped = 0;
  while (used > 1 && weights[used - 1] == 0) used--;
  while (skipped + 1 < used && weights[skipped] == 0) skipped++;
  if (skipped) {
    std::copy(weights + skipped, weights + used, weights);
    std::fill(weights + used - skipped, weights + used, T{0});
  }
  first += skipped;
  taps = used - skipped;
}

/// The source samples of outputs `first` and on.
void find_nearest(Filter filter, int inputs, int outputs, int first, Axis& axis) {
  const double scale = static_cast<double>(inputs) / outputs;
  double at = scale * 0.5;  // accumulated, as Pillow's ImagingScaleAffine does
  if (filter == Filter::nearest_floor) {
    const float single = static_cast<float>(inputs) / static_cast<float>(outputs);
    for (int i = 0; i < axis.outputs; i++) {
      const float floored = std::floor(static_cast<float>(first + i) * single);
      axis.first[i] = std::min(static_cast<int>(floored), inputs - 1);
    }
    return;
  }
  for (int i = 0; i < first; i++) at += scale;
  for (int i = 0; i < axis.outputs; i++, at += scale)
    axis.first[i] = std::min(static_cast<int>(at), inputs - 1);
}

void build_nearest(Filter filter, int inputs, int outputs, int first, bool wide, bool mirrored,
                   Axis& axis) {
  axis.max_taps = 1;
  axis.stride = 4;
  axis.wide = wide;
  axis.taps.assign(axis.outputs, 1);
  with_weights(axis, [&](auto& weights, int one) {
    weights.assign(static_cast<size_t>(axis.outputs) * axis.stride, 0);
    for (size_t at = 0; at < weights.size(); at += axis.stride) weights[at] = one;
  });
  if (mirrored) {
    find_nearest(filter, inputs, outputs, outputs - first - axis.outputs, axis);
    std::reverse(axis.first.begin(), axis.first.end());
    for (int32_t& source : axis.first) source = inputs - 1 - source;
  } else {
    find_nearest(filter, inputs, outputs, first, axis);
  }
}

/// `wide` is what the caller wants; sets axis.wide.
template <typename Kernel>
void build_filtered(Kernel kernel, int inputs, int outputs, int first, bool wide, Axis& axis) {
  // Named as in Pillow's precompute_coeffs, whose arithmetic this is.
  const double scale = static_cast<double>(inputs) / outputs;
  const double filterscale = std::max(scale, 1.0);
  const double support = Kernel::kSupport * filterscale;
  const double ss = 1.0 / filterscale;
  const int ksize = static_cast<int>(std::ceil(support)) * 2 + 1;
  axis.wide = wide || Kernel::kOvershoots || ksize > kMaxTaps;
  axis.stride = static_cast<int>(round_up(std::min(ksize, inputs), 4));
  const size_t count = static_cast<size_t>(axis.outputs) * axis.stride;
  with_weights(axis, [&](auto& weights, int) { weights.assign(count, 0); });

  std::vector<double> k(axis.stride);
  for (int xx = 0; xx < axis.outputs; xx++) {
    const double center = (first + xx + 0.5) * scale;
    const int xmin = std::max(0, static_cast<int>(center - support + 0.5));
    const int xmax = std::min(inputs, static_cast<int>(center + support + 0.5));
    const int taps = std::min(xmax - xmin, axis.stride);
    double ww = 0.0;
    for (int x = 0; x < taps; x++) {
      k[x] = kernel((x + xmin - center + 0.5) * ss);
      ww += k[x];
    }
    if (ww != 0.0) {
      const double normal = 1.0 / ww;
      for (int x = 0; x < taps; x++) k[x] *= normal;
    }

    axis.first[xx] = xmin;
    axis.taps[xx] = taps;
    with_weights(axis, [&](auto& weights, int) {
      auto* out = weights.data() + static_cast<size_t>(xx) * axis.stride;
      quantise(k.data(), taps, out);
      trim(out, axis.first[xx], axis.taps[xx]);
    });
    axis.max_taps = std::max(axis.max_taps, axis.taps[xx]);
  }
}

/// Taps whose narrow weights fit 64 bits, in which settle shifts them.
constexpr int kNarrowTaps = 4;

/// Makes the weights of an output sum to 2^13, and drops taps that came to nothing: they would
/// only make the vector paths' windows wider. Without branches that depend on the weights.
void settle(const int* rounded, int16_t* weights, int32_t& first, int32_t& taps) {
  constexpr int kTaps = kNarrowTaps;
  int sum = 0, largest = 0;
  unsigned some = 0;
  for (int t = 0; t < kTaps; t++) sum += rounded[t];
  for (int t = 1; t < kTaps; t++) largest = rounded[t] > rounded[largest] ? t : largest;
  uint64_t packed = 0;
  for (int t = 0; t < kTaps; t++) {
    const int weight = rounded[t] + (t == largest ? (1 << kWeightBits) - sum : 0);
    packed |= static_cast<uint64_t>(weight) << 16 * t;
    some |= static_cast<unsigned>(weight != 0) << t;
  }
  const int skipped = __builtin_ctz(some);
  first += skipped;
  taps = 32 - __builtin_clz(some) - skipped;
  packed >>= 16 * skipped;
  for (int t = 0; t < kTaps; t++) weights[t] = static_cast<int16_t>(packed >> 16 * t);
}

/// build_filtered for filters of at most kFewTaps taps: `most`, at that scale.
template <typename Kernel>
void build_few(FindFewTaps find, double scale, int most, int inputs, int first, bool wide,
               Axis& axis) {
  const int count = axis.outputs;
  axis.wide = wide || Kernel::kOvershoots;
  axis.stride = most;
  axis.scratch.resize(static_cast<size_t>(count) * most);
  int32_t* found = axis.scratch.data();
  const double one = 1 << (axis.wide ? kWideWeightBits : kWeightBits);
  find({scale, one, inputs, first, most}, count, axis.first.data(), axis.taps.data(), found);
  if (axis.wide) {
    axis.wide_weights.resize(axis.scratch.size());
    int32_t* weights = axis.wide_weights.data();
    for (int i = 0; i < count; i++, weights += most) {
      for (int t = 0; t < most; t++) weights[t] = found[t * count + i];
      trim(weights, axis.first[i], axis.taps[i]);
      axis.max_taps = std::max(axis.max_taps, axis.taps[i]);
    }
    return;
  }
  if constexpr (!Kernel::kOvershoots) {
    axis.weights.resize(axis.scratch.size());
    for (int i = 0; i < count; i++) {
      const int rounded[kNarrowTaps] = {found[i], found[count + i], found[2 * count + i],
                                        found[3 * count + i]};
      settle(rounded, axis.weights.data() + static_cast<size_t>(i) * most, axis.first[i],
             axis.taps[i]);
      axis.max_taps = std::max(axis.max_taps, axis.taps[i]);
    }
  }
}

template <typename Kernel>
void build(FindFewTaps find, int inputs, int outputs, int first, bool wide, Axis& axis) {
  const double scale = static_cast<double>(inputs) / outputs;
  const double width = 2 * Kernel::kSupport * std::max(scale, 1.0);  // so many samples, or one more
  const int limit = wide || Kernel::kOvershoots ? kFewTaps : kNarrowTaps;
  if (const auto most = static_cast<int>(round_up(static_cast<size_t>(width) + 1, 4));
      most <= limit)
    build_few<Kernel>(find, scale, most, inputs, first, wide, axis);
  else
    build_filtered(Kernel{}, inputs, outputs, first, wide, axis);
}

template <typename T>
void mirror_weights(std::vector<T>& weights, const Axis& axis) {
  for (int i = 0, j = axis.outputs - 1; i < j; i++, j--)
    std::swap_ranges(weights.begin() + static_cast<ptrdiff_t>(i) * axis.stride,
                     weights.begin() + static_cast<ptrdiff_t>(i + 1) * axis.stride,
                     weights.begin() + static_cast<ptrdiff_t>(j) * axis.stride);
}

void pair_weights(Axis& axis) {
  constexpr int kHalf = kWideWeightBits / 2, kMask = (1 << kHalf) - 1;
  const auto join = [](int32_t first, int32_t second) {
    return static_cast<int32_t>(static_cast<uint16_t>(first) |
                                static_cast<uint32_t>(static_cast<uint16_t>(second)) << 16);
  };
  axis.pairs.resize(axis.wide_weights.size() / 2);
  for (size_t i = 0; i < axis.pairs.size(); i++) {
    const int32_t a = axis.wide_weights[2 * i], b = axis.wide_weights[2 * i + 1];
    axis.pairs[i] = {join(a >> kHalf, b >> kHalf), join(a & kMask, b & kMask)};
  }
}

void mirror(Axis& axis) {
  std::reverse(axis.first.begin(), axis.first.end());
  std::reverse(axis.taps.begin(), axis.taps.end());
  with_weights(axis, [&](auto& weights, int) { mirror_weights(weights, axis); });
}

}  // namespace

bool vertical_first(int width, int height, int full_width, int full_height) {
  const int lost_rows = height - full_height;
  return lost_rows > 0 && lost_rows > 2 * (width - full_width);
}

void build_axis(Filter filter, int inputs, int outputs, OutputRange window, Mirrored mirrored,
                bool vertical, Axis& axis) {
  axis.outputs = window.count;
  axis.max_taps = 0;
  axis.first.resize(window.count);
  axis.taps.resize(window.count);
  if (filter == Filter::nearest || filter == Filter::nearest_floor || inputs == outputs)
    build_nearest(filter, inputs, outputs, window.first, vertical, mirrored.inputs, axis);
  else if (filter == Filter::bilinear)
    build<Bilinear>(kernels().bilinear_taps, inputs, outputs, window.first, vertical, axis);
  else if (filter == Filter::bicubic)
    build<Cubic>(kernels().bicubic_taps, inputs, outputs, window.first, vertical, axis);
  else
    build_filtered(Lanczos{}, inputs, outputs, window.first, vertical, axis);
  if (mirrored.outputs) mirror(axis);
  if (axis.wide) pair_weights(axis);
  axis.begin = inputs;
  axis.end = 0;
  for (int i = 0; i < window.count; i++) {
    axis.begin = std::min(axis.begin, axis.first[i]);
    axis.end = std::max(axis.end, axis.first[i] + axis.taps[i]);
  }
}

}  // namespace fastdata
