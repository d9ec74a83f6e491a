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
  FASTDATA_PIXEL_STEPS(FASTDATA_TAKE, FASTDATA_PARAMETER)
  void append(const Call& call) { drawn_.calls.push_back(call); }

  /// Notes the size.
  void finish();

 private:
  struct Colour {
    double red, green, blue;
  };
  /// The arguments of torchvision's affine: degrees, pixels, a factor, degrees.
  struct Affinity {
    double angle, x, y, scale, shear_x, shear_y;
  };

  bool may_lack_targets() const override { return false; }
  void on_crop(const CropBox& box, bool to_boxes) override;
  void on_pad(const Margins& margins, const Padding& padding) override;
  void on_resize(const Size& size, int filter) override;
  void on_flip(bool across) override;
  void on_targets(const Call& call) override { append(call); }

  static void inverse_of(const Affinity& to, double cx, double cy, double (&m)[6]);
  Status warp(const double (&m)[6], double interpolation, const Colour& fill, double width,
              double height);
  Status warp_tensor(const Affinity& to, double cx, double cy, double interpolation,
                     const Colour& fill);

  Drawn& drawn_;
};

}  // namespace fastdata
