#include "python/bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "geometry/geometry.h"
#include "python/python_view.h"

namespace fastdata {
namespace {

// As in fastdata/transforms/geometry.py: kind, first draw, values, filters.
using StepTuple = std::tuple<std::string, uint64_t, std::vector<double>, std::vector<uint8_t>>;

std::unique_ptr<Geometry> make_geometry(const std::vector<StepTuple>& tuples) {
  std::vector<GeometryStep> steps;
  for (const auto& [name, draw, values, filters] : tuples) {
    StepKind kind;
    if (!parse_kind(kSteps, name, kind))
      throw py::value_error("a kind of step that there is not: " + name);
    steps.push_back({kind, draw, values, filters, {}});
  }
  return std::make_unique<Geometry>(std::move(steps));
}

py::array_t<Cut> draw_cuts(const Geometry& geometry, const Row<int64_t>& widths,
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
    cut[i] = geometry.draw(key[i], std::max<int64_t>(width[i], 1), std::max<int64_t>(height[i], 1));
  return cuts;
}

std::pair<int64_t, int64_t> resized_shorter_python(int64_t width, int64_t height, int64_t shorter,
                                                   int64_t bound) {
  const Size size = resized_shorter(static_cast<double>(width), static_cast<double>(height),
                                    static_cast<double>(shorter), static_cast<double>(bound));
  return {static_cast<int64_t>(size.width), static_cast<int64_t>(size.height)};
}

}  // namespace

void bind_geometry(py::module_& m) {
  PYBIND11_NUMPY_DTYPE(Cut, box, size, window, canvas, too_small, found, filter, flip, whole,
                       padding, key, matrix);
  m.attr("FILTERS") = py::make_tuple("nearest", "bilinear", "bicubic", "lanczos", "nearest_floor");
  m.attr("CUT") = py::dtype::of<Cut>();
  m.def("resized_shorter", &resized_shorter_python, py::arg("width"), py::arg("height"),
        py::arg("shorter"), py::arg("bound"));
  py::class_<Geometry>(m, "Geometry")
      .def(py::init(&make_geometry), py::arg("steps"))
      .def("draw", &draw_cuts, py::arg("widths"), py::arg("heights"), py::arg("keys"));
}

}  // namespace fastdata
