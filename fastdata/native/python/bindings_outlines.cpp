#include "python/bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "outlines/mask_task.h"
#include "python/bindings_targets.h"
#include "python/python_view.h"

namespace fastdata {
namespace {

using Offsets = Row<int64_t>;

/// Outlines and the arrays that have them.
class BoundOutlines {
 public:
  using Polygons = std::tuple<Offsets, Offsets, Row<double>>;
  using Runs = std::tuple<Row<int32_t>, Offsets, py::array>;

  BoundOutlines(Row<int32_t> widths, Row<int32_t> heights, Offsets offsets,
                std::optional<Polygons> polygons, bool relative, std::optional<Runs> runs)
      : widths_(std::move(widths)),
        heights_(std::move(heights)),
        offsets_(std::move(offsets)),
        polygons_(std::move(polygons)),
        runs_(std::move(runs)) {
    const py::ssize_t images = widths_.size();
    if (widths_.ndim() != 1 || heights_.ndim() != 1 || heights_.size() != images)
      throw py::value_error("widths and heights must have one axis, equally long");
    const py::ssize_t objects = offsets_.size() > 0 ? offsets_.at(offsets_.size() - 1) : 0;
    outlines_.objects = offsets_of(offsets_, images, objects);
    outlines_.size = static_cast<size_t>(images);
    outlines_.widths = widths_.data();
    outlines_.heights = heights_.data();
    outlines_.relative = relative;
    if (polygons_) {
      const auto& [of_objects, of_polygons, numbers] = *polygons_;
      const py::ssize_t count = std::max<py::ssize_t>(of_polygons.size() - 1, 0);
      outlines_.polygons = offsets_of(of_objects, objects, count);
      outlines_.corners = offsets_of(of_polygons, count, numbers.size());
      outlines_.numbers = numbers.data();
    }
    if (runs_) add_runs(objects);
  }

  const Outlines& get() const { return outlines_; }

 private:
  void add_runs(py::ssize_t objects) {
    const auto& [sizes, offsets, values] = *runs_;
    if (sizes.ndim() != 2 || sizes.shape(0) != objects || sizes.shape(1) != 2)
      throw py::value_error("sizes of run lengths must be (objects, 2)");
    outlines_.runs = offsets_of(offsets, objects, values.size());
    const bool contiguous = values.flags() & py::array::c_style;
    if (py::isinstance<py::array_t<uint32_t>>(values) && contiguous)
      outlines_.lengths = static_cast<const uint32_t*>(values.data());
    else if (py::isinstance<py::array_t<uint8_t>>(values) && contiguous)
      outlines_.text = static_cast<const uint8_t*>(values.data());
    else
      throw py::value_error("run lengths must be contiguous uint32, or text as uint8");
    outlines_.run_sizes = sizes.data();
  }

  Row<int32_t> widths_, heights_;
  Offsets offsets_;
  std::optional<Polygons> polygons_;
  std::optional<Runs> runs_;
  Outlines outlines_;
};

class MaskJob : public PendingWork {
 public:
  using Kept = std::pair<Row<int32_t>, Offsets>;

  MaskJob(const py::object& outlines, const py::object& cuts, const Row<int32_t>& sizes,
          const py::object& out, const Kept& kept, const py::object& targets,
          const MaskFills& fills, uint8_t fill)
      : MaskJob(std::make_shared<MaskTask>()) {
    const auto& bound = py::cast<const BoundOutlines&>(outlines);
    task_->outlines = bound.get();
    const size_t count = task_->size();
    task_->cuts = cuts_of(cuts, count);
    if (!task_->cuts) throw py::value_error("masks need cuts");
    task_->fill = fill;
    task_->drawn = draw_masks(drawn_of(targets, count), fills);
    keep(kept);
    lay_out(sizes, out_.emplace_back(out, /*writable=*/true));
    held_ = py::make_tuple(outlines, cuts);
  }
  ~MaskJob() override { end(); }

