// Targets of a batch of images, for jobs that draw crops with boxes.
#pragma once

#include <vector>

#include "augment/targets.h"

namespace fastdata {

/// One a sample, as they are after the geometry.
struct BoundTargets {
  std::vector<Targets> all;
};

}  // namespace fastdata
