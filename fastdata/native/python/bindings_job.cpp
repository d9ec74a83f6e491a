#include "python/bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "python/bindings_extents.h"
#include "decode_task.h"
#include "engine.h"
#include "simd/kernels.h"
#include "python/bindings_targets.h"
#include "python/python_view.h"
#include "read_task.h"
#include "python/released.h"

namespace fastdata {
namespace {

DataType parse_data_type(const std::string& name) {
  if (name == "uint8") return DataType::uint8;
  if (name == "float32") return DataType::float32;
  if (name == "float16") return DataType::float16;
  if (name == "bfloat16") return DataType::bfloat16;
  throw py::value_error("dtype must be 'uint8', 'float32', 'float16' or 'bfloat16', not '" + name +
                        "'");
}

/// uint8 pixels: H x W, H x W x 1 or H x W x 3, rows anywhere, the rest contiguous.
RawImage raw_image(const View& view) {
  RawImage raw;
  raw.channels = view->ndim == 3 ? static_cast<int>(view->shape[2]) : 1;
  const bool good = view->itemsize == 1 && (view->ndim == 2 || view->ndim == 3) &&
                    (raw.channels == 1 || raw.channels == 3) && view->shape[0] > 0 &&
                    view->shape[1] > 0 && view->shape[0] <= INT32_MAX / 2 &&
                    view->shape[1] <= INT32_MAX / 8 && view->strides[0] >= 0 &&
                    view->strides[1] == raw.channels &&
                    (view->ndim == 2 || raw.channels == 1 || view->strides[2] == 1);
  if (!good) throw py::type_error("pixels must be uint8, H x W or H x W x 3, with contiguous rows");
  raw.pixels = static_cast<const uint8_t*>(view->buf);
  raw.height = static_cast<int>(view->shape[0]);
  raw.width = static_cast<int>(view->shape[1]);
  raw.row_stride = static_cast<size_t>(view->strides[0]);
  return raw;
}

using Numbers = std::optional<std::vector<double>>;

/// Returns the scale and offset of each channel that map 0..255 to (value / 255 - mean) / std,
/// repeated as Kernels::kPeriod requires. Three rows of each: equal if interleaved, else by plane.
struct Normalisation {
  float scale[3 * Kernels::kPeriod], offset[3 * Kernels::kPeriod];

  Normalisation(DataType type, const Numbers& mean, const Numbers& deviation, size_t channels,
                bool planar) {
    const bool bytes = type == DataType::uint8;
    if (bytes && (mean || deviation))
      throw py::value_error("mean and std are for float dtypes; dtype is 'uint8'");
    std::vector<double> means = mean.value_or(std::vector<double>(channels, 0.0));
    std::vector<double> stds = deviation.value_or(std::vector<double>(channels, 1.0));
    if (means.size() != channels || stds.size() != channels)
      throw py::value_error("mean and std must have a value each for every channel of out");
    means.resize(3, 0.0);
    stds.resize(3, 1.0);
    for (size_t i = 0; i < 3; i++)
      if (!std::isfinite(means[i]) || !std::isfinite(stds[i]) || !(stds[i] > 1e-6))
        throw py::value_error("mean must be finite and std positive");
    for (int row = 0; row < 3; row++)
      for (int i = 0; i < Kernels::kPeriod; i++) {
        const size_t channel = planar ? row : i % 3;
        const double by = bytes ? 1.0 : 1 / (255 * stds[channel]);
        scale[row * Kernels::kPeriod + i] = static_cast<float>(by);
        offset[row * Kernels::kPeriod + i] = static_cast<float>(-means[channel] / stds[channel]);
      }
  }
};

/// Adds the images of an array: H x W x 3, H x W x 1, or several of one size, N x H x W x 3 or
/// N x H x W x 1. By strides they are channels-last or planar. Returns their layout.
Output add_outputs(const View& view, DataType type, std::vector<Output>& outputs) {
  const Py_ssize_t item = static_cast<Py_ssize_t>(size_of(type));
  const int several = view->ndim - 3;
  if (several < 0 || several > 1)
    throw py::value_error("out must have the shape (N, H, W, 3) or (N, H, W, 1)");
  const Py_ssize_t *shape = view->shape + several, *strides = view->strides + several;
  if (shape[2] != 3 && shape[2] != 1)
    throw py::value_error("out must have the shape (N, H, W, 3) or (N, H, W, 1)");
  if (view->itemsize != item) throw py::value_error("out has items of another size than dtype");
  for (int i = 0; i < view->ndim; i++)
    if (view->strides[i] < 0) throw py::value_error("out has a negative stride");
  for (int i = 0; i < 2; i++)
    if (shape[i] > INT32_MAX / 16 || shape[i] < 1)
      throw py::value_error("out has no pixels, or too many");
  // Along a side of one pixel, NumPy's stride is arbitrary.
  const auto along = [&](Py_ssize_t by) { return shape[1] == 1 || strides[1] == by; };
  Output output;
  output.channels = static_cast<int>(shape[2]);
  const bool interleaved = output.channels == 3 && strides[2] == item && along(3 * item);
  const bool planar = along(item) && (output.channels == 1 || strides[2] > 0) && !interleaved;
  if (!interleaved && !planar)
    throw py::value_error("out must have contiguous pixels or contiguous planes");
  output.height = static_cast<int>(shape[0]);
  output.width = static_cast<int>(shape[1]);
  output.row_stride = strides[0];
  // A single plane has no next one. Its stride only tells that the image is not interleaved.
  output.plane_stride = !planar ? 0 : output.channels == 1 ? 1 : strides[2];
  output.type = type;
  for (Py_ssize_t i = 0; i < (several ? view->shape[0] : 1); i++) {
    output.data = static_cast<uint8_t*>(view->buf) + (several ? i * view->strides[0] : 0);
    outputs.push_back(output);
  }
  return output;
}

/// A task from run or submit to its end, and the Python objects whose memory it uses.
class PendingWork {
 public:
  virtual ~PendingWork() = default;

