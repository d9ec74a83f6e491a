// Random numbers that are pure functions of a key and a draw's number. fastdata/plan/draws.py says
// which keys there are.
//
// SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
#pragma once

#include <cmath>
#include <cstdint>

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

}  // namespace fastdata
