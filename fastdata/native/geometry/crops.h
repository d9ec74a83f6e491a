// Crops and sizes as torchvision computes them (0.28: RandomResizedCrop.get_params,
// RandomCrop.get_params, functional.center_crop, functional._compute_resized_output_size), for one
// image each. Random ones are drawn from numbers that are functions of a key: the core keeps no
// generator, and the same key gives the same box anywhere.
#pragma once

#include <cstdint>

namespace fastdata {

/// A ratio of two sides, above 0, and its logarithm: also of the ratio in single precision.
struct Ratio {
  double value, log, single_log;
};

Ratio ratio_of(double value);

/// The parameters of RandomResizedCrop and RandomErasing.
class AreaAndRatio {
 public:
  /// Areas are parts of the image's; ratios are width by height, or height by width. timm draws in
  /// double precision, torchvision in single.
  AreaAndRatio(double least_area, double most_area, const Ratio& least_ratio,
               const Ratio& most_ratio, bool in_double);

  /// Draws one of each, from draws `draw` and `draw` + 1.
  void draw(uint64_t key, uint64_t draw, double& area, double& ratio) const;

  double least_ratio() const { return least_ratio_; }
  double most_ratio() const { return most_ratio_; }

 private:
  double least_area_, most_area_, least_ratio_, most_ratio_;
  double low_, high_;  // logarithms of the ratios
  bool in_double_;
};

/// Attempts to fit a box, two numbers each, before the central one is taken.
constexpr int kCropAttempts = 10;

struct CropBox {
  int64_t left, top, width, height;
};

/// Draws the box for an image of width x height, both at least 1, from draws `draw` to
/// `draw` + 2 * kCropAttempts + 1 of `key` (fastdata/plan/draws.py: SplitMix64).
CropBox random_resized_crop(const AreaAndRatio& ranges, int64_t width, int64_t height, uint64_t key,
                            uint64_t draw);

/// The first pixel of a centred crop along one side. Below 0: so many pixels are padded before the
/// image, which is the smaller half of what is missing. Between two pixels: the even one, or with
/// `floored` the first one.
int64_t centred(int64_t have, int64_t want, bool floored);

/// The pixels by which torchvision's center_crop moves boxes and points further than the image,
/// which is padded: it halves an odd number of missing pixels in two ways.
int64_t targets_ahead(int64_t have, int64_t want);

struct Size {
  double width, height;
};

/// The size after torchvision's v2 ScaleJitter by a factor, which takes the target's width for the
/// height's, and so on; the factor is a tensor there, of single precision. It may be 0.
Size scale_jittered(double width, double height, const Size& target, double factor);

/// The size after timm's ResizeToSequence, which is that of SigLIP 2: the largest in whole patches
/// that keeps the ratio and has at most so many patches.
Size sequence_size(double width, double height, double patch, double most, double greatest_ratio);

/// The size after torchvision's v2 RandomShortestSize. A bound of 0 is none. It may be 0.
Size resized_shortest(double width, double height, double shortest, double bound);

struct Margins {
  double left, top, right, bottom;
};

/// The margins that torchvision's RandomZoomOut adds to an image, by a factor that is uniform in
/// (from, to), from draws `draw` to `draw` + 2. Its parameters have single precision.
Margins zoomed_out(int64_t width, int64_t height, double from, double to, uint64_t key,
                   uint64_t draw);

/// The part of an image that FixedSizeCrop of torchvision's references leaves, from one number in
/// [0, 1) of single precision. It may be smaller than the size, and is padded right and below then.
CropBox fixed_size_crop(int64_t width, int64_t height, int64_t to_width, int64_t to_height,
                        float number);

/// The size after the shorter side is resized to `shorter`, or less where the longer side would
/// exceed `bound`. A bound of 0 is none.
Size resized_shorter(double width, double height, double shorter, double bound);

}  // namespace fastdata
