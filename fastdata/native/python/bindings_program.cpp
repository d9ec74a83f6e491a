#include "python/bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "augment/program.h"
#include "geometry/cut.h"
#include "python/python_view.h"

namespace fastdata {
namespace {

// As in fastdata/transforms/tree.py; a tuple has the order of its class's fields.
using NodeTuple = std::tuple<std::string, std::string, int, int, int, uint64_t>;
using ValueTuple = std::tuple<std::string, uint64_t, double, double, int, int, int, double, double,
                              int64_t, double, int>;

ValueKind parse_value_kind(const std::string& name) {
#define FASTDATA_PARSE_VALUE(kind) \
  if (name == #kind) return ValueKind::kind;
  FASTDATA_VALUES(FASTDATA_PARSE_VALUE)
  throw py::value_error("a kind of value that there is not: " + name);
}

Node node_of(const NodeTuple& tuple) {
  const auto& [kind, operation, end, first_value, values, draw] = tuple;
  Node node;
  if (!parse_kind(kNodes, kind, node.kind))
    throw py::value_error("a kind of node that there is not: " + kind);
  if (node.kind == NodeKind::call && !parse_kind(kOperations, operation, node.operation))
    throw py::value_error("an operation that there is not: " + operation);
  node.end = end;
  node.first_value = first_value;
  node.values = values;
  node.draw = draw;
  return node;
}

Value value_of(const ValueTuple& tuple) {
  const auto& [kind, draw, a, b, first, count, unit, least, greatest, sign_draw, plus, rounding] =
      tuple;
  if (unit < 0 || unit > 2 || rounding < 0 || rounding > 3)
    throw py::value_error("a unit or rounding that there is not");
  return {
      parse_value_kind(kind),  draw,  a,        b,         first, count,
      static_cast<Unit>(unit), least, greatest, sign_draw, plus,  static_cast<Rounding>(rounding)};
}

std::unique_ptr<PixelProgram> make_program(const std::vector<NodeTuple>& nodes,
                                           const std::vector<ValueTuple>& values,
                                           const std::vector<double>& tables) {
  std::vector<Node> all_nodes;
  std::vector<Value> all_values;
  for (const NodeTuple& node : nodes) all_nodes.push_back(node_of(node));
  for (const ValueTuple& value : values) all_values.push_back(value_of(value));
  return std::make_unique<PixelProgram>(std::move(all_nodes), std::move(all_values), tables);
}

/// ([(operation, values)], [(left, top, width, height)], width, height).
py::tuple draw(const PixelProgram& program, uint64_t key, int width, int height) {
  Drawn drawn;
  if (const Status s = program.draw(key, width, height, drawn); !s.ok())
    throw py::value_error(s.detail);
  py::list calls, erased;
  for (const Call& call : drawn.calls) {
    const NamedKind& info = info_of(call.operation);
    calls.append(
        py::make_tuple(info.name, std::vector<double>(call.values, call.values + info.values)));
  }
  for (const Erasure& e : drawn.erasures)
    erased.append(py::make_tuple(e.left, e.top, e.width, e.height));
  return py::make_tuple(calls, erased, drawn.width, drawn.height);
}

/// The targets of a batch of images.
class BoundTargets {
 public:
  template <typename T>
  using Row = py::array_t<T, py::array::c_style | py::array::forcecast>;

  BoundTargets(const Row<int32_t>& widths, const Row<int32_t>& heights, const Row<float>& boxes,
               const Row<int64_t>& box_ends, const Row<float>& points,
               const Row<int64_t>& point_ends, bool clamps)
      : all_(static_cast<size_t>(widths.size())) {
    const auto count = static_cast<py::ssize_t>(all_.size());
    if (widths.ndim() != 1 || heights.ndim() != 1 || heights.size() != count ||
        box_ends.size() != count || point_ends.size() != count)
      throw py::value_error("not as many heights and ends as widths");
    if (boxes.ndim() != 2 || boxes.shape(1) != 4 || points.ndim() != 2 || points.shape(1) != 2)
      throw py::value_error("boxes have four values, points two");
    const auto* box = reinterpret_cast<const TargetBox*>(boxes.data());
    const auto* point = reinterpret_cast<const TargetPoint*>(points.data());
    int64_t first_box = 0, first_point = 0;
    for (py::ssize_t i = 0; i < count; i++) {
      const int64_t last_box = box_ends.at(i), last_point = point_ends.at(i);
      if (last_box < first_box || last_box > boxes.shape(0) || last_point < first_point ||
          last_point > points.shape(0))
        throw py::value_error("ends that are not within the boxes or points");
      Targets& targets = all_[static_cast<size_t>(i)];
      targets.clamps = clamps;
      targets.begin(box + first_box, static_cast<size_t>(last_box - first_box), point + first_point,
                    static_cast<size_t>(last_point - first_point), widths.at(i), heights.at(i));
      firsts_.push_back(first_box);
      first_box = last_box;
      first_point = last_point;
    }
  }

  const std::vector<Targets>& all() const { return all_; }

  /// (boxes, ends, numbers, points, sizes) of the images after cuts and a program.
  py::tuple moved(const py::array_t<Cut, py::array::c_style>& cuts,
                  const PixelProgram* program) const {
    if (cuts.ndim() != 1 || static_cast<size_t>(cuts.size()) != all_.size())
      throw py::value_error("not as many cuts as images");
    std::vector<float> boxes, points;
    std::vector<int64_t> numbers;
    py::array_t<int64_t> ends(cuts.size());
    py::array_t<int32_t> sizes({cuts.size(), py::ssize_t{2}});
    Drawn drawn;
    Targets targets;
    const Cut* cut = cuts.data();
    for (size_t i = 0; i < all_.size(); i++, cut++) {
      targets = all_[i];
      targets.move(*cut);
      if (program && !program->draw(cut->key, cut->canvas[0], cut->canvas[1], drawn, &targets).ok())
        targets.width = targets.height = 0;
      for (const TargetBox& box : targets.boxes)
        boxes.insert(boxes.end(), {box.x0, box.y0, box.x1, box.y1});
      for (const TargetPoint& point : targets.points)
        points.insert(points.end(), {point.x, point.y});
      for (int32_t number : targets.numbers) numbers.push_back(firsts_[i] + number);
      ends.mutable_at(static_cast<py::ssize_t>(i)) = static_cast<int64_t>(numbers.size());
      sizes.mutable_at(static_cast<py::ssize_t>(i), 0) = targets.width;
      sizes.mutable_at(static_cast<py::ssize_t>(i), 1) = targets.height;
    }
    const auto table = [](const std::vector<float>& values, py::ssize_t columns) {
      const auto rows = static_cast<py::ssize_t>(values.size()) / columns;
      return py::array_t<float>({rows, columns}, values.data());
    };
    return py::make_tuple(
        table(boxes, 4), ends,
        py::array_t<int64_t>(static_cast<py::ssize_t>(numbers.size()), numbers.data()),
        table(points, 2), sizes);
  }

 private:
  std::vector<Targets> all_;
  std::vector<int64_t> firsts_;  // number of each image's first box
};

/// (width, height) of each image after it, whose canvas it begins with; 0 where it does not fit.
py::array_t<int32_t> sizes(const PixelProgram& program,
                           const py::array_t<Cut, py::array::c_style>& cuts) {
  py::array_t<int32_t> found({cuts.size(), py::ssize_t{2}});
  const Cut* cut = cuts.data();
  int32_t* size = found.mutable_data();
  Drawn drawn;
  for (py::ssize_t i = 0; i < cuts.size(); i++, cut++, size += 2) {
    const bool fits = program.draw(cut->key, cut->canvas[0], cut->canvas[1], drawn).ok();
    size[0] = fits ? drawn.width : 0;
    size[1] = fits ? drawn.height : 0;
  }
  return found;
}

std::vector<float> linspace_python(double start, double end, int count) {
  std::vector<float> entries;
  for (int i = 0; i < count; i++) entries.push_back(linspace(start, end, i, count));
  return entries;
}

}  // namespace

void bind_program(py::module_& m) {
  py::list nodes, values;
#define FASTDATA_NODE_NAME(name, count) nodes.append(#name);
  FASTDATA_NODES(FASTDATA_NODE_NAME)
#define FASTDATA_VALUE_NAME(name) values.append(#name);
  FASTDATA_VALUES(FASTDATA_VALUE_NAME)
  m.attr("NODES") = py::tuple(nodes);
  m.attr("VALUES") = py::tuple(values);
  m.def("linspace", &linspace_python, py::arg("start"), py::arg("end"), py::arg("count"));
  py::class_<BoundTargets>(m, "Targets")
      .def(py::init<const BoundTargets::Row<int32_t>&, const BoundTargets::Row<int32_t>&,
                    const BoundTargets::Row<float>&, const BoundTargets::Row<int64_t>&,
                    const BoundTargets::Row<float>&, const BoundTargets::Row<int64_t>&, bool>(),
           py::arg("widths"), py::arg("heights"), py::arg("boxes"), py::arg("box_ends"),
           py::arg("points"), py::arg("point_ends"), py::arg("clamps") = true)
      .def("moved", &BoundTargets::moved, py::arg("cuts"), py::arg("program") = py::none());
  py::class_<PixelProgram>(m, "PixelProgram")
      .def(py::init(&make_program), py::arg("nodes"), py::arg("values"), py::arg("tables"))
      .def("draw", &draw, py::arg("key"), py::arg("width"), py::arg("height"))
      .def("sizes", &sizes, py::arg("cuts"));
}

}  // namespace fastdata
