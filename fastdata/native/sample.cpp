#include "sample.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "augment/erasing.h"
#include "augment/operations.h"
#include "jpeg/probe.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

// A thread keeps at most so much of each buffer from one sample to the next.
constexpr size_t kKeep = size_t{32} << 20;

/// Cuts off what of a window, at `first`, lies outside the resized image. The window then begins
/// `skipped` later. False: nothing is left.
bool cut_window(int& first, int& count, int full, int& skipped) {
  const int64_t begin = std::max(first, 0), end = std::min<int64_t>(int64_t{first} + count, full);
  if (begin >= end) return false;
  skipped = static_cast<int>(begin - first);
  first = static_cast<int>(begin);
  count = static_cast<int>(end - begin);
  return true;
}

/// The pixel of a side that is nearest to a window at `first` of the resized side. A part of an
/// image may have been read only around its window.
int nearest(int first, int full, int side) {
  const int64_t at = int64_t{first} * side / std::max(full, 1);
  return static_cast<int>(std::clamp<int64_t>(at, 0, side - 1));
}

/// The part of a box that an image has; its nearest pixel, if it has none.
Box inside(const Box& box, int width, int height) {
  const auto clamped = [](int at, int least, int most) { return std::clamp(at, least, most); };
  const int x0 = clamped(box.x0, 0, width - 1), y0 = clamped(box.y0, 0, height - 1);
  return {x0, y0, clamped(box.x1, x0 + 1, width), clamped(box.y1, y0 + 1, height)};
}

bool reaches_outside(const Box& box, const Box& part) {
  return part.x0 != box.x0 || part.y0 != box.y0 || part.x1 != box.x1 || part.y1 != box.y1;
}

/// The smallest box that holds both.
Box around(const Box& a, const Box& b) {
  return {std::min(a.x0, b.x0), std::min(a.y0, b.y0), std::max(a.x1, b.x1), std::max(a.y1, b.y1)};
}

/// About what decoding a box of an image of that width costs, in pixels.
double cost(const Box& box, int width, bool seeking) {
  // Seek points lie some 128 pixels apart; without them, all that is above is decoded, too.
  if (seeking) return (box.width() + 64.0) * box.height();
  return 0.7 * width * box.y1 + 0.3 * box.width() * box.height();
}

}  // namespace

Status SampleDecoder::run(const Sample& sample, const SampleOptions& options) {
  const SampleView view{&sample, &options};
  return run(sample, &view, 1);
}

Status SampleDecoder::run(const SampleImage& image, const SampleView* views, size_t count) {
  try {
    const Status status = decode(image, views, count);
    region_.trim(kKeep);
    canvas_.trim(kKeep);
    turned_.trim(kKeep);
    if (rows_.size() > kKeep) rows_.release();
    return status;
  } catch (const std::bad_alloc&) {
    region_.trim(0);
    canvas_.trim(0);
    turned_.trim(0);
    return {Code::out_of_memory, "not enough memory for this image"};
  }
}

Status SampleDecoder::decode(const SampleImage& image, const SampleView* views, size_t count) {
  const RawImage& raw = image.raw;
  if (raw.pixels) {
    raw_.open(raw.pixels, raw.row_stride, raw.channels);
  } else {
    if (Status s = region_.open(image.jpeg, image.present); !s.ok()) return s;
  }
  if (Status s = find_turn(image); !s.ok()) return s;
  if (plans_.size() < count) plans_.resize(count);
  for (size_t i = 0; i < count; i++)
    if (Status s = plan(image, views[i], plans_[i]); !s.ok()) return s;
  const bool shared = share(image, views[0].options->max_scans, count);
  for (size_t i = 0; i < count; i++) {
    const Box &needed = plans_[i].needed, &stored = plans_[i].stored;
    RowSource* source = &region_;
    if (raw.pixels) {
      raw_.select(stored);
      source = &raw_;
    } else if (shared) {
      region_.select(stored);
    } else if (Status s = region_.begin(stored, image.seek_points, views[i].options->max_scans);
               !s.ok()) {
      return s;
    }
    if (turn_.any()) {
      turned_.open(*source, stored, needed, turn_);
      source = &turned_;
    }
    if (reaches_outside(plans_[i].wanted, needed)) {
      padded_.open(*source, needed, plans_[i].wanted, views[i].options->fill);
      source = &padded_;
    }
    if (Status s = render(views[i], plans_[i], *source); !s.ok()) return s;
  }
  return {};
}

