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

}  // namespace

/// A part of the image, as the frame after it.
CropBox FoldedDrawing::in_frame(CropBox box) const {
  if (flipped_) box.left = width_ - (box.left + box.width);
  if (upside_down_) box.top = height_ - (box.top + box.height);
  return {left_ + box.left, top_ + box.top, box.width, box.height};
}

void FoldedDrawing::on_crop(const CropBox& box, bool) {
  const CropBox next = in_frame(box);
  if (!resized_) kept_ = common(kept_, next);
  left_ = next.left;
  top_ = next.top;
}

void FoldedDrawing::on_pad(const Margins& margins, const Padding&) {
  const auto left = static_cast<int64_t>(margins.left), top = static_cast<int64_t>(margins.top);
  const CropBox next = in_frame({-left, -top, width_ + left + static_cast<int64_t>(margins.right),
                                 height_ + top + static_cast<int64_t>(margins.bottom)});
  left_ = next.left;
  top_ = next.top;
}

void FoldedDrawing::on_resize(const Size& size, int filter) {
  box_ = frame();
  resized_ = true;
  cut_.filter = static_cast<uint8_t>(filter);
  cut_.flip = static_cast<uint8_t>((flipped_ ? kFlippedX : 0) | (upside_down_ ? kFlippedY : 0));
  left_ = top_ = 0;
  cut_.size[0] = static_cast<int32_t>(size.width);
  cut_.size[1] = static_cast<int32_t>(size.height);
}

void FoldedDrawing::on_flip(bool across) {
  bool& mirrored = across ? flipped_ : upside_down_;
  mirrored = !mirrored;
}

Cut FoldedDrawing::finish(int too_small) {
  Cut& cut = cut_;
  cut.too_small = too_small;
  if (too_small) {
    cut.found[0] = narrow(width_);
    cut.found[1] = narrow(height_);
  }
  if (!resized_) {
    box_ = inside(common(frame(), kept_), source_.width, source_.height);
    left_ -= box_.left;
    top_ -= box_.top;
    cut.size[0] = narrow(box_.width);
    cut.size[1] = narrow(box_.height);
  }
  const int64_t sides[4] = {box_.left, box_.top, box_.left + box_.width, box_.top + box_.height};
  std::transform(sides, sides + 4, cut.box, narrow);
  cut.window[0] = narrow(left_);
  cut.window[1] = narrow(top_);
  cut.canvas[0] = narrow(width_);
  cut.canvas[1] = narrow(height_);
  if (sides[0] < 0 || sides[1] < 0 || sides[2] > source_.width || sides[3] > source_.height)
    cut.padding = 2;
  else if (left_ < 0 || top_ < 0 || left_ + width_ > cut.size[0] || top_ + height_ > cut.size[1])
    cut.padding = 1;
  cut.flip |= static_cast<uint8_t>((flipped_ ? kFlipX : 0) | (upside_down_ ? kFlipY : 0));
  cut.key = key_;

  const double across = static_cast<double>(cut.size[0]) / static_cast<double>(box_.width);
  const double down = static_cast<double>(cut.size[1]) / static_cast<double>(box_.height);
  const double left = -static_cast<double>(box_.left) * across - static_cast<double>(left_);
  const double sign = flipped_ ? -1 : 1;
  cut.matrix[0] = sign * across;
  cut.matrix[2] = sign * left + (flipped_ ? static_cast<double>(width_) : 0);
  const double top = -static_cast<double>(box_.top) * down - static_cast<double>(top_);
  const double sense = upside_down_ ? -1 : 1;
  cut.matrix[4] = sense * down;
  cut.matrix[5] = sense * top + (upside_down_ ? static_cast<double>(height_) : 0);
  cut.matrix[8] = 1;
  return cut;
}

}  // namespace fastdata
