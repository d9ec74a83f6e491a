#include "geometry/folded.h"

#include <algorithm>
#include <limits>

#include "resample/resample.h"

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

// Boxes of no image, for crops that depend on them.
const std::vector<TargetBox> kNoBoxes;

}  // namespace

void FoldedDrawing::move_frame(CropBox box) {
  if (flipped_) box.left = width_ - (box.left + box.width);
  if (upside_down_) box.top = height_ - (box.top + box.height);
  left_ += box.left;
  top_ += box.top;
  width_ = box.width;
  height_ = box.height;
}

Status FoldedDrawing::crop(const CropBox& box) {
  if (targets_)
    targets_->crop(static_cast<float>(box.left), static_cast<float>(box.top), narrow(box.width),
                   narrow(box.height));
  move_frame(box);
  if (!resized_) kept_ = common(kept_, frame());
  return {};
}

Status FoldedDrawing::crop_to_boxes(const CropBox& box) {
  if (targets_)
    targets_->iou_crop(static_cast<float>(box.left), static_cast<float>(box.top), narrow(box.width),
                       narrow(box.height));
  move_frame(box);
  if (!resized_) kept_ = common(kept_, frame());
  return {};
}

Status FoldedDrawing::pad(const Margins& margins, const Padding&) {
  const auto& [left, top, right, bottom] = margins;
  if (left == 0 && top == 0 && right == 0 && bottom == 0) return {};
  const double wide = static_cast<double>(width_) + left + right;
  const double high = static_cast<double>(height_) + top + bottom;
  if (!is_possible(wide, high)) return kBadSize;
  const CropBox box{-static_cast<int64_t>(left), -static_cast<int64_t>(top),
                    static_cast<int64_t>(wide), static_cast<int64_t>(high)};
  if (targets_)
    targets_->crop(static_cast<float>(box.left), static_cast<float>(box.top), narrow(box.width),
                   narrow(box.height));
  move_frame(box);
  return {};
}

Status FoldedDrawing::resize(const Size& size, double filter) {
  int number;
  if (!is_possible(size.width, size.height) || !whole_number(filter, 0, kLastFilter, number))
    return kBadSize;
  box_ = frame();
  resized_ = true;
  cut_.filter = static_cast<uint8_t>(number);
  cut_.flip = static_cast<uint8_t>((flipped_ ? kFlippedX : 0) | (upside_down_ ? kFlippedY : 0));
  left_ = top_ = 0;
  width_ = static_cast<int64_t>(size.width);
  height_ = static_cast<int64_t>(size.height);
  cut_.size[0] = narrow(width_);
  cut_.size[1] = narrow(height_);
  if (targets_) targets_->resize(cut_.size[0], cut_.size[1]);
  return {};
}

Status FoldedDrawing::flip(bool across) {
  bool& mirrored = across ? flipped_ : upside_down_;
  mirrored = !mirrored;
  if (targets_) targets_->flip(across);
  return {};
}

Status FoldedDrawing::shift_targets(int64_t x, int64_t y) {
  if (targets_) targets_->shift(static_cast<float>(x), static_cast<float>(y));
  return {};
}

Status FoldedDrawing::clamp_boxes() {
  if (targets_) targets_->clamp();
  return {};
}

Status FoldedDrawing::sanitize_boxes(double min_size, double min_area) {
  if (targets_) targets_->sanitize(static_cast<float>(min_size), static_cast<float>(min_area));
  return {};
}

const std::vector<TargetBox>* FoldedDrawing::boxes() {
  return targets_ ? &targets_->boxes : &kNoBoxes;
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
