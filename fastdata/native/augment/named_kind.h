// Kinds of things that C++ and Python share by name.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace fastdata {

struct Parameter {
  const char* name;
  bool entries = false;  // it has several constants
};

struct NamedKind {
  const char* name;
  int draws;
  std::vector<Parameter> parameters;
};

/// False if no kind has that name.
template <typename Kind>
bool parse_kind(const std::vector<NamedKind>& kinds, std::string_view name, Kind& kind) {
  for (size_t i = 0; i < kinds.size(); i++)
    if (name == kinds[i].name) {
      kind = static_cast<Kind>(i);
      return true;
    }
  return false;
}

}  // namespace fastdata
