// Steps of a program as calls of operations on the pixels of an image.
#pragma once

#include <vector>

#include "augment/drawing.h"
#include "augment/operations.h"

namespace fastdata {

/// A rectangle of the output that is written over.
struct Erasure {
  int left, top, width, height;
  double values[3];
  enum class Noise : uint8_t { none, pixels, channels } noise;  // normal, added to the values
  double deviations[3];
  uint64_t key;  // of the noise
};

/// The calls for one sample. Its size is then width x height.
struct Drawn {
  std::vector<Call> calls;
  std::vector<Erasure> erasures;
  int width = 0, height = 0;
};

class CalledDrawing final : public Drawing {
 public:
  CalledDrawing(uint64_t key, int width, int height, Targets* targets, Drawn& drawn);

  using Drawing::take;
  Status take(const steps::Rotate& step, uint64_t draw);
  Status take(const steps::Affine& step, uint64_t draw);
  Status take(const steps::Transform& step, uint64_t draw);
  Status take(const steps::Perspective& step, uint64_t draw);
  Status take(const steps::ShuffleChannels& step, uint64_t draw);
  Status take(const steps::Erase& step, uint64_t draw, const AreaAndRatio& ranges);
  void append(const Call& call) { drawn_.calls.push_back(call); }

  /// Moves the targets, and notes the size.
  void finish();

 private:
  struct Colour {
    double red, green, blue;
  };
  /// The arguments of torchvision's affine: degrees, pixels, a factor, degrees.
  struct Affinity {
    double angle, x, y, scale, shear_x, shear_y;
  };

  Status crop(const CropBox& box) override;
  Status pad(const Margins& margins, const Padding& padding) override;
  Status resize(const Size& size, double filter) override;
  Status flip(bool across) override;
  Status crop_to_boxes(const CropBox& box) override;
  Status shift_targets(int64_t x, int64_t y) override;
  Status clamp_boxes() override;
  Status sanitize_boxes(double min_size, double min_area) override;
  const std::vector<TargetBox>* boxes() override;

  Status add(const Call& call) {
    append(call);
    return {};
  }
  Status set_size(double width, double height);
  void move_targets();
  static void inverse_of(const Affinity& to, double cx, double cy, double (&m)[6]);
  Status warp(const double (&m)[6], double interpolation, const Colour& fill, double width,
              double height);
  Status warp_tensor(const Affinity& to, double cx, double cy, double interpolation,
                     const Colour& fill);

  Drawn& drawn_;
  size_t moved_ = 0;  // calls that targets have followed
};

}  // namespace fastdata
