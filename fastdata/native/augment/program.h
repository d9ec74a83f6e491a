// The steps of a sample: a tree whose nodes draw numbers, with steps at its leaves. It is made once
// for a pipeline (fastdata/transforms/tree.py). Its leading steps are folded into the region of an
// image that is decoded; the others give the operations to call on its pixels, one after the other.
//
// A node's draws have fixed numbers, so that what it draws is a function of the key alone,
// whatever was drawn elsewhere in the tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "augment/drawing.h"
#include "augment/steps.h"
#include "geometry/cut.h"

namespace fastdata {

// The kinds of numbers: a; uniform from a to b, in single precision as torch
// draws or in double as Python does; one of `count` entries of the tables from `first` on; entry b
// of `count` ones that torch.linspace spaces evenly from 0 to a; normally distributed around a,
// with a standard deviation of b (two draws); or no number, but all of those entries.
#define FASTDATA_VALUES(V) \
  V(constant) V(uniform) V(uniform_double) V(table) V(linspace) V(normal) V(entries)
#define FASTDATA_VALUE(name) name,
enum class ValueKind : uint8_t { FASTDATA_VALUES(FASTDATA_VALUE) };

enum class Unit : uint8_t { one, width, height };  // that a, b and the bounds are multiples of
enum class Rounding : uint8_t { none, to_zero, to_even, up };  // last of all

// How a mixture is made of the weights: one sum, as by torchvision's AugMix; a sum of what the
// children make, and a blend with that, as by timm's; one blend after the other, as by timm's that
// is blended.
enum class Mixing : uint8_t { sum, blended_sum, blends };

/// Entry `index` of `count` floats evenly spaced from `start` to `end`, as torch.linspace rounds
/// them: once, by a fused multiplication and addition.
float linspace(double start, double end, int index, int count);

/// A number, drawn or not; or entries.
struct Value {
  ValueKind kind = ValueKind::constant;
  uint64_t draw = 0;
  double a = 0, b = 0;
  int first = 0, count = 0;
  Unit unit = Unit::one;
  double least = -std::numeric_limits<double>::infinity();  // it is held within these first
  double greatest = std::numeric_limits<double>::infinity();
  int64_t sign_draw = -1;  // negated half of the time by this draw; -1: never
  double plus = 0;
  Rounding rounding = Rounding::none;
  std::optional<Ratio> settled = {};  // of a constant, which is the same for every image
};

/// A node of the tree, in pre-order: its descendants are those up to `end`.
struct Node {
  StepKind kind = StepKind::sequence;
  Operation operation{};  // of a call
  int end = 0;
  int first_value = 0;
  uint64_t draw = 0;
};

class StepProgram {
 public:
  /// The first `leading` children of the root are folded. Throws std::invalid_argument where the
  /// parts do not make a tree, a table is left, or a leading step cannot be folded.
  StepProgram(std::vector<Node> nodes, std::vector<Value> values, std::vector<double> tables,
              int leading);

  /// Draws the leading steps for an image of so many pixels, and moves its targets.
  Cut cut(uint64_t key, int64_t width, int64_t height, Targets* targets = nullptr) const;

  /// Draws the others, for the canvas that the leading ones leave. bad_parameters: an image that is
  /// smaller than a random crop that may not pad, a size that no image has, or no targets for a
  /// crop that depends on them. Throws std::bad_alloc.
  Status draw(uint64_t key, int width, int height, Drawn& drawn, Targets* targets = nullptr) const;

  /// Whether the steps that run on pixels change them.
  bool changes_pixels() const { return changes_pixels_; }

 private:
  void check_value(const Value& value) const;
  void check_node(int at, int end, int depth) const;
  void check_children(const Node& node, int children) const;
  void check_leading(int leading);
  double number(const Value& value, const Drawing& drawing) const;
  double draw_number(const Value& value, const Drawing& drawing) const;
  template <typename T>
  T read(const Value& value, const Drawing& drawing) const;
  Status visit(int at, Drawing& drawing) const;
  Status visit_all(int at, int end, Drawing& drawing) const;
  Status visit(const steps::Sequence&, int at, Drawing& drawing) const;
  Status visit(const steps::Apply& step, int at, Drawing& drawing) const;
  Status visit(const steps::Choice& step, int at, Drawing& drawing) const;
  Status visit(const steps::InOrder&, int at, Drawing& drawing) const;
  Status visit(const steps::SomeOf& step, int at, Drawing& drawing) const;
  void visit_call(const Node& node, Drawing& drawing) const;
  Status visit(const steps::Mixture& step, int at, Drawing& drawing) const;

  std::vector<Node> nodes_;
  std::vector<Value> values_;
  std::vector<double> tables_;
  int leading_end_ = 1;  // the first node that is not folded
  bool changes_pixels_ = false;
};

}  // namespace fastdata
