// Weighted sums of a pixel's channels and of its neighbours, in vectors; mix_scalar.h has what they
// compute. Included behind simd_avx2.h, simd_avx512.h or simd_neon.h.
#pragma once

namespace fastdata {
namespace {

constexpr int kWordLanes = kVectorBytes / 2;  // of a vector

/// Pillow's L. The weight of green is beyond a signed word: 2^16 of it are added afterwards.
FASTDATA_INLINE I grey_words(I r, I g, I b) {
  const I red_green = set32(static_cast<int>(19595 | static_cast<uint32_t>(38470 - 65536) << 16));
  const I blue = set32(7471), half = set32(1 << 15);
  const I low = madd_add(madd_add(half, lo16(r, g), red_green), lo16(b, zero()), blue);
  const I high = madd_add(madd_add(half, hi16(r, g), red_green), hi16(b, zero()), blue);
  return add16(packs32(sra32<16>(low), sra32<16>(high)), g);
}

/// Pillow's blend, not clamped yet: what is below 0 or above 255 still is, as a word.
FASTDATA_INLINE I blend_words(I from, I to, F factor) {
  const I difference = sub16(to, from);
  // A word twice, shifted down, is the word with its sign.
  const F low = to_float(sra32<16>(lo16(difference, difference)));
  const F high = to_float(sra32<16>(hi16(difference, difference)));
  const F from_low = to_float(lo16(from, zero())), from_high = to_float(hi16(from, zero()));
  return packs32(truncated(add_float(from_low, mul_float(factor, low))),
                 truncated(add_float(from_high, mul_float(factor, high))));
}

void grey(const uint8_t* r, const uint8_t* g, const uint8_t* b, size_t n, uint8_t* out) {
  for (size_t x = 0; x < n; x += kVectorBytes) {
    I words[2];
    for (int i = 0; i < 2; i++) {
      const size_t at = x + i * kWordLanes;
      words[i] = grey_words(load_u8_to_16(r + at), load_u8_to_16(g + at), load_u8_to_16(b + at));
    }
    store_16_to_u8(out + x, words[0], words[1]);
  }
}

void saturate(uint8_t* r, uint8_t* g, uint8_t* b, size_t n, float factor) {
  const F factors = set_float(factor);
  uint8_t* const planes[3] = {r, g, b};
  for (size_t x = 0; x < n; x += kVectorBytes) {
    I words[3][2];
    for (int i = 0; i < 2; i++) {
      const size_t at = x + i * kWordLanes;
      for (int c = 0; c < 3; c++) words[c][i] = load_u8_to_16(planes[c] + at);
      const I grey = grey_words(words[0][i], words[1][i], words[2][i]);
      for (int c = 0; c < 3; c++) words[c][i] = blend_words(grey, words[c][i], factors);
    }
    for (int c = 0; c < 3; c++) store_16_to_u8(planes[c] + x, words[c][0], words[c][1]);
  }
}

/// Three neighbours in a row, added.
FASTDATA_INLINE I three(const uint8_t* at) {
  return add16(add16(load_u8_to_16(at - 1), load_u8_to_16(at)), load_u8_to_16(at + 1));
}

/// From the second pixel on, so that none before the row is read; up to a vector beyond its end is
/// written.
void sharpen(const uint8_t* above, const uint8_t* row, const uint8_t* below, int n, float factor,
             uint8_t* out) {
  const F factors = set_float(factor);
  const I six = set16(6), thirteenth = set16(5042);
  for (int x = 1; x < n - 1; x += kVectorBytes) {
    I words[2];
    for (int i = 0; i < 2; i++) {
      const int at = x + i * kWordLanes;
      const I centre = load_u8_to_16(row + at);
      const I around = add16(add16(three(above + at), three(row + at)), three(below + at));
      const I sum = add16(add16(around, sll16<2>(centre)), six);
      words[i] = blend_words(mulhi_u16(sum, thirteenth), centre, factors);
    }
    store_16_to_u8(out + x, words[0], words[1]);
  }
  out[0] = row[0];
  out[n - 1] = row[n - 1];
}

}  // namespace
}  // namespace fastdata
