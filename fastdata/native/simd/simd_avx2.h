// The 256-bit vector and the operations on it that the *_core.h files name. Included
// inside an AVX2 region (target.h); simd_avx512.h has the same names for 512 bits.
#pragma once

namespace fastdata {
namespace {

using I = __m256i;
constexpr int kVectorBytes = 32;
constexpr int kLanes128 = 2;

FASTDATA_INLINE I zero() { return _mm256_setzero_si256(); }
FASTDATA_INLINE I load(const void* p) { return _mm256_loadu_si256(static_cast<const I*>(p)); }
FASTDATA_INLINE void store(void* p, I v) { _mm256_storeu_si256(static_cast<I*>(p), v); }
FASTDATA_INLINE I set8(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
FASTDATA_INLINE I set16(int x) { return _mm256_set1_epi16(static_cast<short>(x)); }
FASTDATA_INLINE I set32(int x) { return _mm256_set1_epi32(x); }

FASTDATA_INLINE I add8(I a, I b) { return _mm256_add_epi8(a, b); }
FASTDATA_INLINE I add16(I a, I b) { return _mm256_add_epi16(a, b); }
FASTDATA_INLINE I sub16(I a, I b) { return _mm256_sub_epi16(a, b); }
FASTDATA_INLINE I add32(I a, I b) { return _mm256_add_epi32(a, b); }
FASTDATA_INLINE I sub32(I a, I b) { return _mm256_sub_epi32(a, b); }
FASTDATA_INLINE I mullo16(I a, I b) { return _mm256_mullo_epi16(a, b); }
FASTDATA_INLINE I mulhi16(I a, I b) { return _mm256_mulhi_epi16(a, b); }
FASTDATA_INLINE I madd(I a, I b) { return _mm256_madd_epi16(a, b); }
/// sum + a.even * b.even + a.odd * b.odd
FASTDATA_INLINE I madd_add(I sum, I a, I b) { return add32(sum, madd(a, b)); }
template <int kBits>
FASTDATA_INLINE I sra16(I v) {
  return _mm256_srai_epi16(v, kBits);
}
template <int kBits>
FASTDATA_INLINE I sra32(I v) {
  return _mm256_srai_epi32(v, kBits);
}

template <int kBits>
FASTDATA_INLINE I sll32(I v) {
  return _mm256_slli_epi32(v, kBits);
}

// Within each 128-bit lane, as the instructions are.
FASTDATA_INLINE I lo8(I a, I b) { return _mm256_unpacklo_epi8(a, b); }
FASTDATA_INLINE I hi8(I a, I b) { return _mm256_unpackhi_epi8(a, b); }
FASTDATA_INLINE I lo16(I a, I b) { return _mm256_unpacklo_epi16(a, b); }
FASTDATA_INLINE I hi16(I a, I b) { return _mm256_unpackhi_epi16(a, b); }
FASTDATA_INLINE I lo32(I a, I b) { return _mm256_unpacklo_epi32(a, b); }
FASTDATA_INLINE I hi32(I a, I b) { return _mm256_unpackhi_epi32(a, b); }
FASTDATA_INLINE I lo64(I a, I b) { return _mm256_unpacklo_epi64(a, b); }
FASTDATA_INLINE I hi64(I a, I b) { return _mm256_unpackhi_epi64(a, b); }
FASTDATA_INLINE I packs32(I a, I b) { return _mm256_packs_epi32(a, b); }
FASTDATA_INLINE I packs16(I a, I b) { return _mm256_packs_epi16(a, b); }
FASTDATA_INLINE I packus16(I a, I b) { return _mm256_packus_epi16(a, b); }

/// The upper half of the product of unsigned words.
FASTDATA_INLINE I mulhi_u16(I a, I b) { return _mm256_mulhi_epu16(a, b); }
template <int kBits>
FASTDATA_INLINE I srl16(I v) {
  return _mm256_srli_epi16(v, kBits);
}
template <int kBits>
FASTDATA_INLINE I sll16(I v) {
  return _mm256_slli_epi16(v, kBits);
}

using F = __m256;
FASTDATA_INLINE F set_float(float x) { return _mm256_set1_ps(x); }
FASTDATA_INLINE F add_float(F a, F b) { return _mm256_add_ps(a, b); }
FASTDATA_INLINE F mul_float(F a, F b) { return _mm256_mul_ps(a, b); }
FASTDATA_INLINE F to_float(I v) { return _mm256_cvtepi32_ps(v); }
FASTDATA_INLINE I truncated(F v) { return _mm256_cvttps_epi32(v); }

/// Whether a word is not in [-kBound, kBound), a power of 2.
template <int kBound>
FASTDATA_INLINE bool any_outside(I v) {
  return !_mm256_testz_si256(add16(v, set16(kBound)), set16(-2 * kBound));
}

/// Half a vector of bytes, widened; and two such, narrowed with saturation.
FASTDATA_INLINE I load_u8_to_16(const uint8_t* p) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
FASTDATA_INLINE void store_16_to_u8(uint8_t* p, I first, I second) {
  store(p, _mm256_permute4x64_epi64(packus16(first, second), 0xD8));
}

/// The same 128 bits in every lane, and 128 bits of one block in each.
FASTDATA_INLINE I broadcast128(const void* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
FASTDATA_INLINE I load_lanes(const int16_t* const* blocks, int offset) {
  const I first =
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks[0] + offset)));
  return _mm256_inserti128_si256(
      first, _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks[1] + offset)), 1);
}
/// Each lane's low 8 bytes to `even`, its high 8 bytes to `odd`, lane after lane.
FASTDATA_INLINE void store_halves(uint8_t* even, uint8_t* odd, I v) {
  const I sorted = _mm256_permute4x64_epi64(v, 0xD8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(even), _mm256_castsi256_si128(sorted));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(odd), _mm256_extracti128_si256(sorted, 1));
}

/// For unstuff_core.h.
constexpr int kFoundBits = 1;
FASTDATA_INLINE uint64_t copy_and_find(const uint8_t* source, uint8_t* out) {
  const I bytes = load(source);
  store(out, bytes);
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, set8(0xFF))));
}

}  // namespace
}  // namespace fastdata
