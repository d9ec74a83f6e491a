#include "probe_task.h"

#include <new>

#include "jpeg/probe.h"

namespace fastdata {
namespace {

// Most headers are in the first bytes; thumbnails and colour profiles make some longer.
constexpr size_t kFirstRead = size_t{4} << 10;
constexpr size_t kLastRead = size_t{16} << 20;

}  // namespace

Status ProbeTask::run(size_t i) {
  if (extents_.widths[i] > 0) return {};
  ImageInfo info;
  try {
    bool whole = false;
    for (size_t count = kFirstRead;; count *= 4) {
      ByteSpan head;
      if (Status s = thread_reader().read_head(extents_, i, count, head, whole); !s.ok()) return s;
      info = probe(head);
      const bool more = info.native.code == Code::truncated && !whole && count < kLastRead;
      if (!more) break;
    }
    thread_reader().trim();
  } catch (const std::bad_alloc&) {
    return {Code::out_of_memory, "not enough memory for this image's header"};
  }
  if (!info.native.ok()) return info.native;
  extents_.heights[i] = info.height;
  extents_.encodings[i] = encoding_code(info.encoding);
  extents_.widths[i] = info.width;
  return {};
}

}  // namespace fastdata
