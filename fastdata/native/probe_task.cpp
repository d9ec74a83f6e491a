#include "probe_task.h"

#include "jpeg/probe.h"

namespace fastdata {
namespace {

// Most headers are in the first bytes; thumbnails and colour profiles make some longer.
constexpr size_t kFirstRead = size_t{4} << 10;
constexpr size_t kLastRead = size_t{16} << 20;

}  // namespace

Status ProbeTask::work(size_t i) {
  if (extents_.widths[i] > 0) return {};
  ImageInfo info;
  bool whole = false;
  for (size_t count = kFirstRead;; count *= 4) {
    ByteSpan head;
    if (Status s = thread_reader().read_head(extents_, i, count, head, whole); !s.ok()) return s;
    info = probe(head);
    const bool more = info.native.code == Code::truncated && !whole && count < kLastRead;
    if (!more) break;
  }
  thread_reader().trim();
  if (!info.native.ok()) return info.native;
  int8_t& orientation = extents_.extents[i].orientation;
  if (orientation != 0 && info.orientation == 0)
    return {Code::unsupported, "unusual EXIF data may turn it"};
  if (orientation != 0) orientation = static_cast<int8_t>(info.orientation);
  extents_.heights[i] = info.height;
  extents_.encodings[i] = encoding_code(info.encoding);
  extents_.widths[i] = info.width;
  extents_.turn_size(i);
  return {};
}

}  // namespace fastdata
