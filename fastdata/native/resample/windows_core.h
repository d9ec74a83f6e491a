// Which source samples neighbouring outputs of a horizontal pass need, for the paths that
// look bytes up in a vector, and the words that they multiply by. Included by one file for each
// instruction set (target.h).
#pragma once

namespace fastdata {
namespace {

/// The source bytes from the first that outputs [begin, begin + count) need.
struct Window {
  int first, size;
};
Window window_of(const Axis& axis, int begin, int count) {
  const int end = begin + count < axis.outputs ? begin + count : axis.outputs;
  int first = axis.end, last = axis.begin;
  for (int i = begin; i < end; i++) {
    if (axis.first[i] < first) first = axis.first[i];
    if (axis.first[i] + axis.taps[i] > last) last = axis.first[i] + axis.taps[i];
  }
  if (first > last) return {axis.begin, 0};
  return {first, last - first};
}

/// Number of words that a weight is multiplied as: a wide one's lower half and its upper.
template <bool kWide>
constexpr int kParts = kWide ? 2 : 1;

template <bool kWide>
FASTDATA_INLINE int16_t part_of(int weight, int part) {
  constexpr int kHalf = kWideWeightBits / 2;
  if (!kWide) return static_cast<int16_t>(weight);
  return static_cast<int16_t>(part ? weight >> kHalf : weight & ((1 << kHalf) - 1));
}

}  // namespace
}  // namespace fastdata
