// What is read of a large JPEG that is not read whole: known from its seek table of version 2,
// before a byte of it is here (docs/design/0015-partial-reads.md).
#pragma once

#include <vector>

#include "io/extents.h"
#include "jpeg/seek_points.h"

namespace fastdata {

/// Whether a sample is large enough, and a JPEG that the core may enter in the middle.
bool may_be_partial(const Extents& extents, size_t i);

/// A sample's seek points, its own or those in the index; none, if it has none. Valid until the
/// thread's reader reads others. Throws std::bad_alloc.
Status seek_points_of(const Extents& extents, size_t i, ByteSpan& seek_points);

/// Reading parts that are more than that of a JPEG saves nothing.
inline bool worth_it(size_t parts, size_t whole) { return parts < whole / 8 * 7; }

/// The box of a sample's stored image that a box comes from, which may be the turned image's; an
/// empty one where its orientation is not known.
Box stored_box(const Extent& extent, const Box& box, const SeekTable& table);

/// What is fetched of a sample, in two ranges: the JPEG's header, and rows of MCUs.
struct Fetch {
  size_t header = 0;  // its size; 0: the sample is to be fetched whole
  uint32_t header_crc = 0;
  SegmentRun rows;
};

/// What decoding these boxes of a sample needs. Throws std::bad_alloc.
Fetch plan_fetch(const Extents& extents, size_t i, const std::vector<Box>& boxes);

/// Whether these bytes are the JPEG's that its rows' segments have checksums of.
bool is_sound(const Extents& extents, size_t i, const SegmentRun& rows, ByteSpan bytes);

}  // namespace fastdata
