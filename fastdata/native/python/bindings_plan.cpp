#include <pybind11/numpy.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/packing.h"
#include "python/bindings.h"
#include "python/python_view.h"
#include "python/released.h"

namespace fastdata {
namespace {

py::array_t<int32_t> as_array(const std::vector<int32_t>& values) {
  return py::array_t<int32_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

std::pair<py::array_t<int32_t>, py::array_t<int32_t>> pack_python(const Row<int32_t>& lengths,
                                                                  int32_t budget) {
  if (lengths.ndim() != 1) throw py::value_error("lengths must have one axis");
  if (budget < 1 || budget > kMostBudget) throw py::value_error("a budget out of its range");
  const int32_t* values = lengths.data();
  const auto count = static_cast<size_t>(lengths.size());
  if (std::any_of(values, values + count, [&](int32_t n) { return n < 1 || n > budget; }))
    throw py::value_error("lengths must be from 1 to the budget");
  Packing packing;
  {
    const Released release;
    packing = pack(values, count, budget);
  }
  return {as_array(packing.items), as_array(packing.starts)};
}

}  // namespace

void bind_plan(py::module_& m) {
  m.attr("MOST_BUDGET") = kMostBudget;
  m.def("pack", &pack_python, py::arg("lengths"), py::arg("budget"));
}

}  // namespace fastdata
