#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "draws.h"
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

py::array_t<uint64_t> sample_keys_python(uint64_t view_key, const Row<int64_t>& numbers,
                                         const std::optional<Row<int64_t>>& occurrences) {
  const py::ssize_t count = numbers.size();
  if (occurrences && occurrences->size() != count)
    throw py::value_error("occurrences must be as many as numbers");
  py::array_t<uint64_t> keys(
      std::vector<py::ssize_t>(numbers.shape(), numbers.shape() + numbers.ndim()));
  const int64_t* number = numbers.data();
  const int64_t* before = occurrences ? occurrences->data() : nullptr;
  uint64_t* key = keys.mutable_data();
  for (py::ssize_t i = 0; i < count; i++)
    key[i] = sample_key(view_key, number[i], before ? before[i] : 0);
  return keys;
}

}  // namespace

void bind_plan(py::module_& m) {
  m.attr("MOST_BUDGET") = kMostBudget;
  m.def("draw_bits", &draw_bits, py::arg("key"), py::arg("draw"),
        "Return number draw of the stream of key; all are unsigned, of 64 bits.");
  m.def("sample_keys", &sample_keys_python, py::arg("view_key"), py::arg("numbers"),
        py::arg("occurrences") = py::none(),
        "Return the keys of samples of a view, of the shape of numbers.");
  m.def("pack", &pack_python, py::arg("lengths"), py::arg("budget"),
        "Pack items into batches of a budget by best fit; return them, and where batches begin.");
}

}  // namespace fastdata
