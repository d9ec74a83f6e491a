// Chroma upsampling: libjpeg's triangle filter (jdsample.c). Plain loops, which
// compilers turn into vectors well enough; included by one file for each instruction
// set (target.h).
//
// Each output lies a quarter of a sample from its nearer input and three quarters from
// the farther one, in each direction that is upsampled: weights 3/4 and 1/4. libjpeg
// alternates the rounding so that no bias remains. At the image's edges the missing
// neighbour is the sample itself.
#pragma once

namespace fastdata {
namespace {

/// Two neighbouring outputs as one word, so that the stores become whole vectors.
FASTDATA_INLINE uint16_t byte_pair(int even, int odd) {
  return static_cast<uint16_t>(even | odd << 8);
}

void upsample_h2v1(const uint8_t* __restrict row, int n, bool has_left, bool has_right,
                   uint8_t* __restrict out) {
  auto* __restrict pairs = reinterpret_cast<uint16_t*>(out);
  const int left = row[has_left ? -1 : 0], right = row[has_right ? n : n - 1];
  for (ptrdiff_t i = 1; i < n - 1; i++)
    pairs[i] = byte_pair((3 * row[i] + row[i - 1] + 1) >> 2, (3 * row[i] + row[i + 1] + 2) >> 2);
  const int second = n > 1 ? row[1] : right;
  pairs[0] = byte_pair((3 * row[0] + left + 1) >> 2, (3 * row[0] + second + 2) >> 2);
  if (n > 1)
    pairs[n - 1] =
        byte_pair((3 * row[n - 1] + row[n - 2] + 1) >> 2, (3 * row[n - 1] + right + 2) >> 2);
}

void upsample_h2v2(const uint8_t* __restrict near, const uint8_t* __restrict far, int n,
                   bool has_left, bool has_right, uint16_t* __restrict sums,
                   uint8_t* __restrict out) {
  // sums[i + 1] is column i, blended vertically: at most 4 * 255.
  const ptrdiff_t begin = has_left ? -1 : 0, end = has_right ? n + 1 : n;
  for (ptrdiff_t i = begin; i < end; i++) sums[i + 1] = static_cast<uint16_t>(3 * near[i] + far[i]);
  if (!has_left) sums[0] = sums[1];
  if (!has_right) sums[n + 1] = sums[n];
  auto* __restrict pairs = reinterpret_cast<uint16_t*>(out);
  for (ptrdiff_t i = 0; i < n; i++) {
    const uint16_t three = static_cast<uint16_t>(3 * sums[i + 1]);
    const uint16_t even = static_cast<uint16_t>(three + sums[i] + 8) >> 4;
    const uint16_t odd = static_cast<uint16_t>(three + sums[i + 2] + 7) >> 4;
    pairs[i] = static_cast<uint16_t>(even | static_cast<uint16_t>(odd << 8));
  }
}

void upsample_h1v2(const uint8_t* __restrict near, const uint8_t* __restrict far, int n, int bias,
                   uint8_t* __restrict out) {
  for (ptrdiff_t i = 0; i < n; i++)
    out[i] = static_cast<uint8_t>((3 * near[i] + far[i] + bias) >> 2);
}

}  // namespace
}  // namespace fastdata
