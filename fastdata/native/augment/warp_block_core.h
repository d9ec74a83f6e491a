// What the passes of a warp (warp_core.h) hand on to each other. Included by one file for each
// instruction set (target.h).
#pragma once

namespace fastdata {
namespace {

constexpr int kWarpBlock = 64;  // pixels of a row of the result that are computed together

/// For each pixel the packed source pixel that it is, or that is up and left of where it lies, and
/// pairs of weights, the first in the low 16 bits, which sum to 2^14. Bilinear: of the upper two
/// neighbours, of the lower two. Bicubic: of columns, of rows.
struct WarpBlock {
  alignas(64) int32_t offset[kWarpBlock];
  alignas(64) int32_t pairs[4][kWarpBlock];
};

}  // namespace
}  // namespace fastdata
