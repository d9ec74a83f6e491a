#include "outlines/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "augment/padding.h"

namespace fastdata {
void Sampling::begin(int width, int height) {
  columns_.resize(static_cast<size_t>(width));
  rows_.resize(static_cast<size_t>(height));
  std::iota(columns_.begin(), columns_.end(), 0);
  std::iota(rows_.begin(), rows_.end(), 0);
  fills_.clear();
}

int32_t Sampling::add_fill(uint8_t value) {
  fills_.push_back(value);
  return -static_cast<int32_t>(fills_.size());
}

Status Sampling::move(const Cut& cut, uint8_t fill) {
  if (cut.too_small) return {Code::bad_region, "an image that is too small for a crop"};
  for (const int side : {cut.size[0], cut.size[1], cut.canvas[0], cut.canvas[1]})
    if (side < 1 || side > kLongestSide) return {Code::bad_region, "a cut without pixels"};
  if (!cut.whole) {
    const int64_t width = int64_t{cut.box[2]} - cut.box[0],
                  height = int64_t{cut.box[3]} - cut.box[1];
    if (width < 1 || width > kLongestSide || height < 1 || height > kLongestSide)
      return {Code::bad_region, "a cut without pixels"};
    const int32_t outside = add_fill(fill);
    crop(columns_, cut.box[0], static_cast<int>(width), outside);
    crop(rows_, cut.box[1], static_cast<int>(height), outside);
  }
  const auto mirror = [&](uint8_t x, uint8_t y) {
    if (cut.flip & x) std::reverse(columns_.begin(), columns_.end());
    if (cut.flip & y) std::reverse(rows_.begin(), rows_.end());
  };
  mirror(kFlippedX, kFlippedY);
  resize(columns_, cut.size[0]);
  resize(rows_, cut.size[1]);
  mirror(kFlippedX, kFlippedY);
  const int32_t outside = add_fill(fill);
  crop(columns_, cut.window[0], cut.canvas[0], outside);
  crop(rows_, cut.window[1], cut.canvas[1], outside);
  mirror(kFlipX, kFlipY);
  return {};
}

Status Sampling::move(const Call& call, bool& done) {
  done = true;
  for (const double value : call.values)
    if (!std::isfinite(value)) return {Code::bad_parameters, "a value that is not finite"};
  switch (call.operation) {
    case Operation::flip_horizontal: std::reverse(columns_.begin(), columns_.end()); return {};
    case Operation::flip_vertical: std::reverse(rows_.begin(), rows_.end()); return {};
    case Operation::crop:
    case Operation::iou_crop: return crop(call.as<operations::Crop>());  // of the same parameters
    case Operation::resize: {
      const auto by = call.as<operations::Resize>();
      int width, height;
      if (!whole_number(by.width, 1, kLongestSide, width) ||
          !whole_number(by.height, 1, kLongestSide, height))
        return {Code::bad_parameters, "a size outside 1 to 2^24"};
      resize(columns_, width);
      resize(rows_, height);
      return {};
    }
    case Operation::pad: return pad(call.as<operations::Pad>());
    default: done = false; return {};
  }
}

void Sampling::crop(std::vector<int32_t>& places, int64_t first, int count, int32_t outside) {
  const auto size = static_cast<int64_t>(places.size());
  if (first == 0 && count == size) return;
  std::vector<int32_t> cropped(static_cast<size_t>(count), outside);
  const int64_t begin = std::max<int64_t>(first, 0), end = std::min(first + count, size);
  if (begin < end)
    std::copy(places.begin() + begin, places.begin() + end, cropped.begin() + (begin - first));
  places.swap(cropped);
}

/// In single precision, as torch.nn.functional.interpolate.
void Sampling::resize(std::vector<int32_t>& places, int count) {
  const auto size = static_cast<int>(places.size());
  if (count == size) return;
  const float scale = static_cast<float>(size) / static_cast<float>(count);
  other_.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; i++) {
    const auto at = static_cast<int>(static_cast<float>(i) * scale);
    other_[static_cast<size_t>(i)] = places[static_cast<size_t>(std::min(at, size - 1))];
  }
  places.swap(other_);
}

Status Sampling::crop(const operations::Crop& by) {
  int left, top, width, height;
  if (!whole_number(by.left, 0, this->width() - 1, left) ||
      !whole_number(by.top, 0, this->height() - 1, top) ||
      !whole_number(by.width, 1, this->width() - left, width) ||
      !whole_number(by.height, 1, this->height() - top, height))
    return {Code::bad_parameters, "a crop outside the image"};
  crop(columns_, left, width, 0);
  crop(rows_, top, height, 0);
  return {};
}

Status Sampling::pad(const operations::Pad& by) {
  int left, top, right, bottom, fill;
  PadMode mode;
  if (Status s = whole_padding(by, left, top, right, bottom, mode); !s.ok()) return s;
  if (!whole_number(by.red, 0, 255, fill)) return {Code::bad_parameters, "a fill outside 0 to 255"};
  if (width() + left + right > 3 * kLongestSide || height() + top + bottom > 3 * kLongestSide)
    return {Code::too_large, "an image of more than 2^24 pixels a side"};
  const int32_t outside = mode == PadMode::constant ? add_fill(static_cast<uint8_t>(fill)) : 0;
  const auto pad_side = [&](std::vector<int32_t>& places, int before, int after) {
    const auto size = static_cast<int>(places.size()), count = before + size + after;
    if (mode == PadMode::constant) return crop(places, -before, count, outside);
    other_.resize(static_cast<size_t>(count));
    for (int i = 0; i < count; i++)
      other_[static_cast<size_t>(i)] =
          places[static_cast<size_t>(padded_from(mode, i - before, size))];
    places.swap(other_);
  };
  pad_side(columns_, left, right);
  pad_side(rows_, top, bottom);
  return {};
}

}  // namespace fastdata
