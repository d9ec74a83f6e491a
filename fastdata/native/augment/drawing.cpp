#include "augment/drawing.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "draws.h"
#include "portable.h"
#include "resample/resample.h"

namespace fastdata {
namespace {

int64_t whole(double value) { return static_cast<int64_t>(value); }

double between(double low, double high, uint64_t key, uint64_t draw) {
  return low + (high - low) * draw_uniform(key, draw);
}

}  // namespace

void Drawing::crop(const CropBox& box) {
  const auto left = static_cast<double>(box.left), top = static_cast<double>(box.top);
  const auto w = static_cast<double>(box.width), h = static_cast<double>(box.height);
  add(Call::of(operations::Crop{left, top, w, h}), w, h);
}

template <typename Step>
Status Drawing::pad(const Margins& margins, const Step& step) {
  const auto& [left, top, right, bottom] = margins;
  if (left == 0 && top == 0 && right == 0 && bottom == 0) return {};
  const double w = static_cast<double>(width()) + left + right;
  const double h = static_cast<double>(height()) + top + bottom;
  if (!is_possible(w, h)) return kBadSize;
  Call call = Call::of(
      operations::Pad{left, top, right, bottom, step.mode, step.red, step.green, step.blue});
  call.mask_fill = step.mask_fill;
  add(call, w, h);
  return {};
}

Status Drawing::resize(const Size& size, double filter) {
  int number;
  if (!is_possible(size.width, size.height) || !whole_number(filter, 0, kLastFilter, number))
    return kBadSize;
  add(Call::of(operations::Resize{size.width, size.height, filter}), size.width, size.height);
  return {};
}

Status Drawing::take(const steps::FlipHorizontal&, uint64_t) {
  add(Call::of(operations::FlipHorizontal{}));
  return {};
}

Status Drawing::take(const steps::FlipVertical&, uint64_t) {
  add(Call::of(operations::FlipVertical{}));
  return {};
}

Status Drawing::take(const steps::ClampBoxes&, uint64_t) {
  add(Call::of(operations::ClampBoxes{}));
  return {};
}

Status Drawing::take(const steps::SanitizeBoxes& step, uint64_t) {
  add(Call::of(operations::SanitizeBoxes{step.min_size, step.min_area}));
  return {};
}

Status Drawing::take(const steps::Resize& step, uint64_t) {
  return resize({step.width, step.height}, step.filter);
}

Status Drawing::take(const steps::ResizeShorter& step, uint64_t) {
  const auto w = static_cast<double>(width()), h = static_cast<double>(height());
  return resize(resized_shorter(w, h, step.size, step.bound), step.filter);
}

Status Drawing::take(const steps::ScaleJitter& step, uint64_t) {
  const auto w = static_cast<double>(width()), h = static_cast<double>(height());
  return resize(scale_jittered(w, h, {step.width, step.height}, step.factor), step.filter);
}

Status Drawing::take(const steps::ShortestSize& step, uint64_t) {
  const auto w = static_cast<double>(width()), h = static_cast<double>(height());
  return resize(resized_shortest(w, h, step.size, step.bound), step.filter);
}

/// timm's ResizeKeepRatio.get_params, in its order of operations.
Status Drawing::take(const steps::ResizeKeepingRatio& step, uint64_t draw) {
  const auto w = static_cast<double>(width()), h = static_cast<double>(height());
  const double down = h / step.height, across = w / step.width;
  const double ratio =
      std::max(down, across) * step.longest + std::min(down, across) * (1.0 - step.longest);
  double by_width = 1, by_height = 1;
  if (draw_uniform(key_, draw) < step.scale_p) {
    const double factor = between(step.least_scale, step.most_scale, key_, draw + 1);
    by_width = by_height = step.scale_is_area ? 1.0 / std::sqrt(factor) : factor;
  }
  if (draw_uniform(key_, draw + 2) < step.ratio_p) {
    const double log = between(step.least_ratio.log, step.most_ratio.log, key_, draw + 3);
    const double factor = std::sqrt(portable_exp(log));
    by_height /= factor;
    by_width *= factor;
  }
  // No image has a side below one pixel: timm's own call fails there.
  return resize({std::max(std::nearbyint(w * by_width / ratio), 1.0),
                 std::max(std::nearbyint(h * by_height / ratio), 1.0)},
                step.filter);
}

Status Drawing::take(const steps::ResizeToSequence& step, uint64_t) {
  const auto w = static_cast<double>(width()), h = static_cast<double>(height());
  return resize(sequence_size(w, h, step.patch, step.most_patches, step.greatest_ratio),
                step.filter);
}

Status Drawing::take(const steps::ResizedCrop& step, uint64_t draw) {
  if (!(step.least_area >= 0 && step.least_ratio.value > 0 && step.most_ratio.value > 0))
    return {Code::bad_parameters, "a random crop of parts or ratios that there are not"};
  const AreaAndRatio ranges{step.least_area, step.most_area, step.least_ratio, step.most_ratio,
                            step.in_double};
  crop(random_resized_crop(ranges, width(), height(), key_, draw));
  return resize({step.width, step.height}, step.filter);
}

/// torchvision's functional.center_crop.
Status Drawing::take(const steps::CentreCrop& step, uint64_t) {
  if (!is_possible(step.width, step.height)) return kBadSize;
  const int64_t w = whole(step.width), h = whole(step.height);
  const int64_t x = centred(width(), w, step.floored), y = centred(height(), h, step.floored);
  const int64_t across = targets_ahead(width(), w), down = targets_ahead(height(), h);
  if (targets_ && !step.floored && (across != 0 || down != 0))
    add(Call::of(operations::ShiftTargets{static_cast<double>(across), static_cast<double>(down)}));
  const int64_t left = std::max<int64_t>(-x, 0), top = std::max<int64_t>(-y, 0);
  const Margins margins{static_cast<double>(left), static_cast<double>(top),
                        static_cast<double>(std::max<int64_t>(w - width(), 0) - left),
                        static_cast<double>(std::max<int64_t>(h - height(), 0) - top)};
  if (Status s = pad(margins, step); !s.ok()) return s;
  crop({std::max<int64_t>(x, 0), std::max<int64_t>(y, 0), w, h});
  return {};
}

/// torchvision's RandomCrop. Constant padding is added all at once, as boxes are clamped then.
Status Drawing::take(const steps::RandomCrop& step, uint64_t draw) {
  const double w = step.width, h = step.height;
  const auto missing = [](double want, double have) { return std::max(want - have, 0.0); };
  const auto have_w = [&] { return static_cast<double>(width()); };
  const auto have_h = [&] { return static_cast<double>(height()); };
  const bool at_once = step.pads_smaller && step.mode == 0;
  const double wider = at_once ? missing(w, have_w() + step.left + step.right) : 0;
  const double higher = at_once ? missing(h, have_h() + step.top + step.bottom) : 0;
  const Margins margins{step.left + wider, step.top + higher, step.right + wider,
                        step.bottom + higher};
  if (Status s = pad(margins, step); !s.ok()) return s;
  if (step.pads_smaller) {
    const double across = missing(w, have_w()), down = missing(h, have_h());
    if (Status s = pad({across, 0, across, 0}, step); !s.ok()) return s;
    if (Status s = pad({0, down, 0, down}, step); !s.ok()) return s;
  }
  if (!(w >= 1 && h >= 1 && w <= have_w() && h <= have_h()))
    return {Code::bad_parameters, "the image is smaller than a random crop that may not pad it"};
  const CropBox box{draw_integer(key_, draw, width() - whole(w) + 1),
                    draw_integer(key_, draw + 1, height() - whole(h) + 1), whole(w), whole(h)};
  // A crop of all of the image does nothing, also to boxes that reach outside.
  if (box.width != width() || box.height != height()) crop(box);
  return {};
}

Status Drawing::take(const steps::FixedSizeCrop& step, uint64_t draw) {
  if (!is_possible(step.width, step.height)) return kBadSize;
  const CropBox box = fixed_size_crop(width(), height(), whole(step.width), whole(step.height),
                                      draw_uniform_single(key_, draw, 0, 1));
  if (box.width != width() || box.height != height()) crop(box);
  return take(steps::PadTo{step.width, step.height, step.mode, step.red, step.green, step.blue,
                           step.mask_fill},
              draw);
}

Status Drawing::take(const steps::Pad& step, uint64_t) {
  return pad({step.left, step.top, step.right, step.bottom}, step);
}

Status Drawing::take(const steps::PadTo& step, uint64_t) {
  return pad({0, 0, std::max(step.width - static_cast<double>(width()), 0.0),
              std::max(step.height - static_cast<double>(height()), 0.0)},
             step);
}

Status Drawing::take(const steps::ZoomOut& step, uint64_t draw) {
  return pad(zoomed_out(width(), height(), step.least, step.most, key_, draw), step);
}

/// An image without boxes that fit stays as it is once the option for that is drawn.
Status Drawing::take(const steps::IouCrop& step, uint64_t draw) {
  static const std::vector<TargetBox> kNone;
  if (!targets_ && !may_lack_boxes_)
    return {Code::bad_parameters, "a crop that depends on boxes, and there are none"};
  std::optional<CropBox> box;
  if (!draw_iou_crop(step, draw_bits(key_, draw), static_cast<int>(width()),
                     static_cast<int>(height()), targets_ ? targets_->boxes : kNone, box))
    return {Code::bad_parameters, "no crop in 1000 rounds has a box that overlaps it enough"};
  if (!box) return {};
  const auto left = static_cast<double>(box->left), top = static_cast<double>(box->top);
  const auto w = static_cast<double>(box->width), h = static_cast<double>(box->height);
  add(Call::of(operations::IouCrop{left, top, w, h}), w, h);
  return {};
}

}  // namespace fastdata
