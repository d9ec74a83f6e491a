#include "augment/operations.h"

namespace fastdata {

bool parse_operation(std::string_view name, Operation& operation) {
  for (size_t i = 0; i < kOperationCount; i++)
    if (name == kOperations[i].name) {
      operation = static_cast<Operation>(i);
      return true;
    }
  return false;
}

Status augment(const Call&, Canvas&) {
  return {Code::unsupported, "an operation that the core does not have yet"};
}

}  // namespace fastdata
