// An image under way through a program: what each step does to it, in terms of a few operations
// (crop, pad, resize, flip). One image may be folded into a region to decode (geometry/folded.h),
// or gets a list of calls on pixels (augment/called.h): both draw alike.
#pragma once

#include <cstdint>
#include <vector>

#include "augment/steps.h"
#include "augment/targets.h"
#include "geometry/crops.h"
#include "status.h"

namespace fastdata {

struct Padding {
  double mode, red, green, blue;
};

class Drawing {
 public:
  Drawing(uint64_t key, int64_t width, int64_t height, Targets* targets)
      : key_(key), width_(width), height_(height), targets_(targets) {}
  virtual ~Drawing() = default;

  uint64_t key() const { return key_; }
  int64_t width() const { return width_; }
  int64_t height() const { return height_; }

  // The steps that may lead a program; `draw` is the first of their draws. bad_parameters: the
  // image is too small, or would be too large; it is then as it was before the step's operation
  // that failed.
#define FASTDATA_TAKE(name, Struct, draws, ...) \
  Status take(const steps::Struct& step, uint64_t draw);
  FASTDATA_FOLDED_STEPS(FASTDATA_TAKE, FASTDATA_PARAMETER)

 protected:
  static constexpr Status kBadSize{Code::bad_parameters,
                                   "an augmentation makes an image without pixels, or too large"};
  static bool is_possible(double width, double height) {
    return width >= 1 && height >= 1 && width <= kLongestSide && height <= kLongestSide;
  }

  /// Whether an image without targets is one without boxes; else crops that depend on them fail.
  virtual bool may_lack_targets() const = 0;
  // What an operation does to the image, of the size before it.
  virtual void on_crop(const CropBox& box, bool to_boxes) = 0;
  virtual void on_pad(const Margins& margins, const Padding& padding) = 0;
  virtual void on_resize(const Size& size, int filter) = 0;
  virtual void on_flip(bool across) = 0;
  /// Of targets alone.
  virtual void on_targets(const Call&) {}

  void set_size(double width, double height) {
    width_ = static_cast<int64_t>(width);
    height_ = static_cast<int64_t>(height);
  }

  const uint64_t key_;
  int64_t width_, height_;
  Targets* const targets_;

 private:
  // The operations, which move the targets, too. Boxes are within the image; sizes and margins may
  // be anything.
  Status crop(const CropBox& box);
  Status pad(const Margins& margins, const Padding& padding);
  Status resize(const Size& size, double filter);
  Status flip(bool across);
};

}  // namespace fastdata
