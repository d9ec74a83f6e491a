#include "sample.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "augment/erasing.h"
#include "augment/operations.h"
#include "simd/kernels.h"
#include "profile.h"

namespace fastdata {
namespace {

// A thread keeps at most so much of each buffer from one sample to the next.
constexpr size_t kKeep = size_t{32} << 20;

// Larger sizes would only be mistakes, and take long to count through.
constexpr int kMaxResize = 1 << 24;

/// The largest of 8, 4, 2, 1 by which the crop can shrink and still be no smaller than
/// what it is resized to.
int dct_scale(const Box& crop, int width, int height) {
  int scale = 8;
  while (scale > 1 && (crop.width() / scale < width || crop.height() / scale < height)) scale /= 2;
  return scale;
}

/// Whether the output's window, at `first`, lies within the resized image.
bool window_inside(int first, int count, int full) {
  return first >= 0 && count <= full && first <= full - count;
}

Box scaled(const Box& box, int scale) {
  return {box.x0 / scale, box.y0 / scale, ceil_div(box.x1, scale), ceil_div(box.y1, scale)};
}

}  // namespace

Status SampleDecoder::run(const Sample& sample, const SampleOptions& options) {
  try {
    const Status status = options.program ? augment(sample, options) : decode(sample, options);
    profile(Stage::none);
    region_.trim(kKeep);
    canvas_.trim(kKeep);
    if (rows_.size() > kKeep) rows_.release();
    return status;
  } catch (const std::bad_alloc&) {
    region_.trim(0);
    canvas_.trim(0);
    return {Code::out_of_memory, "not enough memory for this image"};
  }
}

/// Decodes to the canvas, runs the program there, and writes the output from it.
Status SampleDecoder::augment(const Sample& sample, const SampleOptions& options) {
  SampleOptions window = options;
  if (sample.canvas_width) window.width = sample.canvas_width;
  if (sample.canvas_height) window.height = sample.canvas_height;
  if (Status s = canvas_.reset(window.width, window.height, 3); !s.ok()) return s;
  Sample decoded = sample;
  const Planes& planes = canvas_.image();
  decoded.output = {};
  decoded.output.data = planes.data;
  decoded.output.row_stride = static_cast<ptrdiff_t>(planes.stride);
  decoded.output.plane_stride = static_cast<ptrdiff_t>(planes.plane_size());
  if (Status s = decode(decoded, window); !s.ok()) return s;

  profile(Stage::augment);
  if (Status s = options.program->draw(sample.key, window.width, window.height, drawn_); !s.ok())
    return s;
  for (const Call& call : drawn_.calls)
    if (Status s = fastdata::augment(call, canvas_); !s.ok()) return s;

  profile(Stage::output);
  const Planes& image = canvas_.image();
  if (image.width != options.width || image.height != options.height)
    return {Code::bad_region, "augmentations made an image of another size than the output"};
  const bool grey = image.channels == 1;
  for (int y = 0; y < image.height; y++) {
    const uint8_t* rows[3] = {};
    for (int c = 0; c < image.channels; c++) rows[c] = image.row(c, y);
    writer_.write(sample.output, y, image.width, rows, grey);
  }
  for (const Erasure& erasure : drawn_.erasures) erase(erasure, sample.output, canvas_.scratch);
  return {};
}

Status SampleDecoder::decode(const Sample& sample, const SampleOptions& options) {
  const RawImage& raw = sample.raw;
  int width = raw.width, height = raw.height;
  if (!raw.pixels) {
    if (Status s = region_.open(sample.jpeg); !s.ok()) return s;
    width = region_.header().width;
    height = region_.header().height;
    if (sample.said_width > 0 && (sample.said_width != width || sample.said_height != height))
      return {Code::other_size, "the image has another size than it is known by"};
  }
  Box crop = sample.whole ? Box{0, 0, width, height} : sample.box;
  if (!crop.inside(width, height)) return {Code::bad_region, "a region outside the image"};

  const int full_width = sample.full_width ? sample.full_width : options.width;
  const int full_height = sample.full_height ? sample.full_height : options.height;
  const int left = sample.window_x, top = sample.window_y;
  if (!window_inside(left, options.width, full_width) ||
      !window_inside(top, options.height, full_height))
    return {Code::bad_region, "a window outside the resized image"};
  if (sample.full_width > kMaxResize || sample.full_height > kMaxResize)
    return {Code::too_large, "a resized image of more than 2^24 pixels a side"};

  int scale = 1;
  if (options.dct_scaling && !raw.pixels) {
    scale = dct_scale(crop, full_width, full_height);
    crop = scaled(crop, scale);
  }
  const bool as_is = crop.width() == full_width && crop.height() == full_height && !sample.flip;

  Box needed = {crop.x0 + left, crop.y0 + top, crop.x0 + left + options.width,
                crop.y0 + top + options.height};
  if (!as_is) {
    profile(Stage::coefficients);
    build_axis(sample.filter, crop.width(), full_width, {left, options.width}, sample.flip,
               /*vertical=*/false, x_axis_);
    build_axis(sample.filter, crop.height(), full_height, {top, options.height}, false,
               /*vertical=*/true, y_axis_);
    needed = {crop.x0 + x_axis_.begin, crop.y0 + y_axis_.begin, crop.x0 + x_axis_.end,
              crop.y0 + y_axis_.end};
  }
  RowSource* source = &region_;
  if (raw.pixels) {
    raw_.open(raw.pixels, raw.row_stride, raw.channels);
    raw_.select(needed);
    source = &raw_;
  } else if (Status s = region_.decode(needed, sample.seek_points, scale); !s.ok()) {
    return s;
  }
  if (as_is) {
    copy(*source, needed, sample.output);
    return {};
  }
  profile(Stage::coefficients);
  kernels().plan_horizontal(x_axis_, plan_);
  if (vertical_first(crop.width(), crop.height(), full_width, full_height))
    resample_columns_first(*source, needed, sample.output);
  else
    resample_rows_first(*source, needed, sample.output);
  return {};
}

void SampleDecoder::copy(RowSource& source, const Box& box, const Output& output) {
  const uint8_t* planes[3];
  for (int y = 0; y < box.height(); y++) {
    source.row(box.y0 + y, planes);
    profile(Stage::output);
    writer_.write(output, y, box.width(), planes, source.grey());
  }
}

/// Each row of the box is resampled as it comes, then columns of the results.
void SampleDecoder::resample_rows_first(RowSource& source, const Box& box, const Output& output) {
  const int channels = source.grey() ? 1 : 3;
  const size_t plane = round_up(x_axis_.outputs, 64), stride = plane * channels;
  uint8_t* rows = rows_.reserve(stride * box.height());
  const uint8_t* planes[3];
  for (int y = 0; y < box.height(); y++) {
    source.row(box.y0 + y, planes);
    profile(Stage::horizontal);
    kernels().horizontal(plan_, planes, channels, rows + y * stride, plane);
  }
  uint8_t* out = out_row_.reserve(stride + kRowPadding);
  for (int c = 0; c < channels; c++) planes[c] = out + c * plane;
  for (int y = 0; y < y_axis_.outputs; y++) {
    profile(Stage::vertical);
    kernels().vertical(y_axis_, y, rows, stride, static_cast<int>(stride), out);
    profile(Stage::output);
    writer_.write(output, y, x_axis_.outputs, planes, source.grey());
  }
}

/// The box's rows are gathered, resampled vertically, and each result horizontally.
void SampleDecoder::resample_columns_first(RowSource& source, const Box& box,
                                           const Output& output) {
  const int channels = source.grey() ? 1 : 3;
  const size_t plane = round_up(box.width(), 64) + kRowPadding, stride = plane * channels;
  uint8_t* rows = rows_.reserve(stride * box.height());
  const uint8_t* planes[3];
  for (int y = 0; y < box.height(); y++) {
    source.row(box.y0 + y, planes);
    for (int c = 0; c < channels; c++)
      std::memcpy(rows + y * stride + c * plane, planes[c], box.width());
  }
  const size_t out_plane = round_up(x_axis_.outputs, 64);
  uint8_t* column = out_row_.reserve(stride + channels * out_plane + kRowPadding);
  uint8_t* out = column + stride;
  for (int y = 0; y < y_axis_.outputs; y++) {
    profile(Stage::vertical);
    kernels().vertical(y_axis_, y, rows, stride, static_cast<int>(stride), column);
    for (int c = 0; c < channels; c++) planes[c] = column + c * plane;
    profile(Stage::horizontal);
    kernels().horizontal(plan_, planes, channels, out, out_plane);
    for (int c = 0; c < channels; c++) planes[c] = out + c * out_plane;
    profile(Stage::output);
    writer_.write(output, y, x_axis_.outputs, planes, source.grey());
  }
}

SampleDecoder& thread_decoder() {
  thread_local SampleDecoder decoder;
  return decoder;
}

}  // namespace fastdata
