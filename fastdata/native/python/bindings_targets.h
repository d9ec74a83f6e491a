// Targets of a batch of images, for jobs that draw crops with boxes.
#pragma once

#include <vector>

#include "augment/drawing.h"
#include "augment/targets.h"

namespace fastdata {

/// One a sample, as they are after the geometry; and what the program that they followed does then.
struct BoundTargets {
  std::vector<Targets> all;
  std::vector<Drawn> drawn;
};

}  // namespace fastdata
