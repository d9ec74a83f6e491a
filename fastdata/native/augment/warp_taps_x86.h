// Weighted sums of packed pixels, with 128-bit vectors of four channels: loads bound them, so that
// wider vectors gain nothing. Included inside an AVX2 or AVX-512 region (target.h).
#pragma once

namespace fastdata {
namespace {

/// The channels of two neighbouring pixels side by side, as words. `kSecond`: of the third and
/// fourth pixel in the vector.
template <bool kSecond = false>
FASTDATA_INLINE __m128i channel_pairs(__m128i pixels) {
  constexpr char kAt = kSecond ? 8 : 0;
  const __m128i order = _mm_setr_epi8(kAt, -1, kAt + 4, -1, kAt + 1, -1, kAt + 5, -1, kAt + 2, -1,
                                      kAt + 6, -1, kAt + 3, -1, kAt + 7, -1);
  return _mm_shuffle_epi8(pixels, order);
}

/// Straight from memory: of an integer, compilers would load it first, then shuffle it.
FASTDATA_INLINE __m128i broadcast(const int32_t* pair) {
  return _mm_castps_si128(_mm_broadcast_ss(reinterpret_cast<const float*>(pair)));
}

FASTDATA_INLINE __m128i two_pixels(const uint32_t* from) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}

FASTDATA_INLINE __m128i bilinear_pixel(const Warp& warp, const WarpBlock& block, int i) {
  const uint32_t* upper = warp.pixels + block.offset[i];
  const __m128i sum = _mm_add_epi32(
      _mm_madd_epi16(channel_pairs(two_pixels(upper)), broadcast(&block.pairs[0][i])),
      _mm_madd_epi16(channel_pairs(two_pixels(upper + warp.pitch)), broadcast(&block.pairs[1][i])));
  return _mm_srai_epi32(sum, kWarpBits);
}

FASTDATA_INLINE __m128i cubic_row(const uint32_t* from, __m128i first, __m128i second) {
  const __m128i pixels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i sum = _mm_add_epi32(_mm_madd_epi16(channel_pairs(pixels), first),
                                    _mm_madd_epi16(channel_pairs<true>(pixels), second));
  return _mm_srai_epi32(_mm_add_epi32(sum, _mm_set1_epi32(128)), kWarpBits - 6);
}

FASTDATA_INLINE __m128i bicubic_pixel(const Warp& warp, const WarpBlock& block, int i) {
  const uint32_t* row = warp.pixels + block.offset[i] - warp.pitch - 1;
  const ptrdiff_t pitch = warp.pitch;
  const __m128i first = broadcast(&block.pairs[0][i]);
  const __m128i second = broadcast(&block.pairs[1][i]);
  // Words of one row in the low halves of 32 bits, of the next in the high ones.
  const auto side_by_side = [](__m128i upper, __m128i lower) {
    return _mm_blend_epi16(upper, _mm_slli_epi32(lower, 16), 0xAA);
  };
  const __m128i upper =
      side_by_side(cubic_row(row, first, second), cubic_row(row + pitch, first, second));
  const __m128i lower = side_by_side(cubic_row(row + 2 * pitch, first, second),
                                     cubic_row(row + 3 * pitch, first, second));
  const __m128i sum = _mm_add_epi32(_mm_madd_epi16(upper, broadcast(&block.pairs[2][i])),
                                    _mm_madd_epi16(lower, broadcast(&block.pairs[3][i])));
  return _mm_srai_epi32(sum, kWarpBits + 6);
}

template <typename Pixel>
FASTDATA_INLINE void take(Pixel pixel, uint32_t* out) {
  for (int i = 0; i < kWarpBlock; i += 4) {
    const __m128i bytes = _mm_packus_epi16(_mm_packs_epi32(pixel(i), pixel(i + 1)),
                                           _mm_packs_epi32(pixel(i + 2), pixel(i + 3)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bytes);
  }
}

void take_bilinear(const Warp& warp, const WarpBlock& block, uint32_t* out) {
  take([&](int i) { return bilinear_pixel(warp, block, i); }, out);
}

void take_bicubic(const Warp& warp, const WarpBlock& block, uint32_t* out) {
  take([&](int i) { return bicubic_pixel(warp, block, i); }, out);
}

}  // namespace
}  // namespace fastdata
