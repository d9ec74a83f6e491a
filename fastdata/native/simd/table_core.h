// The kernels whose code all levels share, and the table of one level's kernels, each by its name.
// Included last by one file for each instruction set (target.h).
#pragma once

#include "resample/interleave_core.h"
#include "resample/normalise_core.h"
#include "resample/filters_core.h"
#include "jpeg/upsample_core.h"
#include "augment/blur_core.h"
#include "augment/point_core.h"
#include "augment/noise_core.h"
#include "augment/warp_core.h"
#include "augment/tensor_core.h"
#include "augment/grid_core.h"

namespace fastdata {
namespace {

constexpr Kernels kernels_of(Level level, DecodeVector vector = nullptr, JoinSymbols join = nullptr,
                             IdctRow zigzag = nullptr) {
  return {
      .level = level,
      .unstuff = unstuff,
      .decode_streams = decode_streams,
      .skip_streams = skip_streams,
      .decode_band = decode_band,
      .refine_band = refine_band,
      .decode_vector = vector,
      .join_symbols = join,
      .idct_row = idct_row,
      .idct_row_zigzag = zigzag,
      .upsample_h2v1 = upsample_h2v1,
      .upsample_h2v2 = upsample_h2v2,
      .upsample_h1v2 = upsample_h1v2,
      .ycc_to_rgb = ycc_to_rgb,
      .interleave = interleave,
      .deinterleave = deinterleave,
      .bilinear_taps = few_taps<Bilinear>,
      .bicubic_taps = few_taps<Cubic>,
      .plan_horizontal = plan_horizontal,
      .horizontal = horizontal,
      .vertical = vertical,
      .to_float32 = to_float32,
      .to_float16 = to_float16,
      .to_bfloat16 = to_bfloat16,
      .look_up = look_up,
      .invert_and_mask = invert_and_mask,
      .grey = grey,
      .sum = sum,
      .find_range = find_range,
      .saturate = saturate,
      .turn_hue = turn_hue,
      .sharpen = sharpen,
      .reverse = reverse,
      .blur_row = blur_row,
      .box_row = box_row,
      .normals = normals,
      .add_noise = add_noise,
      .pack = pack,
      .warp_row = warp_row,
      .tensor_grey = tensor_grey,
      .tensor_saturate = tensor_saturate,
      .tensor_sharpen = tensor_sharpen,
      .tensor_turn_hue = tensor_turn_hue,
      .add_weighted = add_weighted,
      .to_floats = to_floats,
      .to_bytes = to_bytes,
      .grid_row = grid_row,
  };
}

}  // namespace
}  // namespace fastdata
