// The few words that every file of the core uses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastdata {

/// Bytes that another object owns. Never null with a size above zero.
struct ByteSpan {
  const uint8_t* data = nullptr;
  size_t size = 0;

  const uint8_t* begin() const { return data; }
  const uint8_t* end() const { return data + size; }
};

/// Bytes [begin, end) of something.
struct ByteRange {
  size_t begin = 0, end = 0;
};

/// The most pixels of an image's side after a resize, a crop or a pad. More would only be a
/// mistake, and take long to count through.
constexpr int kLongestSide = 1 << 24;

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

constexpr size_t round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace fastdata

#define FASTDATA_INLINE inline __attribute__((always_inline))
#define FASTDATA_NOINLINE __attribute__((noinline))
#define FASTDATA_LIKELY(x) __builtin_expect(!!(x), 1)
#define FASTDATA_UNLIKELY(x) __builtin_expect(!!(x), 0)
