#include "partial.h"

#include "jpeg/probe.h"

namespace fastdata {

bool may_be_partial(const Extents& extents, size_t i) {
  const Extent& extent = extents.extents[i];
  const bool large = extent.length < 0 || extent.length >= static_cast<int64_t>(kPartialBytes);
  const int8_t encoding = extents.encodings[i];
  return large && (encoding == kJpegEncoding || encoding == kUnknownEncoding) && !extent.corrupt;
}

Status seek_points_of(const Extents& extents, size_t i, ByteSpan& seek_points) {
  const Extent& extent = extents.extents[i];
  seek_points = extent.seek_points;
  if (seek_points.size > 0 || extent.table_size == 0) return {};
  return thread_reader().read_table(extents, i, seek_points);
}

Box stored_box(const Extent& extent, const Box& box, const SeekTable& table) {
  if (extent.orientation == kOrientationOfHeader) return {};
  return Turn(extent.orientation).stored(box, table.width(), table.height());
}

// A sample that is fetched in part takes a request for each part, and splits those that its
// neighbours share. So many bytes take as long.
constexpr size_t kWorthRequests = 128 << 10;

Fetch plan_fetch(const Extents& extents, size_t i, const std::vector<Box>& boxes) {
  ByteSpan seek_points;
  SeekTable table;
  // Decoding the sample reports errors.
  if (!may_be_partial(extents, i) || !seek_points_of(extents, i, seek_points).ok() ||
      !table.open(seek_points).ok() ||
      static_cast<int64_t>(table.jpeg_size()) != extents.extents[i].length)
    return {};
  McuBox mcus;
  for (const Box& each : boxes) {
    const Box box = stored_box(extents.extents[i], each, table);
    if (!box.inside(table.width(), table.height())) return {};
    mcus = around(mcus, table.mcus_of(box));
  }
  Fetch fetch{table.header_size(), table.header_crc(), {}};
  if (boxes.empty() || !table.run_of(mcus, fetch.rows)) return {};
  const size_t parts = fetch.header + (fetch.rows.bytes.end - fetch.rows.bytes.begin);
  if (!worth_it(parts, table.jpeg_size()) || parts + kWorthRequests > table.jpeg_size()) return {};
  return fetch;
}

bool is_sound(const Extents& extents, size_t i, const SegmentRun& rows, ByteSpan bytes) {
  ByteSpan seek_points;
  SeekTable table;
  return seek_points_of(extents, i, seek_points).ok() && table.open(seek_points).ok() &&
         table.is_sound(rows, bytes);
}

}  // namespace fastdata
