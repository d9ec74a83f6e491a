// Which source samples neighbouring outputs of a horizontal pass need, for the paths that
// look bytes up in a vector. Included by one file for each instruction set (target.h).
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

}  // namespace
}  // namespace fastdata
