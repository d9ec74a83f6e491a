// Pixels outside an image.
#pragma once

#include <cstdint>

#include "augment/operations.h"
#include "status.h"

namespace fastdata {

enum class PadMode { constant, edge, reflect, symmetric };

/// Returns the sides of a padding, and its mode, as integers. bad_parameters: one is out of range.
inline Status whole_padding(const operations::Pad& by, int& left, int& top, int& right, int& bottom,
                            PadMode& mode) {
  const auto is_side = [](double size, int& side) {
    return whole_number(size, 0, kLongestSide, side);
  };
  int number;
  if (!is_side(by.left, left) || !is_side(by.top, top) || !is_side(by.right, right) ||
      !is_side(by.bottom, bottom))
    return {Code::bad_parameters, "a padding outside 0 to 2^24"};
  if (!whole_number(by.mode, 0, 3, number))
    return {Code::bad_parameters, "a padding mode outside 0 to 3"};
  mode = static_cast<PadMode>(number);
  return {};
}

/// The pixel, of n, at place `i`, which may lie outside (numpy.pad).
inline int padded_from(PadMode mode, int64_t i, int n) {
  if (mode == PadMode::edge || n == 1) return i < 0 ? 0 : i < n ? static_cast<int>(i) : n - 1;
  const int64_t period = mode == PadMode::reflect ? 2 * (int64_t{n} - 1) : 2 * int64_t{n};
  const int64_t at = ((i % period) + period) % period;
  return static_cast<int>(at < n ? at : mode == PadMode::reflect ? period - at : period - 1 - at);
}

}  // namespace fastdata
