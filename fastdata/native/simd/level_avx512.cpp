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
#include "jpeg/unstuff_core.h"
#include "resample/windows_core.h"
#include "resample/horizontal_avx512.h"
#include "jpeg/entropy_vector_avx512.h"
#include "jpeg/idct_core.h"
#include "jpeg/idct_zigzag_avx512.h"
#include "resample/vertical_core.h"
#include "augment/mix_core.h"
#include "augment/warp_taps_x86.h"

namespace fastdata {
namespace {

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

constinit const Kernels kAvx512Kernels =
    kernels_of(Level::avx512, decode_vector, join_symbols, idct_row_zigzag);

}  // namespace fastdata

FASTDATA_TARGET_END
#endif
