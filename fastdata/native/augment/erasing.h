// Erasing: rectangles of the output that are written over, in the output's own units.
#pragma once

#include "augment/program.h"
#include "buffer.h"
#include "resample/pixels.h"

namespace fastdata {

/// Writes over a rectangle of an output that it lies in. uint8 outputs take values rounded to zero
/// and held within 0 to 255. `scratch` is overwritten. Throws std::bad_alloc.
void erase(const Erasure& erasure, const Output& output, Buffer& scratch);

}  // namespace fastdata
