// Copying scan bytes without stuffed zeros, up to the next 0xFF at a time (entropy.h, Unstuff).
// Included after `copy_and_find`, which copies kVectorBytes and gives kFoundBits bits a byte, those
// of a 0xFF set.
#pragma once

namespace fastdata {
namespace {

Unstuffed unstuff(const uint8_t* source, const uint8_t* end, uint8_t* out, uint8_t* out_end) {
  while (out < out_end) {
    const ptrdiff_t left = end - source;
    uint64_t found = 0;
    int count = kVectorBytes;
    if (FASTDATA_LIKELY(left >= kVectorBytes)) {
      found = copy_and_find(source, out);
    } else {  // the last few bytes of the file
      if (left == 0) break;
      count = static_cast<int>(left);
      for (int i = 0; i < count; i++) {
        out[i] = source[i];
        found |= static_cast<uint64_t>(source[i] == 0xFF) << (kFoundBits * i);
      }
    }
    if (!found) {
      out += count;
      source += count;
      continue;
    }
    const int at = __builtin_ctzll(found) / kFoundBits;
    out += at;
    source += at;
    if (source + 1 < end && source[1] != 0) return {source, out, true};
    out++;
    source += source + 1 < end ? 2 : 1;
  }
  return {source, out, false};
}

}  // namespace
}  // namespace fastdata
