// The parts of the module, each in the file of its name.
#pragma once

#include <pybind11/pybind11.h>

namespace fastdata {

void bind_augment(pybind11::module_& m);
void bind_extents(pybind11::module_& m);
void bind_job(pybind11::module_& m);
void bind_outlines(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_program(pybind11::module_& m);
void bind_records(pybind11::module_& m);
void bind_targets(pybind11::module_& m);

}  // namespace fastdata
