// Steps that run on pixels, never folded.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "augment/drawing.h"
#include "draws.h"
#include "portable.h"

namespace fastdata {
namespace {

constexpr double kRadians = 3.14159265358979323846 / 180.0;

/// As Python's round(value, 15).
double rounded_15(double value) {
  char digits[64];
  std::snprintf(digits, sizeof digits, "%.15f", value);
  return std::strtod(digits, nullptr);
}

/// Solves eight equations, (8, 9), by elimination with row pivots: the last column becomes the
/// solution. False if there is none.
bool solve(double (&rows)[8][9]) {
  for (int i = 0; i < 8; i++) {
    int pivot = i;
    for (int row = i + 1; row < 8; row++)
      if (std::fabs(rows[row][i]) > std::fabs(rows[pivot][i])) pivot = row;
    if (std::fabs(rows[pivot][i]) < 1e-9) return false;
    std::swap(rows[i], rows[pivot]);
    for (int row = 0; row < 8; row++) {
      if (row == i) continue;
      const double factor = rows[row][i] / rows[i][i];
      for (int column = i; column < 9; column++) rows[row][column] -= factor * rows[i][column];
    }
  }
  for (int i = 0; i < 8; i++) rows[i][8] /= rows[i][i];
  return true;
}

struct Point {
  double x, y;
};

Point transformed(const double* m, double x, double y) {
  return {m[0] * x + m[1] * y + m[2], m[3] * x + m[4] * y + m[5]};
}

}  // namespace

/// The image through an inverse matrix, as Image.transform takes it.
template <typename Step>
Status Drawing::warp(const Step& step, const double (&m)[6], double width, double height) {
  if (!is_possible(width, height)) return kBadSize;
  const operations::Affine made{
      m[0],     m[1],       m[2],      m[3],  m[4],  m[5], step.interpolation,
      step.red, step.green, step.blue, width, height};
  add(Call::of(made), width, height);
  return {};
}

/// The same of a tensor, or else of masks alone, whose coordinates are from the middle of the
/// image.
template <typename Step>
void Drawing::warp_tensor(const Step& step, const Affinity& to) {
  if (!step.on_tensors && !targets_) return;
  const double cx = step.centred ? step.x - static_cast<double>(width()) * 0.5 : 0;
  const double cy = step.centred ? step.y - static_cast<double>(height()) * 0.5 : 0;
  double m[6];
  inverse_of(to, cx, cy, m);
  Call call = Call::of(operations::TensorAffine{
      m[0], m[1], m[2], m[3], m[4], m[5], step.interpolation, step.red, step.green, step.blue});
  if (!step.on_tensors) call.operation = Operation::warp_masks;  // of the same parameters
  call.mask_fill = step.mask_fill;
  add(call);
}

/// PIL.Image.Image.rotate (Pillow 13). Its short cuts for multiples of 90 degrees give what this
/// gives, but for quarters that expand: there an odd sum of the sides would shift half a pixel.
Status Drawing::take(const steps::Rotate& step, uint64_t) {
  const auto w = static_cast<double>(width()), h = static_cast<double>(height());
  double turn = std::fmod(step.angle, 360.0);  // Python's remainder has the divisor's sign
  if (turn < 0) turn += 360.0;
  const double cx = step.centred ? step.x : w / 2, cy = step.centred ? step.y : h / 2;
  warp_tensor(step, {-turn, 0, 0, 1, 0, 0});
  if (step.on_tensors) return {};
  const double angle = -(turn * kRadians);
  if (step.expand && !step.centred && (turn == 90 || turn == 270)) {
    const double sign = turn == 90 ? 1 : -1;
    const double quarter[6] = {0, -sign, turn == 90 ? w : 0, sign, 0, turn == 90 ? 0 : h};
    return warp(step, quarter, h, w);
  }
  double sine, cosine;
  portable_sine_cosine(angle, sine, cosine);
  double m[6] = {rounded_15(cosine), rounded_15(sine), 0, rounded_15(-sine), rounded_15(cosine), 0};
  const Point moved = transformed(m, -cx, -cy);
  m[2] = moved.x + cx;
  m[5] = moved.y + cy;
  if (!step.expand) return warp(step, m, w, h);
  const Point corners[4] = {transformed(m, 0, 0), transformed(m, w, 0), transformed(m, w, h),
                            transformed(m, 0, h)};
  const auto by_x = [](const Point& p, const Point& q) { return p.x < q.x; };
  const auto by_y = [](const Point& p, const Point& q) { return p.y < q.y; };
  const auto [left, right] = std::minmax_element(corners, corners + 4, by_x);
  const auto [top, bottom] = std::minmax_element(corners, corners + 4, by_y);
  const double nw = std::ceil(right->x) - std::floor(left->x);
  const double nh = std::ceil(bottom->y) - std::floor(top->y);
  const Point centred = transformed(m, -(nw - w) / 2.0, -(nh - h) / 2.0);
  m[2] = centred.x;
  m[5] = centred.y;
  return warp(step, m, nw, nh);
}

/// torchvision's functional._get_inverse_affine_matrix (0.28).
void Drawing::inverse_of(const Affinity& to, double cx, double cy, double (&m)[6]) {
  const double rot = to.angle * kRadians, shear_y = to.shear_y * kRadians;
  double sin_rot, cos_rot, sin_less, cos_less, sin_x, cos_x, sin_y, cos_y;
  portable_sine_cosine(rot, sin_rot, cos_rot);
  portable_sine_cosine(rot - shear_y, sin_less, cos_less);
  portable_sine_cosine(to.shear_x * kRadians, sin_x, cos_x);
  portable_sine_cosine(shear_y, sin_y, cos_y);
  const double tan_x = sin_x / cos_x;
  const double a = cos_less / cos_y;
  const double b = -cos_less * tan_x / cos_y - sin_rot;
  const double c = sin_less / cos_y;
  const double d = -sin_less * tan_x / cos_y + cos_rot;
  const double inverse[4] = {d / to.scale, -b / to.scale, -c / to.scale, a / to.scale};
  for (int row = 0; row < 2; row++) {
    double* out = m + 3 * row;
    std::copy_n(inverse + 2 * row, 2, out);
    out[2] = out[0] * (-cx - to.x) + out[1] * (-cy - to.y) + (row ? cy : cx);
  }
}

/// About the image's centre, unless there is another.
Status Drawing::take(const steps::Affine& step, uint64_t) {
  const Affinity to{step.angle, step.move_x, step.move_y, step.scale, step.shear_x, step.shear_y};
  warp_tensor(step, to);
  if (step.on_tensors) return {};
  const auto w = static_cast<double>(width()), h = static_cast<double>(height());
  double m[6];
  inverse_of(to, step.centred ? step.x : w * 0.5, step.centred ? step.y : h * 0.5, m);
  return warp(step, m, w, h);
}

Status Drawing::take(const steps::Transform& step, uint64_t) {
  const double m[6] = {step.a, step.b, step.c, step.d, step.e, step.f};
  return warp(step, m, static_cast<double>(width()), static_cast<double>(height()));
}

/// torchvision's RandomPerspective.get_params and functional._get_perspective_coeffs. An image
/// whose corners come to lie on a line, as a thin one's may, stays as it is.
Status Drawing::take(const steps::Perspective& step, uint64_t draw) {
  if (!(step.distortion >= 0 && step.distortion <= 1))
    return {Code::bad_parameters, "a distortion that is not from 0 to 1"};
  const int64_t w = width(), h = height();
  const int64_t across = static_cast<int64_t>(step.distortion * static_cast<double>(w / 2)) + 1;
  const int64_t down = static_cast<int64_t>(step.distortion * static_cast<double>(h / 2)) + 1;
  const int64_t from[4][2] = {{0, 0}, {w - 1, 0}, {w - 1, h - 1}, {0, h - 1}};
  int64_t to[4][2];
  for (int corner = 0; corner < 4; corner++) {
    const bool right = corner == 1 || corner == 2, low = corner >= 2;
    to[corner][0] = (right ? w - across : 0) + draw_integer(key_, draw + 2 * corner, across);
    to[corner][1] = (low ? h - down : 0) + draw_integer(key_, draw + 2 * corner + 1, down);
  }
  double rows[8][9] = {};
  for (int i = 0; i < 4; i++) {
    const auto x = static_cast<double>(to[i][0]), y = static_cast<double>(to[i][1]);
    for (int axis = 0; axis < 2; axis++) {
      double* row = rows[2 * i + axis];
      const auto p = static_cast<double>(from[i][axis]);
      row[3 * axis] = x;
      row[3 * axis + 1] = y;
      row[3 * axis + 2] = 1;
      row[6] = -p * x;
      row[7] = -p * y;
      row[8] = p;
    }
  }
  if (!solve(rows)) return {};
  const auto number = [&](int i) { return static_cast<double>(static_cast<float>(rows[i][8])); };
  const operations::Perspective made{number(0),          number(1), number(2),  number(3),
                                     number(4),          number(5), number(6),  number(7),
                                     step.interpolation, step.red,  step.green, step.blue};
  Call call = Call::of(made);
  if (step.on_tensors) call.operation = Operation::tensor_perspective;  // of the same parameters
  call.mask_fill = step.mask_fill;
  add(call);
  return {};
}

Status Drawing::take(const steps::ShuffleChannels&, uint64_t draw) {
  double order[3] = {0, 1, 2};
  for (int left = 3; left > 1; left--)
    std::swap(order[draw_integer(key_, draw + left - 2, left)], order[left - 1]);
  add(Call::of(operations::Permute{order[0], order[1], order[2]}));
  return {};
}

/// torchvision's RandomErasing.get_params.
Status Drawing::take(const steps::Erase& step, uint64_t draw) {
  constexpr int kAttempts = 10;
  const AreaAndRatio ranges{step.least_area, step.most_area, step.least_ratio, step.most_ratio,
                            step.in_double};
  const auto wide = static_cast<double>(width()), high = static_cast<double>(height());
  for (int attempt = 0; attempt < kAttempts; attempt++) {
    double part, ratio;
    ranges.draw(key_, draw + 2 * attempt, part, ratio);
    const double h = std::nearbyint(std::sqrt(wide * high * part * ratio));
    const double w = std::nearbyint(std::sqrt(wide * high * part / ratio));
    if (!(h < high && w < wide)) continue;
    Erasure erasure{};
    erasure.width = static_cast<int>(w);
    erasure.height = static_cast<int>(h);
    const uint64_t place = draw + 2 * kAttempts;
    erasure.top = static_cast<int>(draw_integer(key_, place, height() - erasure.height + 1));
    erasure.left = static_cast<int>(draw_integer(key_, place + 1, width() - erasure.width + 1));
    std::copy_n(step.values.values, 3, erasure.values);
    erasure.noise = static_cast<Erasure::Noise>(step.noise == 2 ? 2 : step.noise != 0);
    std::copy_n(step.deviations.values, 3, erasure.deviations);
    erasure.key = draw_bits(key_, place + 2);
    drawn_.erasures.push_back(erasure);
    break;
  }
  return {};
}

}  // namespace fastdata
