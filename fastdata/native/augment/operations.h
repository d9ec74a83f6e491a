// Augmentations: what one operation with given parameters makes of an image. Pixels are those of
// torchvision.transforms.functional on a Pillow image: the same bytes where Pillow computes in
// integers, or in floating point a pixel at a time; within 1 elsewhere. Programs
// (program.h) draw which operation and which parameters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "augment/canvas.h"
#include "common.h"
#include "status.h"

namespace fastdata {

// Each operation and the number of its values. Python has the names (`_native.OPERATIONS`).
// Interpolation: 0 nearest, 1 bilinear, 2 bicubic. Filter: enum class Filter. Fills are 0 to 255, a
// grey image takes the first.
#define FASTDATA_OPERATIONS(O)                                                                \
  /* factor: 0 to 1e6; 1 changes nothing */                                                   \
  O(brightness, 1)                                                                            \
  O(contrast, 1)                                                                              \
  O(saturation, 1)                                                                            \
  O(sharpness, 1)                                                                             \
  /* factor: -0.5 to 0.5, parts of a turn */                                                  \
  O(hue, 1)                                                                                   \
  /* channels of the result: 1, or 3 equal ones */                                            \
  O(grayscale, 1)                                                                             \
  /* bits that are kept: 0 to 8 */                                                            \
  O(posterize, 1)                                                                             \
  /* values from this one on are inverted: 0 to 256 */                                        \
  O(solarize, 1)                                                                              \
  /* what is added to values below a threshold: 0 to 255; the threshold: 0 to 256 */          \
  O(solarize_add, 2)                                                                          \
  O(autocontrast, 0)                                                                          \
  O(equalize, 0)                                                                              \
  O(invert, 0)                                                                                \
  /* for each channel of the result the one it is taken from; not of grey images */           \
  O(permute, 3)                                                                               \
  /* kernel's width and height: odd, up to 255, less than twice the image's; sigma along x    \
     and along y: above 0 */                                                                  \
  O(gaussian_blur, 4)                                                                         \
  /* Pillow's ImageFilter.GaussianBlur, three passes of a box. Standard deviation: 0 to 50 */ \
  O(box_blur, 1)                                                                              \
  /* mean: -10 to 10, and sigma: 0 to 10, of pixels in [0, 1]; clip: 0 or 1.                  \
     Draws from the call's key */                                                             \
  O(gaussian_noise, 3)                                                                        \
  /* a to f: output pixel (x, y) is taken from (ax + by + c, dx + ey + f), as                 \
     Image.transform has it; interpolation; fill R, G, B; the result's width and height */    \
  O(affine, 12)                                                                               \
  /* a to h, as Image.transform has them; interpolation; fill R, G, B */                      \
  O(perspective, 12)                                                                          \
  O(flip_horizontal, 0)                                                                       \
  O(flip_vertical, 0)                                                                         \
  /* left, top, width, height; within the image */                                            \
  O(crop, 4)                                                                                  \
  /* the same of an image whose boxes are zeros if their middle is outside */                 \
  O(iou_crop, 4)                                                                              \
  /* Of boxes and points alone: moves them by x, y; */                                        \
  O(shift_targets, 2)                                                                         \
  /* of boxes alone: clamps them to the image; */                                             \
  O(clamp_boxes, 0)                                                                           \
  /* leaves out those below a size and an area, and those that reach outside */               \
  O(sanitize_boxes, 2)                                                                        \
  /* width, height, filter */                                                                 \
  O(resize, 3)                                                                                \
  /* left, top, right, bottom: 0 and more; mode: 0 constant, 1 edge, 2 reflect,               \
     3 symmetric; fill R, G, B */                                                             \
  O(pad, 8)                                                                                   \
  /* As torchvision does it to tensors of bytes; the last value is 1 or 2: its v1 or v2 */    \
  O(tensor_contrast, 2)                                                                       \
  O(tensor_saturation, 2)                                                                     \
  O(tensor_sharpness, 2)                                                                      \
  O(tensor_hue, 2)                                                                            \
  O(tensor_grayscale, 2)                                                                      \
  O(tensor_autocontrast, 1)                                                                   \
  /* a to f, of coordinates from the middle of the image; interpolation: 0 or 1; fill R,      \
     G, B, or -1: none, and what is outside is 0 */                                           \
  O(tensor_affine, 10)                                                                        \
  /* a to h, as Image.transform has them; interpolation and fill likewise */                  \
  O(tensor_perspective, 12)                                                                   \
  /* A weighted sum of an image and of what becomes of it in several ways, truncated:         \
     mix_begin keeps the image, and has its weight; */                                        \
  O(mix_begin, 1)                                                                             \
  /* a weight: adds the image as it is now, and puts the kept one in its place; */            \
  O(mix_add, 1)                                                                               \
  /* a factor, 0 to 1: makes the sum so far its Image.blend with the image as it is now, and  \
     puts the kept one in its place; */                                                       \
  O(mix_blend, 1)                                                                             \
  /* a factor, 0 to 1: puts Image.blend of the kept image and the sum in its place; 1: the    \
     sum */                                                                                   \
  O(mix_end, 1)

#define FASTDATA_OPERATION(name, count) name,
enum class Operation : uint8_t { FASTDATA_OPERATIONS(FASTDATA_OPERATION) };

inline constexpr NamedKind kOperations[] = {FASTDATA_OPERATIONS(FASTDATA_NAMED_KIND)};

constexpr const NamedKind& info_of(Operation operation) {
  return kOperations[static_cast<size_t>(operation)];
}

struct Call {
  static constexpr int kMaxValues = 12;

  Operation operation;
  double values[kMaxValues] = {};  // the operation's own; the rest is ignored
  uint64_t key = 0;                // of operations that draw
};

/// Changes the canvas's image. Any values are safe: bad_parameters: one is out of its range or not
/// finite, or is not meant for such an image; too_large: the result would be. The image is then as
/// it was. Throws std::bad_alloc.
Status augment(const Call& call, Canvas& canvas);

// The operations. They rely on finite values, and check the ranges themselves.
#define FASTDATA_OPERATION_FUNCTION(name, count) Status name(const Call& call, Canvas& canvas);
FASTDATA_OPERATIONS(FASTDATA_OPERATION_FUNCTION)

/// Whether a value is an integer within [least, most]; if so, that integer.
inline bool whole_number(double value, int least, int most, int& number) {
  if (!(value >= least && value <= most)) return false;
  number = static_cast<int>(value);
  return number == value;
}

// Pillow's enhancers take any factor; beyond this one floats may overflow.
constexpr double kMaxFactor = 1e6;
constexpr Status kBadFactor{Code::bad_parameters, "a factor outside 0 to 1e6"};
inline bool is_factor(double value) { return value >= 0 && value <= kMaxFactor; }

}  // namespace fastdata
