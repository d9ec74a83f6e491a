// The core's entropy decoding for any processor, as simd/level_scalar.cpp has it, without all else
// that a level needs.
#include "simd/kernels.h"

#include "jpeg/bit_reader.h"
#include "jpeg/entropy_core.h"

namespace {

constexpr int kVectorBytes = 1, kFoundBits = 1;
uint64_t copy_and_find(const uint8_t* in, uint8_t* out) { return (*out = *in) == 0xFF; }

}  // namespace

#include "jpeg/unstuff_core.h"

namespace fastdata {

const Kernels& kernels() {
  static const Kernels entropy_alone = [] {
    Kernels k{};
    k.unstuff = unstuff;
    k.decode_streams = decode_streams;
    k.skip_streams = skip_streams;
    return k;
  }();
  return entropy_alone;
}

}  // namespace fastdata
