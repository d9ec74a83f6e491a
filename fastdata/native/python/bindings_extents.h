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

}  // namespace fastdata