/// Finds how the image is turned; compares a JPEG's header with what boxes were chosen for.
Status SampleDecoder::find_turn(const SampleImage& image) {
  turn_ = Turn(image.orientation);
  if (image.raw.pixels) return {};
  const JpegHeader& header = region_.header();
  const bool known = image.expected_width > 0;
  if (image.orientation == kOrientationOfHeader || (known && image.orientation > 0)) {
    const int found = exif_orientation(header);
    if (found == 0) return {Code::unsupported, "unusual EXIF or XMP data may turn it"};
    if (image.orientation > 0 && found != image.orientation)
      return {Code::other_size, "the image is turned otherwise than it is known to be"};
    turn_ = Turn(found);
  }
  const int width = turn_.exchanged ? header.height : header.width;
  const int height = turn_.exchanged ? header.width : header.height;
  if (known && (image.expected_width != width || image.expected_height != height))
    return {Code::other_size, "the image has another size than it is known by"};
  return {};
}

Status SampleDecoder::plan(const SampleImage& image, const SampleView& view, Plan& plan) {
  const Cut& cut = view.sample->cut;
  plan.width = view.sample->output.width;
  plan.height = view.sample->output.height;
  if (view.on_canvas()) {
    plan.width = cut.canvas[0];
    plan.height = cut.canvas[1];
    if (Status s = canvas_.reset(plan.width, plan.height, view.channels()); !s.ok()) return s;
  }
  const int stored_width = image.raw.pixels ? image.raw.width : region_.header().width;
  const int stored_height = image.raw.pixels ? image.raw.height : region_.header().height;
  const int width = turn_.exchanged ? stored_height : stored_width;
  const int height = turn_.exchanged ? stored_width : stored_height;
  Box& crop = plan.crop;
  crop = cut.whole ? Box{0, 0, width, height} : view.sample->box();
  const bool inner = crop.inside(width, height);
  if (!inner &&
      !(cut.padding == 2 && crop.x0 < crop.x1 && crop.y0 < crop.y1 &&
        int64_t{crop.x1} - crop.x0 <= kLongestSide && int64_t{crop.y1} - crop.y0 <= kLongestSide))
    return {Code::bad_region, "a region outside the image"};

  plan.full_width = cut.size[0];
  plan.full_height = cut.size[1];
  int left = cut.window[0], top = cut.window[1];
  const int width_out = plan.width, height_out = plan.height;
  plan.left = plan.top = 0;
  const bool some = cut_window(left, plan.width, plan.full_width, plan.left) &&
                    cut_window(top, plan.height, plan.full_height, plan.top);
  if (!some && cut.padding) {  // nothing of the image is seen
    plan.width = plan.height = 0;
    const int x = crop.x0 + nearest(cut.window[0], plan.full_width, crop.width());
    const int y = crop.y0 + nearest(cut.window[1], plan.full_height, crop.height());
    plan.wanted = plan.needed = inside({x, y, x + 1, y + 1}, width, height);
    plan.stored = turn_.stored(plan.needed, stored_width, stored_height);
    return {};
  }
  if (!some || (cut.padding == 0 && (plan.width != width_out || plan.height != height_out)))
    return {Code::bad_region, "a window outside the resized image"};
  if (cut.flip & kFlipX) plan.left = width_out - plan.width - plan.left;
  if (cut.flip & kFlipY) plan.top = height_out - plan.height - plan.top;
  if (plan.full_width > std::max(kLongestSide, plan.width) ||
      plan.full_height > std::max(kLongestSide, plan.height))
    return {Code::too_large, "a resized image of more than 2^24 pixels a side"};

  plan.as_is = crop.width() == plan.full_width && crop.height() == plan.full_height &&
               !(cut.flip & (kFlipX | kFlipY));
  if (plan.as_is) {
    plan.wanted = {crop.x0 + left, crop.y0 + top, crop.x0 + left + plan.width,
                   crop.y0 + top + plan.height};
  } else {
    plan_axes(cut, {left, top}, plan);
  }
  plan.needed = inner ? plan.wanted : inside(plan.wanted, width, height);
  plan.stored = turn_.stored(plan.needed, stored_width, stored_height);
  return {};
}

