// Reading a stream's bits: the operations that the fast and the slow paths share.
#pragma once

#include <cstdint>
#include <cstring>

#include "common.h"
#include "jpeg/entropy.h"

namespace fastdata {

/// Leaves at least 56 valid bits. Loads eight bytes at `pos`, moves on by those whose
/// bits all fitted (Fabian Giesen, "Reading bits in far too many ways", variant 4).
FASTDATA_INLINE void refill(Cursor& cursor) {
  uint64_t next;
  std::memcpy(&next, cursor.pos, 8);
  cursor.bits |= __builtin_bswap64(next) >> (cursor.count & 63);
  cursor.pos += ~cursor.count >> 3 & 7;  // (63 - count) / 8
  cursor.count |= 56;
}

/// Takes `length` bits, the lower six bits of the argument; Note [Count modulo 64].
FASTDATA_INLINE void consume(Cursor& cursor, uint32_t length) {
  cursor.bits <<= length & 63;
  cursor.count -= length;
}

/// The value of `size` extra bits at the top of `bits` (T.81, F.2.2.1, EXTEND).
/// size 0 gives 0.
FASTDATA_INLINE int extend(uint64_t bits, unsigned size) {
  const int value = static_cast<int>((bits >> 1) >> (63 - size));
  const int negative = ~static_cast<int>(static_cast<int64_t>(bits) >> 63);
  return value + ((1 - (1 << size)) & negative);
}

}  // namespace fastdata
