#include "python/bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "augment/program.h"
#include "geometry/crops.h"
#include "geometry/cut.h"
#include "python/bindings_targets.h"
#include "python/python_view.h"

namespace fastdata {
namespace {

// As in fastdata/transforms/tree.py; a tuple has the order of its class's fields.
using NodeTuple = std::tuple<std::string, int, int, uint64_t>;  // kind, end, first value, draw
using ValueTuple = std::tuple<std::string, uint64_t, double, double, int, int, int, double, double,
                              int64_t, double, int>;

ValueKind parse_value_kind(const std::string& name) {
#define FASTDATA_PARSE_VALUE(kind) \
  if (name == #kind) return ValueKind::kind;
  FASTDATA_VALUES(FASTDATA_PARSE_VALUE)
  throw py::value_error("a kind of value that there is not: " + name);
}

Node node_of(const NodeTuple& tuple) {
  const auto& [kind, end, first_value, draw] = tuple;
  Node node;
  if (!parse_kind(step_kinds(), kind, node.kind)) {
    node.kind = StepKind::call;
    if (!parse_kind(operation_kinds(), kind, node.operation))
      throw py::value_error("a kind of step that there is not: " + kind);
  }
  node.end = end;
  node.first_value = first_value;
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

std::unique_ptr<StepProgram> make_program(const std::vector<NodeTuple>& nodes,
                                          const std::vector<ValueTuple>& values,
                                          const std::vector<double>& tables, int leading) {
  std::vector<Node> all_nodes;
  std::vector<Value> all_values;
  for (const NodeTuple& node : nodes) all_nodes.push_back(node_of(node));
  for (const ValueTuple& value : values) all_values.push_back(value_of(value));
  return std::make_unique<StepProgram>(std::move(all_nodes), std::move(all_values), tables,
                                       leading);
}

py::array_t<Cut> draw_cuts(const StepProgram& program, const Row<int64_t>& widths,
                           const Row<int64_t>& heights, const Row<uint64_t>& keys) {
  const py::ssize_t count = keys.size();
  if (keys.ndim() != 1 || widths.ndim() != 1 || heights.ndim() != 1 || widths.size() != count ||
      heights.size() != count)
    throw py::value_error("widths, heights and keys must have one axis, equally long");
  py::array_t<Cut> cuts(count);
  // Damaged records have sizes below 1; the decoder refuses those images.
  const int64_t *width = widths.data(), *height = heights.data();
  const uint64_t* key = keys.data();
  Cut* cut = cuts.mutable_data();
  for (py::ssize_t i = 0; i < count; i++)
    cut[i] = program.cut(key[i], std::max<int64_t>(width[i], 1), std::max<int64_t>(height[i], 1));
  return cuts;
}

std::pair<int64_t, int64_t> resized_shorter_python(int64_t width, int64_t height, int64_t shorter,
                                                   int64_t bound) {
  const Size size = resized_shorter(static_cast<double>(width), static_cast<double>(height),
                                    static_cast<double>(shorter), static_cast<double>(bound));
  return {static_cast<int64_t>(size.width), static_cast<int64_t>(size.height)};
}

/// The names of a kind's parameters.
py::tuple names_of(const NamedKind& kind) {
  py::list names;
  for (const Parameter& parameter : kind.parameters) names.append(parameter.name);
  return py::tuple(names);
}

using DrawnTuple = std::tuple<std::vector<std::tuple<std::string, std::vector<double>>>,
                              std::vector<std::tuple<int, int, int, int>>, int64_t, int64_t>;

DrawnTuple draw(const StepProgram& program, uint64_t key, int width, int height,
                const BoundTargets* targets) {
  Drawn drawn;
  Targets moved = targets ? targets->all.at(0) : Targets{};
  const Status s = program.draw(key, width, height, drawn, targets ? &moved : nullptr);
  if (!s.ok()) throw py::value_error(s.detail);
  DrawnTuple found{{}, {}, drawn.width, drawn.height};
  auto& [calls, erased, width_after, height_after] = found;
  for (const Call& call : drawn.calls) {
    const NamedKind& info = info_of(call.operation);
    calls.emplace_back(info.name,
                       std::vector<double>(call.values, call.values + info.parameters.size()));
  }
  for (const Erasure& e : drawn.erasures) erased.emplace_back(e.left, e.top, e.width, e.height);
  return found;
}

py::array_t<int32_t> sizes(const StepProgram& program,
                           const py::array_t<Cut, py::array::c_style>& cuts) {
  py::array_t<int32_t> found({cuts.size(), py::ssize_t{2}});
  const Cut* cut = cuts.data();
  int32_t* size = found.mutable_data();
  Drawn drawn;
  for (py::ssize_t i = 0; i < cuts.size(); i++, cut++, size += 2) {
    const bool fits = program.draw(cut->key, cut->canvas[0], cut->canvas[1], drawn).ok();
    size[0] = fits ? static_cast<int32_t>(drawn.width) : 0;
    size[1] = fits ? static_cast<int32_t>(drawn.height) : 0;
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
  PYBIND11_NUMPY_DTYPE(Cut, box, size, window, canvas, too_small, found, filter, flip, whole,
                       padding, key);
  m.attr("FILTERS") = py::make_tuple("nearest", "bilinear", "bicubic", "lanczos", "nearest_floor");
  m.attr("CUT") = py::dtype::of<Cut>();
  py::dict steps, operations;
  for (const NamedKind& kind : step_kinds())
    steps[kind.name] = py::make_tuple(kind.draws, names_of(kind));
  for (const NamedKind& kind : operation_kinds()) operations[kind.name] = names_of(kind);
  m.attr("STEPS") = steps;
  m.attr("OPERATIONS") = operations;
  m.def("linspace", &linspace_python, py::arg("start"), py::arg("end"), py::arg("count"),
        "Return the entries of torch.linspace(start, end, count).");
  m.def("resized_shorter", &resized_shorter_python, py::arg("width"), py::arg("height"),
        py::arg("shorter"), py::arg("bound"),
        "Return (width, height) after resizing the shorter side; bound 0: no bound.");
  py::class_<StepProgram>(m, "StepProgram",
                          R"(Steps as a tree in pre-order, which fastdata.transforms.tree makes.

nodes: (kind, end, first value, first draw). The first leading ones below the root are folded
into the region that is decoded; the others run on its pixels.)")
      .def(py::init(&make_program), py::arg("nodes"), py::arg("values"), py::arg("tables"),
           py::arg("leading") = 0)
      .def("cuts", &draw_cuts, py::arg("widths"), py::arg("heights"), py::arg("keys"),
           "Return one CUT for each image, drawn by its size in pixels and its key.")
      .def("draw", &draw, py::arg("key"), py::arg("width"), py::arg("height"),
           py::arg("targets") = py::none(),
           R"(Return what is drawn for an image of this size, by a sample's key.

[(operation, values)], [(left, top, width, height)] of erased parts, width, height.)")
      .def("sizes", &sizes, py::arg("cuts"),
           "Return (width, height) of each result, (N, 2); 0 where the program does not fit.")
      .def_property_readonly("changes_pixels", &StepProgram::changes_pixels,
                             "Whether the steps that run on pixels change them.");
}

}  // namespace fastdata
