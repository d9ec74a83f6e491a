// Pixel programs for Python.
#pragma once

#include <pybind11/pybind11.h>

#include "augment/program.h"

namespace fastdata {

void bind_program(pybind11::module_& m);

}  // namespace fastdata
