// The AVX2 path: x86-64 since Haswell and Zen.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "jpeg/bit_reader.h"
#include "simd/kernels.h"
#include "simd/target.h"

FASTDATA_TARGET_BEGIN(FASTDATA_AVX2)

#include "simd/simd_avx2.h"

#include "jpeg/colour_core.h"
#define FASTDATA_HAVE_BMI2
#include "jpeg/bands_core.h"
#include "jpeg/entropy_core.h"
#include "jpeg/unstuff_core.h"
#include "resample/windows_core.h"
#include "resample/horizontal_avx2.h"
#include "resample/horizontal_core.h"
#include "jpeg/idct_core.h"
#define FASTDATA_HAVE_F16C
#include "resample/interleave_core.h"
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
// Byte shuffles between three planes of 16 and 48 interleaved bytes; -1 gives zero.
constexpr int8_t kToInterleaved[3][3][16] = {
    {{0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5},
     {-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1},
     {-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1}},
    {{-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1},
     {5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10},
     {-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1}},
    {{-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1},
     {-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1},
     {10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15}}};
constexpr int8_t kFromInterleaved[3][3][16] = {
    // [plane][third]
    {{0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13}},
    {{1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14}},
    {{2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15}}};

FASTDATA_INLINE __m128i shuffled(__m128i v, const int8_t* pattern) {
  return _mm_shuffle_epi8(v, _mm_loadu_si128(reinterpret_cast<const __m128i*>(pattern)));
}
FASTDATA_INLINE __m128i load128(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

void interleave(const uint8_t* r, const uint8_t* g, const uint8_t* b, int n, uint8_t* out) {
  int x = 0;
  for (; x + 16 <= n; x += 16) {
    const __m128i vr = load128(r + x), vg = load128(g + x), vb = load128(b + x);
    for (int third = 0; third < 3; third++)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * x + 16 * third),
                       _mm_or_si128(_mm_or_si128(shuffled(vr, kToInterleaved[0][third]),
                                                 shuffled(vg, kToInterleaved[1][third])),
                                    shuffled(vb, kToInterleaved[2][third])));
  }
  interleave_from(x, r, g, b, n, out);
}

void deinterleave(const uint8_t* in, int n, uint8_t* r, uint8_t* g, uint8_t* b) {
  uint8_t* planes[3] = {r, g, b};
  int x = 0;
  for (; x + 16 <= n; x += 16) {
    const __m128i first = load128(in + 3 * x), second = load128(in + 3 * x + 16);
    const __m128i third = load128(in + 3 * x + 32);
    for (int p = 0; p < 3; p++)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(planes[p] + x),
                       _mm_or_si128(_mm_or_si128(shuffled(first, kFromInterleaved[p][0]),
                                                 shuffled(second, kFromInterleaved[p][1])),
                                    shuffled(third, kFromInterleaved[p][2])));
  }
  deinterleave_from(x, in, n, r, g, b);
}

/// A shuffle looks up in 16 bytes and gives 0 where the index is negative. Table by table the index
/// falls by 16, so that it is negative from its own table on; what came from those before it
/// cancels out, as each table is XORed with the one before. The second half of the tables is for
/// bytes above 127, whose sign is flipped.
void look_up(uint8_t* pixels, size_t n, const uint8_t* table) {
  I differences[16];
  for (int half = 0; half < 2; half++)
    for (int t = 0; t < 8; t++) {
      const I values = broadcast128(table + 128 * half + 16 * t);
      const I before = t ? broadcast128(table + 128 * half + 16 * (t - 1)) : zero();
      differences[8 * half + t] = _mm256_xor_si256(values, before);
    }
  const I step = set8(16), sign = set8(0x80);
  for (size_t i = 0; i < n; i += 2 * kVectorBytes) {
    I low[2], high[2], found[2];
    for (int v = 0; v < 2; v++) {
      low[v] = load(pixels + i + v * kVectorBytes);
      high[v] = _mm256_xor_si256(low[v], sign);
      found[v] = _mm256_xor_si256(_mm256_shuffle_epi8(differences[0], low[v]),
                                  _mm256_shuffle_epi8(differences[8], high[v]));
    }
    for (int t = 1; t < 8; t++)
      for (int v = 0; v < 2; v++) {
        low[v] = _mm256_subs_epi8(low[v], step);
        high[v] = _mm256_subs_epi8(high[v], step);
        const I part = _mm256_xor_si256(_mm256_shuffle_epi8(differences[t], low[v]),
                                        _mm256_shuffle_epi8(differences[8 + t], high[v]));
        found[v] = _mm256_xor_si256(found[v], part);
      }
    for (int v = 0; v < 2; v++) store(pixels + i + v * kVectorBytes, found[v]);
  }
}

}  // namespace
}  // namespace fastdata

#include "simd/table_core.h"

namespace fastdata {

constinit const Kernels kAvx2Kernels = kernels_of(Level::avx2);

}  // namespace fastdata

FASTDATA_TARGET_END
#endif
