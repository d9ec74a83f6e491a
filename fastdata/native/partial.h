// Partial reads of large JPEGs, planned from a seek table of version 2 before a byte of the JPEG is
// read (docs/design/0015-partial-reads.md).
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

/// Whether reading parts saves time: not if they are more than seven eighths of the JPEG.
inline bool worth_it(size_t parts, size_t whole) { return parts < whole / 8 * 7; }

/// Maps a box of the upright image to the stored image; an empty box if the orientation is unknown.
Box stored_box(const Extent& extent, const Box& box, const SeekTable& table);

/// Two ranges of a sample to fetch: the JPEG's header, and rows of MCUs.
struct Fetch {
  size_t header = 0;  // its size; 0: fetch the whole sample
  uint32_t header_crc = 0;
  SegmentRun rows;
};

/// Plans the ranges that decoding these boxes of a sample needs. Throws std::bad_alloc.
Fetch plan_fetch(const Extents& extents, size_t i, const std::vector<Box>& boxes);

/// Whether these bytes match the checksums of the rows' segments.
bool is_sound(const Extents& extents, size_t i, const SegmentRun& rows, ByteSpan bytes);

}  // namespace fastdata
