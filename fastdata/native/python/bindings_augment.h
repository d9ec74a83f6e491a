// Python's access to single augmentations.
#pragma once

#include <pybind11/pybind11.h>

namespace fastdata {

void bind_augment(pybind11::module_& m);

}  // namespace fastdata
