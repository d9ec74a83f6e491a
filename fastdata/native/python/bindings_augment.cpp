#include "python/bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "augment/operations.h"
#include "python/python_view.h"
#include "python/released.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

Call parse_call(const std::string& name, const std::vector<double>& values, uint64_t key) {
  Call call;
  if (!parse_kind(operation_kinds(), name, call.operation))
    throw py::value_error("operation '" + name + "': not one of _native.OPERATIONS");
  const size_t count = info_of(call.operation).parameters.size();
  if (values.size() != count)
    throw py::value_error(name + " takes " + std::to_string(count) + " values, not " +
                          std::to_string(values.size()));
  std::copy(values.begin(), values.end(), call.values);
  call.key = key;
  return call;
}

void copy_in(const Py_buffer& from, const Planes& to) {
  const auto* pixels = static_cast<const uint8_t*>(from.buf);
  for (int y = 0; y < to.height; y++) {
    const uint8_t* row = pixels + static_cast<size_t>(y) * to.width * to.channels;
    if (to.channels == 1)
      std::memcpy(to.row(0, y), row, to.width);
    else
      kernels().deinterleave(row, to.width, to.row(0, y), to.row(1, y), to.row(2, y));
  }
}

void copy_out(const Planes& from, uint8_t* pixels) {
  for (int y = 0; y < from.height; y++) {
    uint8_t* row = pixels + static_cast<size_t>(y) * from.width * from.channels;
    if (from.channels == 1)
      std::memcpy(row, from.row(0, y), from.width);
    else
      kernels().interleave(from.row(0, y), from.row(1, y), from.row(2, y), from.width, row);
  }
}

void raise(const std::string& name, const Status& status) {
  if (!status.ok()) throw py::value_error(name + ": " + status.detail);
}

View view_pixels(const py::object& pixels) {
  View view(pixels);
  const bool grey = view->ndim == 2;
  if (!view.is_integers(1, grey ? 2 : 3) || (!grey && view->shape[2] != 3))
    throw py::type_error("pixels must be contiguous uint8, (H, W) or (H, W, 3)");
  if (std::max(view->shape[0], view->shape[1]) > INT32_MAX)
    throw py::value_error("pixels: more than 2^31 - 1 rows or columns");
  return view;
}

Status load(const Py_buffer& from, Canvas& canvas) {
  const Status status = canvas.reset(static_cast<int>(from.shape[1]),
                                     static_cast<int>(from.shape[0]), from.ndim == 2 ? 1 : 3);
  if (status.ok()) copy_in(from, canvas.image());
  return status;
}

py::array_t<uint8_t> augment_python(const py::object& pixels, const std::string& name,
                                    const std::vector<double>& values, uint64_t key) {
  const Call call = parse_call(name, values, key);
  const View view = view_pixels(pixels);
  Canvas canvas;
  Status status;
  {
    const Released release;
    status = load(*view, canvas);
    if (status.ok()) status = augment(call, canvas);
  }
  raise(name, status);
  const Planes& image = canvas.image();
  std::vector<py::ssize_t> shape{image.height, image.width};
  if (image.channels == 3) shape.push_back(3);
  py::array_t<uint8_t> result(shape);
  copy_out(image, result.mutable_data());
  return result;
}

std::vector<double> time_augment(const py::object& pixels, const std::string& name,
                                 const std::vector<double>& values, int rounds) {
  const Call call = parse_call(name, values, 0);
  const View view = view_pixels(pixels);
  Canvas canvas;
  std::vector<double> seconds;
  for (int i = 0; i < rounds; i++) {
    raise(name, load(*view, canvas));
    const auto start = std::chrono::steady_clock::now();
    const Status status = augment(call, canvas);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    raise(name, status);
  }
  return seconds;
}

}  // namespace

void bind_augment(py::module_& m) {
  m.def("augment", &augment_python, py::arg("pixels"), py::arg("operation"), py::arg("values"),
        py::arg("key") = 0,
        "Apply one augmentation to an image, (H, W, 3) or (H, W), for tests and measurements.");
  m.def("time_augment", &time_augment, py::arg("pixels"), py::arg("operation"), py::arg("values"),
        py::arg("rounds"),
        "Return the seconds of each round in the core, without copying pixels to planes and back.");
}

}  // namespace fastdata
