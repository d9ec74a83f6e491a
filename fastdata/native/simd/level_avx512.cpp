// The AVX-512 path: Ice Lake, Zen 4 and later (cpu.h says what it needs).
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own avx512*intrin.h read a variable "uninitialised" on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#include "jpeg/bit_reader.h"
#include "simd/kernels.h"
#include "simd/target.h"

FASTDATA_TARGET_BEGIN(FASTDATA_AVX512)

#include "simd/simd_avx512.h"

#include "jpeg/colour_core.h"
#define FASTDATA_HAVE_BMI2
#define FASTDATA_HAVE_CORRECT
#include "jpeg/bands_avx512.h"
#include "jpeg/bands_core.h"
#include "jpeg/entropy_core.h"
#include "resample/windows_core.h"
#include "resample/horizontal_avx512.h"
#include "jpeg/entropy_vector_avx512.h"
#include "jpeg/idct_core.h"
#include "jpeg/idct_zigzag_avx512.h"
#define FASTDATA_HAVE_F16C
#include "resample/normalise_core.h"
#include "resample/filters_core.h"
#include "jpeg/upsample_core.h"
#include "resample/vertical_core.h"
#include "augment/blur_core.h"
#include "augment/box_core.h"
#include "augment/point_core.h"
#include "augment/mix_core.h"
#include "augment/noise_core.h"
#include "augment/warp_block_core.h"
#include "augment/warp_taps_x86.h"
#include "augment/warp_core.h"
#include "augment/tensor_core.h"
#include "augment/grid_core.h"

namespace fastdata {
namespace {

FASTDATA_INLINE __mmask64 first_n(ptrdiff_t n) {
  return n >= 64 ? ~__mmask64{0} : (__mmask64{1} << n) - 1;
}

/// Up to the next 0xFF at a time. (Dropping the stuffed zeros of 64 bytes by a compressing
/// permutation, without a branch, is 3% slower in all.)
Unstuffed unstuff(const uint8_t* source, const uint8_t* end, uint8_t* out, uint8_t* out_end) {
  const I ff = set8(0xFF);
  while (source < end && out < out_end) {
    const ptrdiff_t left = end - source;
    const I bytes = _mm512_maskz_loadu_epi8(first_n(left), source);
    const __mmask64 found = _mm512_cmpeq_epi8_mask(bytes, ff);
    store(out, bytes);
    if (!found) {
      const ptrdiff_t count = left < 64 ? left : 64;
      out += count;
      source += count;
      continue;
    }
    const int at = __builtin_ctzll(found);
    out += at;
    source += at;
    if (source + 1 < end && source[1] != 0) return {source, out, true};
    out++;
    source += source + 1 < end ? 2 : 1;
  }
  return {source, out, false};
}

/// 64 bytes of each plane to and from 192 interleaved ones: each vector of the result
/// takes bytes from two vectors, then from the third.
struct Permutation {
  alignas(64) uint8_t first[64], second[64];
};

constexpr Permutation interleave_pattern(int third) {
  Permutation p{};
  for (int i = 0; i < 64; i++) {
    const int at = 64 * third + i, plane = at % 3, x = at / 3;
    p.first[i] = static_cast<uint8_t>(plane < 2 ? 64 * plane + x : 0);
    p.second[i] = static_cast<uint8_t>(plane < 2 ? i : 64 + x);
  }
  return p;
}
constexpr Permutation deinterleave_pattern(int plane) {
  Permutation p{};
  for (int i = 0; i < 64; i++) {
    const int at = 3 * i + plane;
    p.first[i] = static_cast<uint8_t>(at < 128 ? at : 0);
    p.second[i] = static_cast<uint8_t>(at < 128 ? i : 64 + at - 128);
  }
  return p;
}
constexpr Permutation kInterleave[3] = {interleave_pattern(0), interleave_pattern(1),
                                        interleave_pattern(2)};
constexpr Permutation kDeinterleave[3] = {deinterleave_pattern(0), deinterleave_pattern(1),
                                          deinterleave_pattern(2)};

FASTDATA_INLINE I permute3(I a, I b, I c, const Permutation& p) {
  const I ab = _mm512_permutex2var_epi8(a, load(p.first), b);
  return _mm512_permutex2var_epi8(ab, load(p.second), c);
}

void interleave(const uint8_t* r, const uint8_t* g, const uint8_t* b, int n, uint8_t* out) {
  for (int x = 0; x < n; x += 64) {
    // The planes are padded; the output is not.
    const I vr = load(r + x), vg = load(g + x), vb = load(b + x);
    for (int third = 0; third < 3; third++) {
      const I v = permute3(vr, vg, vb, kInterleave[third]);
      const int at = 3 * x + 64 * third, left = 3 * n - at;
      if (left >= 64)
        store(out + at, v);
      else if (left > 0)
        _mm512_mask_storeu_epi8(out + at, first_n(left), v);
    }
  }
}

void deinterleave(const uint8_t* in, int n, uint8_t* r, uint8_t* g, uint8_t* b) {
  for (int x = 0; x < n; x += 64) {
    I thirds[3];
    for (int third = 0; third < 3; third++) {
      const int at = 3 * x + 64 * third, left = 3 * n - at;
      thirds[third] = left >= 64 ? load(in + at)
                      : left > 0 ? _mm512_maskz_loadu_epi8(first_n(left), in + at)
                                 : zero();
    }
    store(r + x, permute3(thirds[0], thirds[1], thirds[2], kDeinterleave[0]));
    store(g + x, permute3(thirds[0], thirds[1], thirds[2], kDeinterleave[1]));
    store(b + x, permute3(thirds[0], thirds[1], thirds[2], kDeinterleave[2]));
  }
}

void look_up(uint8_t* pixels, size_t n, const uint8_t* table) {
  const I first = load(table), second = load(table + 64);
  const I third = load(table + 128), fourth = load(table + 192);
  for (size_t i = 0; i < n; i += kVectorBytes) {
    const I bytes = load(pixels + i);
    const I low = _mm512_permutex2var_epi8(first, bytes, second);
    const I high = _mm512_permutex2var_epi8(third, bytes, fourth);
    store(pixels + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high));
  }
}

}  // namespace
}  // namespace fastdata

#include "simd/table_core.h"

namespace fastdata {

constinit const Kernels kAvx512Kernels = kernels_of(Level::avx512, decode_vector, idct_row_zigzag);

}  // namespace fastdata

FASTDATA_TARGET_END
#endif
