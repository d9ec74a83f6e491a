// Targets of a batch of images, and what is drawn for them.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "augment/masks.h"
#include "augment/targets.h"

namespace fastdata {

/// One a sample, as they are after the geometry; and what the program that they followed does then.
struct BoundTargets {
  std::vector<Targets> all;
  std::vector<Drawn> drawn;
};

/// Returns what was drawn with targets; throws if that is not for `count` samples.
inline const std::vector<Drawn>& drawn_of(const pybind11::object& targets, size_t count) {
  const auto& drawn = pybind11::cast<const BoundTargets&>(targets).drawn;
  if (drawn.size() != count)
    throw pybind11::value_error("targets are for as many samples, and have followed a program");
  return drawn;
}

}  // namespace fastdata
