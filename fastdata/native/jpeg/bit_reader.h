// Reading a stream's bits: the operations that the fast and the slow paths share.
#pragma once

#include <cstdint>
#include <cstring>

#include "common.h"
#include "jpeg/entropy.h"

namespace fastdata {

/// Leaves at least 56 valid bits. Loads eight bytes at `pos`, moves on by those whose
/// bits all fitted (Fabian Giesen, "Reading bits in far too many ways", variant 4).
FASTDATA_INLINE void refill(Lane& lane) {
  uint64_t next;
  std::memcpy(&next, lane.pos, 8);
  lane.bits |= __builtin_bswap64(next) >> (lane.count & 63);
  lane.pos += ~lane.count >> 3 & 7;  // (63 - count) / 8
  lane.count |= 56;
}

/// Takes `length` bits, the lower six bits of the argument; Note [Count modulo 64].
FASTDATA_INLINE void consume(Lane& lane, uint32_t length) {
  lane.bits <<= length & 63;
  lane.count -= length;
}

/// The value of `size` extra bits at the top of `bits` (T.81, F.2.2.1, EXTEND).
/// size 0 gives 0.
FASTDATA_INLINE int extend(uint64_t bits, unsigned size) {
  const int value = static_cast<int>((bits >> 1) >> (63 - size));
  const int negative = ~static_cast<int>(static_cast<int64_t>(bits) >> 63);
  return value + ((1 - (1 << size)) & negative);
}

}  // namespace fastdata
