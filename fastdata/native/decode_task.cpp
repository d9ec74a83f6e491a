#include "decode_task.h"

#include <chrono>
#include <new>

#include "jpeg/seek_points.h"

namespace fastdata {
namespace {

using Clock = std::chrono::steady_clock;

int64_t nanoseconds(Clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

}  // namespace

Status DecodeTask::run(size_t i) {
  if (!skip.empty() && skip[i]) return {};
  Sample sample = samples[i];
  const auto start = Clock::now();
  auto begun = start;
  if (extents) {
    const Status status = read(i, sample);
    begun = Clock::now();
    read_.fetch_add(nanoseconds(begun - start), std::memory_order_relaxed);
    if (!status.ok()) return status;
  }
  const Status status = decode(i, sample);
  decode_.fetch_add(nanoseconds(Clock::now() - begun), std::memory_order_relaxed);
  if (extents) thread_reader().trim();
  return status;
}

Status DecodeTask::read(size_t i, Sample& sample) {
  const int8_t encoding = extents->encodings[i];
  if (encoding > kProgressiveEncoding && !extents->extents[i].corrupt)
    return {Code::not_jpeg, "an encoding for another decoder"};
  ByteSpan blob;
  try {
    if (Status s = thread_reader().read(*extents, i, check, blob); !s.ok()) return s;
  } catch (const std::bad_alloc&) {
    return {Code::out_of_memory, "not enough memory for this sample"};
  }
  if (encoding != kRawEncoding) {
    sample.jpeg = blob;
    if (extents->check_sizes) {
      sample.said_width = extents->widths[i];
      sample.said_height = extents->heights[i];
    }
    const Extent& extent = extents->extents[i];
    const FileStamp& stamp = thread_reader().stamp();
    if (sample.seek_points.size == 0 && (!extent.has_stamp || extent.stamp == stamp))
      sample.seek_points = extent.seek_points;
    if (sample.seek_points.size == 0 && extent.table_size > 0) {
      try {
        if (Status s = thread_reader().read_table(*extents, i, sample.seek_points); !s.ok())
          return s;
      } catch (const std::bad_alloc&) {
        return {Code::out_of_memory, "not enough memory for this sample's seek points"};
      }
    }
    if (stride > 0) built[i].stamp = stamp;
    return {};
  }
  const int64_t width = extents->widths[i], height = extents->heights[i];
  if (width < 1 || height < 1 || static_cast<int64_t>(blob.size) != 3 * width * height)
    return {Code::cut_short, "it has not as many bytes as its pixels need"};
  sample.seek_points = {};
  sample.raw.pixels = blob.data;
  sample.raw.width = static_cast<int>(width);
  sample.raw.height = static_cast<int>(height);
  sample.raw.channels = 3;
  sample.raw.row_stride = static_cast<size_t>(3 * width);
  return {};
}

Status DecodeTask::decode(size_t i, Sample& sample) {
  if (stride > 0 && !sample.raw.pixels && sample.seek_points.size == 0) {
    std::vector<uint8_t>& table = built[i].table;
    try {
      // A JPEG that is damaged may still have the region whole: that is for the decoder
      // to say, with seek points as without.
      SeekPoints made = std::move(build_seek_points({sample.jpeg}, stride)[0]);
      if (made.status.ok()) {
        table = std::move(made.packed);
        sample.seek_points = {table.data(), table.size()};
      }
    } catch (const std::bad_alloc&) {
      table = {};
      return {Code::out_of_memory, "not enough memory for this image's seek points"};
    }
  }
  if (views.empty()) return thread_decoder().run(sample, options);
  try {
    std::vector<SampleView> all = {{&sample, &options}};
    for (const auto& view : views) all.push_back({&view->samples[i], &view->options});
    return thread_decoder().run(sample, all.data(), all.size());
  } catch (const std::bad_alloc&) {
    return {Code::out_of_memory, "not enough memory for this image's views"};
  }
}

void DecodeTask::prepare() {
  try {
    will_need(*extents, skip);
  } catch (const std::bad_alloc&) {
    // It is only advice.
  }
}

}  // namespace fastdata
