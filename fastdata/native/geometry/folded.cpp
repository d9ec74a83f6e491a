#include "geometry/folded.h"

#include <algorithm>
#include <limits>

namespace fastdata {
namespace {

/// As numpy's int32, but what is beyond it stays large.
int32_t narrow(int64_t value) {
  constexpr int64_t least = std::numeric_limits<int32_t>::min();
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::clamp(value, least, most));
}

/// The part that two boxes share; its sizes may be below 0.
CropBox common(const CropBox& a, const CropBox& b) {
  const int64_t left = std::max(a.left, b.left), top = std::max(a.top, b.top);
  return {left, top, std::min(a.left + a.width, b.left + b.width) - left,
          std::min(a.top + a.height, b.top + b.height) - top};
}

/// The part of a frame that an image has; its nearest pixel, if it has none.
CropBox inside(const CropBox& frame, int64_t width, int64_t height) {
  const int64_t left = std::clamp<int64_t>(frame.left, 0, width - 1);
  const int64_t top = std::clamp<int64_t>(frame.top, 0, height - 1);
  const int64_t right = std::clamp<int64_t>(frame.left + frame.width, left + 1, width);
  const int64_t bottom = std::clamp<int64_t>(frame.top + frame.height, top + 1, height);
  return {left, top, right - left, bottom - top};
}

/// The image under way is a frame: a part of the source image or, after a resize, of the resized
/// box.
class Folding {
 public:
  Folding(int64_t width, int64_t height) : source_{0, 0, width, height} {}

  void move(const Call& call);
  Cut finish();

 private:
  CropBox in_frame(CropBox box) const;

  CropBox source_, frame_ = source_;
  // The part of the source image that crops have kept; it matters where padding follows.
  CropBox kept_ = source_;
  CropBox box_{};  // what is resized
  bool flipped_ = false, upside_down_ = false, resized_ = false;
  Cut cut_;
};

/// A part of the image, as the frame after it.
CropBox Folding::in_frame(CropBox box) const {
  if (flipped_) box.left = frame_.width - (box.left + box.width);
  if (upside_down_) box.top = frame_.height - (box.top + box.height);
  return {frame_.left + box.left, frame_.top + box.top, box.width, box.height};
}

void Folding::move(const Call& call) {
  const auto whole = [](double value) { return static_cast<int64_t>(value); };
  switch (call.operation) {
    case Operation::crop:
    case Operation::iou_crop: {  // of the same parameters
      const auto by = call.as<operations::Crop>();
      frame_ = in_frame({whole(by.left), whole(by.top), whole(by.width), whole(by.height)});
      if (!resized_) kept_ = common(kept_, frame_);
      return;
    }
    case Operation::pad: {
      const auto by = call.as<operations::Pad>();
      const int64_t left = whole(by.left), top = whole(by.top);
      frame_ = in_frame({-left, -top, frame_.width + left + whole(by.right),
                         frame_.height + top + whole(by.bottom)});
      return;
    }
    case Operation::resize: {
      const auto by = call.as<operations::Resize>();
      box_ = frame_;
      resized_ = true;
      frame_ = {0, 0, whole(by.width), whole(by.height)};
      cut_.filter = static_cast<uint8_t>(by.filter);
      cut_.flip = static_cast<uint8_t>((flipped_ ? kFlippedX : 0) | (upside_down_ ? kFlippedY : 0));
      cut_.size[0] = narrow(frame_.width);
      cut_.size[1] = narrow(frame_.height);
      return;
    }
    case Operation::flip_horizontal: flipped_ = !flipped_; return;
    case Operation::flip_vertical: upside_down_ = !upside_down_; return;
    default: return;  // of boxes alone
  }
}

Cut Folding::finish() {
  Cut& cut = cut_;
  if (!resized_) {
    box_ = inside(common(frame_, kept_), source_.width, source_.height);
    frame_.left -= box_.left;
    frame_.top -= box_.top;
    cut.size[0] = narrow(box_.width);
    cut.size[1] = narrow(box_.height);
  }
  const int64_t sides[4] = {box_.left, box_.top, box_.left + box_.width, box_.top + box_.height};
  std::transform(sides, sides + 4, cut.box, narrow);
  cut.window[0] = narrow(frame_.left);
  cut.window[1] = narrow(frame_.top);
  cut.canvas[0] = narrow(frame_.width);
  cut.canvas[1] = narrow(frame_.height);
  if (sides[0] < 0 || sides[1] < 0 || sides[2] > source_.width || sides[3] > source_.height)
    cut.padding = 2;
  else if (frame_.left < 0 || frame_.top < 0 || frame_.left + frame_.width > cut.size[0] ||
           frame_.top + frame_.height > cut.size[1])
    cut.padding = 1;
  cut.flip |= static_cast<uint8_t>((flipped_ ? kFlipX : 0) | (upside_down_ ? kFlipY : 0));
  return cut;
}

}  // namespace

Cut fold(const Drawn& drawn, uint64_t key, int64_t width, int64_t height, int too_small) {
  Folding folding(width, height);
  for (const Call& call : drawn.calls) folding.move(call);
  Cut cut = folding.finish();
  cut.key = key;
  cut.too_small = too_small;
  if (too_small) {
    cut.found[0] = narrow(drawn.width);
    cut.found[1] = narrow(drawn.height);
  }
  return cut;
}

}  // namespace fastdata
