// Operations that move pixels, and noise, as torchvision.transforms.functional does them to a
// Pillow image.
#include <algorithm>
#include <cstring>

#include "augment/operations.h"
#include "augment/padding.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

/// Pillow's resize of a whole image: each row, then columns of the results.
void resize_rows_first(Canvas& canvas, const Planes& image, const Planes& next) {
  const Axis &x_axis = canvas.x_axis, &y_axis = canvas.y_axis;
  const size_t plane = next.stride, stride = plane * image.channels;
  const int count = y_axis.end - y_axis.begin;
  uint8_t* rows = canvas.scratch.reserve(stride * count + kRowPadding);
  const uint8_t* planes[3];
  for (int y = 0; y < count; y++) {
    for (int c = 0; c < image.channels; c++)
      planes[c] = image.row(c, y_axis.begin + y) + x_axis.begin;
    kernels().horizontal(canvas.plan, planes, image.channels, rows + y * stride, plane);
  }
  for (int y = 0; y < next.height; y++)
    for (int c = 0; c < image.channels; c++)
      kernels().vertical(y_axis, y, rows + c * plane, stride, static_cast<int>(plane),
                         next.row(c, y));
}

/// Each row of the result from columns, then resampled itself (Note [Order of passes]).
void resize_columns_first(Canvas& canvas, const Planes& image, const Planes& next) {
  const Axis &x_axis = canvas.x_axis, &y_axis = canvas.y_axis;
  const size_t plane = image.stride;
  uint8_t* columns = canvas.scratch.reserve(plane * image.channels + kRowPadding);
  const uint8_t* planes[3];
  for (int y = 0; y < next.height; y++) {
    for (int c = 0; c < image.channels; c++) {
      kernels().vertical(y_axis, y, image.row(c, y_axis.begin), image.stride,
                         static_cast<int>(plane), columns + c * plane);
      planes[c] = columns + c * plane + x_axis.begin;
    }
    kernels().horizontal(canvas.plan, planes, image.channels, next.row(0, y), next.plane_size());
  }
}

}  // namespace

Status crop(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Crop>();
  const Planes& image = canvas.image();
  int left, top, width, height;
  if (!whole_number(by.left, 0, image.width - 1, left) ||
      !whole_number(by.top, 0, image.height - 1, top) ||
      !whole_number(by.width, 1, image.width - left, width) ||
      !whole_number(by.height, 1, image.height - top, height))
    return {Code::bad_parameters, "a crop outside the image"};
  if (width == image.width && height == image.height) return {};
  return canvas.make(width, height, [&](int c, int y, uint8_t* out) {
    std::memcpy(out, image.row(c, top + y) + left, width);
  });
}

Status iou_crop(const Call& call, Canvas& canvas) { return crop(call, canvas); }

Status shift_targets(const Call&, Canvas&) { return {}; }

Status clamp_boxes(const Call&, Canvas&) { return {}; }

Status sanitize_boxes(const Call&, Canvas&) { return {}; }

Status warp_masks(const Call&, Canvas&) { return {}; }

Status resize(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Resize>();
  const Planes& image = canvas.image();
  int width, height, filter;
  if (!whole_number(by.width, 1, kLongestSide, width) ||
      !whole_number(by.height, 1, kLongestSide, height) ||
      !whole_number(by.filter, 0, kLastFilter, filter))
    return {Code::bad_parameters, "a size outside 1 to 2^24, or no such filter"};
  if (width == image.width && height == image.height) return {};
  Planes next;
  if (Status s = canvas.begin(width, height, image.channels, next); !s.ok()) return s;
  const auto kind = static_cast<Filter>(filter);
  build_axis(kind, image.width, width, {0, width}, {}, /*vertical=*/false, canvas.x_axis);
  build_axis(kind, image.height, height, {0, height}, {}, /*vertical=*/true, canvas.y_axis);
  kernels().plan_horizontal(canvas.x_axis, canvas.plan);
  if (vertical_first(image.width, image.height, width, height))
    resize_columns_first(canvas, image, next);
  else
    resize_rows_first(canvas, image, next);
  canvas.swap();
  return {};
}

Status pad(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Pad>();
  const Planes& image = canvas.image();
  int left, top, right, bottom, fill[3];
  PadMode mode;
  if (Status s = whole_padding(by, left, top, right, bottom, mode); !s.ok()) return s;
  if (!whole_number(by.red, 0, 255, fill[0]) || !whole_number(by.green, 0, 255, fill[1]) ||
      !whole_number(by.blue, 0, 255, fill[2]))
    return {Code::bad_parameters, "a fill outside 0 to 255"};
  const int64_t width = int64_t{image.width} + left + right;
  const int64_t height = int64_t{image.height} + top + bottom;
  if (width > INT32_MAX || height > INT32_MAX)
    return {Code::too_large, "more than 2^31 pixels a side"};
  // Where the pixels left of the image and right of it come from.
  int32_t* margins = canvas.scratch.reserve<int32_t>(static_cast<size_t>(left) + right);
  for (int x = 0; x < left; x++) margins[x] = padded_from(mode, x - left, image.width);
  for (int x = 0; x < right; x++)
    margins[left + x] = padded_from(mode, int64_t{image.width} + x, image.width);
  const auto write = [&](int c, int y, uint8_t* out) {
    if (mode == PadMode::constant && (y < top || y >= top + image.height)) {
      std::memset(out, fill[c], static_cast<size_t>(width));
      return;
    }
    const uint8_t* row = image.row(
        c, mode == PadMode::constant ? y - top : padded_from(mode, y - top, image.height));
    std::memcpy(out + left, row, image.width);
    if (mode == PadMode::constant) {
      std::memset(out, fill[c], left);
      std::memset(out + left + image.width, fill[c], right);
      return;
    }
    for (int x = 0; x < left; x++) out[x] = row[margins[x]];
    for (int x = 0; x < right; x++) out[left + image.width + x] = row[margins[left + x]];
  };
  return canvas.make(static_cast<int>(width), static_cast<int>(height), write);
}

Status gaussian_noise(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::GaussianNoise>();
  int clip;
  if (!(by.mean >= -10 && by.mean <= 10)) return {Code::bad_parameters, "a mean outside -10 to 10"};
  if (!(by.sigma >= 0 && by.sigma <= 10)) return {Code::bad_parameters, "a sigma outside 0 to 10"};
  if (!whole_number(by.clip, 0, 1, clip)) return {Code::bad_parameters, "clip: 0 or 1"};
  const Planes& image = canvas.image();
  kernels().add_noise(image.data, image.size(), call.key, static_cast<float>(by.mean * 255),
                      static_cast<float>(by.sigma * 255), clip);
  return {};
}

Status flip_horizontal(const Call&, Canvas& canvas) {
  const Planes& image = canvas.image();
  return canvas.make(image.width, image.height, [&](int c, int y, uint8_t* out) {
    kernels().reverse(image.row(c, y), image.width, out);
  });
}

Status flip_vertical(const Call&, Canvas& canvas) {
  const Planes& image = canvas.image();
  return canvas.make(image.width, image.height, [&](int c, int y, uint8_t* out) {
    std::memcpy(out, image.row(c, image.height - 1 - y), image.width);
  });
}

}  // namespace fastdata
