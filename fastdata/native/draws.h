// Random numbers that are pure functions of a key and a draw's number: the twin of
// fastdata/plan/draws.py, to the bit (tests/test_pixel_programs.py).
//
// SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
#pragma once

#include <cstdint>

namespace fastdata {

inline uint64_t draw_bits(uint64_t key, uint64_t draw) {
  uint64_t z = key + (draw + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// In [0, 1), 53 bits.
inline double draw_uniform(uint64_t key, uint64_t draw) {
  return static_cast<double>(draw_bits(key, draw) >> 11) * 0x1p-53;
}

/// In [0, bound); bound is at least 1.
inline int64_t draw_integer(uint64_t key, uint64_t draw, int64_t bound) {
  const auto wide =
      static_cast<unsigned __int128>(draw_bits(key, draw)) * static_cast<uint64_t>(bound);
  return static_cast<int64_t>(wide >> 64);
}

}  // namespace fastdata
