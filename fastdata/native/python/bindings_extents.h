// Python's Extents, RecordTable, and the functions that check and seal records.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

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

void bind_extents(pybind11::module_& m);

}  // namespace fastdata
