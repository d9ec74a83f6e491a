#include "augment/operations.h"

#include <cmath>

namespace fastdata {

const std::vector<NamedKind>& operation_kinds() {
#define FASTDATA_OPERATION_PARAMETER(name) {#name},
#define FASTDATA_OPERATION_KIND(name, Struct, ...) {#name, 0, {__VA_ARGS__}},
  static const std::vector<NamedKind> kinds = {
      FASTDATA_OPERATIONS(FASTDATA_OPERATION_KIND, FASTDATA_OPERATION_PARAMETER)};
  return kinds;
}

Status augment(const Call& call, Canvas& canvas) {
  using Run = Status (*)(const Call&, Canvas&);
  static constexpr Run kRuns[] = {
      FASTDATA_OPERATIONS(FASTDATA_OPERATION, FASTDATA_OPERATION_VALUE)};
  const auto operation = static_cast<size_t>(call.operation);
  if (operation >= std::size(kRuns)) return {Code::bad_parameters, "no such operation"};
  for (const double value : call.values)  // those that are not the operation's are 0
    if (!std::isfinite(value)) return {Code::bad_parameters, "a value that is not finite"};
  return kRuns[operation](call, canvas);
}

}  // namespace fastdata
