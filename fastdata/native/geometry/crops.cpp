#include "geometry/crops.h"

#include <algorithm>
#include <cmath>

#include "draws.h"
#include "portable.h"

namespace fastdata {
namespace {

/// The largest box within the ratios, in the middle.
CropBox central(const AreaAndRatio& ranges, int64_t width, int64_t height) {
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  CropBox box{0, 0, width, height};
  if (ratio < ranges.least_ratio())
    box.height =
        static_cast<int64_t>(std::nearbyint(static_cast<double>(width) / ranges.least_ratio()));
  else if (ratio > ranges.most_ratio())
    box.width =
        static_cast<int64_t>(std::nearbyint(static_cast<double>(height) * ranges.most_ratio()));
  // Ratios that no box of whole pixels has: one pixel is the least.
  if (box.height < 1) box.height = 1;
  if (box.width < 1) box.width = 1;
  box.left = (width - box.width) / 2;
  box.top = (height - box.height) / 2;
  return box;
}

}  // namespace

Ratio ratio_of(double value) {
  return {value, portable_log(value), portable_log(static_cast<float>(value))};
}

AreaAndRatio::AreaAndRatio(double least_area, double most_area, const Ratio& least_ratio,
                           const Ratio& most_ratio, bool in_double)
    : least_area_(least_area),
      most_area_(most_area),
      least_ratio_(least_ratio.value),
      most_ratio_(most_ratio.value),
      low_(in_double ? least_ratio.log : least_ratio.single_log),
      high_(in_double ? most_ratio.log : most_ratio.single_log),
      in_double_(in_double) {}

void AreaAndRatio::draw(uint64_t key, uint64_t draw, double& area, double& ratio) const {
  if (in_double_) {
    area = least_area_ + (most_area_ - least_area_) * draw_uniform(key, draw);
    ratio = portable_exp(low_ + (high_ - low_) * draw_uniform(key, draw + 1));
  } else {
    area = draw_uniform_single(key, draw, least_area_, most_area_);
    ratio = static_cast<float>(portable_exp(draw_uniform_single(key, draw + 1, low_, high_)));
  }
}

CropBox random_resized_crop(const AreaAndRatio& ranges, int64_t width, int64_t height, uint64_t key,
                            uint64_t draw) {
  const double area = static_cast<double>(width) * static_cast<double>(height);
  for (int attempt = 0; attempt < kCropAttempts; attempt++) {
    const uint64_t number = draw + 2 * static_cast<uint64_t>(attempt);
    double part, ratio;
    ranges.draw(key, number, part, ratio);
    const double w = std::nearbyint(std::sqrt(area * part * ratio));
    const double h = std::nearbyint(std::sqrt(area * part / ratio));
    if (!(w > 0 && h > 0 && w <= static_cast<double>(width) && h <= static_cast<double>(height)))
      continue;
    CropBox box{0, 0, static_cast<int64_t>(w), static_cast<int64_t>(h)};
    box.left = draw_integer(key, draw + 2 * kCropAttempts, width - box.width + 1);
    box.top = draw_integer(key, draw + 2 * kCropAttempts + 1, height - box.height + 1);
    return box;
  }
  return central(ranges, width, height);
}

int64_t centred(int64_t have, int64_t want, bool floored) {
  if (want > have) return -((want - have) / 2);
  const double offset = static_cast<double>(have - want) / 2;
  return static_cast<int64_t>(floored ? std::floor(offset) : std::nearbyint(offset));
}

int64_t targets_ahead(int64_t have, int64_t want) {
  if (want <= have) return 0;
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(want - have) / 2)) -
         (want - have) / 2;
}

Size scale_jittered(double width, double height, const Size& target, double factor) {
  const auto w = static_cast<float>(width), h = static_cast<float>(height);
  const float r = static_cast<float>(std::min(target.height / height, target.width / width)) *
                  static_cast<float>(factor);
  return {std::trunc(w * r), std::trunc(h * r)};
}

Size sequence_size(double width, double height, double patch, double most, double greatest_ratio) {
  // timm's search, step for step: another one would round some sizes to other patches.
  constexpr double kEpsilon = 1e-5;
  const auto patches = [&](double side, double ratio) {
    return std::max(std::ceil(side * ratio / patch), 1.0);
  };
  double low = kEpsilon / 10, high = 100;
  while (high - low >= kEpsilon) {
    const double middle = (low + high) / 2;
    const bool fits = patches(width, middle) * patches(height, middle) <= most;
    (fits ? low : high) = middle;
  }
  const double ratio = std::min(low, greatest_ratio);
  return {patch * patches(width, ratio), patch * patches(height, ratio)};
}

Size resized_shortest(double width, double height, double shortest, double bound) {
  double r = shortest / std::min(width, height);
  if (bound > 0) r = std::min(r, bound / std::max(width, height));
  return {std::trunc(width * r), std::trunc(height * r)};
}

Margins zoomed_out(int64_t width, int64_t height, double from, double to, uint64_t key,
                   uint64_t draw) {
  const float factor = draw_uniform_single(key, draw, from, to);
  const auto whole = [](float value) { return std::trunc(static_cast<double>(value)); };
  const auto more = [&](int64_t side) {
    return whole(static_cast<float>(side) * factor) - static_cast<double>(side);
  };
  const double across = more(width), down = more(height);
  const double left = whole(static_cast<float>(across) * draw_uniform_single(key, draw + 1, 0, 1));
  const double top = whole(static_cast<float>(down) * draw_uniform_single(key, draw + 2, 0, 1));
  return {left, top, across - left, down - top};
}

CropBox fixed_size_crop(int64_t width, int64_t height, int64_t to_width, int64_t to_height,
                        float number) {
  const auto place = [&](int64_t have, int64_t want) {
    return static_cast<int64_t>(static_cast<float>(std::max<int64_t>(have - want, 0)) * number);
  };
  return {place(width, to_width), place(height, to_height), std::min(width, to_width),
          std::min(height, to_height)};
}

Size resized_shorter(double width, double height, double shorter, double bound) {
  double longer = std::trunc(shorter * std::max(width, height) / std::min(width, height));
  if (bound > 0 && longer > bound) {
    shorter = std::max(std::trunc(bound * shorter / longer), 1.0);
    longer = bound;
  }
  return width <= height ? Size{shorter, longer} : Size{longer, shorter};
}

}  // namespace fastdata
