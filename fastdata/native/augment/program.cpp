#include "augment/program.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "draws.h"
#include "geometry/crops.h"
#include "portable.h"

namespace fastdata {
namespace {

constexpr int kMaxDepth = 64;
constexpr int kMaxLeafValues = 14;
// Larger images are only mistakes, and their sizes would overflow in between.
constexpr double kMaxConcentration = 1e6;

constexpr double kRadians = 3.14159265358979323846 / 180.0;

bool has_children(NodeKind kind) { return kind <= NodeKind::mix; }

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

/// Of a standard normal distribution, by Box and Muller; from two draws.
double draw_normal(uint64_t key, uint64_t draw) {
  const double radius = std::sqrt(-2 * portable_log(1 - draw_uniform(key, draw)));
  double sine, cosine;
  portable_sine_cosine(360 * kRadians * draw_uniform(key, draw + 1), sine, cosine);
  return radius * cosine;
}

struct Point {
  double x, y;
};

/// The arguments of torchvision's affine: degrees, pixels, a factor, degrees.
struct Affinity {
  double angle, x, y, scale, shear_x, shear_y;
};

Point transformed(const double* m, double x, double y) {
  return {m[0] * x + m[1] * y + m[2], m[3] * x + m[4] * y + m[5]};
}

}  // namespace

/// Where a drawing stands: the numbers of the leaf that is visited.
struct PixelProgram::Drawing {
  uint64_t key;
  Drawn& drawn;
  Targets* targets;
  size_t moved = 0;  // calls that targets have followed
  double v[kMaxLeafValues] = {};

  int width() const { return drawn.width; }
  int height() const { return drawn.height; }

  Call& add(Operation operation) {
    drawn.calls.push_back({operation, {}, 0});
    return drawn.calls.back();
  }
  template <typename... Numbers>
  Call& add(Operation operation, Numbers... numbers) {
    Call& call = add(operation);
    int i = 0;
    ((call.values[i++] = static_cast<double>(numbers)), ...);
    return call;
  }
  Status set_size(double width, double height) {
    if (!(width >= 1 && height >= 1 && width <= kLongestSide && height <= kLongestSide))
      return {Code::bad_parameters, "an augmentation makes an image without pixels, or too large"};
    drawn.width = static_cast<int>(width);
    drawn.height = static_cast<int>(height);
    return {};
  }

  Status call(const Node& node);
  Status rotate();
  Status affine();
  Status transform();
  Status affine_tensor(const Affinity& to, const double* centre, double interpolation,
                       const double* fill);
  Status perspective(uint64_t draw);
  void shuffle_channels(uint64_t draw);
  Status resized_crop(uint64_t draw);
  Status resize(double width, double height, double filter);
  Status resize_shorter();
  Status scale_jitter();
  Status shortest_size();
  Status pad_to();
  Status fixed_size_crop(uint64_t draw);
  Status centre_crop();
  Status corner_crop();
  Status random_crop(uint64_t draw);
  Status iou_crop(uint64_t draw, int options);
  Status zoom_out(uint64_t draw);
  void move_targets();
  Status pad(double left, double top, double right, double bottom, const double* fill);
  Status crop(int64_t left, int64_t top, double width, double height);
  void erase(uint64_t draw);

