// Copies scan bytes without stuffed zeros (entropy.h, Unstuff), up to the next 0xFF at a time.
// Included after `copy_and_find`, which copies kVectorBytes and returns kFoundBits bits for each:
// set for a 0xFF.
#pragma once

namespace fastdata {
namespace {

Unstuffed unstuff(const uint8_t* source, const uint8_t* end, uint8_t* out, uint8_t* out_end) {
  while (source < end && out < out_end) {
    const ptrdiff_t left = end - source;
    uint64_t found;
    if (FASTDATA_LIKELY(left >= kVectorBytes)) {
      found = copy_and_find(source, out);
    } else {  // the last few bytes of the file
      uint8_t last[kVectorBytes] = {};
      std::memcpy(last, source, left);
      found = copy_and_find(last, out);
    }
    const ptrdiff_t count = found                 ? __builtin_ctzll(found) / kFoundBits
                            : left < kVectorBytes ? left
                                                  : kVectorBytes;
    out += count;
    source += count;
    if (!found) continue;
    if (source + 1 < end && source[1] != 0) return {source, out, true};
    out++;
    source += source + 1 < end ? 2 : 1;
  }
  return {source, out, false};
}

}  // namespace
}  // namespace fastdata
