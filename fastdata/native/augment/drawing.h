// Draws the steps of a program for one sample: what they do to it becomes a list of operations,
// which all follow: pixels (operations.h), boxes and points (targets.h), masks (masks.h), and the
// region that is decoded (geometry/folded.h).
#pragma once

#include <cstdint>
#include <vector>

#include "augment/operations.h"
#include "augment/steps.h"
#include "augment/targets.h"
#include "geometry/crops.h"
#include "status.h"

namespace fastdata {

/// A rectangle of the output that is written over.
struct Erasure {
  int left, top, width, height;
  double values[3];
  enum class Noise : uint8_t { none, pixels, channels } noise;  // normal, added to the values
  double deviations[3];
  uint64_t key;  // of the noise
};

/// The operations for one sample. Its size is then width x height.
struct Drawn {
  std::vector<Call> calls;
  std::vector<Erasure> erasures;
  int64_t width = 0, height = 0;
  Status status = {};  // of a batch's samples: why one could not be drawn
};

class Drawing {
 public:
  /// Begins with an image of drawn's size, and moves its targets. Without targets, crops that
  /// depend on boxes fail, unless `may_lack_boxes`: then the image has none.
  Drawing(uint64_t key, Targets* targets, bool may_lack_boxes, Drawn& drawn)
      : key_(key), targets_(targets), may_lack_boxes_(may_lack_boxes), drawn_(drawn) {
    drawn.calls.clear();
    drawn.erasures.clear();
  }

  uint64_t key() const { return key_; }
  int64_t width() const { return drawn_.width; }
  int64_t height() const { return drawn_.height; }

  // The steps; `draw` is the first of their draws. bad_parameters: the image is too small, or would
  // be too large; it is then as it was before the step's operation that failed.
#define FASTDATA_TAKE(name, Struct, draws, ...) \
  Status take(const steps::Struct& step, uint64_t draw);
  FASTDATA_FOLDED_STEPS(FASTDATA_TAKE, FASTDATA_PARAMETER)
  FASTDATA_PIXEL_STEPS(FASTDATA_TAKE, FASTDATA_PARAMETER)

  /// Adds an operation that keeps the image's size.
  void add(const Call& call) {
    drawn_.calls.push_back(call);
    if (targets_) targets_->move(call);
  }

 private:
  /// The arguments of torchvision's affine: degrees, pixels, a factor, degrees.
  struct Affinity {
    double angle, x, y, scale, shear_x, shear_y;
  };

  static constexpr Status kBadSize{Code::bad_parameters,
                                   "an augmentation makes an image without pixels, or too large"};
  static bool is_possible(double width, double height) {
    return width >= 1 && height >= 1 && width <= kLongestSide && height <= kLongestSide;
  }

  /// Adds an operation that makes an image of a size.
  void add(const Call& call, double width, double height) {
    add(call);
    drawn_.width = static_cast<int64_t>(width);
    drawn_.height = static_cast<int64_t>(height);
  }

  // Boxes are within the image; sizes and margins may be anything. Steps have fills.
  void crop(const CropBox& box);
  template <typename Step>
  Status pad(const Margins& margins, const Step& step);
  Status resize(const Size& size, double filter);

  static void inverse_of(const Affinity& to, double cx, double cy, double (&m)[6]);
  template <typename Step>
  Status warp(const Step& step, const double (&m)[6], double width, double height);
  template <typename Step>
  void warp_tensor(const Step& step, const Affinity& to);

  const uint64_t key_;
  Targets* const targets_;
  const bool may_lack_boxes_;
  Drawn& drawn_;
};

}  // namespace fastdata