/// Plans the resampling of a plan's window, which begins at `first` of the resized crop.
void SampleDecoder::plan_axes(const Cut& cut, const int (&first)[2], Plan& plan) {
  const Box& crop = plan.crop;
  const auto filter = static_cast<Filter>(cut.filter);
  const auto is = [&](uint8_t bit) { return (cut.flip & bit) != 0; };
  build_axis(filter, crop.width(), plan.full_width, {first[0], plan.width},
             {is(kFlipX), is(kFlippedX)},
             /*vertical=*/false, plan.x_axis);
  build_axis(filter, crop.height(), plan.full_height, {first[1], plan.height},
             {is(kFlipY), is(kFlippedY)}, /*vertical=*/true, plan.y_axis);
  plan.wanted = {crop.x0 + plan.x_axis.begin, crop.y0 + plan.y_axis.begin,
                 crop.x0 + plan.x_axis.end, crop.y0 + plan.y_axis.end};
}

/// Decodes what all views need, if that costs less than each for itself. False: not
/// decoded; an image may be damaged where no view needs it.
bool SampleDecoder::share(const SampleImage& image, int max_scans, size_t count) {
  if (image.raw.pixels || count == 1) return false;
  const bool seeking = image.seek_points.size > 0;
  Box all;
  int sharing = 0;
  double alone = 0;
  for (size_t i = 0; i < count; i++) {
    const Plan& plan = plans_[i];
    all = sharing++ ? around(all, plan.stored) : plan.stored;
    alone += cost(plan.stored, region_.header().width, seeking);
  }
  return sharing > 1 && cost(all, region_.header().width, seeking) < alone &&
         region_.decode(all, image.seek_points, max_scans).ok();
}

/// Writes a view's output; of one with a program by way of the canvas, where that runs.
Status SampleDecoder::render(const SampleView& view, const Plan& plan, RowSource& source) {
  const SampleOptions& options = *view.options;
  const Output& output = view.sample->output;
  if (!view.on_canvas()) {
    place(source, plan, options.fill, output);
    return source.status();
  }
  const int width = view.sample->cut.canvas[0], height = view.sample->cut.canvas[1];
  if (Status s = canvas_.reset(width, height, view.channels()); !s.ok()) return s;
  const Planes& planes = canvas_.image();
  Output canvas;
  canvas.channels = planes.channels;
  canvas.data = planes.data;
  canvas.width = width;
  canvas.height = height;
  canvas.row_stride = static_cast<ptrdiff_t>(planes.stride);
  canvas.plane_stride = static_cast<ptrdiff_t>(planes.plane_size());
  place(source, plan, options.fill, canvas);
  if (Status s = source.status(); !s.ok()) return s;

  const Drawn* drawn = view.sample->drawn;
  if (!drawn) {
    const uint64_t key = view.sample->cut.key;
    if (Status s = options.program->draw(key, width, height, drawn_); !s.ok()) return s;
    drawn = &drawn_;
  }
  if (!drawn->status.ok()) return drawn->status;
  for (const Call& call : drawn->calls)
    if (Status s = fastdata::augment(call, canvas_); !s.ok()) return s;

  const Planes& image = canvas_.image();
  if (image.width != output.width || image.height != output.height || image.width != drawn->width ||
      image.height != drawn->height)
    return {Code::bad_region, "augmentations made an image of another size than the output"};
  const bool grey = image.channels == 1;
  if (output.channels == 1 && !grey)
    return {Code::bad_parameters, "augmentations made an image of three channels, not of one"};
  for (int y = 0; y < image.height; y++) {
    const uint8_t* rows[3] = {};
    for (int c = 0; c < image.channels; c++) rows[c] = image.row(c, y);
    writer_.write(output, y, image.width, rows, grey);
  }
  for (const Erasure& erasure : drawn->erasures) erase(erasure, output, canvas_.scratch);
  return {};
}

