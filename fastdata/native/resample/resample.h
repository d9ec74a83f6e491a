// Resampling as Pillow's crop(box).resize(size, filter) does it (Resample.c): a
// horizontal pass, rounded to bytes, then a vertical one; the filter widened by the scale
// when it shrinks, so that it antialiases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "buffer.h"
#include "common.h"

namespace fastdata {

/// Those of Pillow, and torch's nearest, which takes other pixels. Python: `_native.FILTERS`.
enum class Filter { nearest, bilinear, bicubic, lanczos, nearest_floor };
constexpr int kLastFilter = static_cast<int>(Filter::nearest_floor);
constexpr Filter kMaskFilter = Filter::nearest_floor;  // torch's nearest

// Note [Weights]: Pillow's weights are integers of 22 bits; with those ("wide") results are
// Pillow's, and the vertical pass always has them. The vector paths multiply them in two words or
// three bytes each, whose sums of products, shifted, add up to the same integer. Horizontally that
// costs more, and bilinear weights have 13 bits there: one word or two bytes. These sum to 2^13
// exactly, so that constant areas stay constant. With up to kMaxTaps taps, their error stays below
// 1/2, so that a byte differs from Pillow's by at most 1, and an average of such bytes, exactly
// taken, again by at most 1. Filters with weights below zero would add the differences up; they
// are wide in both directions. All paths compute the same integers: they give the same bytes.
constexpr int kWeightBits = 13;
constexpr int kMaxTaps = 32;
constexpr int kWideWeightBits = 22;
template <bool kWide>
constexpr int kBitsOf = kWide ? kWideWeightBits : kWeightBits;

/// Two neighbouring wide weights as the vector paths multiply them: their upper halves and
/// their lower halves (11 bits), each pair in one word of 32 bits.
struct WeightPair {
  int32_t high, low;
};

/// One direction of a resampling: output i is the weighted sum of source samples
/// first[i] to first[i] + taps[i] - 1.
struct Axis {
  int outputs = 0;
  int max_taps = 0;
  bool wide = false;  // the weights have kWideWeightBits
  std::vector<int32_t> first, taps;
  int stride = 0;                // weights per output; those beyond its taps are zero
  std::vector<int16_t> weights;  // unless wide
  std::vector<int32_t> wide_weights;
  std::vector<WeightPair> pairs;  // of the wide weights
  std::vector<int32_t> scratch;   // for build_axis
  int begin = 0, end = 0;         // the source samples that any output needs

  template <bool kWide>
  FASTDATA_INLINE const auto* weights_of(int output) const {
    if constexpr (kWide)
      return wide_weights.data() + static_cast<size_t>(output) * stride;
    else
      return weights.data() + static_cast<size_t>(output) * stride;
  }
  const WeightPair* pairs_of(int output) const {
    return pairs.data() + static_cast<size_t>(output) * stride / 2;
  }
};

/// Taps of outputs `first` and on: `scale` source samples, of `inputs`, for each.
/// Weights sum to about `one`. `most`: a multiple of four up to kFewTaps, and as many taps as the
/// filter has at that scale.
struct FewTaps {
  double scale, one;
  int inputs, first, most;
};
constexpr int kFewTaps = 12;

/// For `count` outputs the first source sample, the number of taps, at most `most`, and, one
/// tap of all outputs after the other, the weights rounded to integers.
using FindFewTaps = void (*)(const FewTaps& of, int count, int32_t* first, int32_t* taps,
                             int32_t* weights);

/// The wanted outputs of an axis: `count` from `first` on.
struct OutputRange {
  int first, count;
};

/// How an axis is mirrored: its outputs, at last; its source samples, before.
struct Mirrored {
  bool outputs = false, inputs = false;
};

/// Builds the axis from `inputs` source samples to the outputs in `window`, of `outputs`.
/// Source samples that were mirrored matter to filters of one tap alone: the window is then one of
/// the outputs mirrored back. For the vertical pass its weights are wide; for the horizontal one
/// where they must be.
void build_axis(Filter filter, int inputs, int outputs, OutputRange window, Mirrored mirrored,
                bool vertical, Axis& axis);

/// An axis in the form that one instruction set's horizontal pass wants. Source indices
/// are relative to axis.begin.
struct HorizontalPlan {
  const Axis* axis = nullptr;
  int mode = 0;
  int groups = 0;  // of outputs that are computed together
  int steps = 0;   // tap groups per output
  Buffer data;     // mode's tables
};

using PlanHorizontal = void (*)(const Axis& axis, HorizontalPlan& plan);

/// Bounds: docs/design/0007-native-bounds.md, resampling. Resamples a row of each plane; the
/// results lie out_stride apart. Reads up to kRowPadding bytes beyond the source rows; writes each
/// output row rounded up to 64.
using ResampleHorizontal = void (*)(const HorizontalPlan& plan, const uint8_t* const* planes,
                                    int plane_count, uint8_t* out, size_t out_stride);

/// Output row `output` of the vertical pass: the weighted sum of rows that lie `stride`
/// apart, from the axis's first, n bytes each, n a multiple of 64.
using ResampleVertical = void (*)(const Axis& axis, int output, const uint8_t* rows, size_t stride,
                                  int n, uint8_t* out);

// Note [Order of passes]: bytes are rounded, and clamped, between the passes, so that
// their order shows (by several levels, where a filter with negative lobes overshoots).
// Pillow 13 begins with the vertical pass if the image shrinks in height, and by more than
// twice the pixels that it shrinks by in width; found by experiment over sizes and filters,
// tests/test_native_resample.py holds it to that. Older Pillows begin with the horizontal.
// The sizes are the whole resize's, whatever window of it is wanted.
bool vertical_first(int width, int height, int full_width, int full_height);

/// Rounds a sum of weighted bytes back to a byte.
template <int kBits>
FASTDATA_INLINE uint8_t round_to_byte(int sum) {
  const int value = (sum + (1 << (kBits - 1))) >> kBits;
  return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

}  // namespace fastdata
