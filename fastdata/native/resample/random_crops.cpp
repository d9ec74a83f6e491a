#include "resample/random_crops.h"

#include <cmath>

namespace fastdata {
namespace {

// SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
uint64_t bits(uint64_t key, uint64_t draw) {
  uint64_t z = key + (draw + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// In [0, 1), 53 bits.
double uniform(uint64_t key, uint64_t draw) {
  return static_cast<double>(bits(key, draw) >> 11) * 0x1p-53;
}

/// In [0, bound).
int64_t integer(uint64_t key, uint64_t draw, int64_t bound) {
  const auto wide = static_cast<unsigned __int128>(bits(key, draw)) * static_cast<uint64_t>(bound);
  return static_cast<int64_t>(wide >> 64);
}

/// The largest box within the ratios, in the middle.
CropBox central(const CropRanges& ranges, int64_t width, int64_t height) {
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

CropBox random_resized_crop(const CropRanges& ranges, int64_t width, int64_t height, uint64_t key,
                            uint64_t draw) {
  const double area = static_cast<double>(width) * static_cast<double>(height);
  const double low = std::log(ranges.least_ratio), high = std::log(ranges.most_ratio);
  for (int attempt = 0; attempt < kCropAttempts; attempt++) {
    const uint64_t number = draw + 2 * static_cast<uint64_t>(attempt);
    const double part =
        ranges.least_area + (ranges.most_area - ranges.least_area) * uniform(key, number);
    const double ratio = std::exp(low + (high - low) * uniform(key, number + 1));
    const double w = std::nearbyint(std::sqrt(area * part * ratio));
    const double h = std::nearbyint(std::sqrt(area * part / ratio));
    if (!(w > 0 && h > 0 && w <= static_cast<double>(width) && h <= static_cast<double>(height)))
      continue;
    CropBox box{0, 0, static_cast<int64_t>(w), static_cast<int64_t>(h)};
    box.left = integer(key, draw + 2 * kCropAttempts, width - box.width + 1);
    box.top = integer(key, draw + 2 * kCropAttempts + 1, height - box.height + 1);
    return box;
  }
  return central(ranges, width, height);
}

}  // namespace fastdata
