#include "augment/targets.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "draws.h"

namespace fastdata {
namespace {

/// NaN stays what it is.
float clamped(float value, float most) { return value < 0 ? 0 : value > most ? most : value; }

struct Spot {
  double x, y;
};

Spot through(const double (&m)[9], double x, double y) {
  const double w = m[6] * x + m[7] * y + m[8];
  return {(m[0] * x + m[1] * y + m[2]) / w, (m[3] * x + m[4] * y + m[5]) / w};
}

/// False: there is no inverse.
bool invert(const double (&m)[9], double (&inverse)[9]) {
  const double a = m[4] * m[8] - m[5] * m[7], b = m[5] * m[6] - m[3] * m[8],
               c = m[3] * m[7] - m[4] * m[6];
  const double determinant = m[0] * a + m[1] * b + m[2] * c;
  if (!(std::fabs(determinant) > 0)) return false;
  const double adjugate[9] = {a, m[2] * m[7] - m[1] * m[8], m[1] * m[5] - m[2] * m[4],
                              b, m[0] * m[8] - m[2] * m[6], m[2] * m[3] - m[0] * m[5],
                              c, m[1] * m[6] - m[0] * m[7], m[0] * m[4] - m[1] * m[3]};
  for (int i = 0; i < 9; i++) inverse[i] = adjugate[i] / determinant;
  return true;
}

}  // namespace

float overlap(const TargetBox& box, const TargetBox& crop) {
  const float width = std::min(box.x1, crop.x1) - std::max(box.x0, crop.x0);
  const float height = std::min(box.y1, crop.y1) - std::max(box.y0, crop.y0);
  const float both = std::max(width, 0.f) * std::max(height, 0.f);
  const float one = (box.x1 - box.x0) * (box.y1 - box.y0);
  const float other = (crop.x1 - crop.x0) * (crop.y1 - crop.y0);
  return both / (one + other - both);
}

bool is_centred_in(const TargetBox& box, const TargetBox& crop) {
  const float x = 0.5f * (box.x0 + box.x1), y = 0.5f * (box.y0 + box.y1);
  return crop.x0 < x && x < crop.x1 && crop.y0 < y && y < crop.y1;
}

bool draw_iou_crop(const steps::IouCrop& step, uint64_t key, int width, int height,
                   const std::vector<TargetBox>& boxes, std::optional<CropBox>& drawn) {
  constexpr int kMostRounds = 1000;
  const auto is_part = [](double value) { return value >= 0 && value <= 1; };
  if (!is_part(step.least_part) || !is_part(step.most_part)) return false;
  uint64_t number = 0;
  for (int round = 0; round < kMostRounds; round++) {
    const double least =
        step.options[static_cast<int>(draw_integer(key, number++, step.options.count))];
    if (least >= 1) return true;
    for (int64_t trial = 0; static_cast<double>(trial) < step.trials; trial++, number += 4) {
      const auto part = [&](int side, int whole) {
        return static_cast<int>(static_cast<float>(whole) * draw_uniform_single(key, number + side,
                                                                                step.least_part,
                                                                                step.most_part));
      };
      const int w = part(0, width), h = part(1, height);
      if (w < 1 || h < 1) continue;
      const double ratio = static_cast<double>(w) / h;
      if (!(step.least_ratio <= ratio && ratio <= step.most_ratio)) continue;
      const auto place = [&](int side, int room) {
        return static_cast<int>(static_cast<float>(room) *
                                draw_uniform_single(key, number + 2 + side, 0, 1));
      };
      const int left = place(0, width - w), top = place(1, height - h);
      const TargetBox crop{static_cast<float>(left), static_cast<float>(top),
                           static_cast<float>(left + w), static_cast<float>(top + h)};
      bool any = false, enough = false;
      for (const TargetBox& one : boxes) {
        if (!is_centred_in(one, crop)) continue;
        any = true;
        enough = enough || !(overlap(one, crop) < static_cast<float>(least));
      }
      if (!any || !enough) continue;
      drawn = CropBox{left, top, w, h};
      return true;
    }
  }
  return false;
}

void Targets::begin(const TargetBox* first_box, size_t box_count, const TargetPoint* first_point,
                    size_t point_count, int image_width, int image_height) {
  boxes.assign(first_box, first_box + box_count);
  points.assign(first_point, first_point + point_count);
  numbers.resize(box_count);
  std::iota(numbers.begin(), numbers.end(), 0);
  passed.assign(box_count, 0);
  width = source_width = image_width;
  height = source_height = image_height;
  constexpr double kSame[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
  std::copy_n(kSame, 9, matrix);
}

void Targets::move(const Call& call) {
  const auto pixels = [](double size) { return static_cast<int>(size); };
  const auto single = [](double value) { return static_cast<float>(value); };
  switch (call.operation) {
    case Operation::crop: {
      const auto by = call.as<operations::Crop>();
      return crop(single(by.left), single(by.top), pixels(by.width), pixels(by.height));
    }
    case Operation::iou_crop: {
      const auto by = call.as<operations::IouCrop>();
      return iou_crop(single(by.left), single(by.top), pixels(by.width), pixels(by.height));
    }
    case Operation::pad: {
      const auto by = call.as<operations::Pad>();
      return crop(-single(by.left), -single(by.top), pixels(width + by.left + by.right),
                  pixels(height + by.top + by.bottom));
    }
    case Operation::resize: {
      const auto by = call.as<operations::Resize>();
      return resize(pixels(by.width), pixels(by.height));
    }
    case Operation::flip_horizontal: return flip(/*across=*/true);
    case Operation::flip_vertical: return flip(/*across=*/false);
    case Operation::affine: {
      const auto by = call.as<operations::Affine>();
      return warp({by.a, by.b, by.c, by.d, by.e, by.f, 0, 0, 1}, pixels(by.width),
                  pixels(by.height));
    }
    case Operation::tensor_affine: {  // from the middle of the image, and back
      const auto by = call.as<operations::TensorAffine>();
      const double x = width / 2.0, y = height / 2.0;
      return warp({by.a, by.b, by.c + x - by.a * x - by.b * y, by.d, by.e,
                   by.f + y - by.d * x - by.e * y, 0, 0, 1},
                  width, height);
    }
    case Operation::perspective:
    case Operation::tensor_perspective: {  // of the same parameters
      const auto by = call.as<operations::Perspective>();
      return warp({by.a, by.b, by.c, by.d, by.e, by.f, by.g, by.h, 1}, width, height);
    }
    case Operation::shift_targets: {
      const auto by = call.as<operations::ShiftTargets>();
      return shift(single(by.x), single(by.y));
    }
    case Operation::clamp_boxes: return clamp();
    case Operation::sanitize_boxes: {
      const auto by = call.as<operations::SanitizeBoxes>();
      return sanitize(single(by.min_size), single(by.min_area));
    }
    default: return;
  }
}

/// Moves coordinates by a matrix, too.
void Targets::then(const double (&step)[9]) {
  double product[9];
  for (int i = 0; i < 9; i++) {
    const double* row = step + i / 3 * 3;
    const double* column = matrix + i % 3;
    product[i] = row[0] * column[0] + row[1] * column[3] + row[2] * column[6];
  }
  std::copy_n(product, 9, matrix);
}

void Targets::crop(float left, float top, int new_width, int new_height) {
  then({1, 0, -static_cast<double>(left), 0, 1, -static_cast<double>(top), 0, 0, 1});
  width = new_width;
  height = new_height;
  shift(-left, -top);
  clamp();
}

void Targets::iou_crop(float left, float top, int new_width, int new_height) {
  const TargetBox part{left, top, left + static_cast<float>(new_width),
                       top + static_cast<float>(new_height)};
  std::vector<size_t> outside;
  for (size_t i = 0; i < boxes.size(); i++)
    if (!is_centred_in(boxes[i], part)) outside.push_back(i);
  crop(left, top, new_width, new_height);
  for (size_t i : outside) boxes[i] = {0, 0, 0, 0};
}

void Targets::shift(float x, float y) {
  for (TargetBox& b : boxes) b = {b.x0 + x, b.y0 + y, b.x1 + x, b.y1 + y};
  for (TargetPoint& p : points) p = {p.x + x, p.y + y};
}

void Targets::resize(int new_width, int new_height) {
  if (new_width == width && new_height == height) return;
  const double x_ratio = static_cast<double>(new_width) / width;
  const double y_ratio = static_cast<double>(new_height) / height;
  then({x_ratio, 0, 0, 0, y_ratio, 0, 0, 0, 1});
  const auto across = static_cast<float>(x_ratio), down = static_cast<float>(y_ratio);
  width = new_width;
  height = new_height;
  for (TargetBox& b : boxes) b = {b.x0 * across, b.y0 * down, b.x1 * across, b.y1 * down};
  for (TargetPoint& p : points) p = {p.x * across, p.y * down};
}

/// torchvision mirrors boxes at the image's edges and points at the middles of its last pixels.
void Targets::flip(bool across) {
  const auto w = static_cast<float>(width), h = static_cast<float>(height);
  if (across)
    then({-1, 0, w, 0, 1, 0, 0, 0, 1});
  else
    then({1, 0, 0, 0, -1, h, 0, 0, 1});
  for (TargetBox& b : boxes)
    b = across ? TargetBox{w - b.x1, b.y0, w - b.x0, b.y1}
               : TargetBox{b.x0, h - b.y1, b.x1, h - b.y0};
  for (TargetPoint& p : points) (across ? p.x : p.y) = across ? (w - 1) - p.x : (h - 1) - p.y;
}

/// A box becomes the one around its four corners. Where the image's size changes, its own corners
/// say where the new image begins.
void Targets::warp(const double (&inverse)[9], int new_width, int new_height) {
  double forth[9];
  if (!invert(inverse, forth)) return;
  Spot begin{0, 0};
  if (new_width != width || new_height != height) {
    const double w = width, h = height;
    begin = through(forth, 0, 0);
    for (const Spot& corner : {through(forth, w, 0), through(forth, w, h), through(forth, 0, h)}) {
      begin.x = std::min(begin.x, corner.x);
      begin.y = std::min(begin.y, corner.y);
    }
  }
  const auto moved = [&](float x, float y) {
    const Spot spot = through(forth, x, y);
    return TargetPoint{static_cast<float>(spot.x - begin.x), static_cast<float>(spot.y - begin.y)};
  };
  then(forth);
  then({1, 0, -begin.x, 0, 1, -begin.y, 0, 0, 1});
  width = new_width;
  height = new_height;
  for (TargetPoint& p : points) p = moved(p.x, p.y);
  for (TargetBox& b : boxes) {
    const TargetPoint corners[4] = {moved(b.x0, b.y0), moved(b.x1, b.y0), moved(b.x1, b.y1),
                                    moved(b.x0, b.y1)};
    b = {corners[0].x, corners[0].y, corners[0].x, corners[0].y};
    for (const TargetPoint& p : corners) {
      b = {std::min(b.x0, p.x), std::min(b.y0, p.y), std::max(b.x1, p.x), std::max(b.y1, p.y)};
      if (std::isnan(p.x)) b.x0 = b.x1 = std::numeric_limits<float>::quiet_NaN();
      if (std::isnan(p.y)) b.y0 = b.y1 = std::numeric_limits<float>::quiet_NaN();
    }
  }
  clamp();
}

void Targets::clamp() {
  const auto w = static_cast<float>(width), h = static_cast<float>(height);
  for (TargetBox& b : boxes)
    b = {fastdata::clamped(b.x0, w), fastdata::clamped(b.y0, h), fastdata::clamped(b.x1, w),
         fastdata::clamped(b.y1, h)};
}

/// As torchvision's SanitizeBoundingBoxes: NaN is no box.
void Targets::sanitize(float min_size, float min_area) {
  const auto w = static_cast<float>(width), h = static_cast<float>(height);
  size_t left = 0;
  for (size_t i = 0; i < boxes.size(); i++) {
    const TargetBox b = boxes[i];
    const float across = b.x1 - b.x0, down = b.y1 - b.y0;
    const bool sound = across >= min_size && down >= min_size && across * down >= min_area &&
                       b.x0 >= 0 && b.y0 >= 0 && b.x1 >= 0 && b.y1 >= 0 && b.x0 <= w && b.x1 <= w &&
                       b.y0 <= h && b.y1 <= h;
    if (!sound) continue;
    boxes[left] = b;
    passed[static_cast<size_t>(numbers[i])]++;
    numbers[left++] = numbers[i];
  }
  boxes.resize(left);
  numbers.resize(left);
}

}  // namespace fastdata
