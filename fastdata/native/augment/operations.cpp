#include "augment/operations.h"

#include <cmath>

namespace fastdata {

Status augment(const Call& call, Canvas& canvas) {
  using Run = Status (*)(const Call&, Canvas&);
#define FASTDATA_OPERATION_RUN(name, count) name,
  static constexpr Run kRuns[] = {FASTDATA_OPERATIONS(FASTDATA_OPERATION_RUN)};
  const auto operation = static_cast<size_t>(call.operation);
  if (operation >= std::size(kRuns)) return {Code::bad_parameters, "no such operation"};
  for (int i = 0; i < info_of(call.operation).values; i++)
    if (!std::isfinite(call.values[i])) return {Code::bad_parameters, "a value that is not finite"};
  return kRuns[operation](call, canvas);
}

}  // namespace fastdata