 private:
  explicit MaskJob(std::shared_ptr<MaskTask> task) : PendingWork(task), task_(std::move(task)) {}

  void keep(const Kept& kept) {
    const Outlines& outlines = task_->outlines;
    const auto& [numbers, offsets] = kept;
    const int64_t* first =
        offsets_of(offsets, static_cast<py::ssize_t>(outlines.size), numbers.size());
    for (size_t i = 0; i < outlines.size; i++)
      for (int64_t k = first[i]; k < first[i + 1]; k++)
        if (numbers.at(k) < 0 || numbers.at(k) >= outlines.count(i))
          throw py::value_error("kept numbers must be those of an image's objects");
    task_->kept.assign(numbers.data(), numbers.data() + numbers.size());
    task_->offsets.assign(first, first + outlines.size + 1);
  }

  void lay_out(const Row<int32_t>& sizes, const View& out) {
    const auto count = static_cast<py::ssize_t>(task_->size());
    if (sizes.ndim() != 2 || sizes.shape(0) != count || sizes.shape(1) != 2)
      throw py::value_error("sizes must be (width, height) of each image's masks");
    if (!out.is_integers(1, 1)) throw py::value_error("out must be contiguous bytes");
    auto* to = static_cast<uint8_t*>(out->buf);
    auto left = static_cast<uint64_t>(out->len);
    for (py::ssize_t i = 0; i < count; i++) {
      const int32_t width = sizes.at(i, 0), height = sizes.at(i, 1);
      const auto masks = static_cast<uint64_t>(task_->offsets[i + 1] - task_->offsets[i]);
      if (width < 0 || height < 0) throw py::value_error("a size below 0");
      const uint64_t area = static_cast<uint64_t>(width) * static_cast<uint64_t>(height);
      if (masks > 0 && area > left / masks)
        throw py::value_error("out has too few bytes for the masks");
      task_->widths.push_back(width);
      task_->heights.push_back(height);
      task_->out.push_back(to);
      to += area * masks;
      left -= area * masks;
    }
    if (left > 0) throw py::value_error("out has more bytes than the masks");
  }

  py::object held_;
  std::vector<View> out_;
  std::shared_ptr<MaskTask> task_;
};

}  // namespace

void bind_outlines(py::module_& m) {
  py::class_<BoundOutlines>(m, "OutlineArrays",
                            R"(Outlines of the objects of N images: polygons or run lengths of each.

offsets: (N + 1,), of each image's objects. polygons: (offsets of each object's polygons; of each
polygon's numbers; the numbers, x, y, x, y, ..., in pixels or relative). runs: (height and width
of each object's mask, (objects, 2), below 0 for objects with polygons; offsets of each object's
lengths; the lengths, uint32, or COCO's text, uint8).)")
      .def(py::init<Row<int32_t>, Row<int32_t>, Offsets, std::optional<BoundOutlines::Polygons>,
                    bool, std::optional<BoundOutlines::Runs>>(),
           py::arg("widths"), py::arg("heights"), py::arg("offsets"),
           py::arg("polygons") = py::none(), py::arg("relative") = false,
           py::arg("runs") = py::none());
  py::class_<MaskJob, PendingWork>(
      m, "MaskJob",
      R"(Masks of objects after each image's cut and what is drawn for it, 0 or 1 but for fills.

sizes: (width, height) of each image's masks, (N, 2). out: the masks of all images. kept: (numbers
of the objects to paint in their image; offsets of each image's). targets, mask_fills, fill: as of a
Rendering. The offset of a failure is one more than the object's number in its image; 0: no object's.)")
      .def(py::init<const py::object&, const py::object&, const Row<int32_t>&, const py::object&,
                    const MaskJob::Kept&, const py::object&, const MaskFills&, uint8_t>(),
           py::arg("outlines"), py::kw_only(), py::arg("cuts"), py::arg("sizes"), py::arg("out"),
           py::arg("kept"), py::arg("targets"), py::arg("mask_fills"), py::arg("fill") = 0);
}

}  // namespace fastdata
