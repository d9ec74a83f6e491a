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
constexpr double kMaxSide = 1 << 30;

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
  bool flipped = false, resized = false;

  void crop(CropBox part) {
    if (targets)
      targets->crop(static_cast<float>(part.left), static_cast<float>(part.top), narrow(part.width),
                    narrow(part.height));
    if (flipped) part.left = frame.width - (part.left + part.width);
    frame = {frame.left + part.left, frame.top + part.top, part.width, part.height};
  }
  void resize(const GeometryStep& step, int64_t width, int64_t height) {
    box = frame;
    resized = true;
    cut.size[0] = narrow(width);
    cut.size[1] = narrow(height);
    frame = {0, 0, width, height};
    if (targets) targets->resize(cut.size[0], cut.size[1]);
    const auto count = static_cast<int64_t>(step.filters.size());
    cut.filter = step.filters[count == 1 ? 0 : draw_integer(key, step.draw + kFilterDraw, count)];
  }
  void take(const GeometryStep& step, int number);
  void resize_keeping_ratio(const GeometryStep& step);
  void crop_inside(const GeometryStep& step, int number);
  Cut finish(int64_t width, int64_t height);
};

void Geometry::Drawing::take(const GeometryStep& step, int number) {
  const double* v = step.values.data();
  switch (step.kind) {
    case StepKind::flip:
      if (draw_uniform(key, step.draw) >= v[0]) return;
      flipped = !flipped;
      if (targets) targets->flip(true);
      return;
    case StepKind::resize: return resize(step, whole(v[0]), whole(v[1]));
    case StepKind::resize_shorter: {
      const Size size = resized_shorter(static_cast<double>(frame.width),
                                        static_cast<double>(frame.height), v[0], v[1]);
      return resize(step, whole(size.width), whole(size.height));
    }
    case StepKind::resize_keeping_ratio: return resize_keeping_ratio(step);
    case StepKind::resized_crop:
      crop(random_resized_crop(*step.ranges, frame.width, frame.height, key, step.draw));
      return resize(step, whole(v[0]), whole(v[1]));
    case StepKind::centre_crop:
      return crop({centred(frame.width, whole(v[0]), v[2] != 0),
                   centred(frame.height, whole(v[1]), v[2] != 0), whole(v[0]), whole(v[1])});
    case StepKind::corner_crop:
    case StepKind::random_crop: return crop_inside(step, number);
    case StepKind::clamp_boxes:
      if (targets) targets->clamp();
      return;
    case StepKind::sanitize_boxes:
      if (targets) targets->sanitize(static_cast<float>(v[0]), static_cast<float>(v[1]));
      return;
  }
}

/// timm's ResizeKeepRatio.get_params, in its order of operations.
void Geometry::Drawing::resize_keeping_ratio(const GeometryStep& step) {
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
  resize(step, whole(std::max(std::nearbyint(wide * by_width / ratio), 1.0)),
         whole(std::max(std::nearbyint(high * by_height / ratio), 1.0)));
}

/// A crop that does not fit into every image.
void Geometry::Drawing::crop_inside(const GeometryStep& step, int number) {
  const double* v = step.values.data();
  const int64_t width = whole(v[0]), height = whole(v[1]);
  const bool random = step.kind == StepKind::random_crop, pad = random && v[2] != 0;
  if (!pad && (frame.width < width || frame.height < height)) {
    if (cut.too_small == 0) {
      cut.too_small = number;
      cut.found[0] = narrow(frame.width);
      cut.found[1] = narrow(frame.height);
    }
    return crop({0, 0, width, height});
  }
  if (random)
    return crop({random_place(frame.width, width, pad, key, step.draw),
                 random_place(frame.height, height, pad, key, step.draw + 1), width, height});
  crop({v[2] != 0 ? frame.width - width : 0, v[3] != 0 ? frame.height - height : 0, width, height});
}

Cut Geometry::Drawing::finish(int64_t width, int64_t height) {
  if (!resized) {
    box = inside(frame, width, height);
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
  cut.flip = flipped;
  cut.key = key;

  const double across = static_cast<double>(cut.size[0]) / static_cast<double>(box.width);
  const double down = static_cast<double>(cut.size[1]) / static_cast<double>(box.height);
  const double left = -static_cast<double>(box.left) * across - static_cast<double>(frame.left);
  const double sign = flipped ? -1 : 1;
  cut.matrix[0] = sign * across;
  cut.matrix[2] = sign * left + (flipped ? static_cast<double>(frame.width) : 0);
  cut.matrix[4] = down;
  cut.matrix[5] = -static_cast<double>(box.top) * down - static_cast<double>(frame.top);
  cut.matrix[8] = 1;
  return cut;
}

Geometry::Geometry(std::vector<GeometryStep> steps) : steps_(std::move(steps)) {
  for (GeometryStep& step : steps_) {
    const NamedKind& info = kSteps[static_cast<size_t>(step.kind)];
    const std::string name(info.name);
    if (step.values.size() != static_cast<size_t>(info.values))
      throw std::invalid_argument("not as many values as it has for " + name);
    for (size_t i = 0; i < step.values.size(); i++)
      if (!(std::fabs(step.values[i]) <= (i < 2 ? kMaxSide : std::numeric_limits<double>::max())))
        throw std::invalid_argument("a value that is not finite, or a side beyond 2^30, for " +
                                    name);
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
