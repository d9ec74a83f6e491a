// Python's Job, ProbeJob, ReadJob and Engine.
#pragma once

#include <pybind11/pybind11.h>

namespace fastdata {

void bind_job(pybind11::module_& m);

}  // namespace fastdata
