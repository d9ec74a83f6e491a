// The Python boundary (fastdata/_native.pyi has its types). Arguments are checked in
// fastdata/decode.py for their meaning, here for what memory safety needs.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

#include "crc32c.h"
#include "engine.h"
#include "kernels.h"
#include "probe.h"
#include "profile.h"
#include "sample.h"
#include "seek_points.h"

namespace py = pybind11;

namespace fastdata {
namespace {

/// A Py_buffer: keeps its object's memory alive and in place. Made and destroyed with the
/// GIL held.
class View {
 public:
  View(py::handle object, bool writable = false) {
    const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw py::error_already_set();
  }
  View(View&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() { PyBuffer_Release(&view_); }  // does nothing if obj is null

  const Py_buffer& operator*() const { return view_; }
  const Py_buffer* operator->() const { return &view_; }

  bool is_bytes() const {
    return view_.itemsize == 1 && view_.ndim == 1 &&
           (view_.strides == nullptr || view_.strides[0] == 1 || view_.shape[0] <= 1);
  }
  ByteSpan bytes() const {
    if (!is_bytes()) throw py::type_error("expected contiguous bytes");
    return {static_cast<const uint8_t*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

Filter parse_filter(const std::string& name) {
  if (name == "nearest") return Filter::nearest;
  if (name == "bilinear") return Filter::bilinear;
  if (name == "bicubic") return Filter::bicubic;
  if (name == "lanczos") return Filter::lanczos;
  throw py::value_error("filter must be 'nearest', 'bilinear', 'bicubic' or 'lanczos', not '" +
                        name + "'");
}

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
  if (!good)
    throw py::type_error("pixels must be uint8, H x W or H x W x 3, with contiguous rows");
  raw.pixels = static_cast<const uint8_t*>(view->buf);
  raw.height = static_cast<int>(view->shape[0]);
  raw.width = static_cast<int>(view->shape[1]);
  raw.row_stride = static_cast<size_t>(view->strides[0]);
  return raw;
}

/// Scales and offsets repeated as Kernels::kPeriod wants them, three rows of each: all
/// the same if interleaved, else one a plane.
struct Normalisation {
  float scale[3 * Kernels::kPeriod], offset[3 * Kernels::kPeriod];

  Normalisation(const std::array<float, 3>& scales, const std::array<float, 3>& offsets,
                bool planar) {
    for (int row = 0; row < 3; row++)
      for (int i = 0; i < Kernels::kPeriod; i++) {
        const int channel = planar ? row : i % 3;
        scale[row * Kernels::kPeriod + i] = scales[channel];
        offset[row * Kernels::kPeriod + i] = offsets[channel];
      }
  }
};

struct Sizes {
  int count, height, width;
};

/// The output array, N x H x W x 3 by shape; by strides channels-last or planar.
Sizes check_output(const View& view, DataType type, bool& planar) {
  const Py_ssize_t item = static_cast<Py_ssize_t>(size_of(type));
  if (view->ndim != 4 || view->shape[3] != 3)
    throw py::value_error("out must have the shape (N, H, W, 3)");
  if (view->itemsize != item) throw py::value_error("out has items of another size than dtype");
  for (int i = 0; i < 3; i++)
    if (view->shape[i] > INT32_MAX / 16 || (i > 0 && view->shape[i] < 1))
      throw py::value_error("out has no pixels, or too many");
  for (int i = 0; i < 4; i++)
    if (view->strides[i] < 0) throw py::value_error("out has a negative stride");
  const bool interleaved = view->strides[3] == item && view->strides[2] == 3 * item;
  planar = view->strides[2] == item && view->strides[3] > 0 && !interleaved;
  if (!interleaved && !planar)
    throw py::value_error("out must have contiguous pixels or contiguous planes");
  return {static_cast<int>(view->shape[0]), static_cast<int>(view->shape[1]),
          static_cast<int>(view->shape[2])};
}

/// A batch and the Python objects whose memory it uses.
class Job {
 public:
  Job(const py::sequence& data, const py::object& seek_points, const py::object& boxes,
      const py::object& flips, const py::object& out, const std::string& dtype,
      const std::array<float, 3>& scales, const std::array<float, 3>& offsets, bool resize,
      const std::string& filter, bool dct_scaling)
      : out_(out, /*writable=*/true) {
    const DataType type = parse_data_type(dtype);
    bool planar = false;
    const Sizes sizes = check_output(out_, type, planar);
    const size_t count = py::len(data);
    if (static_cast<size_t>(sizes.count) != count)
      throw py::value_error("out is not for as many samples as there are");
    normalisation_ = std::make_unique<Normalisation>(scales, offsets, planar);
    options_.width = sizes.width;
    options_.height = sizes.height;
    options_.resize = resize;
    options_.filter = parse_filter(filter);
    options_.dct_scaling = dct_scaling;

    views_.reserve(2 * count + 2);
    const int32_t* box = nullptr;
    if (!boxes.is_none()) {
      views_.emplace_back(boxes);
      const View& view = views_.back();
      if (view->ndim != 2 || static_cast<size_t>(view->shape[0]) != count || view->shape[1] != 4 ||
          view->itemsize != 4 || view->strides[1] != 4 || view->strides[0] != 16)
        throw py::value_error("boxes must be int32, N x 4, contiguous");
      box = static_cast<const int32_t*>(view->buf);
    }
    const uint8_t* flip = nullptr;
    if (!flips.is_none()) {
      views_.emplace_back(flips);
      const ByteSpan bytes = views_.back().bytes();
      if (bytes.size != count) throw py::value_error("flips must have one byte a sample");
      flip = bytes.data;
    }
    const bool seeking = !seek_points.is_none();
    if (seeking && py::len(seek_points) != count)
      throw py::value_error("seek_points must have one entry a sample");

    samples_.resize(count);
    for (size_t i = 0; i < count; i++) {
      Sample& sample = samples_[i];
      views_.emplace_back(py::object(data[i]));
      if (views_.back()->ndim == 1)
        sample.jpeg = views_.back().bytes();
      else
        sample.raw = raw_image(views_.back());
      if (seeking) {
        const py::object table = py::sequence(seek_points)[i];
        if (!table.is_none()) {
          views_.emplace_back(table);
          sample.seek_points = views_.back().bytes();
        }
      }
      if (box) {
        sample.whole = false;
        sample.box = {box[4 * i], box[4 * i + 1], box[4 * i + 2], box[4 * i + 3]};
      }
      sample.flip = flip && flip[i];
      sample.output.data = static_cast<uint8_t*>(out_->buf) + i * out_->strides[0];
      sample.output.row_stride = out_->strides[1];
      sample.output.plane_stride = planar ? out_->strides[3] : 0;
      sample.output.type = type;
      sample.output.scale = normalisation_->scale;
      sample.output.offset = normalisation_->offset;
    }
  }

  ~Job() {
    if (!batch_) return;
    const py::gil_scoped_release release;
    batch_.reset();  // cancels, waits
  }

  void run_here() {
    statuses_.resize(samples_.size());
    const py::gil_scoped_release release;
    for (size_t i = 0; i < samples_.size(); i++)
      statuses_[i] = thread_decoder().run(samples_[i], options_);
  }

  void submit(Engine& engine) { batch_ = engine.submit(samples_, options_); }

  bool wait(std::optional<double> timeout) {
    if (!batch_) return true;
    const py::gil_scoped_release release;
    if (timeout) return batch_->wait_for(*timeout);
    batch_->wait();
    return true;
  }
  bool done() const { return !batch_ || batch_->done(); }
  void cancel() {
    if (batch_) batch_->cancel();
  }

  /// (index, code, detail, offset) of each sample that failed.
  py::list failures() const {
    if (!done()) throw std::runtime_error("the batch is not done: wait for it");
    const std::vector<Status>& statuses = batch_ ? batch_->statuses() : statuses_;
    py::list failed;
    for (size_t i = 0; i < statuses.size(); i++)
      if (const Status& s = statuses[i]; !s.ok())
        failed.append(py::make_tuple(i, code_name(s.code), s.detail, s.offset));
    return failed;
  }

 private:
  View out_;
  std::vector<View> views_;
  std::unique_ptr<Normalisation> normalisation_;
  std::vector<Sample> samples_;
  SampleOptions options_;
  std::vector<Status> statuses_;  // of run_here
  std::unique_ptr<Batch> batch_;  // of submit
};

py::tuple probe_python(const py::object& data) {
  const View view(data);
  const ImageInfo info = probe(view.bytes());
  return py::make_tuple(info.encoding, info.width, info.height, info.components, info.sampling,
                        info.progressive, code_name(info.native.code), info.native.detail,
                        info.native.offset);
}

py::tuple build_seek_points_python(const py::object& data, int stride) {
  const View view(data);
  const ByteSpan jpeg = view.bytes();
  std::vector<uint8_t> packed;
  Status status;
  {
    const py::gil_scoped_release release;
    status = build_seek_points(jpeg, stride, packed);
  }
  return py::make_tuple(py::bytes(reinterpret_cast<const char*>(packed.data()), packed.size()),
                        code_name(status.code), status.detail, status.offset);
}

uint32_t crc32c_python(const py::object& data, uint32_t crc) {
  const View view(data);
  const ByteSpan bytes = view.bytes();
  const py::gil_scoped_release release;
  return crc32c(bytes, crc);
}

void set_simd(const std::string& name) {
  Level level;
  if (!parse_level(name.c_str(), level))
    throw py::value_error("FASTDATA_SIMD must be scalar, avx2 or avx512, not '" + name + "'");
  if (!select_kernels(level))
    throw py::value_error("FASTDATA_SIMD asks for " + name + ", which this processor lacks");
}

std::vector<std::string> simd_levels() {
  std::vector<std::string> names;
  for (Level level : {Level::scalar, Level::avx2, Level::avx512})
    if (has_level(level)) names.emplace_back(level_name(level));
  return names;
}

}  // namespace
}  // namespace fastdata

PYBIND11_MODULE(_native, m) {
  using namespace fastdata;
  m.doc() = "The C++ core of fastdata; use fastdata.decode.";

  if (const char* forced = std::getenv("FASTDATA_SIMD"); forced && *forced) {
    try {
      set_simd(forced);
    } catch (const py::value_error& e) {
      throw py::import_error(e.what());
    }
  }
  m.def("simd", [] { return level_name(kernels().level); });
  m.def("set_simd", &set_simd, py::arg("level"));
  m.def("simd_levels", &simd_levels);

  m.def("profile_start", &profile_start);
  m.def("profile_stop", [] {
    double spent[kStageCount];
    profile_stop(spent);
    py::dict milliseconds;
    for (int i = 0; i < kStageCount; i++)
      milliseconds[stage_name(static_cast<Stage>(i))] = spent[i];
    return milliseconds;
  });

  m.def("crc32c", &crc32c_python, py::arg("data"), py::arg("crc") = 0);
  m.def("crc32c_combine", &crc32c_combine, py::arg("crc_a"), py::arg("crc_b"),
        py::arg("length_b"));
  m.def("probe", &probe_python, py::arg("data"));
  m.def("build_seek_points", &build_seek_points_python, py::arg("data"), py::arg("stride"));

  py::class_<Job>(m, "Job")
      .def(py::init<const py::sequence&, const py::object&, const py::object&, const py::object&,
                    const py::object&, const std::string&, const std::array<float, 3>&,
                    const std::array<float, 3>&, bool, const std::string&, bool>(),
           py::arg("data"), py::kw_only(), py::arg("seek_points"), py::arg("boxes"),
           py::arg("flips"), py::arg("out"), py::arg("dtype"), py::arg("scale"),
           py::arg("offset"), py::arg("resize"), py::arg("filter"), py::arg("dct_scaling"))
      .def("run", &Job::run_here)
      .def("wait", &Job::wait, py::arg("timeout") = py::none())
      .def("done", &Job::done)
      .def("cancel", &Job::cancel)
      .def("failures", &Job::failures);

  py::class_<Engine>(m, "Engine")
      .def(py::init<int>(), py::arg("threads"))
      .def_property_readonly("threads", &Engine::threads)
      .def(
          "submit", [](Engine& engine, Job& job) { job.submit(engine); }, py::arg("job"));
}
