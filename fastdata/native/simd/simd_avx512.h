// The 512-bit vector and the operations on it that the *_core.h files name. Included
// inside an AVX-512 region (target.h); see simd_avx2.h.
#pragma once

namespace fastdata {
namespace {

using I = __m512i;
constexpr int kVectorBytes = 64;
constexpr int kLanes128 = 4;

FASTDATA_INLINE I zero() { return _mm512_setzero_si512(); }
FASTDATA_INLINE I load(const void* p) { return _mm512_loadu_si512(p); }
FASTDATA_INLINE void store(void* p, I v) { _mm512_storeu_si512(p, v); }
FASTDATA_INLINE I set8(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
FASTDATA_INLINE I set16(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
FASTDATA_INLINE I set32(int x) { return _mm512_set1_epi32(x); }

FASTDATA_INLINE I add8(I a, I b) { return _mm512_add_epi8(a, b); }
FASTDATA_INLINE I add16(I a, I b) { return _mm512_add_epi16(a, b); }
FASTDATA_INLINE I sub16(I a, I b) { return _mm512_sub_epi16(a, b); }
FASTDATA_INLINE I add32(I a, I b) { return _mm512_add_epi32(a, b); }
FASTDATA_INLINE I sub32(I a, I b) { return _mm512_sub_epi32(a, b); }
FASTDATA_INLINE I mullo16(I a, I b) { return _mm512_mullo_epi16(a, b); }
FASTDATA_INLINE I mulhi16(I a, I b) { return _mm512_mulhi_epi16(a, b); }
FASTDATA_INLINE I madd(I a, I b) { return _mm512_madd_epi16(a, b); }
FASTDATA_INLINE I madd_add(I sum, I a, I b) { return _mm512_dpwssd_epi32(sum, a, b); }
template <int kBound>
FASTDATA_INLINE bool any_outside(I v) {
  return _mm512_test_epi16_mask(add16(v, set16(kBound)), set16(-2 * kBound));
}
template <int kBits>
FASTDATA_INLINE I sra16(I v) {
  return _mm512_srai_epi16(v, kBits);
}
template <int kBits>
FASTDATA_INLINE I sra32(I v) {
  return _mm512_srai_epi32(v, kBits);
}

template <int kBits>
FASTDATA_INLINE I sll32(I v) {
  return _mm512_slli_epi32(v, kBits);
}

FASTDATA_INLINE I lo8(I a, I b) { return _mm512_unpacklo_epi8(a, b); }
FASTDATA_INLINE I hi8(I a, I b) { return _mm512_unpackhi_epi8(a, b); }
FASTDATA_INLINE I lo16(I a, I b) { return _mm512_unpacklo_epi16(a, b); }
FASTDATA_INLINE I hi16(I a, I b) { return _mm512_unpackhi_epi16(a, b); }
FASTDATA_INLINE I lo32(I a, I b) { return _mm512_unpacklo_epi32(a, b); }
FASTDATA_INLINE I hi32(I a, I b) { return _mm512_unpackhi_epi32(a, b); }
FASTDATA_INLINE I lo64(I a, I b) { return _mm512_unpacklo_epi64(a, b); }
FASTDATA_INLINE I hi64(I a, I b) { return _mm512_unpackhi_epi64(a, b); }
FASTDATA_INLINE I packs32(I a, I b) { return _mm512_packs_epi32(a, b); }
FASTDATA_INLINE I packs16(I a, I b) { return _mm512_packs_epi16(a, b); }
FASTDATA_INLINE I packus16(I a, I b) { return _mm512_packus_epi16(a, b); }

FASTDATA_INLINE I mulhi_u16(I a, I b) { return _mm512_mulhi_epu16(a, b); }
template <int kBits>
FASTDATA_INLINE I srl16(I v) {
  return _mm512_srli_epi16(v, kBits);
}
template <int kBits>
FASTDATA_INLINE I sll16(I v) {
  return _mm512_slli_epi16(v, kBits);
}

using F = __m512;
FASTDATA_INLINE F set_float(float x) { return _mm512_set1_ps(x); }
FASTDATA_INLINE F add_float(F a, F b) { return _mm512_add_ps(a, b); }
FASTDATA_INLINE F mul_float(F a, F b) { return _mm512_mul_ps(a, b); }
FASTDATA_INLINE F to_float(I v) { return _mm512_cvtepi32_ps(v); }
FASTDATA_INLINE I truncated(F v) { return _mm512_cvttps_epi32(v); }

FASTDATA_INLINE I load_u8_to_16(const uint8_t* p) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
FASTDATA_INLINE void store_16_to_u8(uint8_t* p, I first, I second) {
  const I order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  store(p, _mm512_permutexvar_epi64(order, packus16(first, second)));
}

FASTDATA_INLINE I broadcast128(const void* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
FASTDATA_INLINE __m128i load128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
FASTDATA_INLINE I load_lanes(const int16_t* const* blocks, int offset) {
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(blocks[0] + offset)),
                                              load128(blocks[1] + offset), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(blocks[2] + offset)),
                                               load128(blocks[3] + offset), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
FASTDATA_INLINE void store_halves(uint8_t* even, uint8_t* odd, I v) {
  const I order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const I sorted = _mm512_permutexvar_epi64(order, v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(even), _mm512_castsi512_si256(sorted));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(odd), _mm512_extracti64x4_epi64(sorted, 1));
}

/// For unstuff_core.h.
constexpr int kFoundBits = 1;
FASTDATA_INLINE uint64_t copy_and_find(const uint8_t* source, uint8_t* out) {
  const I bytes = load(source);
  store(out, bytes);
  return _mm512_cmpeq_epi8_mask(bytes, set8(0xFF));
}

}  // namespace
}  // namespace fastdata