  /// Checks for signals now and then, so that Ctrl-C ends it. Not after each
  /// sample: getting the GIL back takes 5 ms where other threads of Python are busy.
  void run_here() {
    require_new();
    statuses_.assign(task_->size(), Status{Code::cancelled, "the batch was interrupted"});
    for (size_t i = 0; i < statuses_.size();) {
      run_for(kSignalInterval, i);
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }

  void submit(Engine& engine) {
    require_new();
    batch_ = engine.submit(task_);
  }

  bool wait(std::optional<double> timeout) {
    if (done()) return true;  // without giving the GIL away
    const Released release;
    if (timeout) return batch_->wait_for(*timeout);
    batch_->wait();
    return true;
  }
  bool done() const { return !batch_ || batch_->done(); }
  void cancel() {
    if (batch_) batch_->cancel();
  }

  using Failure = std::tuple<size_t, std::string, std::string, size_t>;

  std::vector<Failure> failures() const {
    require_done();
    const std::vector<Status>& statuses = batch_ ? batch_->statuses() : statuses_;
    const size_t parts = task_->parts();
    std::vector<Failure> failed;
    for (size_t i = 0; i < statuses.size() / parts; i++)
      for (size_t part = 0; part < parts; part++)
        if (const Status& s = statuses[i * parts + part]; !s.ok()) {
          failed.emplace_back(i, code_name(s.code), s.detail, s.offset);
          break;
        }
    return failed;
  }

 protected:
  explicit PendingWork(std::shared_ptr<Task> task) : task_(std::move(task)) {}

  /// Cancels and waits. Call it before the task's memory is freed.
  void end() {
    if (!batch_) return;
    const Released release;
    batch_.reset();
  }
  void require_done() const {
    if (!done()) throw std::runtime_error("the batch is not done: wait for it");
  }

 private:
  static constexpr std::chrono::milliseconds kSignalInterval{50};

  void run_for(std::chrono::milliseconds interval, size_t& i) {
    const Released release;
    const auto end = std::chrono::steady_clock::now() + interval;
    while (i < statuses_.size() && std::chrono::steady_clock::now() < end) {
      statuses_[i] = task_->run(i);
      i++;
    }
  }

  void require_new() const {
    if (batch_ || !statuses_.empty()) throw std::runtime_error("a batch runs only once");
  }

  std::shared_ptr<Task> task_;
  std::vector<Status> statuses_;  // of run_here
  std::unique_ptr<Batch> batch_;  // of submit
};

/// Returns one cut for each sample; null if there are none.
const Cut* cuts_of(const py::object& array, size_t count) {
  if (array.is_none()) return nullptr;
  using Cuts = py::array_t<Cut, py::array::c_style>;
  if (!Cuts::check_(array) || py::cast<Cuts>(array).ndim() != 1 || py::len(array) != count)
    throw py::value_error("cuts must be a contiguous array of CUT, one a sample");
  const Cut* cuts = py::cast<Cuts>(array).data();
  if (std::any_of(cuts, cuts + count, [](const Cut& cut) { return cut.filter > kLastFilter; }))
    throw py::value_error("filters must be numbers of FILTERS");
  return cuts;
}

/// Returns a byte for each sample, nonzero to skip it; empty if there are none.
std::vector<uint8_t> skipped(const py::object& skip, size_t count) {
  if (skip.is_none()) return {};
  const View view(skip);
  const ByteSpan bytes = view.bytes();
  if (bytes.size != count) throw py::value_error("skip must have one byte a sample, contiguous");
  return {bytes.data, bytes.data + count};
}

/// Python's objects are checked when a job takes them.
struct Rendering {
  py::object out;
  std::string dtype;
  Numbers mean, deviation;
  py::object cuts;
  std::optional<uint64_t> key;  // of the view, instead of cuts
  py::object program;
  std::array<uint8_t, 3> fill;
  py::object targets;
  std::optional<MaskFills> mask_fills;
};

/// A task for one view of a batch, and the Python objects whose memory it uses.
class ViewTask {
 public:
  ViewTask(Rendering rendering, size_t count, const BoundRows* rows)
      : rendering_(std::move(rendering)), task_(std::make_shared<DecodeTask>()) {
    const Output layout = add_out(parse_data_type(rendering_.dtype));
    std::vector<Output>& outputs = task_->outputs;
    if (outputs.size() != count)
      throw py::value_error("out is not for as many samples as there are");
    add_program(layout.channels);
    normalisation_ = std::make_unique<Normalisation>(
        layout.type, rendering_.mean, rendering_.deviation, static_cast<size_t>(layout.channels),
        layout.plane_stride != 0);
    for (Output& output : outputs) {
      output.scale = normalisation_->scale;
      output.offset = normalisation_->offset;
    }
    std::copy(rendering_.fill.begin(), rendering_.fill.end(), task_->options.fill);
    const bool draws = rendering_.key.has_value();
    if (draws != (rows != nullptr) || (draws && (!rendering_.cuts.is_none() || !task_->program)))
      throw py::value_error("rows, and rows alone, need a key and a program, instead of cuts");
    if (rows) {
      if (!rendering_.targets.is_none())
        throw py::value_error("targets are for cuts, and for as many samples");
      task_->lookup = rows->lookup;
      task_->extents = rows->lookup->extents;
      task_->key = *rendering_.key;
    } else {
      add_samples(count);
    }
  }