/// Writes the window to its place in the output, and the fill around it.
void SampleDecoder::place(RowSource& source, const Plan& plan, const uint8_t (&fill)[3],
                          const Output& output) {
  const size_t pixel = size_of(output.type) * (output.plane_stride ? 1 : output.channels);
  const auto from = [&](int x, int y) {
    Output part = output;
    part.data = static_cast<uint8_t*>(output.data) + y * output.row_stride +
                x * static_cast<ptrdiff_t>(pixel);
    return part;
  };
  if (plan.width < output.width || plan.height < output.height) {
    const size_t row = round_up(output.width, 64) + kRowPadding;
    uint8_t* filled = rows_.reserve(3 * row);
    for (int c = 0; c < 3; c++) std::memset(filled + c * row, fill[c], row);
    const uint8_t* planes[3] = {filled, filled + row, filled + 2 * row};
    const int right = plan.left + plan.width;
    const Output rest = from(right, 0);
    for (int y = 0; y < output.height; y++) {
      if (y < plan.top || y >= plan.top + plan.height) {
        writer_.write(output, y, output.width, planes, false);
        continue;
      }
      if (plan.left > 0) writer_.write(output, y, plan.left, planes, false);
      if (right < output.width) writer_.write(rest, y, output.width - right, planes, false);
    }
  }
  if (plan.width > 0) resample(source, plan, from(plan.left, plan.top));
}

void SampleDecoder::resample(RowSource& source, const Plan& plan, const Output& output) {
  if (plan.as_is) {
    copy(source, plan.wanted, output);
    return;
  }
  kernels().plan_horizontal(plan.x_axis, horizontal_);
  if (vertical_first(plan.crop.width(), plan.crop.height(), plan.full_width, plan.full_height))
    resample_columns_first(source, plan, output);
  else
    resample_rows_first(source, plan, output);
}

void SampleDecoder::copy(RowSource& source, const Box& box, const Output& output) {
  const uint8_t* planes[3];
  for (int y = 0; y < box.height(); y++) {
    source.row(box.y0 + y, planes);
    writer_.write(output, y, box.width(), planes, source.grey());
  }
}

/// Each row of the box is resampled as it comes, then columns of the results.
void SampleDecoder::resample_rows_first(RowSource& source, const Plan& plan, const Output& output) {
  const Box& box = plan.wanted;
  const int channels = source.grey() ? 1 : 3;
  const size_t plane = round_up(plan.x_axis.outputs, 64), stride = plane * channels;
  uint8_t* rows = rows_.reserve(stride * box.height());
  const uint8_t* planes[3];
  for (int y = 0; y < box.height(); y++) {
    source.row(box.y0 + y, planes);
    kernels().horizontal(horizontal_, planes, channels, rows + y * stride, plane);
  }
  uint8_t* out = out_row_.reserve(stride + kRowPadding);
  for (int c = 0; c < channels; c++) planes[c] = out + c * plane;
  for (int y = 0; y < plan.y_axis.outputs; y++) {
    kernels().vertical(plan.y_axis, y, rows, stride, static_cast<int>(stride), out);
    writer_.write(output, y, plan.x_axis.outputs, planes, source.grey());
  }
}

/// The box's rows are gathered, resampled vertically, and each result horizontally.
void SampleDecoder::resample_columns_first(RowSource& source, const Plan& plan,
                                           const Output& output) {
  const Box& box = plan.wanted;
  const int channels = source.grey() ? 1 : 3;
  const size_t plane = round_up(box.width(), 64) + kRowPadding, stride = plane * channels;
  uint8_t* rows = rows_.reserve(stride * box.height());
  const uint8_t* planes[3];
  for (int y = 0; y < box.height(); y++) {
    source.row(box.y0 + y, planes);
    for (int c = 0; c < channels; c++)
      std::memcpy(rows + y * stride + c * plane, planes[c], box.width());
  }
  const size_t out_plane = round_up(plan.x_axis.outputs, 64);
  uint8_t* column = out_row_.reserve(stride + channels * out_plane + kRowPadding);
  uint8_t* out = column + stride;
  for (int y = 0; y < plan.y_axis.outputs; y++) {
    kernels().vertical(plan.y_axis, y, rows, stride, static_cast<int>(stride), column);
    for (int c = 0; c < channels; c++) planes[c] = column + c * plane;
    kernels().horizontal(horizontal_, planes, channels, out, out_plane);
    for (int c = 0; c < channels; c++) planes[c] = out + c * out_plane;
    writer_.write(output, y, plan.x_axis.outputs, planes, source.grey());
  }
}

SampleDecoder& thread_decoder() {
  thread_local SampleDecoder decoder;
  return decoder;
}

}  // namespace fastdata
