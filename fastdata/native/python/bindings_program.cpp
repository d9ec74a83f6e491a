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
#include "python/bindings_targets.h"
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
py::tuple draw(const PixelProgram& program, uint64_t key, int width, int height,
               const BoundTargets* targets) {
  Drawn drawn;
  Targets moved = targets ? targets->all.at(0) : Targets{};
  const Status s = program.draw(key, width, height, drawn, targets ? &moved : nullptr);
  if (!s.ok()) throw py::value_error(s.detail);
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
  py::class_<PixelProgram>(m, "PixelProgram")
      .def(py::init(&make_program), py::arg("nodes"), py::arg("values"), py::arg("tables"))
      .def("draw", &draw, py::arg("key"), py::arg("width"), py::arg("height"),
           py::arg("targets") = py::none())
      .def("sizes", &sizes, py::arg("cuts"));
}

}  // namespace fastdata
