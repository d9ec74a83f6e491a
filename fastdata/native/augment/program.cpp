#include "augment/program.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "draws.h"
#include "geometry/folded.h"
#include "portable.h"

namespace fastdata {
namespace {

constexpr int kMaxDepth = 64;
constexpr double kMaxConcentration = 1e6;

// 360 degrees.
constexpr double kTurn = 360 * (3.14159265358979323846 / 180.0);

/// Of a standard normal distribution, by Box and Muller; from two draws.
double draw_normal(uint64_t key, uint64_t draw) {
  const double radius = std::sqrt(-2 * portable_log(1 - draw_uniform(key, draw)));
  double sine, cosine;
  portable_sine_cosine(kTurn * draw_uniform(key, draw + 1), sine, cosine);
  return radius * cosine;
}

/// Whether a node may call an operation: the others are made by steps.
bool is_called(Operation operation) {
  return operation <= Operation::gaussian_noise ||
         (operation >= Operation::tensor_contrast && operation <= Operation::tensor_autocontrast);
}

}  // namespace

const std::vector<NamedKind>& step_kinds() {
#define FASTDATA_PARAMETER_KIND(type, name) {#name, std::is_same_v<type, Entries>},
#define FASTDATA_NAMED_STEP(name, Struct, draws, ...) {#name, draws, {__VA_ARGS__}},
  static const std::vector<NamedKind> kinds = {
      FASTDATA_STEPS(FASTDATA_NAMED_STEP, FASTDATA_PARAMETER_KIND)};
  return kinds;
}

static const NamedKind& kind_of(const Node& node) {
  if (node.kind == StepKind::call) return info_of(node.operation);
  return step_kinds()[static_cast<size_t>(node.kind)];
}

StepProgram::StepProgram(std::vector<Node> nodes, std::vector<Value> values,
                         std::vector<double> tables, int leading)
    : nodes_(std::move(nodes)), values_(std::move(values)), tables_(std::move(tables)) {
  if (nodes_.empty() || nodes_.size() > (size_t{1} << 20))
    throw std::invalid_argument("a program has from 1 to 2^20 nodes");
  if (nodes_[0].kind != StepKind::sequence || nodes_[0].end != static_cast<int>(nodes_.size()))
    throw std::invalid_argument("the first node is not the root");
  Drawn of_none{{}, {}, 1, 1};
  const Drawing none(0, nullptr, /*may_lack_boxes=*/false, of_none);
  for (Value& value : values_) {
    check_value(value);
    if (value.kind == ValueKind::constant && value.unit == Unit::one && value.sign_draw < 0)
      value.settled = ratio_of(draw_number(value, none));
  }
  check_node(0, nodes_[0].end, 0);
  check_leading(leading);
  for (auto node = nodes_.begin() + leading_end_; node != nodes_.end(); ++node) {
    changes_pixels_ =
        changes_pixels_ || !(has_children(node->kind) || node->kind == StepKind::clamp_boxes ||
                             node->kind == StepKind::sanitize_boxes);
  }
}

void StepProgram::check_value(const Value& value) const {
  if (!std::isfinite(value.a) || !std::isfinite(value.b) || !std::isfinite(value.plus))
    throw std::invalid_argument("a value that is not finite");
  if (!(value.least <= value.greatest)) throw std::invalid_argument("a value's bounds are none");
  const bool several = value.kind == ValueKind::table || value.kind == ValueKind::entries;
  if (several && (value.first < 0 || value.count < (value.kind == ValueKind::table) ||
                  static_cast<size_t>(value.first) + value.count > tables_.size()))
    throw std::invalid_argument("a value's table is not within the tables");
  if (value.kind == ValueKind::linspace &&
      !(value.count >= 1 && value.b >= 0 && value.b < value.count))
    throw std::invalid_argument("a value's entry is not within its table");
}

void StepProgram::check_node(int at, int end, int depth) const {
  const Node& node = nodes_[at];
  if (depth > kMaxDepth) throw std::invalid_argument("the tree is too deep");
  if (node.end <= at || node.end > end)
    throw std::invalid_argument("a node's end is not within its parent");
  const NamedKind& kind = kind_of(node);
  if (node.kind == StepKind::call && !is_called(node.operation))
    throw std::invalid_argument(std::string("an operation that a step makes: ") + kind.name);
  const auto count = static_cast<int>(kind.parameters.size());
  if (node.first_value < 0 || static_cast<size_t>(node.first_value) + count > values_.size())
    throw std::invalid_argument(std::string("too few values for ") + kind.name);
  for (int i = 0; i < count; i++)
    if (kind.parameters[i].entries != (values_[node.first_value + i].kind == ValueKind::entries))
      throw std::invalid_argument(std::string("entries for a number, or a number for entries: ") +
                                  kind.parameters[i].name + " of " + kind.name);
  int children = 0;
  for (int child = at + 1; child < node.end; child = nodes_[child].end, children++)
    check_node(child, node.end, depth + 1);
  check_children(node, children);
}

void StepProgram::check_children(const Node& node, int children) const {
  if (!has_children(node.kind) && children) throw std::invalid_argument("a leaf with children");
  const auto value = [&](std::string_view name) -> const Value& {
    const std::vector<Parameter>& parameters = kind_of(node).parameters;
    const auto is_it = [&](const Parameter& one) { return name == one.name; };
    const auto found = std::find_if(parameters.begin(), parameters.end(), is_it);
    return values_[node.first_value + (found - parameters.begin())];
  };
  switch (node.kind) {
    case StepKind::choice: {
      const int sums = value("sums").count;
      if (!children || (sums && sums != children))
        throw std::invalid_argument("a choice needs as many weights as children, or none");
      return;
    }
    case StepKind::sample: {
      const Value &weights = value("weights"), &count = value("count");
      const double* first = tables_.data() + weights.first;
      const auto positive =
          std::count_if(first, first + weights.count, [](double one) { return one > 0; });
      if (weights.count != children || !(count.a >= 0 && count.a <= static_cast<double>(positive)))
        throw std::invalid_argument(
            "a sample needs a weight a child, and as many above 0 as it takes");
      return;
    }
    case StepKind::mix: {
      if (!children) throw std::invalid_argument("a mixture of nothing");
      const double mixing = value("mixing").a;
      if (mixing != 0 && mixing != 1 && mixing != 2)
        throw std::invalid_argument("a mixture made in no way there is");
      return;
    }
    case StepKind::iou_crop:
      if (value("options").count < 1) throw std::invalid_argument("a crop without options");
      return;
    case StepKind::erase:
      if (value("values").count != 3 || value("deviations").count != 3)
        throw std::invalid_argument("an erasure needs a value and a deviation a channel");
      return;
    default: return;
  }
}

void StepProgram::check_leading(int leading) {
  for (; leading > 0; leading--) {
    if (leading_end_ >= nodes_[0].end)
      throw std::invalid_argument("more leading steps than there are");
    leading_end_ = nodes_[leading_end_].end;
  }
  for (int at = 1; at < leading_end_; at++) {
    const NamedKind& kind = kind_of(nodes_[at]);
    if (!may_be_folded(nodes_[at].kind))
      throw std::invalid_argument(std::string("it cannot be folded: ") + kind.name);
    const Value* value = values_.data() + nodes_[at].first_value;
    for (const Parameter& parameter : kind.parameters) {
      const std::optional<Ratio>& settled = (value++)->settled;
      if (std::string_view(parameter.name) == "mode" && !(settled && settled->value == 0))
        throw std::invalid_argument(std::string("it pads with more than a colour: ") + kind.name);
    }
  }
}

Cut StepProgram::cut(uint64_t key, int64_t width, int64_t height, Targets* targets) const {
  Drawn drawn{{}, {}, width, height};
  drawn.calls.reserve(8);
  Drawing drawing(key, targets, /*may_lack_boxes=*/true, drawn);
  int number = 0;
  for (int child = 1; child < leading_end_; child = nodes_[child].end) {
    number++;
    if (!visit(child, drawing).ok()) return fold(drawn, key, width, height, number);
  }
  return fold(drawn, key, width, height, 0);
}

Status StepProgram::draw(uint64_t key, int width, int height, Drawn& drawn,
                         Targets* targets) const {
  drawn.width = width;
  drawn.height = height;
  Drawing drawing(key, targets, /*may_lack_boxes=*/false, drawn);
  return visit_all(leading_end_, nodes_[0].end, drawing);
}

double StepProgram::number(const Value& value, const Drawing& drawing) const {
  return value.settled ? value.settled->value : draw_number(value, drawing);
}

double StepProgram::draw_number(const Value& value, const Drawing& drawing) const {
  double unit = 1;
  if (value.unit == Unit::width) unit = static_cast<double>(drawing.width());
  if (value.unit == Unit::height) unit = static_cast<double>(drawing.height());
  const uint64_t key = drawing.key();
  double x = value.a * unit;
  switch (value.kind) {
    case ValueKind::constant:
    case ValueKind::entries: break;
    case ValueKind::uniform: x = draw_uniform_single(key, value.draw, x, value.b * unit); break;
    case ValueKind::uniform_double:
      x += (value.b * unit - x) * draw_uniform(key, value.draw);
      break;
    case ValueKind::table:
      x = tables_[value.first + draw_integer(key, value.draw, value.count)];
      break;
    case ValueKind::linspace: x = linspace(0, x, static_cast<int>(value.b), value.count); break;
    case ValueKind::normal: x += value.b * unit * draw_normal(key, value.draw); break;
  }
  if (x < value.least * unit) x = value.least * unit;
  if (x > value.greatest * unit) x = value.greatest * unit;
  if (value.sign_draw >= 0 && draw_integer(key, value.sign_draw, 2) == 1) x = -x;
  x += value.plus;
  if (value.rounding == Rounding::to_zero) x = std::trunc(x);
  if (value.rounding == Rounding::to_even) x = std::nearbyint(x);
  if (value.rounding == Rounding::up) x = std::ceil(x);
  return x;
}

template <typename T>
T StepProgram::read(const Value& value, const Drawing& drawing) const {
  if constexpr (std::is_same_v<T, Entries>)
    return {tables_.data() + value.first, value.count};
  else if constexpr (std::is_same_v<T, bool>)
    return number(value, drawing) != 0;
  else if constexpr (std::is_same_v<T, Ratio>)
    return value.settled ? *value.settled : ratio_of(number(value, drawing));
  else
    return number(value, drawing);
}

Status StepProgram::visit(int at, Drawing& drawing) const {
  const Node& node = nodes_[at];
  const Value* value = values_.data() + node.first_value;
  switch (node.kind) {
#define FASTDATA_READ(type, name) read<type>(*value++, drawing),
#define FASTDATA_VISIT_PARENT(name, Struct, draws, ...) \
  case StepKind::name: return visit(steps::Struct{__VA_ARGS__}, at, drawing);
#define FASTDATA_VISIT_STEP(name, Struct, draws, ...) \
  case StepKind::name: return drawing.take(steps::Struct{__VA_ARGS__}, node.draw);
    FASTDATA_PARENTS(FASTDATA_VISIT_PARENT, FASTDATA_READ)
    FASTDATA_FOLDED_STEPS(FASTDATA_VISIT_STEP, FASTDATA_READ)
    FASTDATA_PIXEL_STEPS(FASTDATA_VISIT_STEP, FASTDATA_READ)
    case StepKind::call: visit_call(node, drawing);
  }
  return {};
}

Status StepProgram::visit_all(int at, int end, Drawing& drawing) const {
  for (; at < end; at = nodes_[at].end)
    if (Status s = visit(at, drawing); !s.ok()) return s;
  return {};
}

Status StepProgram::visit(const steps::Sequence&, int at, Drawing& drawing) const {
  return visit_all(at + 1, nodes_[at].end, drawing);
}

Status StepProgram::visit(const steps::Apply& step, int at, Drawing& drawing) const {
  if (draw_uniform(drawing.key(), nodes_[at].draw) >= step.p) return {};
  return visit_all(at + 1, nodes_[at].end, drawing);
}

Status StepProgram::visit(const steps::Choice& step, int at, Drawing& drawing) const {
  const Node& node = nodes_[at];
  int64_t chosen = 0;
  if (step.sums.count) {
    const int last = step.sums.count - 1;
    const double x = draw_uniform(drawing.key(), node.draw) * step.sums[last];
    while (chosen < last && x >= step.sums[static_cast<int>(chosen)]) chosen++;
  } else {
    int children = 0;
    for (int child = at + 1; child < node.end; child = nodes_[child].end) children++;
    chosen = draw_integer(drawing.key(), node.draw, children);
  }
  int child = at + 1;
  for (; chosen > 0; chosen--) child = nodes_[child].end;
  return visit(child, drawing);
}

Status StepProgram::visit(const steps::InOrder&, int at, Drawing& drawing) const {
  const Node& node = nodes_[at];
  std::vector<int> children;
  for (int child = at + 1; child < node.end; child = nodes_[child].end) children.push_back(child);
  for (size_t left = children.size(); left > 0; left--) {
    const auto i = static_cast<size_t>(
        draw_integer(drawing.key(), node.draw + left - 1, static_cast<int64_t>(left)));
    if (Status s = visit(children[i], drawing); !s.ok()) return s;
    children[i] = children[left - 1];
  }
  return {};
}

Status StepProgram::visit(const steps::SomeOf& step, int at, Drawing& drawing) const {
  const Node& node = nodes_[at];
  std::vector<double> weights(step.weights.values, step.weights.values + step.weights.count);
  const auto count = static_cast<int>(step.count);
  for (int taken = 0; taken < count; taken++) {
    double sum = 0;
    for (double weight : weights) sum += std::max(weight, 0.0);
    double x = draw_uniform(drawing.key(), node.draw + taken) * sum;
    int chosen = -1, child = at + 1;
    size_t i = 0;
    for (int next = child; next < node.end; next = nodes_[next].end, i++) {
      if (!(weights[i] > 0)) continue;
      chosen = static_cast<int>(i);  // rounding may leave a little of x after the last
      child = next;
      if (x < weights[i]) break;
      x -= weights[i];
    }
    if (chosen < 0) break;
    weights[chosen] = 0;
    if (Status s = visit(child, drawing); !s.ok()) return s;
  }
  return {};
}

/// The weights of torchvision's AugMix (0.28), or of timm's (1.0), in their single precision: of
/// the image and of the chains together, and of each of these.
Status StepProgram::visit(const steps::Mixture& step, int at, Drawing& drawing) const {
  const Node& node = nodes_[at];
  if (!(step.concentration > 0 && step.concentration <= kMaxConcentration))
    return {Code::bad_parameters, "a concentration that is not above 0, or beyond 1e6"};
  const auto mixing = static_cast<Mixing>(step.mixing);
  const uint64_t key = draw_bits(drawing.key(), node.draw);
  uint64_t drawn = 0;
  const auto next = [&] { return draw_gamma(draw_bits(key, drawn++), step.concentration); };
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
  drawing.add(Call::of(operations::MixBegin{first}));
  int child = at + 1;
  for (const float weight : weights) {
    if (Status s = visit(child, drawing); !s.ok()) return s;
    drawing.add(mixing == Mixing::blends ? Call::of(operations::MixBlend{weight})
                                         : Call::of(operations::MixAdd{weight}));
    child = nodes_[child].end;
  }
  drawing.add(Call::of(operations::MixEnd{mixing == Mixing::blended_sum ? rest : 1.f}));
  return {};
}

void StepProgram::visit_call(const Node& node, Drawing& drawing) const {
  Call call{node.operation};
  const auto count = static_cast<int>(info_of(node.operation).parameters.size());
  for (int i = 0; i < count; i++) call.values[i] = number(values_[node.first_value + i], drawing);
  call.key = draw_bits(drawing.key(), node.draw);
  drawing.add(call);
}

float linspace(double start, double end, int index, int count) {
  const auto first = static_cast<float>(start), last = static_cast<float>(end);
  if (count < 2) return first;
  const float step = (last - first) / static_cast<float>(count - 1);
  if (index < count / 2) return std::fma(step, static_cast<float>(index), first);
  return std::fma(-step, static_cast<float>(count - 1 - index), last);
}

}  // namespace fastdata