  const std::shared_ptr<DecodeTask>& task() const { return task_; }

  /// Returns the cut of each sample, once the batch is done.
  py::array_t<Cut> cuts() const {
    py::array_t<Cut> cuts(static_cast<py::ssize_t>(task_->samples.size()));
    Cut* cut = cuts.mutable_data();
    for (const Sample& sample : task_->samples) *cut++ = sample.cut;
    return cuts;
  }

 private:
  /// Takes an array of images of one size, or a list of arrays of one each; returns their layout.
  Output add_out(DataType type) {
    const py::object& out = rendering_.out;
    std::vector<Output>& outputs = task_->outputs;
    if (!py::isinstance<py::list>(out))
      return add_outputs(out_.emplace_back(out, /*writable=*/true), type, outputs);
    Output layout;
    out_.reserve(py::len(out));
    for (const py::handle one : out) {
      const Output found = add_outputs(out_.emplace_back(one, /*writable=*/true), type, outputs);
      if (layout.width <= 1 && layout.height <= 1) layout = found;
    }
    const ptrdiff_t apart = layout.plane_stride ? static_cast<ptrdiff_t>(size_of(type)) : 0;
    for (Output& output : outputs) {
      // The planes of one pixel are a pixel.
      if (output.width == 1 && output.height == 1) output.plane_stride = apart;
      if (output.channels != layout.channels || !output.plane_stride != !layout.plane_stride)
        throw py::value_error("out has images of several layouts");
    }
    return layout;
  }

