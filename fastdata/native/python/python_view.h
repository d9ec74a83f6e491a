// Views of Python's buffers.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common.h"
#include "geometry/cut.h"
#include "status.h"

namespace fastdata {

namespace py = pybind11;

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
  /// A contiguous array of integers of `size` bytes with so many axes.
  bool is_integers(Py_ssize_t size, int axes) const {
    if (view_.itemsize != size || view_.ndim != axes || !view_.format) return false;
    const std::string format(view_.format);
    return format.size() == 1 && std::string("bBhHiIlLqQ").find(format) != std::string::npos &&
           PyBuffer_IsContiguous(&view_, 'C');
  }
  ByteSpan bytes() const {
    if (!is_bytes()) throw py::type_error("expected contiguous bytes");
    return {static_cast<const uint8_t*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

/// A contiguous array, converted to the type if it has another one.
template <typename T>
using Row = py::array_t<T, py::array::c_style | py::array::forcecast>;

/// Returns where each sample's items begin, and the end of the last.
inline const int64_t* offsets_of(const Row<int64_t>& offsets, py::ssize_t count,
                                 py::ssize_t items) {
  if (offsets.ndim() != 1 || offsets.size() != count + 1)
    throw py::value_error("offsets must have one axis, and one more than there are samples");
  const int64_t* found = offsets.data();
  if (found[0] != 0 || found[count] != items || !std::is_sorted(found, found + count + 1))
    throw py::value_error("offsets must rise from 0 to the number of items");
  return found;
}

/// A Python copy of some bytes.
inline py::bytes as_bytes(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A path as the system has it: of str by the file system's encoding, of bytes as it is.
inline std::string to_path(py::handle path) {
  PyObject* encoded = nullptr;
  if (!PyUnicode_FSConverter(path.ptr(), &encoded)) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(encoded);
}

}  // namespace fastdata

namespace pybind11::detail {

/// An argument with the buffer protocol, which stays in place during the call.
template <>
struct type_caster<fastdata::ByteSpan> {
  PYBIND11_TYPE_CASTER(fastdata::ByteSpan, const_name("object"));

  bool load(handle object, bool) {
    view_.emplace(object);
    value = view_->bytes();
    return true;
  }

 private:
  std::optional<fastdata::View> view_;
};

/// The type of the rows of an array of cuts.
template <>
struct type_caster<fastdata::Cut> {
  static constexpr auto name = const_name("numpy.void");
};

/// A status as (code, detail, offset).
template <>
struct type_caster<fastdata::Status> {
  static constexpr auto name = const_name("tuple[str, str, int]");

  static handle cast(const fastdata::Status& status, return_value_policy, handle) {
    return make_tuple(fastdata::code_name(status.code), status.detail, status.offset).release();
  }
};

}  // namespace pybind11::detail
