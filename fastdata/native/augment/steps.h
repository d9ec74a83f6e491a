// The kinds of steps of a program, once for C++ and for Python (`_native.STEPS`): name, struct,
// draws, and the names and types of the parameters.
//
// Sizes are in pixels, angles in degrees, fills 0 to 255. Numbers may be drawn; `Entries` and
// `Ratio` are constant. What a step does to the image's size, and to boxes and points, follows from
// the operations that it is made of (drawing.h): masks and targets move by the same draw.
#pragma once

#include <cstdint>
#include <vector>

#include "augment/named_kind.h"
#include "geometry/crops.h"

namespace fastdata {

/// Constants of a program.
struct Entries {
  const double* values = nullptr;
  int count = 0;

  double operator[](int i) const { return values[i]; }
};

#define FASTDATA_COLOUR(P) P(double, red) P(double, green) P(double, blue)
// Of images, and of the masks that follow them.
#define FASTDATA_FILL(P) FASTDATA_COLOUR(P) P(double, mask_fill)
// Padding: 0 constant, 1 edge, 2 reflect, 3 symmetric; the fill of 0.
#define FASTDATA_PADDING(P) P(double, mode) FASTDATA_FILL(P)
#define FASTDATA_SIZE(P) P(double, width) P(double, height)
#define FASTDATA_SIDES(P) P(double, left) P(double, top) P(double, right) P(double, bottom)
#define FASTDATA_RANGES(P) \
  P(double, least_area)    \
  P(double, most_area) P(Ratio, least_ratio) P(Ratio, most_ratio) P(bool, in_double)
#define FASTDATA_CENTRE(P) P(bool, centred) P(double, x) P(double, y)

// Steps with children: all of them in turn.
#define FASTDATA_PARENTS(S, P)                                                                 \
  S(sequence, Sequence, 0)                                                                     \
  /* all of them with a probability */                                                         \
  S(apply, Apply, 1, P(double, p))                                                             \
  /* one of them: each as likely, or by sums of the weights up to it */                        \
  S(choice, Choice, 1, P(Entries, sums))                                                       \
  /* all of them in a random order; as many draws */                                           \
  S(order, InOrder, 0)                                                                         \
  /* some of them, one after the other, none twice; as many draws */                           \
  S(sample, SomeOf, 0, P(double, count) P(Entries, weights))                                   \
  /* a mixture of the image and of what each child makes of it, with weights of Dirichlet's */ \
  /* distribution, of two and of the children; `mixing`: enum class Mixing */                  \
  S(mix, Mixture, 1, P(double, concentration) P(double, mixing))

// Steps that may lead a program: RandomHorizontalFlip and RandomVerticalFlip, done.
#define FASTDATA_FOLDED_STEPS(S, P)                                                            \
  S(flip_horizontal, FlipHorizontal, 0)                                                        \
  S(flip_vertical, FlipVertical, 0)                                                            \
  S(resize, Resize, 0, FASTDATA_SIZE(P) P(double, filter))                                     \
  /* the shorter side to a size; `bound` of the longer side, or 0 */                           \
  S(resize_shorter, ResizeShorter, 0, P(double, size) P(double, bound) P(double, filter))      \
  /* ScaleJitter: the target's size */                                                         \
  S(scale_jitter, ScaleJitter, 0, FASTDATA_SIZE(P) P(double, factor) P(double, filter))        \
  /* RandomShortestSize: as resize_shorter */                                                  \
  S(shortest_size, ShortestSize, 0, P(double, size) P(double, bound) P(double, filter))        \
  /* timm's ResizeKeepRatio: probabilities of another scale and of another ratio */            \
  S(resize_keeping_ratio, ResizeKeepingRatio, 4,                                               \
    FASTDATA_SIZE(P) P(double, longest) P(double, scale_p) P(double, least_scale)              \
        P(double, most_scale) P(bool, scale_is_area) P(double, ratio_p) P(Ratio, least_ratio)  \
            P(Ratio, most_ratio) P(double, filter))                                            \
  /* timm's ResizeToSequence: `patch`: the side of one */                                      \
  S(resize_to_sequence, ResizeToSequence, 0,                                                   \
    P(double, patch) P(double, most_patches) P(double, greatest_ratio) P(double, filter))      \
  /* RandomResizedCrop */                                                                      \
  S(resized_crop, ResizedCrop, 22, FASTDATA_SIZE(P) P(double, filter) FASTDATA_RANGES(P))      \
  /* CenterCrop; `floored`: its place is rounded down, else to even */                         \
  S(centre_crop, CentreCrop, 0, FASTDATA_SIZE(P) P(bool, floored) FASTDATA_PADDING(P))         \
  S(random_crop, RandomCrop, 2,                                                                \
    FASTDATA_SIZE(P) FASTDATA_SIDES(P) P(bool, pads_smaller) FASTDATA_PADDING(P))              \
  /* FixedSizeCrop of torchvision's references */                                              \
  S(fixed_size_crop, FixedSizeCrop, 1, FASTDATA_SIZE(P) FASTDATA_PADDING(P))                   \
  S(pad, Pad, 0, FASTDATA_SIDES(P) FASTDATA_PADDING(P))                                        \
  /* right and below, to a size that the image has at least */                                 \
  S(pad_to, PadTo, 0, FASTDATA_SIZE(P) FASTDATA_PADDING(P))                                    \
  /* RandomZoomOut, done: factors of the sides */                                              \
  S(zoom_out, ZoomOut, 3, P(double, least) P(double, most) FASTDATA_PADDING(P))                \
  /* RandomIoUCrop: parts of the image's sides, ratios; least overlaps that one is drawn of */ \
  S(iou_crop, IouCrop, 1,                                                                      \
    P(double, least_part) P(double, most_part) P(double, least_ratio) P(double, most_ratio)    \
        P(double, trials) P(Entries, options))                                                 \
  /* Of boxes alone: clamps them to the image; */                                              \
  S(clamp_boxes, ClampBoxes, 0)                                                                \
  /* leaves out those below a size and an area, and those that reach outside */                \
  S(sanitize_boxes, SanitizeBoxes, 0, P(double, min_size) P(double, min_area))

// Steps on pixels: Image.rotate.
#define FASTDATA_PIXEL_STEPS(S, P)                                                                \
  S(rotate, Rotate, 0,                                                                            \
    P(double, angle) P(double, interpolation) FASTDATA_FILL(P) P(bool, expand) FASTDATA_CENTRE(P) \
        P(bool, on_tensors))                                                                      \
  /* torchvision's affine; on tensors, a fill of -1 is none */                                    \
  S(affine, Affine, 0,                                                                            \
    P(double, angle) P(double, move_x) P(double, move_y) P(double, scale) P(double, shear_x)      \
        P(double, shear_y) P(double, interpolation) FASTDATA_FILL(P) FASTDATA_CENTRE(P)           \
            P(bool, on_tensors))                                                                  \
  /* Image.transform: its six numbers */                                                          \
  S(transform, Transform, 0,                                                                      \
    P(double, a) P(double, b) P(double, c) P(double, d) P(double, e) P(double, f)                 \
        P(double, interpolation) FASTDATA_COLOUR(P))                                              \
  /* torchvision's RandomPerspective */                                                           \
  S(perspective, Perspective, 8,                                                                  \
    P(double, distortion) P(double, interpolation) FASTDATA_FILL(P) P(bool, on_tensors))          \
  /* channels in a random order */                                                                \
  S(shuffle_channels, ShuffleChannels, 2)                                                         \
  /* RandomErasing, done: a value a channel; what is added to them: 0 nothing, 1 noise, 2 one */  \
  /* number of it a channel; its standard deviation a channel. Of the output, in its units, */    \
  /* last of all */                                                                               \
  S(erase, Erase, 23, FASTDATA_RANGES(P) P(Entries, values) P(double, noise) P(Entries, deviations))

#define FASTDATA_STEPS(S, P) \
  FASTDATA_PARENTS(S, P) FASTDATA_FOLDED_STEPS(S, P) FASTDATA_PIXEL_STEPS(S, P)

#define FASTDATA_PARAMETER(type, name) type name;
#define FASTDATA_STEP_STRUCT(name, Struct, draws, ...) \
  struct Struct {                                      \
    __VA_ARGS__                                        \
  };
namespace steps {
FASTDATA_STEPS(FASTDATA_STEP_STRUCT, FASTDATA_PARAMETER)
}  // namespace steps

// A `call` is of an operation (operations.h), which has its parameters.
#define FASTDATA_STEP_KIND(name, Struct, draws, ...) name,
enum class StepKind : uint8_t { FASTDATA_STEPS(FASTDATA_STEP_KIND, FASTDATA_PARAMETER) call };

constexpr bool has_children(StepKind kind) { return kind <= StepKind::mix; }
constexpr bool may_be_folded(StepKind kind) {
  return kind != StepKind::mix && kind <= StepKind::sanitize_boxes;
}

const std::vector<NamedKind>& step_kinds();

}  // namespace fastdata
