// Masks of objects as the places where they change, from polygons and from COCO's run lengths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common.h"
#include "status.h"

namespace fastdata {

/// Pixels are counted down the columns, from the upper left one. A mask begins with 0; at each of
/// these pixels it changes, and stays so up to the next one. In any order; two equal ones cancel
/// each other.
using Changes = std::vector<uint32_t>;

/// A mask's size. The functions below need fewer than 2^32 - 1 pixels.
struct MaskSize {
  int width, height;

  uint64_t pixels() const { return static_cast<uint64_t>(width) * static_cast<uint64_t>(height); }
};

/// Adds the mask of a polygon: x, y, x, y, …, in pixels times `across` and `down`. Pixels are those
/// of COCO's tools: corners are rounded to fifths of a pixel, edges are drawn between them, and
/// each column changes where its middle crosses an edge. bad_parameters: a coordinate that is not
/// finite, or farther than 2^22 pixels away.
Status add_polygon(const double* numbers, size_t count, double across, double down, MaskSize size,
                   Changes& changes);

/// Adds the mask of run lengths of 0 and 1 in turn. bad_parameters: they do not sum to its pixels.
Status add_runs(const uint32_t* lengths, size_t count, MaskSize size, Changes& changes);

/// The same of COCO's text, which has five bits a character, and differences from the fourth on.
Status add_runs(ByteSpan text, MaskSize size, Changes& changes);

/// Replaces the changes of several masks, each of which begins at one of `begins`, by those of
/// their union.
void unite(const std::vector<size_t>& begins, Changes& changes);

}  // namespace fastdata
