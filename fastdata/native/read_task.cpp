#include "read_task.h"

#include <algorithm>
#include <chrono>

#include "jpeg/probe.h"
#include "jpeg/seek_points.h"

namespace fastdata {
namespace {

// Most headers are in the first bytes; thumbnails and colour profiles make some longer.
constexpr size_t kFirstRead = size_t{4} << 10;
constexpr size_t kLastRead = size_t{16} << 20;

bool is_damaged(ByteSpan bytes) {
  constexpr int kStride = 512;  // few points: they are dropped
  const Code code = build_seek_points({bytes}, kStride)[0].status.code;
  return code != Code::ok && code != Code::not_jpeg && code != Code::unsupported;
}

}  // namespace

Status ReadTask::work(size_t i) {
  if (!skip_.empty() && skip_[i]) return {};
  const auto began = std::chrono::steady_clock::now();
  BlobReader& reader = thread_reader();
  ByteSpan bytes;
  const Status status = reader.read(extents_, i, check_, bytes);
  nanoseconds_ += (std::chrono::steady_clock::now() - began) / std::chrono::nanoseconds(1);
  if (status.ok() && !(scans_ && !extents_.seekable[i] && is_damaged(bytes))) {
    blobs_[i].data.reset(new uint8_t[bytes.size]);
    blobs_[i].size = bytes.size;
    std::copy_n(bytes.data, bytes.size, blobs_[i].data.get());
    reader.trim();
  }
  return status;
}

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
    return {Code::unsupported, "unusual EXIF or XMP data may turn it"};
  if (orientation != 0) orientation = static_cast<int8_t>(info.orientation);
  extents_.heights[i] = info.height;
  extents_.encodings[i] = encoding_code(info.encoding);
  extents_.widths[i] = info.width;
  extents_.turn_size(i);
  return {};
}

}  // namespace fastdata
