#include "read_task.h"

#include <algorithm>
#include <chrono>

#include "jpeg/seek_points.h"

namespace fastdata {
namespace {

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

}  // namespace fastdata
