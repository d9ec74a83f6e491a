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
#include "resample/vertical_core.h"
#include "augment/mix_core.h"
#include "augment/warp_taps_x86.h"

namespace fastdata {
namespace {
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
