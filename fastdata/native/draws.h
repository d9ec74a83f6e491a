// Random numbers that are pure functions of a key and a draw's number. fastdata/plan/draws.py says
// which keys there are.
//
// SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "portable.h"

namespace fastdata {

inline uint64_t draw_bits(uint64_t key, uint64_t draw) {
  uint64_t z = key + (draw + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// The key of a sample, from that of its view. `occurrence`: how often it was drawn before.
inline uint64_t sample_key(uint64_t view_key, int64_t number, int64_t occurrence) {
  const uint64_t key = draw_bits(view_key, static_cast<uint64_t>(number));
  return occurrence > 0 ? draw_bits(key, static_cast<uint64_t>(-1 - occurrence)) : key;
}

/// In [0, 1), 53 bits.
inline double draw_uniform(uint64_t key, uint64_t draw) {
  return static_cast<double>(draw_bits(key, draw) >> 11) * 0x1p-53;
}

/// Between `from` and `to`, as torch.Tensor.uniform_ makes it of 24 random bits: in single
/// precision, by a fused multiplication and addition.
inline float draw_uniform_single(uint64_t key, uint64_t draw, double from, double to) {
  const auto first = static_cast<float>(from);
  const float unit = static_cast<float>(draw_bits(key, draw) >> 40) * 0x1p-24f;
  return std::fma(unit, static_cast<float>(to) - first, first);
}

/// In [0, bound); bound is at least 1.
inline int64_t draw_integer(uint64_t key, uint64_t draw, int64_t bound) {
  const auto wide =
      static_cast<unsigned __int128>(draw_bits(key, draw)) * static_cast<uint64_t>(bound);
  return static_cast<int64_t>(wide >> 64);
}

/// Of the gamma distribution, above 0, from all draws of a key of its own. `shape` is above 0.
/// Marsaglia, Tsang, "A simple method for generating gamma variables", 2000; normal values by Box
/// and Muller.
inline double draw_gamma(uint64_t key, double shape) {
  constexpr double kTwoPi = 6.283185307179586, kLeast = 1e-300;
  uint64_t draw = 0;
  const auto above_0 = [&] { return 1 - draw_uniform(key, draw++); };
  double factor = 1;
  if (shape < 1) {
    factor = portable_exp(std::max(portable_log(above_0()) / shape, -690.0));
    shape += 1;
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    double sine, cosine;
    const double radius = std::sqrt(-2 * portable_log(above_0()));
    portable_sine_cosine(kTwoPi * draw_uniform(key, draw++), sine, cosine);
    const double x = radius * cosine, root = 1 + c * x, u = above_0();
    if (root <= 0) continue;
    const double v = root * root * root;
    if (portable_log(u) < 0.5 * x * x + d - d * v + d * portable_log(v))
      return std::max(factor * d * v, kLeast);
  }
}

}  // namespace fastdata
