// The augmentations of one sample: a tree whose nodes draw numbers, and calls of operations at
// its leaves. It is made once for a pipeline (fastdata/transforms/tree.py); drawn for a key and
// an image's size it gives the operations to call, one after the other.
//
// A node's draws have fixed numbers, so that what it draws is a function of the key alone,
// whatever was drawn elsewhere in the tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "augment/operations.h"
#include "augment/targets.h"

namespace fastdata {

// The kinds of nodes, once for C++ and for Python (`_native.NODES`), with their least number of
// values. Sizes are in pixels, angles in degrees, fills 0 to 255; numbers of draws in brackets.
#define FASTDATA_NODES(N)                                                                        \
  /* Nodes with children: all of them in turn; */                                                \
  N(sequence, 0)                                                                                 \
  /* all of them with probability p; [1] */                                                      \
  N(apply, 1)                                                                                    \
  /* one of them: each as likely, or by values that are sums of weights up to it; [1] */         \
  N(choice, 0)                                                                                   \
  /* all of them in a random order; [children - 1] */                                            \
  N(order, 0)                                                                                    \
  /* some of them, one after the other, none twice: how many; a weight of each. [how many] */    \
  N(sample, 1)                                                                                   \
  /* a mixture of the image and of what each child makes of it, with weights of Dirichlet's */   \
  /* distribution, of two and of the children: its concentration; enum class Mixing; [1] */      \
  N(mix, 2)                                                                                      \
  /* Leaves: an operation, whose values are the node's; [1] */                                   \
  N(call, 0)                                                                                     \
  /* Image.rotate: angle; interpolation; fill R, G, B; expand; whether there is a centre, */     \
  /* its x and y; whether it is done as to a tensor: its fill may then be -1, none; */           \
  N(rotate, 10)                                                                                  \
  /* torchvision's affine: angle; x and y of the translation; scale; x and y of the shear; */    \
  /* interpolation; fill R, G, B; whether there is a centre, its x and y; whether it is done */  \
  /* as to a tensor; */                                                                          \
  N(affine, 14)                                                                                  \
  /* Image.transform: its six numbers; interpolation; fill R, G, B; */                           \
  N(transform, 10)                                                                               \
  /* torchvision's RandomPerspective: distortion scale; interpolation; fill R, G, B; whether */  \
  /* it is done as to a tensor; [8] */                                                           \
  N(perspective, 6)                                                                              \
  /* channels in a random order; [2] */                                                          \
  N(shuffle_channels, 0)                                                                         \
  /* RandomResizedCrop: width, height, filter; area from, to; ratio from, to; whether it is */   \
  /* drawn in double precision; [22] */                                                          \
  N(resized_crop, 8)                                                                             \
  /* the shorter side to a size: size, the longer side's bound or 0, filter; */                  \
  N(resize_shorter, 3)                                                                           \
  /* ScaleJitter: width and height of the target; a factor; filter; */                           \
  N(scale_jitter, 4)                                                                             \
  /* RandomShortestSize: size, the longer side's bound or 0, filter; */                          \
  N(shortest_size, 3)                                                                            \
  /* a padding right and below: width, height that the image has at least; padding mode and */   \
  /* fill R, G, B; */                                                                            \
  N(pad_to, 6)                                                                                   \
  /* FixedSizeCrop: width, height; padding mode and fill R, G, B; [1] */                         \
  N(fixed_size_crop, 6)                                                                          \
  /* CenterCrop: width, height; padding mode and fill R, G, B of smaller images; */              \
  N(centre_crop, 6)                                                                              \
  /* a corner: width, height; whether the right one, the lower one; */                           \
  N(corner_crop, 4)                                                                              \
  /* RandomCrop: width, height; left, top, right, bottom of the padding; whether to pad */       \
  /* smaller images; padding mode; fill R, G, B; [2] */                                          \
  N(random_crop, 11)                                                                             \
  /* RandomIoUCrop: parts of the image's sides from, to; ratio from, to; trials; the options, */ \
  /* up to 9; [1] */                                                                             \
  N(iou_crop, 6)                                                                                 \
  /* RandomZoomOut: factors of the sides from, to; padding mode and fill R, G, B; [3] */         \
  N(zoom_out, 6)                                                                                 \
  /* RandomErasing: area from, to; ratio from, to; a value a channel; what is added to them: */  \
  /* 0 nothing, 1 noise, 2 one number of it a channel; its standard deviation a channel; */      \
  /* whether it is drawn in double precision. Of the output, in its units, last of all; [23] */  \
  N(erase, 12)

#define FASTDATA_NODE(name, values) name,
enum class NodeKind : uint8_t { FASTDATA_NODES(FASTDATA_NODE) };
inline constexpr NamedKind kNodes[] = {FASTDATA_NODES(FASTDATA_NAMED_KIND)};

// The kinds of numbers (`_native.VALUES`): a; uniform from a to b, in single precision as torch
// draws or in double as Python does; one of `count` entries of the tables from `first` on; entry b
// of `count` ones that torch.linspace spaces evenly from 0 to a; normally distributed around a,
// with a standard deviation of b (two draws).
#define FASTDATA_VALUES(V) V(constant) V(uniform) V(uniform_double) V(table) V(linspace) V(normal)
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

/// A number, drawn or not.
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
};

/// A node of the tree, in pre-order: its descendants are those up to `end`.
struct Node {
  NodeKind kind = NodeKind::sequence;
  Operation operation{};  // of a call
  int end = 0;
  int first_value = 0, values = 0;
  uint64_t draw = 0;
};

/// A rectangle of the output that is written over.
struct Erasure {
  int left, top, width, height;
  double values[3];
  enum class Noise : uint8_t { none, pixels, channels } noise;  // normal, added to the values
  double deviations[3];
  uint64_t key;  // of the noise
};

/// The calls for one sample. Its size is then width x height.
struct Drawn {
  std::vector<Call> calls;
  std::vector<Erasure> erasures;
  int width = 0, height = 0;
};

class PixelProgram {
 public:
  /// Throws std::invalid_argument where the parts do not make a tree, or a table is left.
  PixelProgram(std::vector<Node> nodes, std::vector<Value> values, std::vector<double> tables);

  /// Draws for an image of so many pixels, and moves its targets. bad_parameters: an image that is
  /// smaller than a random crop that may not pad, a size that no image has, or no targets for a
  /// crop that depends on them. Throws std::bad_alloc.
  Status draw(uint64_t key, int width, int height, Drawn& drawn, Targets* targets = nullptr) const;

  /// Whether its crops depend on boxes.
  bool needs_boxes() const { return needs_boxes_; }

 private:
  struct Drawing;

  void check_node(int at, int end, int depth) const;
  double number(const Value& value, const Drawing& drawing) const;
  Status visit(int at, Drawing& drawing) const;
  Status visit_one(int at, Drawing& drawing) const;
  Status visit_in_order(int at, Drawing& drawing) const;
  Status visit_sample(int at, Drawing& drawing) const;
  Status visit_mix(int at, Drawing& drawing) const;
  Status visit_leaf(const Node& node, Drawing& drawing) const;

  std::vector<Node> nodes_;
  std::vector<Value> values_;
  std::vector<double> tables_;
  bool needs_boxes_ = false;
};

}  // namespace fastdata
