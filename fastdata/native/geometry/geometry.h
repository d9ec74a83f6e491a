// Crops, resizes and flips of a pipeline's beginning, composed to one cut for each image.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "augment/targets.h"
#include "common.h"
#include "geometry/crops.h"
#include "geometry/cut.h"

namespace fastdata {

// The kinds of steps, once for C++ and for Python, with their number of values. Sizes are in
// pixels; numbers of draws in brackets.
#define FASTDATA_STEPS(S)                                                                          \
  /* RandomHorizontalFlip: its probability; [1] */                                                 \
  S(flip, 1)                                                                                       \
  /* RandomVerticalFlip: its probability; [1] */                                                   \
  S(flip_vertical, 1)                                                                              \
  /* to a size: width, height; */                                                                  \
  S(resize, 2)                                                                                     \
  /* the shorter side to a size: size, the longer side's bound or 0; */                            \
  S(resize_shorter, 2)                                                                             \
  /* ScaleJitter: width and height of the target; factor from, to; [1] */                          \
  S(scale_jitter, 4)                                                                               \
  /* RandomShortestSize: the longer side's bound or 0; sizes of the shorter side, 1 or more; [1]   \
   */                                                                                              \
  S(shortest_size, 2)                                                                              \
  /* RandomResize: the shorter side from, to; [1] */                                               \
  S(random_size, 2)                                                                                \
  /* timm's ResizeKeepRatio: width, height; longest; probability of a scale, its range, whether */ \
  /* it is of the area; probability of another ratio, its range; [5, one for a filter at 22] */    \
  S(resize_keeping_ratio, 10)                                                                      \
  /* timm's ResizeToSequence: side of a patch, most patches; greatest ratio; */                    \
  S(resize_to_sequence, 3)                                                                         \
  /* RandomResizedCrop: width, height; area from, to; ratio from, to; whether it is drawn in */    \
  /* double precision; [23] */                                                                     \
  S(resized_crop, 7)                                                                               \
  /* CenterCrop: width, height; whether its place is rounded down; */                              \
  S(centre_crop, 3)                                                                                \
  /* a corner: width, height; whether the right one, the lower one; */                             \
  S(corner_crop, 4)                                                                                \
  /* RandomCrop: width, height; whether it pads smaller images; left, top, right, bottom of the */ \
  /* padding; [2] */                                                                               \
  S(random_crop, 7)                                                                                \
  /* FixedSizeCrop: width, height; [1] */                                                          \
  S(fixed_size_crop, 2)                                                                            \
  /* Pad: left, top, right, bottom; */                                                             \
  S(pad, 4)                                                                                        \
  /* a padding right and below: width, height that the image has at least; */                      \
  S(pad_to, 2)                                                                                     \
  /* RandomZoomOut: its probability; factors of the sides from, to; [4] */                         \
  S(zoom_out, 3)                                                                                   \
  /* RandomIoUCrop: parts of the image's sides from, to; ratio from, to; trials; its */            \
  /* probability; the options, 1 or more; [2] */                                                   \
  S(iou_crop, 7)                                                                                   \
  /* Of boxes alone: clamps them to the image; */                                                  \
  S(clamp_boxes, 0)                                                                                \
  /* leaves out those below a size and an area, and those that reach outside */                    \
  S(sanitize_boxes, 2)

#define FASTDATA_STEP(name, values) name,
enum class StepKind : uint8_t { FASTDATA_STEPS(FASTDATA_STEP) };
inline constexpr NamedKind kSteps[] = {FASTDATA_STEPS(FASTDATA_NAMED_KIND)};

struct GeometryStep {
  StepKind kind;
  uint64_t draw;  // the first of its numbers
  std::vector<double> values;
  std::vector<uint8_t> filters;             // of a resize: one, or several that one is drawn of
  std::optional<AreaAndRatio> ranges = {};  // of resized_crop, made of its values
};

class Geometry {
 public:
  /// Throws std::invalid_argument where a step has not the values that its kind has.
  explicit Geometry(std::vector<GeometryStep> steps);

  /// Draws the cut of an image of that size, both at least 1. It depends on nothing else. Targets
  /// of the image are moved by each step in turn.
  Cut draw(uint64_t key, int64_t width, int64_t height, Targets* targets = nullptr) const;

 private:
  struct Drawing;

  std::vector<GeometryStep> steps_;
};

}  // namespace fastdata
