// Leading steps of a program, folded into the region of an image that is decoded.
#pragma once

#include "augment/drawing.h"
#include "geometry/cut.h"

namespace fastdata {

/// The current image is a frame: a part of the source image or, after a resize, of the resized
/// box. The fill is the job's, whatever steps have.
class FoldedDrawing final : public Drawing {
 public:
  FoldedDrawing(uint64_t key, int64_t width, int64_t height, Targets* targets)
      : Drawing(key, width, height, targets), source_{0, 0, width, height}, kept_(source_) {}

  /// The cut; `too_small`: the number of the step that could not be done, or 0.
  Cut finish(int too_small);

 private:
  bool may_lack_targets() const override { return true; }
  void on_crop(const CropBox& box, bool to_boxes) override;
  void on_pad(const Margins& margins, const Padding& padding) override;
  void on_resize(const Size& size, int filter) override;
  void on_flip(bool across) override;

  CropBox frame() const { return {left_, top_, width_, height_}; }
  CropBox in_frame(CropBox box) const;

  CropBox source_;
  // The part of the source image that crops have kept; it matters where padding follows.
  CropBox kept_;
  CropBox box_{};               // what is resized
  int64_t left_ = 0, top_ = 0;  // of the frame
  bool flipped_ = false, upside_down_ = false, resized_ = false;
  Cut cut_;
};

}  // namespace fastdata