  void add_program(int channels) {
    const py::object& program = rendering_.program;
    if (!program.is_none()) {
      task_->program = &py::cast<const StepProgram&>(program);
      if (task_->program->changes_pixels()) task_->options.program = task_->program;
    }
    if (task_->options.program && rendering_.cuts.is_none() && !rendering_.key)
      throw py::value_error("a program needs cuts, which have its keys");
    if (!task_->options.program && !rendering_.mask_fills && channels == 1)
      throw py::value_error("out of one channel needs a program that makes images grey");
  }

  void add_samples(size_t count) {
    const auto& fills = rendering_.mask_fills;
    const Drawn* drawn = nullptr;
    if (fills) {
      if (task_->program) throw py::value_error("masks have no program");
      masks_ = draw_masks(drawn_of(rendering_.targets, count), *fills);
      drawn = masks_.data();
    } else if (!rendering_.targets.is_none() && task_->options.program) {
      drawn = drawn_of(rendering_.targets, count).data();
    }
    const Cut* cut = cuts_of(rendering_.cuts, count);
    task_->samples.resize(count);
    for (size_t i = 0; i < count; i++) {
      Sample& sample = task_->samples[i];
      sample.output = task_->outputs[i];
      sample.cut = cut ? cut[i] : whole_cut(sample.output.width, sample.output.height);
      if (fills) sample.cut.filter = static_cast<uint8_t>(kMaskFilter);
      if (drawn) sample.drawn = drawn + i;
    }
  }

  Rendering rendering_;
  std::vector<View> out_;
  std::unique_ptr<Normalisation> normalisation_;
  std::vector<Drawn> masks_;
  std::shared_ptr<DecodeTask> task_;
};

class DecodeJob : public PendingWork {
 public:
  DecodeJob(const py::object& data, const std::vector<Rendering>& views,
            const py::object& seek_points, const py::object& skip, int stride, bool check,
            int max_scans, const py::object& orientations)
      : DecodeJob(data, tasks_of(data, views)) {
    if (stride < 0) throw py::value_error("stride must not be below 0");
    const size_t count = task_->count();
    for (const ViewTask& view : views_) view.task()->options.max_scans = max_scans;
    task_->check = check;
    task_->stride = stride;
    if (stride > 0) task_->built.resize(count);
    task_->skip = skipped(skip, count);
    if (!seek_points.is_none() && py::len(seek_points) != count)
      throw py::value_error("seek_points must have one entry a sample");
    const std::vector<int8_t> turns = orientations_of(orientations, count);
    const bool in_memory = !task_->lookup && !py::isinstance<BoundExtents>(data);
    if (!in_memory && !turns.empty())
      throw py::value_error("extents have orientations of their own");
    if (task_->lookup) {
      if (!seek_points.is_none()) throw py::value_error("rows have seek points of their own");
    } else if (in_memory) {
      add_data(turns);
    } else {
      task_->extents = py::cast<const BoundExtents*>(data);
    }
    if (!seek_points.is_none()) add_seek_points(py::reinterpret_borrow<py::sequence>(seek_points));
  }

  ~DecodeJob() override { end(); }

  py::array_t<Cut> cuts(size_t view) const {
    require_done();
    return views_.at(view).cuts();
  }

  /// One call: each call from Python costs the consumer's thread some microseconds.
  auto collect(std::optional<double> timeout) {
    if (!wait(timeout)) {
      PyErr_Format(PyExc_TimeoutError, "the batch was not done after %S s",
                   py::cast(timeout).ptr());
      throw py::error_already_set();
    }
    return std::make_tuple(failures(), built(), task_->read_seconds(), task_->decode_seconds(),
                           task_->bytes_read());
  }

