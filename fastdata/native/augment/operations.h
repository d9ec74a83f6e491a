// Augmentations: what one operation with given parameters makes of an image. Pixels are those of
// torchvision.transforms.functional on a Pillow image: the same bytes where Pillow computes in
// integers, or in floating point a pixel at a time; within 1 elsewhere. Programs
// (program.h) draw which operation and which parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "augment/canvas.h"
#include "augment/named_kind.h"
#include "common.h"
#include "status.h"

namespace fastdata {

// Each operation, its struct and its parameters. Python has their names (`_native.OPERATIONS`).
// Interpolation: 0 nearest, 1 bilinear, 2 bicubic. Filter: enum class Filter. Fills are 0 to 255, a
// grey image takes the first.
#define FASTDATA_MATRIX(P) P(a) P(b) P(c) P(d) P(e) P(f)
#define FASTDATA_OPERATIONS(O, P)                                                             \
  /* factor: 0 to 1e6; 1 changes nothing */                                                   \
  O(brightness, Brightness, P(factor))                                                        \
  O(contrast, Contrast, P(factor))                                                            \
  O(saturation, Saturation, P(factor))                                                        \
  O(sharpness, Sharpness, P(factor))                                                          \
  /* -0.5 to 0.5 */                                                                           \
  O(hue, Hue, P(turns))                                                                       \
  /* of the result: 1, or 3 equal ones */                                                     \
  O(grayscale, Grayscale, P(channels))                                                        \
  /* that are kept: 0 to 8 */                                                                 \
  O(posterize, Posterize, P(bits))                                                            \
  /* values from this one on are inverted: 0 to 256 */                                        \
  O(solarize, Solarize, P(threshold))                                                         \
  /* what is added to values below a threshold: 0 to 255; the threshold: 0 to 256 */          \
  O(solarize_add, SolarizeAdd, P(added) P(threshold))                                         \
  O(autocontrast, Autocontrast)                                                               \
  O(equalize, Equalize)                                                                       \
  O(invert, Invert)                                                                           \
  /* for each channel of the result the one it is taken from; not of grey images */           \
  O(permute, Permute, P(red) P(green) P(blue))                                                \
  /* kernel's width and height: odd, up to 255, less than twice the image's; sigma along x    \
     and along y: above 0 */                                                                  \
  O(gaussian_blur, GaussianBlur, P(width) P(height) P(sigma_x) P(sigma_y))                    \
  /* Pillow's ImageFilter.GaussianBlur, three passes of a box. Standard deviation: 0 to 50 */ \
  O(box_blur, BoxBlur, P(sigma))                                                              \
  /* mean: -10 to 10, and sigma: 0 to 10, of pixels in [0, 1]; clip: 0 or 1.                  \
     Draws from the call's key */                                                             \
  O(gaussian_noise, GaussianNoise, P(mean) P(sigma) P(clip))                                  \
  /* output pixel (x, y) is taken from (ax + by + c, dx + ey + f), as Image.transform has it; \
     the result's width and height */                                                         \
  O(affine, Affine,                                                                           \
    FASTDATA_MATRIX(P) P(interpolation) P(red) P(green) P(blue) P(width) P(height))           \
  /* as Image.transform has it */                                                             \
  O(perspective, Perspective,                                                                 \
    FASTDATA_MATRIX(P) P(g) P(h) P(interpolation) P(red) P(green) P(blue))                    \
  O(flip_horizontal, FlipHorizontal)                                                          \
  O(flip_vertical, FlipVertical)                                                              \
  /* within the image */                                                                      \
  O(crop, Crop, P(left) P(top) P(width) P(height))                                            \
  /* the same of an image whose boxes are zeros if their middle is outside */                 \
  O(iou_crop, IouCrop, P(left) P(top) P(width) P(height))                                     \
  /* Of boxes and points alone: moves them; */                                                \
  O(shift_targets, ShiftTargets, P(x) P(y))                                                   \
  /* of boxes alone: clamps them to the image; */                                             \
  O(clamp_boxes, ClampBoxes)                                                                  \
  /* leaves out those below a size and an area, and those that reach outside */               \
  O(sanitize_boxes, SanitizeBoxes, P(min_size) P(min_area))                                   \
  O(resize, Resize, P(width) P(height) P(filter))                                             \
  /* sides: 0 and more; mode: 0 constant, 1 edge, 2 reflect, 3 symmetric */                   \
  O(pad, Pad, P(left) P(top) P(right) P(bottom) P(mode) P(red) P(green) P(blue))              \
  /* As torchvision does it to tensors of bytes; version: 1 or 2 */                           \
  O(tensor_contrast, TensorContrast, P(factor) P(version))                                    \
  O(tensor_saturation, TensorSaturation, P(factor) P(version))                                \
  O(tensor_sharpness, TensorSharpness, P(factor) P(version))                                  \
  O(tensor_hue, TensorHue, P(turns) P(version))                                               \
  O(tensor_grayscale, TensorGrayscale, P(channels) P(version))                                \
  O(tensor_autocontrast, TensorAutocontrast, P(version))                                      \
  /* of coordinates from the middle of the image; interpolation: 0 or 1; fill -1: none, and   \
     what is outside is 0 */                                                                  \
  O(tensor_affine, TensorAffine, FASTDATA_MATRIX(P) P(interpolation) P(red) P(green) P(blue)) \
  O(tensor_perspective, TensorPerspective,                                                    \
    FASTDATA_MATRIX(P) P(g) P(h) P(interpolation) P(red) P(green) P(blue))                    \
  /* Of masks alone: where their image is not a tensor, tensor_affine */                      \
  O(warp_masks, WarpMasks, FASTDATA_MATRIX(P) P(interpolation) P(red) P(green) P(blue))       \
  /* A weighted sum of an image and of what becomes of it in several ways, truncated:         \
     mix_begin keeps the image, and has its weight; */                                        \
  O(mix_begin, MixBegin, P(weight))                                                           \
  /* adds the image as it is now, and puts the kept one in its place; */                      \
  O(mix_add, MixAdd, P(weight))                                                               \
  /* 0 to 1: makes the sum so far its Image.blend with the image as it is now, and puts the   \
     kept one in its place; */                                                                \
  O(mix_blend, MixBlend, P(factor))                                                           \
  /* 0 to 1: puts Image.blend of the kept image and the sum in its place; 1: the sum */       \
  O(mix_end, MixEnd, P(factor))

#define FASTDATA_OPERATION_VALUE(name) double name;
#define FASTDATA_OPERATION(name, ...) name,
enum class Operation : uint8_t {
  FASTDATA_OPERATIONS(FASTDATA_OPERATION, FASTDATA_OPERATION_VALUE)
};

/// The parameters of each operation.
namespace operations {
#define FASTDATA_OPERATION_STRUCT(name, Struct, ...)         \
  struct Struct {                                            \
    static constexpr Operation kOperation = Operation::name; \
    __VA_ARGS__                                              \
  };
FASTDATA_OPERATIONS(FASTDATA_OPERATION_STRUCT, FASTDATA_OPERATION_VALUE)
}  // namespace operations

const std::vector<NamedKind>& operation_kinds();

inline const NamedKind& info_of(Operation operation) {
  return operation_kinds()[static_cast<size_t>(operation)];
}

/// An operation and its parameters, in the order that they have there.
struct Call {
  static constexpr int kMaxValues = 12;

