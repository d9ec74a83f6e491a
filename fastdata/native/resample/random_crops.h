// Boxes of random resized crops, drawn as torchvision draws them
// (torchvision.transforms.RandomResizedCrop.get_params) from numbers that are functions of a
// key: the core keeps no generator, and the same key gives the same box anywhere.
//
// In numpy, some hundred calls for a batch of 256 took 0.4 ms of the consumer's thread, with
// caches cold from decoding; this takes 0.03.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastdata {

/// What RandomResizedCrop and RandomErasing are given.
struct AreaAndRatio {
  double least_area, most_area;    // parts of the image's
  double least_ratio, most_ratio;  // width by height, or height by width
  bool in_double;                  // as timm draws, and not in single precision as torchvision does

  /// Draws one of each, from draws `draw` and `draw` + 1.
  void draw(uint64_t key, uint64_t draw, double& area, double& ratio) const;
};

/// Attempts to fit a box, two numbers each, before the central one is taken.
constexpr int kCropAttempts = 10;

struct CropBox {
  int64_t left, top, width, height;
};

/// The box for an image of width x height, both at least 1, from draws `draw` to
/// `draw` + 2 * kCropAttempts + 1 of `key` (fastdata/plan/draws.py: SplitMix64).
CropBox random_resized_crop(const AreaAndRatio& ranges, int64_t width, int64_t height, uint64_t key,
                            uint64_t draw);

}  // namespace fastdata
