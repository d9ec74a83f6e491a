// Geometry for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace fastdata {

void bind_geometry(pybind11::module_& m);

}  // namespace fastdata
