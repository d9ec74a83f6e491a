// Python's Extents, RecordTable, and the functions that check and seal records.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "decode_task.h"
#include "io/binary_column.h"
#include "io/extents.h"
#include "python/python_view.h"

namespace fastdata {

/// Extents and what keeps alive the seek points that they point to. Made and destroyed
/// with the GIL held, after every batch that reads from them.
struct BoundExtents : Extents {
  using Extents::Extents;
  BoundExtents(const BoundExtents&) = delete;
  std::vector<View> views;
  py::object parts;
};

/// A column and the buffers that it lies in.
struct BoundColumn : BinaryColumn {
  std::vector<View> views;
};

/// Rows that a job looks up; their extents are filled then.
struct BoundRows {
  std::shared_ptr<const RowLookup> lookup;
  py::object table, extents;

  size_t size() const { return lookup->rows.size(); }
};

/// A number a sample, as SampleImage::orientation; empty for None.
inline std::vector<int8_t> orientations_of(const py::object& array, size_t count) {
  if (array.is_none()) return {};
  const View view(array);
  if (!view.is_integers(1, 1) || static_cast<size_t>(view->shape[0]) != count)
    throw py::value_error("orientations must be int8, one a sample, contiguous");
  const auto* first = static_cast<const int8_t*>(view->buf);
  return {first, first + count};
}

}  // namespace fastdata
