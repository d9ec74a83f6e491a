#include "read_task.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace fastdata {

Status ReadTask::run(size_t i) {
  if (!skip_.empty() && skip_[i]) return {};
  const auto began = std::chrono::steady_clock::now();
  Status status;
  try {
    BlobReader& reader = thread_reader();
    ByteSpan bytes;
    status = reader.read(extents_, i, check_, bytes);
    if (status.ok()) {
      blobs_[i].data.reset(new uint8_t[bytes.size]);
      blobs_[i].size = bytes.size;
      std::copy_n(bytes.data, bytes.size, blobs_[i].data.get());
      reader.trim();
    }
  } catch (const std::bad_alloc&) {
    status = {Code::out_of_memory, "not enough memory for this image"};
  }
  nanoseconds_ += (std::chrono::steady_clock::now() - began) / std::chrono::nanoseconds(1);
  return status;
}

}  // namespace fastdata
