#include "python/bindings_targets.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <memory>

#include "augment/program.h"
#include "python/bindings.h"
#include "python/python_view.h"

namespace fastdata {
namespace {

std::unique_ptr<BoundTargets> make_targets(const Row<int32_t>& widths, const Row<int32_t>& heights,
                                           const Row<float>& boxes, const Row<int64_t>& box_offsets,
                                           const Row<float>& points,
                                           const Row<int64_t>& point_offsets) {
  const py::ssize_t count = widths.size();
  if (widths.ndim() != 1 || heights.ndim() != 1 || heights.size() != count)
    throw py::value_error("widths and heights must have one axis, equally long");
  if (boxes.ndim() != 2 || boxes.shape(1) != 4 || points.ndim() != 2 || points.shape(1) != 2)
    throw py::value_error("boxes have four values, points two");
  const int64_t* of_boxes = offsets_of(box_offsets, count, boxes.shape(0));
  const int64_t* of_points = offsets_of(point_offsets, count, points.shape(0));
  const auto* box = reinterpret_cast<const TargetBox*>(boxes.data());
  const auto* point = reinterpret_cast<const TargetPoint*>(points.data());
  auto bound = std::make_unique<BoundTargets>();
  bound->all.resize(static_cast<size_t>(count));
  for (py::ssize_t i = 0; i < count; i++) {
    Targets& one = bound->all[static_cast<size_t>(i)];
    one.begin(box + of_boxes[i], static_cast<size_t>(of_boxes[i + 1] - of_boxes[i]),
              point + of_points[i], static_cast<size_t>(of_points[i + 1] - of_points[i]),
              std::max(widths.at(i), 1), std::max(heights.at(i), 1));
  }
  return bound;
}

template <typename T>
py::array_t<float> table(const std::vector<T>& items, py::ssize_t columns) {
  const auto rows = static_cast<py::ssize_t>(items.size());
  return py::array_t<float>({rows, columns}, reinterpret_cast<const float*>(items.data()));
}

auto move(BoundTargets& targets, const StepProgram& program, const Row<uint64_t>& keys) {
  const auto count = static_cast<py::ssize_t>(targets.all.size());
  if (keys.ndim() != 1 || keys.size() != count) throw py::value_error("not a key for each image");
  std::vector<TargetBox> boxes;
  std::vector<TargetPoint> points;
  std::vector<int32_t> passed;
  py::array_t<Cut> cuts(count);
  py::array_t<int64_t> offsets(count + 1), first(count + 1), point_offsets(count + 1);
  py::array_t<int32_t> sizes({count, py::ssize_t{2}}), before({count, py::ssize_t{2}});
  py::array_t<double> matrices({count, py::ssize_t{3}, py::ssize_t{3}});
  if (!targets.drawn.empty()) throw py::value_error("they have followed a program before");
  targets.drawn.resize(targets.all.size());
  offsets.mutable_at(0) = first.mutable_at(0) = point_offsets.mutable_at(0) = 0;
  for (py::ssize_t i = 0; i < count; i++) {
    Targets& cropped = targets.all[static_cast<size_t>(i)];
    cuts.mutable_at(i) = program.cut(keys.at(i), cropped.width, cropped.height, &cropped);
    Targets one = cropped;
    Drawn& drawn = targets.drawn[static_cast<size_t>(i)];
    drawn.status = program.draw(keys.at(i), one.width, one.height, drawn, &one);
    if (!drawn.status.ok()) one.width = one.height = 1;
    boxes.insert(boxes.end(), one.boxes.begin(), one.boxes.end());
    points.insert(points.end(), one.points.begin(), one.points.end());
    passed.insert(passed.end(), one.passed.begin(), one.passed.end());
    offsets.mutable_at(i + 1) = static_cast<int64_t>(boxes.size());
    first.mutable_at(i + 1) = static_cast<int64_t>(passed.size());
    point_offsets.mutable_at(i + 1) = static_cast<int64_t>(points.size());
    sizes.mutable_at(i, 0) = one.width;
    sizes.mutable_at(i, 1) = one.height;
    before.mutable_at(i, 0) = one.source_width;
    before.mutable_at(i, 1) = one.source_height;
    std::copy_n(one.matrix, 9, matrices.mutable_data(i));
  }
  const py::array_t<int32_t> times(static_cast<py::ssize_t>(passed.size()), passed.data());
  return std::make_tuple(cuts, table(boxes, 4), offsets, times, first, table(points, 2),
                         point_offsets, sizes, before, matrices);
}

std::unique_ptr<BoundTargets> one(const BoundTargets& targets, size_t number) {
  auto found = std::make_unique<BoundTargets>();
  found->all.push_back(targets.all.at(number));
  if (!targets.drawn.empty()) found->drawn.push_back(targets.drawn[number]);
  return found;
}

}  // namespace

void bind_targets(py::module_& m) {
  py::class_<BoundTargets>(m, "Targets",
                           R"(Boxes, (M, 4), and points, (K, 2), of N images, which follow draws.

box_offsets, point_offsets: (N + 1,).)")
      .def(py::init(&make_targets), py::arg("widths"), py::arg("heights"), py::arg("boxes"),
           py::arg("box_offsets"), py::arg("points"), py::arg("point_offsets"))
      .def("one", &one, py::arg("number"), "Return the targets of one image, or raise IndexError.")
      .def(
          "move", &move, py::arg("program"), py::arg("keys"),
          R"(Return StepProgram.cuts of the images, and what the program leaves: boxes, offsets, passed,
their offsets, points, their offsets, sizes, sizes before, matrices from coordinates before to those
after. Images that are rendered with these targets are not drawn again. Call it once.

passed: how many times sanitize left each of an image's first boxes. A size is 1 x 1 where the
program does not fit.)");
}

}  // namespace fastdata
