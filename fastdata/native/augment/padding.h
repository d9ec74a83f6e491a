// Pixels outside an image.
#pragma once

#include <cstdint>

namespace fastdata {

enum class PadMode { constant, edge, reflect, symmetric };

/// The pixel, of n, at place `i`, which may lie outside (numpy.pad).
inline int padded_from(PadMode mode, int64_t i, int n) {
  if (mode == PadMode::edge || n == 1) return i < 0 ? 0 : i < n ? static_cast<int>(i) : n - 1;
  const int64_t period = mode == PadMode::reflect ? 2 * (int64_t{n} - 1) : 2 * int64_t{n};
  const int64_t at = ((i % period) + period) % period;
  return static_cast<int>(at < n ? at : mode == PadMode::reflect ? period - at : period - 1 - at);
}

}  // namespace fastdata
