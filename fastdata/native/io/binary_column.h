// Values of a column of Arrow's binary layout, where they lie in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "common.h"

namespace fastdata {

/// A run of values, one after the other in `data`.
struct BinaryChunk {
  int64_t count = 0;  // values
  int64_t first = 0;  // place of the first of them in `validity` and `offsets`
  bool wide = false;  // offsets of 64 bits, rather than 32
  ByteSpan validity;  // a bit a value, 0 for a null; empty: there is no null
  ByteSpan offsets, data;
};

/// Chunks, one after the other. The caller owns their memory.
class BinaryColumn {
 public:
  enum class Found { value, null, damaged };

  /// False: the chunk's buffers are too short for its values, and it is not added.
  bool add(const BinaryChunk& chunk);

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  /// Finds a value from 0 to `size()`.
  Found find(int64_t row, ByteSpan& value) const;

 private:
  std::vector<BinaryChunk> chunks_;
  std::vector<int64_t> ends_;  // one past each chunk's last row
};

}  // namespace fastdata