  Operation operation;
  double values[kMaxValues] = {};  // the operation's own; the rest is ignored
  uint64_t key = 0;                // of operations that draw
  double mask_fill = 0;            // what masks have where the image has its fill

  template <typename Parameters>
  static Call of(const Parameters& parameters) {
    Call call{Parameters::kOperation};
    if constexpr (!std::is_empty_v<Parameters>) {
      static_assert(sizeof parameters <= sizeof call.values);
      std::memcpy(call.values, &parameters, sizeof parameters);
    }
    return call;
  }
  /// Its parameters; they are those of its operation.
  template <typename Parameters>
  Parameters as() const {
    Parameters parameters;
    std::memcpy(&parameters, values, sizeof parameters);
    return parameters;
  }
};

/// Changes the canvas's image. Any values are safe: bad_parameters: one is out of its range or not
/// finite, or is not meant for such an image; too_large: the result would be. The image is then as
/// it was. Throws std::bad_alloc.
Status augment(const Call& call, Canvas& canvas);

// The operations. They rely on finite values, and check the ranges themselves.
#define FASTDATA_OPERATION_FUNCTION(name, ...) Status name(const Call& call, Canvas& canvas);
FASTDATA_OPERATIONS(FASTDATA_OPERATION_FUNCTION, FASTDATA_OPERATION_VALUE)

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