 private:
  /// (index, packed table, size and mtime_ns of the file) of each table built because of `stride`.
  std::vector<std::tuple<size_t, py::bytes, int64_t, int64_t>> built() const {
    std::vector<std::tuple<size_t, py::bytes, int64_t, int64_t>> tables;
    for (size_t i = 0; i < task_->built.size(); i++)
      if (const auto& [table, stamp] = task_->built[i]; !table.empty())
        tables.emplace_back(i, as_bytes(table), stamp.size, stamp.mtime_ns);
    return tables;
  }

  DecodeJob(const py::object& data, std::vector<ViewTask> views)
      : PendingWork(views[0].task()),
        data_(data),
        views_(std::move(views)),
        task_(views_[0].task()) {
    for (size_t i = 1; i < views_.size(); i++) task_->views.push_back(views_[i].task());
  }

  static std::vector<ViewTask> tasks_of(const py::object& data,
                                        const std::vector<Rendering>& views) {
    if (views.empty()) throw py::value_error("a job needs a view");
    const auto* rows = py::isinstance<BoundRows>(data) ? py::cast<const BoundRows*>(data) : nullptr;
    std::vector<ViewTask> tasks;
    for (const Rendering& view : views) tasks.emplace_back(view, py::len(data), rows);
    return tasks;
  }

  /// Takes bytes or pixels in memory.
  void add_data(const std::vector<int8_t>& turns) {
    const auto data = py::reinterpret_borrow<py::sequence>(data_);
    buffers_.reserve(task_->samples.size());
    for (size_t i = 0; i < task_->samples.size(); i++) {
      Sample& sample = task_->samples[i];
      const View& bytes = buffers_.emplace_back(py::object(data[i]));
      if (bytes->ndim == 1)
        sample.jpeg = bytes.bytes();
      else
        sample.raw = raw_image(bytes);
      if (!turns.empty()) sample.orientation = turns[i];
    }
  }

  void add_seek_points(const py::sequence& tables) {
    for (size_t i = 0; i < task_->samples.size(); i++) {
      const py::object table = tables[i];
      if (!table.is_none()) task_->samples[i].seek_points = buffers_.emplace_back(table).bytes();
    }
  }

  py::object data_;
  std::vector<ViewTask> views_;
  std::vector<View> buffers_;  // of data and seek points
  std::shared_ptr<DecodeTask> task_;
};

class ProbeJob : public PendingWork {
 public:
  explicit ProbeJob(const py::object& extents)
      : PendingWork(std::make_shared<ProbeTask>(py::cast<BoundExtents&>(extents))),
        extents_(extents) {}
  ~ProbeJob() override { end(); }

 private:
  py::object extents_;
};

class ReadJob : public PendingWork {
 public:
  ReadJob(const py::object& extents, const py::object& skip, bool check, bool scans)
      : ReadJob(extents, make_task(py::cast<const BoundExtents&>(extents), skip, check, scans)) {}
  ~ReadJob() override { end(); }

  std::vector<std::optional<py::array_t<uint8_t>>> take() {
    require_done();
    std::vector<std::optional<py::array_t<uint8_t>>> arrays;
    for (Blob& blob : task_->blobs()) {
      if (!blob.data) {
        arrays.emplace_back();
        continue;
      }
      uint8_t* data = blob.data.release();
      const py::capsule owner(data, [](void* bytes) { delete[] static_cast<uint8_t*>(bytes); });
      arrays.emplace_back(py::array_t<uint8_t>(static_cast<py::ssize_t>(blob.size), data, owner));
    }
    return arrays;
  }

  double seconds() const { return task_->seconds(); }

 private:
  ReadJob(const py::object& extents, std::shared_ptr<ReadTask> task)
      : PendingWork(task), extents_(extents), task_(std::move(task)) {}

  static std::shared_ptr<ReadTask> make_task(const BoundExtents& extents, const py::object& skip,
                                             bool check, bool scans) {
    return std::make_shared<ReadTask>(extents, skipped(skip, extents.size()), check, scans);
  }

