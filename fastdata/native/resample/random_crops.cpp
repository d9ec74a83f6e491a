#include "resample/random_crops.h"

#include <cmath>

#include "draws.h"
#include "portable.h"

namespace fastdata {
namespace {

/// The largest box within the ratios, in the middle.
CropBox central(const AreaAndRatio& ranges, int64_t width, int64_t height) {
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  CropBox box{0, 0, width, height};
  if (ratio < ranges.least_ratio)
    box.height =
        static_cast<int64_t>(std::nearbyint(static_cast<double>(width) / ranges.least_ratio));
  else if (ratio > ranges.most_ratio)
    box.width =
        static_cast<int64_t>(std::nearbyint(static_cast<double>(height) * ranges.most_ratio));
  // Ratios that no box of whole pixels has: one pixel is the least.
  if (box.height < 1) box.height = 1;
  if (box.width < 1) box.width = 1;
  box.left = (width - box.width) / 2;
  box.top = (height - box.height) / 2;
  return box;
}

}  // namespace

void AreaAndRatio::draw(uint64_t key, uint64_t draw, double& area, double& ratio) const {
  if (in_double) {
    const double low = portable_log(least_ratio), high = portable_log(most_ratio);
    area = least_area + (most_area - least_area) * draw_uniform(key, draw);
    ratio = portable_exp(low + (high - low) * draw_uniform(key, draw + 1));
  } else {
    const double low = portable_log(static_cast<float>(least_ratio));
    const double high = portable_log(static_cast<float>(most_ratio));
    area = draw_uniform_single(key, draw, least_area, most_area);
    ratio = static_cast<float>(portable_exp(draw_uniform_single(key, draw + 1, low, high)));
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

}  // namespace fastdata
