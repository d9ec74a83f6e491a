// Leading steps of a program, folded into the region of an image that is decoded.
#pragma once

#include "augment/drawing.h"
#include "geometry/cut.h"

namespace fastdata {

/// Returns the cut of an image of a size that these crops, pads, resizes and flips leave. The fill
/// is the job's, whatever pads have. `too_small`: the number of the step that could not be done, or
/// 0.
Cut fold(const Drawn& drawn, uint64_t key, int64_t width, int64_t height, int too_small);

}  // namespace fastdata