  py::object extents_;
  std::shared_ptr<ReadTask> task_;
};

}  // namespace

void bind_job(py::module_& m) {
  py::class_<PendingWork>(m, "Work", "Work on the samples of a batch. Runs once.")
      .def("run", &PendingWork::run_here, "Do the work in the calling thread.")
      .def("wait", &PendingWork::wait, py::arg("timeout") = py::none(),
           "Return whether it is done. Releases the GIL.")
      .def("done", &PendingWork::done)
      .def("cancel", &PendingWork::cancel,
           "Cancel: samples not yet begun fail with the code cancelled.")
      .def("failures", &PendingWork::failures,
           "Return (index, code, detail, offset) of each failed sample.");
  py::class_<Rendering>(m, "Rendering",
                        R"(How a batch's images are made for one view, and the memory for them.

out: N x H x W x 3, or a list of H x W x 3, with contiguous pixels or planes; bfloat16 as 16-bit
integers. dtype: uint8, or (value / 255 - mean) / std as float32, float16 or bfloat16. cuts: the
geometry of each sample; for Rows, it is drawn by the view's key. program: augmentations of what the
cuts leave. fill: R, G and B outside the image. targets: they have followed the cuts and the program;
its draw is taken. mask_fills: of masks, which follow the targets' program: the bytes of each fill.)")
      .def(py::init<py::object, std::string, Numbers, Numbers, py::object, std::optional<uint64_t>,
                    py::object, std::array<uint8_t, 3>, py::object, std::optional<MaskFills>>(),
           py::arg("out"), py::kw_only(), py::arg("dtype") = "uint8", py::arg("mean") = py::none(),
           py::arg("std") = py::none(), py::arg("cuts") = py::none(), py::arg("key") = py::none(),
           py::arg("program") = py::none(), py::arg("fill") = std::array<uint8_t, 3>{},
           py::arg("targets") = py::none(), py::arg("mask_fills") = py::none());
  py::class_<DecodeJob, PendingWork>(
      m, "DecodeJob",
      R"(A batch in one or more views; holds its samples' memory until it is done and dropped.

data: encoded bytes or pixels in memory, Extents or Rows. seek_points: one a sample, or None for
those without; Extents have their own. skip, a byte a sample: read and report nothing of it. stride:
build seek points, so many pixels apart, for JPEGs without. check: check Extents' checksums.
max_scans: JPEGs of more scans are unsupported. orientations: of EXIF; -1: as the JPEG says.)")
      .def(py::init<const py::object&, const std::vector<Rendering>&, const py::object&,
                    const py::object&, int, bool, int, const py::object&>(),
           py::arg("data"), py::arg("views"), py::kw_only(), py::arg("seek_points") = py::none(),
           py::arg("skip") = py::none(), py::arg("stride") = 0, py::arg("check") = true,
           py::arg("max_scans") = SampleOptions{}.max_scans, py::arg("orientations") = py::none())
      .def("cuts", &DecodeJob::cuts, py::arg("view") = 0,
           "Return the cuts of a view of a finished job.")
      .def("collect", &DecodeJob::collect, py::arg("timeout") = py::none(),
           "Wait; return failures; (index, seek points, size, mtime_ns) of those built; seconds of "
           "reading and of decoding; and the bytes read. TimeoutError: not done.");
  py::class_<ProbeJob, PendingWork>(
      m, "ProbeJob", "Search for widths, heights and encodings of Extents where the width is 0.")
      .def(py::init<const py::object&>(), py::arg("extents"));
  py::class_<ReadJob, PendingWork>(m, "ReadJob",
                                   R"(Read whole samples of Extents, for other decoders.

skip: a byte a sample. scans: leave out baseline JPEGs whose scan is damaged.)")
      .def(py::init<const py::object&, const py::object&, bool, bool>(), py::arg("extents"),
           py::kw_only(), py::arg("skip") = py::none(), py::arg("check") = true,
           py::arg("scans") = false)
      .def("take", &ReadJob::take,
           "Return each sample's bytes; None if it was not read. Call once, when done.")
      .def("seconds", &ReadJob::seconds, "Return the seconds of all threads together.");

  py::class_<Engine>(m, "ThreadPool",
                     "Pool of threads. Its first batch starts them, and again in a forked process.")
      .def(py::init<int>(), py::arg("threads"))
      .def_property_readonly("threads", &Engine::threads)
      .def("submit", [](Engine& engine, PendingWork& job) { job.submit(engine); }, py::arg("job"));
}

}  // namespace fastdata
