// The operations that are compiled for each instruction set, and the set in use.
// All sets give the same bytes: what a model trains on does not depend on the machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "augment/blur.h"
#include "augment/grid.h"
#include "augment/warp.h"
#include "simd/cpu.h"
#include "jpeg/bands.h"
#include "jpeg/entropy.h"
#include "jpeg/entropy_vector.h"
#include "jpeg/idct.h"
#include "resample/resample.h"

namespace fastdata {

// Note [Padded rows] (docs/design/0007-native-bounds.md): rows that the core owns are followed by
// kRowPadding bytes that kernels may read and write; a kernel rounds a row's length up to whole
// vectors. Rows that belong to the caller (interleave's output, deinterleave's input) are exact.
constexpr size_t kRowPadding = 64;

struct Kernels {
  Level level;

  // Entropy-coded data.
  Unstuff unstuff;
  DecodeStreams decode_streams;
  SkipStreams skip_streams;
  DecodeBand decode_band, refine_band;  // first scans; those that refine
  DecodeVector decode_vector;           // null where there is none; then so are the other two
  JoinSymbols join_symbols;

  // Coefficients to samples.
  IdctRow idct_row;
  IdctRow idct_row_zigzag;

  // Chroma upsampling, libjpeg's "fancy" one. `n` samples in, 2n out for h2; the
  // samples left and right of the row are read if they exist (has_left, has_right).
  // `sums` is scratch for n + 2 sums. `out` must be even.
  void (*upsample_h2v1)(const uint8_t* row, int n, bool has_left, bool has_right, uint8_t* out);
  void (*upsample_h2v2)(const uint8_t* near, const uint8_t* far, int n, bool has_left,
                        bool has_right, uint16_t* sums, uint8_t* out);
  void (*upsample_h1v2)(const uint8_t* near, const uint8_t* far, int n, int bias, uint8_t* out);
  void (*ycc_to_rgb)(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* r,
                     uint8_t* g, uint8_t* b);

  // Pixels.
  void (*interleave)(const uint8_t* r, const uint8_t* g, const uint8_t* b, int n, uint8_t* out);
  void (*deinterleave)(const uint8_t* in, int n, uint8_t* r, uint8_t* g, uint8_t* b);

  // Resampling.
  FindFewTaps bilinear_taps, bicubic_taps;
  PlanHorizontal plan_horizontal;
  ResampleHorizontal horizontal;
  ResampleVertical vertical;

  // Normalised output: in[i] * scale[i % kPeriod] + offset[i % kPeriod], each operation
  // rounded to float32, the result then to the type asked for, to nearest, ties to even.
  // The period is a multiple of three channels and of sixteen vector lanes.
  static constexpr int kPeriod = 48;
  void (*to_float32)(const uint8_t* in, int n, const float* scale, const float* offset, float* out);
  void (*to_float16)(const uint8_t* in, int n, const float* scale, const float* offset,
                     uint16_t* out);
  void (*to_bfloat16)(const uint8_t* in, int n, const float* scale, const float* offset,
                      uint16_t* out);

  // Augmentations, of bytes or of pixels that lie in three planes. Those that take a size_t take
  // whole rows, padding included (augment/canvas.h): `n` is a multiple of 64.
  void (*look_up)(uint8_t* pixels, size_t n, const uint8_t* table);  // of 256
  // Inverts values from the threshold on, 0 to 256, and keeps the mask's bits.
  void (*invert_and_mask)(uint8_t* pixels, size_t n, int threshold, uint8_t mask);
  void (*grey)(const uint8_t* r, const uint8_t* g, const uint8_t* b, size_t n, uint8_t* out);
  uint64_t (*sum)(const uint8_t* row, int n);
  void (*find_range)(const uint8_t* row, int n, uint8_t* low, uint8_t* high);  // widens it
  void (*saturate)(uint8_t* r, uint8_t* g, uint8_t* b, size_t n, float factor);
  void (*turn_hue)(uint8_t* r, uint8_t* g, uint8_t* b, size_t n, int shift);
  // n is 3 or more.
  void (*sharpen)(const uint8_t* above, const uint8_t* row, const uint8_t* below, int n,
                  float factor, uint8_t* out);
  void (*reverse)(const uint8_t* row, int n, uint8_t* out);
  BlurRow blur_row;
  // Sums `count` rows: the first and the last times one weight, the others times the other.
  void (*box_row)(const uint8_t* const* taps, int count, size_t n, uint32_t weight,
                  uint32_t edge_weight, uint8_t* out);
  // Adds values of N(mean, sigma), which the key and a byte's place give; beyond a byte: clamped if
  // `clip`, else wrapped.
  void (*normals)(float* out, size_t n, uint64_t key);
  void (*add_noise)(uint8_t* pixels, size_t n, uint64_t key, float mean, float sigma, bool clip);
  void (*pack)(const uint8_t* r, const uint8_t* g, const uint8_t* b, int n, uint32_t* out);
  WarpRow warp_row;

  // The same as torchvision does them to tensors; `second`: as its v2 does (augment/tensor_core.h).
  // `rest` is 1 - factor. tensor_sharpen leaves the row's ends alone.
  void (*tensor_grey)(bool second, const uint8_t* r, const uint8_t* g, const uint8_t* b, size_t n,
                      uint8_t* out);
  void (*tensor_saturate)(bool second, uint8_t* r, uint8_t* g, uint8_t* b, size_t n, float factor,
                          float rest);
  void (*tensor_sharpen)(bool second, const uint8_t* above, const uint8_t* row,
                         const uint8_t* below, int n, float factor, float rest, uint8_t* out);
  void (*tensor_turn_hue)(bool second, uint8_t* r, uint8_t* g, uint8_t* b, size_t n, float turn);
  void (*add_weighted)(const uint8_t* pixels, size_t n, float weight, float* sums);
  void (*to_floats)(const uint8_t* pixels, size_t n, float* out);
  void (*to_bytes)(const float* sums, size_t n, uint8_t* out);  // truncated
  GridRow grid_row;
};

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kNeonKernels;

/// Those in use: the best that the processor has, until select_kernels.
const Kernels& kernels();

/// False, and no change, if this processor lacks the level. Not while a batch runs.
bool select_kernels(Level level);

}  // namespace fastdata
