#include "geometry/geometry.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "draws.h"
#include "portable.h"
#include "resample/resample.h"

namespace fastdata {
namespace {

// The draw that chooses one of several filters, beyond those of RandomResizedCrop's box.
constexpr uint64_t kFilterDraw = 2 * kCropAttempts + 2;
constexpr double kMostValue = 1 << 30;

/// Whether a value may be any finite number. Others become integers.
bool is_any(StepKind kind, size_t value) {
  switch (kind) {
    case StepKind::resize_keeping_ratio:
    case StepKind::resize_to_sequence:
    case StepKind::resized_crop:
    case StepKind::scale_jitter: return value >= 2;
    case StepKind::iou_crop: return value >= 6;
    default: return false;
  }
}

bool is_resize(StepKind kind) { return kind >= StepKind::resize && kind <= StepKind::resized_crop; }

/// As numpy's int32, but what is beyond it stays large.
int32_t narrow(int64_t value) {
  constexpr int64_t least = std::numeric_limits<int32_t>::min();
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::clamp(value, least, most));
}

int64_t whole(double value) { return static_cast<int64_t>(value); }

double between(double low, double high, uint64_t key, uint64_t draw) {
  return low + (high - low) * draw_uniform(key, draw);
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

/// A drawing under way. The frame is the current image, as a part of the source image or, after a
/// resize, of the resized box.
struct Geometry::Drawing {
  uint64_t key;
  Targets* targets;
  Cut cut;
  CropBox frame, box{};
  // The part of the source image that crops have kept; it matters where padding follows.
  CropBox kept = frame;
  bool flipped = false, upside_down = false, resized = false;
  uint8_t before_resize = 0;  // bits of Cut::flip

  void crop(CropBox part) {
    move_frame(part);
    if (!resized) kept = common(kept, frame);
  }
  /// A crop of all of the image does nothing, also to boxes that reach outside.
  void crop_if_larger(CropBox part) {
    if (part.width != frame.width || part.height != frame.height) crop(part);
  }
  void flip(bool across) {
    bool& mirrored = across ? flipped : upside_down;
    mirrored = !mirrored;
    if (targets) targets->flip(across);
  }
  void pad(int64_t before, int64_t above, int64_t after, int64_t below) {
    if (before == 0 && above == 0 && after == 0 && below == 0) return;
    move_frame({-before, -above, before + frame.width + after, above + frame.height + below});
  }
  void resize(const GeometryStep& step, double new_width, double new_height, int number) {
    const auto possible = [](double side) { return side >= 1 && side <= kLongestSide; };
    const bool fits = possible(new_width) && possible(new_height);
    if (!fits) refuse(number);
    const int64_t width = fits ? whole(new_width) : 1, height = fits ? whole(new_height) : 1;
    box = frame;
    resized = true;
    before_resize = static_cast<uint8_t>((flipped ? kFlippedX : 0) | (upside_down ? kFlippedY : 0));
    cut.size[0] = narrow(width);
    cut.size[1] = narrow(height);
    frame = {0, 0, width, height};
    if (targets) targets->resize(cut.size[0], cut.size[1]);
    const auto count = static_cast<int64_t>(step.filters.size());
    cut.filter = step.filters[count == 1 ? 0 : draw_integer(key, step.draw + kFilterDraw, count)];
  }
  /// The step cannot be done to the image, or makes it too large.
  void refuse(int number) {
    if (cut.too_small != 0) return;
    cut.too_small = number;
    cut.found[0] = narrow(frame.width);
    cut.found[1] = narrow(frame.height);
  }
  void take(const GeometryStep& step, int number);
  void pad_to(const double* v) {
    pad(0, 0, std::max<int64_t>(whole(v[0]) - frame.width, 0),
        std::max<int64_t>(whole(v[1]) - frame.height, 0));
  }
  void take_resize(const GeometryStep& step, int number);
  void resize_keeping_ratio(const GeometryStep& step, int number);
  void crop_inside(const GeometryStep& step, int number);
  void zoom_out(const GeometryStep& step, int number);
  void iou_crop(const GeometryStep& step, int number);
  Cut finish(int64_t width, int64_t height);

 private:
  void move_frame(CropBox part) {
    if (targets)
      targets->crop(static_cast<float>(part.left), static_cast<float>(part.top), narrow(part.width),
                    narrow(part.height));
    if (flipped) part.left = frame.width - (part.left + part.width);
    if (upside_down) part.top = frame.height - (part.top + part.height);
    frame = {frame.left + part.left, frame.top + part.top, part.width, part.height};
  }
};

void Geometry::Drawing::take(const GeometryStep& step, int number) {
  const double* v = step.values.data();
  switch (step.kind) {
    case StepKind::flip:
    case StepKind::flip_vertical:
      if (draw_uniform(key, step.draw) < v[0]) flip(step.kind == StepKind::flip);
      return;
    case StepKind::pad: return pad(whole(v[0]), whole(v[1]), whole(v[2]), whole(v[3]));
    case StepKind::pad_to: return pad_to(v);
    case StepKind::fixed_size_crop:
      crop_if_larger(fixed_size_crop(frame.width, frame.height, whole(v[0]), whole(v[1]),
                                     draw_uniform_single(key, step.draw, 0, 1)));
      return pad_to(v);
    case StepKind::centre_crop:
      if (targets && v[2] == 0)
        targets->shift(static_cast<float>(targets_ahead(frame.width, whole(v[0]))),
                       static_cast<float>(targets_ahead(frame.height, whole(v[1]))));
      return crop({centred(frame.width, whole(v[0]), v[2] != 0),
                   centred(frame.height, whole(v[1]), v[2] != 0), whole(v[0]), whole(v[1])});
    case StepKind::corner_crop:
    case StepKind::random_crop: return crop_inside(step, number);
    case StepKind::zoom_out: return zoom_out(step, number);
    case StepKind::iou_crop: return iou_crop(step, number);
    case StepKind::clamp_boxes:
      if (targets) targets->clamp();
      return;
    case StepKind::sanitize_boxes:
      if (targets) targets->sanitize(static_cast<float>(v[0]), static_cast<float>(v[1]));
      return;
    default: return take_resize(step, number);
  }
}

void Geometry::Drawing::take_resize(const GeometryStep& step, int number) {
  const double* v = step.values.data();
  const auto wide = static_cast<double>(frame.width), high = static_cast<double>(frame.height);
  Size size{v[0], v[1]};
  switch (step.kind) {
    case StepKind::resize_shorter: size = resized_shorter(wide, high, v[0], v[1]); break;
    case StepKind::random_size:
      size = resized_shorter(wide, high, std::trunc(between(v[0], v[1], key, step.draw)), 0);
      break;
    case StepKind::scale_jitter:
      size = scale_jittered(wide, high, size, draw_uniform_single(key, step.draw, v[2], v[3]));
      break;
    case StepKind::shortest_size: {
      const auto sizes = static_cast<int64_t>(step.values.size()) - 1;
      size = resized_shortest(wide, high, v[1 + draw_integer(key, step.draw, sizes)], v[0]);
      break;
    }
    case StepKind::resize_keeping_ratio: return resize_keeping_ratio(step, number);
    case StepKind::resize_to_sequence: size = sequence_size(wide, high, v[0], v[1], v[2]); break;
    case StepKind::resized_crop:
      crop(random_resized_crop(*step.ranges, frame.width, frame.height, key, step.draw));
      break;
    default: break;
  }
  resize(step, size.width, size.height, number);
}

/// timm's ResizeKeepRatio.get_params, in its order of operations.
void Geometry::Drawing::resize_keeping_ratio(const GeometryStep& step, int number) {
  const double* v = step.values.data();
  const auto wide = static_cast<double>(frame.width), high = static_cast<double>(frame.height);
  const double down = high / v[1], across = wide / v[0];
  const double ratio = std::max(down, across) * v[2] + std::min(down, across) * (1.0 - v[2]);
  double by_width = 1, by_height = 1;
  if (draw_uniform(key, step.draw) < v[3]) {
    const double factor = between(v[4], v[5], key, step.draw + 1);
    by_width = by_height = v[6] != 0 ? 1.0 / std::sqrt(factor) : factor;
  }
  if (draw_uniform(key, step.draw + 2) < v[7]) {
    const double factor = std::sqrt(
        portable_exp(between(portable_log(v[8]), portable_log(v[9]), key, step.draw + 3)));
    by_height /= factor;
    by_width *= factor;
  }
  // No image has a side below one pixel: timm's own call fails there.
  resize(step, std::max(std::nearbyint(wide * by_width / ratio), 1.0),
         std::max(std::nearbyint(high * by_height / ratio), 1.0), number);
}

/// A crop that does not fit into every image.
void Geometry::Drawing::crop_inside(const GeometryStep& step, int number) {
  const double* v = step.values.data();
  const int64_t width = whole(v[0]), height = whole(v[1]);
  const bool random = step.kind == StepKind::random_crop, pads = random && v[2] != 0;
  if (random) {  // all at once, as boxes are clamped then
    int64_t sides[4];
    for (int i = 0; i < 4; i++) sides[i] = whole(v[3 + i]);
    const int64_t across = width - (frame.width + sides[0] + sides[2]);
    const int64_t down = height - (frame.height + sides[1] + sides[3]);
    for (int i = 0; i < 4 && pads; i++) sides[i] += std::max<int64_t>(i % 2 ? down : across, 0);
    pad(sides[0], sides[1], sides[2], sides[3]);
  }
  if (!pads && (frame.width < width || frame.height < height)) {
    refuse(number);
    return crop({0, 0, width, height});
  }
  if (random) {
    const CropBox part{random_place(frame.width, width, key, step.draw),
                       random_place(frame.height, height, key, step.draw + 1), width, height};
    return crop_if_larger(part);
  }
  crop({v[2] != 0 ? frame.width - width : 0, v[3] != 0 ? frame.height - height : 0, width, height});
}

void Geometry::Drawing::zoom_out(const GeometryStep& step, int number) {
  const double* v = step.values.data();
  if (draw_uniform(key, step.draw) >= v[0]) return;
  const Margins more = zoomed_out(frame.width, frame.height, v[1], v[2], key, step.draw + 1);
  const auto wide = static_cast<double>(frame.width), high = static_cast<double>(frame.height);
  if (wide + more.left + more.right > kLongestSide || high + more.top + more.bottom > kLongestSide)
    return refuse(number);
  pad(whole(more.left), whole(more.top), whole(more.right), whole(more.bottom));
}

/// An image without targets is one without boxes.
void Geometry::Drawing::iou_crop(const GeometryStep& step, int number) {
  const double* v = step.values.data();
  if (draw_uniform(key, step.draw) >= v[5]) return;
  std::optional<CropBox> part;
  const auto options = static_cast<int>(step.values.size()) - 6;
  if (!draw_iou_crop({v, v + 6, options}, draw_bits(key, step.draw + 1), narrow(frame.width),
                     narrow(frame.height), targets ? targets->boxes : std::vector<TargetBox>{},
                     part))
    return refuse(number);
  if (!part) return;
  Targets* const moved = std::exchange(targets, nullptr);
  crop(*part);
  targets = moved;
  if (targets)
    targets->iou_crop(static_cast<float>(part->left), static_cast<float>(part->top),
                      narrow(part->width), narrow(part->height));
}

Cut Geometry::Drawing::finish(int64_t width, int64_t height) {
  if (!resized) {
    box = inside(common(frame, kept), width, height);
    frame.left -= box.left;
    frame.top -= box.top;
    cut.size[0] = narrow(box.width);
    cut.size[1] = narrow(box.height);
  }
  const int64_t sides[4] = {box.left, box.top, box.left + box.width, box.top + box.height};
  std::transform(sides, sides + 4, cut.box, narrow);
  cut.window[0] = narrow(frame.left);
  cut.window[1] = narrow(frame.top);
  cut.canvas[0] = narrow(frame.width);
  cut.canvas[1] = narrow(frame.height);
  if (sides[0] < 0 || sides[1] < 0 || sides[2] > width || sides[3] > height)
    cut.padding = 2;
  else if (frame.left < 0 || frame.top < 0 || frame.left + frame.width > cut.size[0] ||
           frame.top + frame.height > cut.size[1])
    cut.padding = 1;
  cut.flip =
      static_cast<uint8_t>((flipped ? kFlipX : 0) | (upside_down ? kFlipY : 0) | before_resize);
  cut.key = key;

  const double across = static_cast<double>(cut.size[0]) / static_cast<double>(box.width);
  const double down = static_cast<double>(cut.size[1]) / static_cast<double>(box.height);
  const double left = -static_cast<double>(box.left) * across - static_cast<double>(frame.left);
  const double sign = flipped ? -1 : 1;
  cut.matrix[0] = sign * across;
  cut.matrix[2] = sign * left + (flipped ? static_cast<double>(frame.width) : 0);
  const double top = -static_cast<double>(box.top) * down - static_cast<double>(frame.top);
  const double sense = upside_down ? -1 : 1;
  cut.matrix[4] = sense * down;
  cut.matrix[5] = sense * top + (upside_down ? static_cast<double>(frame.height) : 0);
  cut.matrix[8] = 1;
  return cut;
}

Geometry::Geometry(std::vector<GeometryStep> steps) : steps_(std::move(steps)) {
  for (GeometryStep& step : steps_) {
    const NamedKind& info = kSteps[static_cast<size_t>(step.kind)];
    const std::string name(info.name);
    const auto least = static_cast<size_t>(info.values);
    if (step.values.size() < least ||
        (step.values.size() > least && step.kind != StepKind::shortest_size &&
         step.kind != StepKind::iou_crop))
      throw std::invalid_argument("not as many values as it has for " + name);
    for (size_t i = 0; i < step.values.size(); i++)
      if (!(std::fabs(step.values[i]) <=
            (is_any(step.kind, i) ? std::numeric_limits<double>::max() : kMostValue)))
        throw std::invalid_argument("a value that is not finite, or beyond 2^30, for " + name);
    if (step.filters.empty() == is_resize(step.kind))
      throw std::invalid_argument("filters are for resizes, and for all of them: " + name);
    for (uint8_t filter : step.filters)
      if (filter > kLastFilter)
        throw std::invalid_argument("a filter that there is not for " + name);
    const double* v = step.values.data();
    if (step.kind == StepKind::resized_crop) step.ranges.emplace(v[2], v[3], v[4], v[5], v[6] != 0);
  }
}

Cut Geometry::draw(uint64_t key, int64_t width, int64_t height, Targets* targets) const {
  Drawing drawing{key, targets, {}, {0, 0, width, height}};
  int number = 0;
  for (const GeometryStep& step : steps_) drawing.take(step, ++number);
  return drawing.finish(width, height);
}

}  // namespace fastdata
