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
  Status take(const steps::FlipHorizontal&, uint64_t) { return flip(true); }
  Status take(const steps::FlipVertical&, uint64_t) { return flip(false); }
  Status take(const steps::Resize& step, uint64_t draw);
  Status take(const steps::ResizeShorter& step, uint64_t draw);
  Status take(const steps::ScaleJitter& step, uint64_t draw);
  Status take(const steps::ShortestSize& step, uint64_t draw);
  Status take(const steps::ResizeKeepingRatio& step, uint64_t draw);
  Status take(const steps::ResizeToSequence& step, uint64_t draw);
  Status take(const steps::ResizedCrop& step, uint64_t draw, const AreaAndRatio& ranges);
  Status take(const steps::CentreCrop& step, uint64_t draw);
  Status take(const steps::CornerCrop& step, uint64_t draw);
  Status take(const steps::RandomCrop& step, uint64_t draw);
  Status take(const steps::FixedSizeCrop& step, uint64_t draw);
  Status take(const steps::Pad& step, uint64_t draw);
  Status take(const steps::PadTo& step, uint64_t draw);
  Status take(const steps::ZoomOut& step, uint64_t draw);
  Status take(const steps::IouCrop& step, uint64_t draw);
  Status take(const steps::ClampBoxes&, uint64_t) { return clamp_boxes(); }
  Status take(const steps::SanitizeBoxes& step, uint64_t) {
    return sanitize_boxes(step.min_size, step.min_area);
  }

 protected:
  static constexpr Status kBadSize{Code::bad_parameters,
                                   "an augmentation makes an image without pixels, or too large"};
  static bool is_possible(double width, double height) {
    return width >= 1 && height >= 1 && width <= kLongestSide && height <= kLongestSide;
  }

  // The operations. Boxes are within the image; sizes and margins may be anything.
  virtual Status crop(const CropBox& box) = 0;
  virtual Status pad(const Margins& margins, const Padding& padding) = 0;
  virtual Status resize(const Size& size, double filter) = 0;
  virtual Status flip(bool across) = 0;
  /// Crops; boxes whose middle is outside become zeros.
  virtual Status crop_to_boxes(const CropBox& box) = 0;
  virtual Status shift_targets(int64_t x, int64_t y) = 0;
  virtual Status clamp_boxes() = 0;
  virtual Status sanitize_boxes(double min_size, double min_area) = 0;
  /// The boxes as the steps before have left them; null: there are no targets.
  virtual const std::vector<TargetBox>* boxes() = 0;

  const uint64_t key_;
  int64_t width_, height_;
  Targets* const targets_;
};

}  // namespace fastdata