 private:
  static void inverse_of(const Affinity& to, double cx, double cy, double* matrix);
  Status warp(const double* matrix, double interpolation, const double* fill, double width,
              double height);
};

PixelProgram::PixelProgram(std::vector<Node> nodes, std::vector<Value> values,
                           std::vector<double> tables)
    : nodes_(std::move(nodes)), values_(std::move(values)), tables_(std::move(tables)) {
  if (nodes_.empty() || nodes_.size() > (size_t{1} << 20))
    throw std::invalid_argument("a program has from 1 to 2^20 nodes");
  if (nodes_[0].end != static_cast<int>(nodes_.size()))
    throw std::invalid_argument("the first node is not the root");
  for (const Value& value : values_) {
    if (!std::isfinite(value.a) || !std::isfinite(value.b) || !std::isfinite(value.plus))
      throw std::invalid_argument("a value that is not finite");
    if (!(value.least <= value.greatest)) throw std::invalid_argument("a value's bounds are none");
    if (value.kind == ValueKind::table &&
        (value.first < 0 || value.count < 1 ||
         static_cast<size_t>(value.first) + value.count > tables_.size()))
      throw std::invalid_argument("a value's table is not within the tables");
    if (value.kind == ValueKind::linspace &&
        !(value.count >= 1 && value.b >= 0 && value.b < value.count))
      throw std::invalid_argument("a value's entry is not within its table");
  }
  check_node(0, nodes_[0].end, 0);
  needs_boxes_ = std::any_of(nodes_.begin(), nodes_.end(),
                             [](const Node& node) { return node.kind == NodeKind::iou_crop; });
}

void PixelProgram::check_node(int at, int end, int depth) const {
  const Node& node = nodes_[at];
  const NamedKind& info = kNodes[static_cast<size_t>(node.kind)];
  if (depth > kMaxDepth) throw std::invalid_argument("the tree is too deep");
  if (node.end <= at || node.end > end)
    throw std::invalid_argument("a node's end is not within its parent");
  if (node.first_value < 0 || node.values < info.values ||
      static_cast<size_t>(node.first_value) + node.values > values_.size())
    throw std::invalid_argument(std::string("too few values for ") + info.name);
  int children = 0;
  for (int child = at + 1; child < node.end; child = nodes_[child].end, children++)
    check_node(child, node.end, depth + 1);
  if (!has_children(node.kind) && (children || node.values > kMaxLeafValues))
    throw std::invalid_argument("a leaf with children, or too many values");
  if (node.kind == NodeKind::call && node.values != info_of(node.operation).values)
    throw std::invalid_argument(std::string("not as many values as it has for ") +
                                info_of(node.operation).name);
  if (node.kind == NodeKind::choice && (!children || (node.values && node.values != children)))
    throw std::invalid_argument("a choice needs as many weights as children, or none");
  if (node.kind == NodeKind::sample) {
    const Value* values = values_.data() + node.first_value;
    const auto positive = [](const Value& value) { return value.a > 0; };
    if (node.values != children + 1 || !(values[0].a >= 0) ||
        values[0].a >
            static_cast<double>(std::count_if(values + 1, values + node.values, positive)))
      throw std::invalid_argument(
          "a sample needs a weight a child, and as many above 0 as it takes");
  }
  if (node.kind == NodeKind::mix) {
    if (!children) throw std::invalid_argument("a mixture of nothing");
    const double mixing = values_[node.first_value + 1].a;
    if (mixing != 0 && mixing != 1 && mixing != 2)
      throw std::invalid_argument("a mixture made in no way there is");
  }
}

Status PixelProgram::draw(uint64_t key, int width, int height, Drawn& drawn,
                          Targets* targets) const {
  drawn.calls.clear();
  drawn.erasures.clear();
  drawn.width = width;
  drawn.height = height;
  Drawing drawing{key, drawn, targets};
  const Status status = visit(0, drawing);
  drawing.move_targets();
  return status;
}

double PixelProgram::number(const Value& value, const Drawing& drawing) const {
  double unit = 1;
  if (value.unit == Unit::width) unit = drawing.width();
  if (value.unit == Unit::height) unit = drawing.height();
  double x = value.a * unit;
  switch (value.kind) {
    case ValueKind::constant: break;
    case ValueKind::uniform:
      x = draw_uniform_single(drawing.key, value.draw, x, value.b * unit);
      break;
    case ValueKind::uniform_double:
      x += (value.b * unit - x) * draw_uniform(drawing.key, value.draw);
      break;
    case ValueKind::table:
      x = tables_[value.first + draw_integer(drawing.key, value.draw, value.count)];
      break;
    case ValueKind::linspace: x = linspace(0, x, static_cast<int>(value.b), value.count); break;
    case ValueKind::normal: x += value.b * unit * draw_normal(drawing.key, value.draw); break;
  }
  if (x < value.least * unit) x = value.least * unit;
  if (x > value.greatest * unit) x = value.greatest * unit;
  if (value.sign_draw >= 0 && draw_integer(drawing.key, value.sign_draw, 2) == 1) x = -x;
  x += value.plus;
  if (value.rounding == Rounding::to_zero) x = std::trunc(x);
  if (value.rounding == Rounding::to_even) x = std::nearbyint(x);
  if (value.rounding == Rounding::up) x = std::ceil(x);
  return x;
}

Status PixelProgram::visit(int at, Drawing& drawing) const {
  const Node& node = nodes_[at];
  switch (node.kind) {
    case NodeKind::apply:
      if (draw_uniform(drawing.key, node.draw) >= number(values_[node.first_value], drawing))
        return {};
      [[fallthrough]];
    case NodeKind::sequence:
      for (int child = at + 1; child < node.end; child = nodes_[child].end)
        if (Status s = visit(child, drawing); !s.ok()) return s;
      return {};
    case NodeKind::choice: return visit_one(at, drawing);
    case NodeKind::order: return visit_in_order(at, drawing);
    case NodeKind::sample: return visit_sample(at, drawing);
    case NodeKind::mix: return visit_mix(at, drawing);
    default: return visit_leaf(node, drawing);
  }
}

Status PixelProgram::visit_one(int at, Drawing& drawing) const {
  const Node& node = nodes_[at];
  int64_t chosen = 0;
  if (node.values) {
    const Value* sums = values_.data() + node.first_value;
    const double x = draw_uniform(drawing.key, node.draw) * sums[node.values - 1].a;
    while (chosen < node.values - 1 && x >= sums[chosen].a) chosen++;
  } else {
    int children = 0;
    for (int child = at + 1; child < node.end; child = nodes_[child].end) children++;
    chosen = draw_integer(drawing.key, node.draw, children);
  }
  int child = at + 1;
  for (; chosen > 0; chosen--) child = nodes_[child].end;
  return visit(child, drawing);
}

Status PixelProgram::visit_in_order(int at, Drawing& drawing) const {
  const Node& node = nodes_[at];
  std::vector<int> children;
  for (int child = at + 1; child < node.end; child = nodes_[child].end) children.push_back(child);
  for (size_t left = children.size(); left > 0; left--) {
    const auto i = static_cast<size_t>(
        draw_integer(drawing.key, node.draw + left - 1, static_cast<int64_t>(left)));
    if (Status s = visit(children[i], drawing); !s.ok()) return s;
    children[i] = children[left - 1];
  }
  return {};
}

Status PixelProgram::visit_sample(int at, Drawing& drawing) const {
  const Node& node = nodes_[at];
  std::vector<double> weights;
  for (int i = 1; i < node.values; i++) weights.push_back(values_[node.first_value + i].a);
  const auto count = static_cast<int>(values_[node.first_value].a);
  for (int taken = 0; taken < count; taken++) {
    double sum = 0;
    for (double weight : weights) sum += std::max(weight, 0.0);
    double x = draw_uniform(drawing.key, node.draw + taken) * sum;
    int chosen = -1, child = at + 1;
    size_t i = 0;
    for (int next = child; next < node.end; next = nodes_[next].end, i++) {
      if (!(weights[i] > 0)) continue;
      chosen = static_cast<int>(i);  // rounding may leave a little of x after the last
      child = next;
      if (x < weights[i]) break;
      x -= weights[i];
    }
    weights[chosen] = 0;
    if (Status s = visit(child, drawing); !s.ok()) return s;
  }
  return {};
}

/// The weights of torchvision's AugMix (0.28), or of timm's (1.0), in their single precision: of
/// the image and of the chains together, and of each of these.
Status PixelProgram::visit_mix(int at, Drawing& drawing) const {
  const Node& node = nodes_[at];
  const double concentration = number(values_[node.first_value], drawing);
  if (!(concentration > 0 && concentration <= kMaxConcentration))
    return {Code::bad_parameters, "a concentration that is not above 0, or beyond 1e6"};
  const auto mixing = static_cast<Mixing>(values_[node.first_value + 1].a);
  const uint64_t key = draw_bits(drawing.key, node.draw);
  uint64_t drawn = 0;
  const auto next = [&] { return draw_gamma(draw_bits(key, drawn++), concentration); };
  const double kept = next(), mixed = next();
  std::vector<double> drawn_weights;
  double sum = 0;
  for (int child = at + 1; child < node.end; child = nodes_[child].end)
    sum += drawn_weights.emplace_back(next());
  const float rest = static_cast<float>(mixed / (kept + mixed));
  std::vector<float> weights;
  for (const double weight : drawn_weights)
    weights.push_back(static_cast<float>(weight / sum) *
                      (mixing == Mixing::blended_sum ? 1.f : rest));
  float first = mixing == Mixing::blended_sum ? 0.f : 1.f;
  if (mixing == Mixing::sum) first = static_cast<float>(kept / (kept + mixed));
  if (mixing == Mixing::blends) {
    float left = 1;  // of a blend, what those after it leave
    for (auto weight = weights.rbegin(); weight != weights.rend(); ++weight) {
      *weight = left > 0 ? std::min(*weight / left, 1.f) : 0.f;
      left *= 1 - *weight;
    }
  }
  drawing.add(Operation::mix_begin, first);
  int child = at + 1;
  for (const float weight : weights) {
    if (Status s = visit(child, drawing); !s.ok()) return s;
    drawing.add(mixing == Mixing::blends ? Operation::mix_blend : Operation::mix_add, weight);
    child = nodes_[child].end;
  }
  drawing.add(Operation::mix_end, mixing == Mixing::blended_sum ? rest : 1.f);
  return {};
}

Status PixelProgram::visit_leaf(const Node& node, Drawing& drawing) const {
  for (int i = 0; i < node.values; i++)
    drawing.v[i] = number(values_[node.first_value + i], drawing);
  switch (node.kind) {
    case NodeKind::call: return drawing.call(node);
    case NodeKind::rotate: return drawing.rotate();
    case NodeKind::affine: return drawing.affine();
    case NodeKind::transform: return drawing.transform();
    case NodeKind::perspective: return drawing.perspective(node.draw);
    case NodeKind::shuffle_channels: drawing.shuffle_channels(node.draw); return {};
    case NodeKind::resized_crop: return drawing.resized_crop(node.draw);
    case NodeKind::resize_shorter: return drawing.resize_shorter();
    case NodeKind::scale_jitter: return drawing.scale_jitter();
    case NodeKind::shortest_size: return drawing.shortest_size();
    case NodeKind::pad_to: return drawing.pad_to();
    case NodeKind::fixed_size_crop: return drawing.fixed_size_crop(node.draw);
    case NodeKind::centre_crop: return drawing.centre_crop();
    case NodeKind::corner_crop: return drawing.corner_crop();
    case NodeKind::random_crop: return drawing.random_crop(node.draw);
    case NodeKind::iou_crop: return drawing.iou_crop(node.draw, node.values - 5);
    case NodeKind::zoom_out: return drawing.zoom_out(node.draw);
    case NodeKind::erase: drawing.erase(node.draw); return {};
    default: return {};
  }
}

Status PixelProgram::Drawing::call(const Node& node) {
  switch (node.operation) {
    case Operation::pad: return pad(v[0], v[1], v[2], v[3], v + 4);
    case Operation::resize: return resize(v[0], v[1], v[2]);
    case Operation::crop:
    case Operation::iou_crop:
    case Operation::affine:
    case Operation::perspective:
    case Operation::tensor_affine:
    case Operation::tensor_perspective:
    case Operation::mix_begin:
    case Operation::mix_add:
    case Operation::mix_blend:
    case Operation::mix_end:
      return {Code::bad_parameters, "an operation that has a node of its own"};
    default: break;
  }
  Call& call = add(node.operation);
  std::copy_n(v, node.values, call.values);
  call.key = draw_bits(key, node.draw);
  return {};
}

/// The image through an inverse matrix, as Image.transform takes it.
Status PixelProgram::Drawing::warp(const double* m, double interpolation, const double* fill,
                                   double new_width, double new_height) {
  if (Status s = set_size(new_width, new_height); !s.ok()) return s;
  add(Operation::affine, m[0], m[1], m[2], m[3], m[4], m[5], interpolation, fill[0], fill[1],
      fill[2], new_width, new_height);
  return {};
}

/// PIL.Image.Image.rotate (Pillow 13). Its short cuts for multiples of 90 degrees give what this
/// gives, but for quarters that expand: there an odd sum of the sides would shift half a pixel.
Status PixelProgram::Drawing::rotate() {
  const double *fill = v + 2, w = width(), h = height();
  double turn = std::fmod(v[0], 360.0);  // Python's remainder has the divisor's sign
  if (turn < 0) turn += 360.0;
  if (v[9] != 0) return affine_tensor({-turn, 0, 0, 1, 0, 0}, v + 6, v[1], fill);
  const double angle = -(turn * kRadians), cx = v[6] != 0 ? v[7] : w / 2,
               cy = v[6] != 0 ? v[8] : h / 2;
  if (v[5] != 0 && v[6] == 0 && (turn == 90 || turn == 270)) {
    const double sign = turn == 90 ? 1 : -1;
    const double quarter[6] = {0, -sign, turn == 90 ? w : 0, sign, 0, turn == 90 ? 0 : h};
    return warp(quarter, v[1], fill, h, w);
  }
  double sine, cosine;
  portable_sine_cosine(angle, sine, cosine);
  double m[6] = {rounded_15(cosine), rounded_15(sine), 0, rounded_15(-sine), rounded_15(cosine), 0};
  const Point moved = transformed(m, -cx, -cy);
  m[2] = moved.x + cx;
  m[5] = moved.y + cy;
  if (v[5] == 0) return warp(m, v[1], fill, w, h);
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
  return warp(m, v[1], fill, nw, nh);
}

/// torchvision's functional._get_inverse_affine_matrix (0.28).
void PixelProgram::Drawing::inverse_of(const Affinity& to, double cx, double cy, double* m) {
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
Status PixelProgram::Drawing::affine() {
  const Affinity to{v[0], v[1], v[2], v[3], v[4], v[5]};
  const double* centre = v + 10;
  if (v[13] != 0) return affine_tensor(to, centre, v[6], v + 7);
  const double w = width(), h = height();
  double m[6];
  inverse_of(to, centre[0] != 0 ? centre[1] : w * 0.5, centre[0] != 0 ? centre[2] : h * 0.5, m);
  return warp(m, v[6], v + 7, w, h);
}

Status PixelProgram::Drawing::transform() { return warp(v, v[6], v + 7, width(), height()); }

/// The same of a tensor, whose coordinates are from the middle of the image.
Status PixelProgram::Drawing::affine_tensor(const Affinity& to, const double* centre,
                                            double interpolation, const double* fill) {
  double m[6];
  inverse_of(to, centre[0] != 0 ? centre[1] - width() * 0.5 : 0,
             centre[0] != 0 ? centre[2] - height() * 0.5 : 0, m);
  add(Operation::tensor_affine, m[0], m[1], m[2], m[3], m[4], m[5], interpolation, fill[0], fill[1],
      fill[2]);
  return {};
}

/// torchvision's RandomPerspective.get_params and functional._get_perspective_coeffs. An image
/// whose corners come to lie on a line, as a thin one's may, stays as it is.
Status PixelProgram::Drawing::perspective(uint64_t draw) {
  if (!(v[0] >= 0 && v[0] <= 1))
    return {Code::bad_parameters, "a distortion that is not from 0 to 1"};
  const int64_t w = width(), h = height();
  const int64_t across = static_cast<int64_t>(v[0] * static_cast<double>(w / 2)) + 1;
  const int64_t down = static_cast<int64_t>(v[0] * static_cast<double>(h / 2)) + 1;
  const int64_t from[4][2] = {{0, 0}, {w - 1, 0}, {w - 1, h - 1}, {0, h - 1}};
  int64_t to[4][2];
  for (int corner = 0; corner < 4; corner++) {
    const bool right = corner == 1 || corner == 2, low = corner >= 2;
    to[corner][0] = (right ? w - across : 0) + draw_integer(key, draw + 2 * corner, across);
    to[corner][1] = (low ? h - down : 0) + draw_integer(key, draw + 2 * corner + 1, down);
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
  Call& call = add(v[5] != 0 ? Operation::tensor_perspective : Operation::perspective);
  for (int i = 0; i < 8; i++) call.values[i] = static_cast<float>(rows[i][8]);
  std::copy_n(v + 1, 4, call.values + 8);
  return {};
}

void PixelProgram::Drawing::shuffle_channels(uint64_t draw) {
  double order[3] = {0, 1, 2};
  for (int left = 3; left > 1; left--)
    std::swap(order[draw_integer(key, draw + left - 2, left)], order[left - 1]);
  add(Operation::permute, order[0], order[1], order[2]);
}

Status PixelProgram::Drawing::resize(double new_width, double new_height, double filter) {
  if (new_width == width() && new_height == height()) return {};
  if (Status s = set_size(new_width, new_height); !s.ok()) return s;
  add(Operation::resize, new_width, new_height, filter);
  return {};
}

Status PixelProgram::Drawing::resized_crop(uint64_t draw) {
  if (!(v[3] >= 0 && v[5] > 0 && v[6] > 0))
    return {Code::bad_parameters, "a random crop of parts or ratios that there are not"};
  const AreaAndRatio drawn_from{v[3], v[4], v[5], v[6], v[7] != 0};
  const CropBox box = random_resized_crop(drawn_from, width(), height(), key, draw);
  if (Status s =
          crop(box.left, box.top, static_cast<double>(box.width), static_cast<double>(box.height));
      !s.ok())
    return s;
  return resize(v[0], v[1], v[2]);
}

Status PixelProgram::Drawing::resize_shorter() {
  const Size size = resized_shorter(width(), height(), v[0], v[1]);
  return resize(size.width, size.height, v[2]);
}

Status PixelProgram::Drawing::scale_jitter() {
  const Size size = scale_jittered(width(), height(), {v[0], v[1]}, v[2]);
  return resize(size.width, size.height, v[3]);
}

Status PixelProgram::Drawing::shortest_size() {
  const Size size = resized_shortest(width(), height(), v[0], v[1]);
  return resize(size.width, size.height, v[2]);
}

/// Right and below, to a size.
Status PixelProgram::Drawing::pad_to() {
  return pad(0, 0, std::max(v[0] - width(), 0.0), std::max(v[1] - height(), 0.0), v + 2);
}

Status PixelProgram::Drawing::fixed_size_crop(uint64_t draw) {
  if (!(v[0] <= kLongestSide && v[1] <= kLongestSide))
    return set_size(v[0], v[1]);  // it refuses these
  const CropBox box =
      fastdata::fixed_size_crop(width(), height(), static_cast<int64_t>(v[0]),
                                static_cast<int64_t>(v[1]), draw_uniform_single(key, draw, 0, 1));
  if (Status s =
          crop(box.left, box.top, static_cast<double>(box.width), static_cast<double>(box.height));
      !s.ok())
    return s;
  return pad_to();
}

Status PixelProgram::Drawing::pad(double left, double top, double right, double bottom,
                                  const double* mode_and_fill) {
  if (left == 0 && top == 0 && right == 0 && bottom == 0) return {};
  if (Status s = set_size(width() + left + right, height() + top + bottom); !s.ok()) return s;
  const double* fill = mode_and_fill + 1;
  add(Operation::pad, left, top, right, bottom, mode_and_fill[0], fill[0], fill[1], fill[2]);
  return {};
}

Status PixelProgram::Drawing::crop(int64_t left, int64_t top, double new_width, double new_height) {
  if (new_width == width() && new_height == height()) return {};
  if (Status s = set_size(new_width, new_height); !s.ok()) return s;
  add(Operation::crop, left, top, new_width, new_height);
  return {};
}

/// torchvision's functional.center_crop.
Status PixelProgram::Drawing::centre_crop() {
  if (!(v[0] <= kLongestSide && v[1] <= kLongestSide))
    return set_size(v[0], v[1]);  // it refuses these
  const int64_t x = centred(width(), static_cast<int64_t>(v[0]), false);
  const int64_t y = centred(height(), static_cast<int64_t>(v[1]), false);
  const int64_t across = targets_ahead(width(), static_cast<int64_t>(v[0]));
  const int64_t down = targets_ahead(height(), static_cast<int64_t>(v[1]));
  if (targets && (across != 0 || down != 0)) add(Operation::shift_targets, across, down);
  const auto before_x = static_cast<double>(std::max<int64_t>(-x, 0));
  const auto before_y = static_cast<double>(std::max<int64_t>(-y, 0));
  if (Status s = pad(before_x, before_y, std::max(v[0] - width(), 0.0) - before_x,
                     std::max(v[1] - height(), 0.0) - before_y, v + 2);
      !s.ok())
    return s;
  return crop(std::max<int64_t>(x, 0), std::max<int64_t>(y, 0), v[0], v[1]);
}

/// torchvision's functional.five_crop.
Status PixelProgram::Drawing::corner_crop() {
  if (!(v[0] >= 1 && v[1] >= 1 && v[0] <= width() && v[1] <= height()))
    return {Code::bad_parameters, "the image is smaller than a crop of its corner"};
  return crop(v[2] != 0 ? static_cast<int64_t>(width() - v[0]) : 0,
              v[3] != 0 ? static_cast<int64_t>(height() - v[1]) : 0, v[0], v[1]);
}

/// torchvision's RandomCrop.
Status PixelProgram::Drawing::random_crop(uint64_t draw) {
  const double w = v[0], h = v[1], *mode_and_fill = v + 7;
  const bool needed = v[6] != 0, at_once = needed && mode_and_fill[0] == 0;
  const double wider = at_once ? std::max(w - (width() + v[2] + v[4]), 0.0) : 0;
  const double higher = at_once ? std::max(h - (height() + v[3] + v[5]), 0.0) : 0;
  if (Status s = pad(v[2] + wider, v[3] + higher, v[4] + wider, v[5] + higher, mode_and_fill);
      !s.ok())
    return s;
  if (needed) {
    const double across = std::max(w - width(), 0.0), down = std::max(h - height(), 0.0);
    if (Status s = pad(across, 0, across, 0, mode_and_fill); !s.ok()) return s;
    if (Status s = pad(0, down, 0, down, mode_and_fill); !s.ok()) return s;
  }
  if (!(w >= 1 && h >= 1 && w <= width() && h <= height()))
    return {Code::bad_parameters, "the image is smaller than a random crop that may not pad it"};
  const int64_t x = random_place(width(), static_cast<int64_t>(w), key, draw);
  return crop(x, random_place(height(), static_cast<int64_t>(h), key, draw + 1), w, h);
}

/// An image without boxes that fit stays as it is once the option for that is drawn.
Status PixelProgram::Drawing::iou_crop(uint64_t draw, int options) {
  if (!targets) return {Code::bad_parameters, "a crop that depends on boxes, and there are none"};
  move_targets();
  std::optional<CropBox> part;
  if (!draw_iou_crop({v, v + 5, options}, draw_bits(key, draw), width(), height(), targets->boxes,
                     part))
    return {Code::bad_parameters, "no crop in 1000 rounds has a box that overlaps it enough"};
  if (!part) return {};
  const auto w = static_cast<double>(part->width), h = static_cast<double>(part->height);
  if (Status s = set_size(w, h); !s.ok()) return s;
  add(Operation::iou_crop, part->left, part->top, w, h);
  return {};
}

Status PixelProgram::Drawing::zoom_out(uint64_t draw) {
  const Margins more = zoomed_out(width(), height(), v[0], v[1], key, draw);
  return pad(more.left, more.top, more.right, more.bottom, v + 2);
}

void PixelProgram::Drawing::move_targets() {
  for (; targets && moved < drawn.calls.size(); moved++) targets->move(drawn.calls[moved]);
}

/// torchvision's RandomErasing.get_params.
void PixelProgram::Drawing::erase(uint64_t draw) {
  constexpr int kAttempts = 10;
  const double area = static_cast<double>(width()) * height();
  const AreaAndRatio drawn_from{v[0], v[1], v[2], v[3], v[11] != 0};
  for (int attempt = 0; attempt < kAttempts; attempt++) {
    double part, ratio;
    drawn_from.draw(key, draw + 2 * attempt, part, ratio);
    const double h = std::nearbyint(std::sqrt(area * part * ratio));
    const double w = std::nearbyint(std::sqrt(area * part / ratio));
    if (!(h < height() && w < width())) continue;
    Erasure erasure{};
    erasure.width = static_cast<int>(w);
    erasure.height = static_cast<int>(h);
    erasure.top =
        static_cast<int>(draw_integer(key, draw + 2 * kAttempts, height() - erasure.height + 1));
    erasure.left =
        static_cast<int>(draw_integer(key, draw + 2 * kAttempts + 1, width() - erasure.width + 1));
    std::copy_n(v + 4, 3, erasure.values);
    erasure.noise = static_cast<Erasure::Noise>(v[7] == 2 ? 2 : v[7] != 0);
    std::copy_n(v + 8, 3, erasure.deviations);
    erasure.key = draw_bits(key, draw + 2 * kAttempts + 2);
    drawn.erasures.push_back(erasure);
    return;
  }
}

float linspace(double start, double end, int index, int count) {
  const auto first = static_cast<float>(start), last = static_cast<float>(end);
  if (count < 2) return first;
  const float step = (last - first) / static_cast<float>(count - 1);
  if (index < count / 2) return std::fma(step, static_cast<float>(index), first);
  return std::fma(-step, static_cast<float>(count - 1 - index), last);
}

}  // namespace fastdata
