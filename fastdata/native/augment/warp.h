// Taking an image's pixels from elsewhere in another: affine and perspective transforms as Pillow
// does them (Geometry.c), pixel by pixel of the result.
#pragma once

#include <cstdint>

namespace fastdata {

enum class Interpolation { nearest, bilinear, bicubic };

/// How the source pixel of a result's is found.
enum class Projection {
  fixed,        // affine, in integers of 16.16 bits, which may wrap; nearest alone
  affine,       // in double precision
  perspective,  // in double precision
};

// Note [Packed pixels]: a warp reads its source at any place, so three planes would cost three
// loads for one. The source is therefore packed, R, G, B and a byte that nobody reads, with its
// edges repeated kWarpBorder times around it, so that no tap needs a bounds check; below lie rows
// that begin with 4 pixels of the fill, where the taps of pixels from outside the source are.
constexpr int kWarpBorder = 2;
constexpr int kWarpTaps = 4;

// Weights, and so places in the source, have so many bits; with them a place fits 32 bits up to
// this size of the source.
constexpr int kWarpBits = 14;
constexpr int kMaxWarpSide = (1 << (31 - kWarpBits)) - 2 * kWarpBorder;

struct Warp {
  Projection projection;
  Interpolation interpolation;
  double coefficients[8];  // unless fixed
  uint32_t fixed[6];       // the same as 16.16 bits; [2] and [5]: of the first pixel's centre
  int width, height;       // of the source
  int32_t pitch;           // of the packed source, in pixels
  int32_t fill;            // where its pixels of the fill are
  const uint32_t* pixels;  // the packed source
  int outputs;             // pixels of a row of the result
};

constexpr int kWarpBlock = 64;  // pixels of a row of the result that are computed together

/// For each pixel the packed source pixel that it is, or that is up and left of where it lies, and
/// pairs of weights, the first in the low 16 bits, which sum to 2^14. Bilinear: of the upper two
/// neighbours, of the lower two. Bicubic: of columns, of rows.
struct WarpBlock {
  alignas(64) int32_t offset[kWarpBlock];
  alignas(64) int32_t pairs[4][kWarpBlock];
};

/// Row y of the result, into a padded row of each plane.
using WarpRow = void (*)(const Warp& warp, int y, uint8_t* const* rows, int channels);

}  // namespace fastdata
