#pragma once

#include <cstddef>

namespace fastdata {

/// Bytes [begin, end) of something.
struct ByteRange {
  size_t begin = 0, end = 0;
};

}  // namespace fastdata
