// Leading steps of a program, folded into the region of an image that is decoded.
#pragma once

#include "augment/drawing.h"
#include "geometry/cut.h"

namespace fastdata {

/// The current image is a frame: a part of the source image or, after a resize, of the resized
/// box. Targets follow each operation. The fill is the job's, whatever steps have.
class FoldedDrawing final : public Drawing {
 public:
  FoldedDrawing(uint64_t key, int64_t width, int64_t height, Targets* targets)
      : Drawing(key, width, height, targets), source_{0, 0, width, height}, kept_(source_) {}

  /// The cut; `too_small`: the number of the step that could not be done, or 0.
  Cut finish(int too_small);

 private:
  Status crop(const CropBox& box) override;
  Status pad(const Margins& margins, const Padding&) override;
  Status resize(const Size& size, double filter) override;
  Status flip(bool across) override;
  Status crop_to_boxes(const CropBox& box) override;
  Status shift_targets(int64_t x, int64_t y) override;
  Status clamp_boxes() override;
  Status sanitize_boxes(double min_size, double min_area) override;
  const std::vector<TargetBox>* boxes() override;

  CropBox frame() const { return {left_, top_, width_, height_}; }
  void move_frame(CropBox box);

  CropBox source_;
  // The part of the source image that crops have kept; it matters where padding follows.
  CropBox kept_;
  CropBox box_{};               // what is resized
  int64_t left_ = 0, top_ = 0;  // of the frame
  bool flipped_ = false, upside_down_ = false, resized_ = false;
  Cut cut_;
};

}  // namespace fastdata
