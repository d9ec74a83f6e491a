#include "decode_task.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>

#include "draws.h"
#include "io/crc32c.h"
#include "jpeg/segments.h"

namespace fastdata {
namespace {

using Clock = std::chrono::steady_clock;

// Smaller JPEGs, of some 32 x 32 pixels, decode no faster with seek points. Building them doubles
// the CPU time of the first epoch.
constexpr size_t kWorthBuilding = 2 << 10;

int64_t nanoseconds(Clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

}  // namespace

/// Where threads would have nothing to do, they take part in large images: these are cut into bands
/// of the output's rows, each of which is the window of a resize.
void DecodeTask::share_among(int threads) {
  const size_t wanted = static_cast<size_t>(threads) / std::max<size_t>(count(), 1);
  if (wanted > 1 && views.empty() && !options.program) parts_ = wanted;
}

void DecodeTask::make_samples() {
  samples.resize(count());
  for (size_t i = 0; i < samples.size(); i++) samples[i].output = outputs[i];
}

/// The first thread does it for all samples: to read the index takes a microsecond a row.
void DecodeTask::look_up() {
  if (!lookup) return;
  std::call_once(looked_up_, [this] {
    try {
      make_samples();
      for (const auto& view : views) view->make_samples();
      *lookup->extents = Extents(count());
      int error_number;
      const Status found = lookup->table->gather(lookup->rows, *lookup->extents, error_number);
      refused_.assign(count(), found);
      for (size_t i = 0; i < count() && found.ok(); i++) refused_[i] = draw(i);
    } catch (const std::bad_alloc&) {
      no_memory_ = true;
    }
  });
}

/// Draws a sample's cuts; why the core cannot do one of them.
Status DecodeTask::draw(size_t i) {
  const int64_t width = extents->widths[i], height = extents->heights[i];
  bool small = false;
  const auto draw_for = [&](DecodeTask& task) {
    const int64_t before = lookup->occurrences.empty() ? 0 : lookup->occurrences[i];
    const uint64_t own = sample_key(task.key, lookup->numbers[i], before);
    Cut& cut = task.samples[i].cut;
    cut = task.program->cut(own, std::max<int64_t>(width, 1), std::max<int64_t>(height, 1));
    small = small || cut.too_small;
  };
  draw_for(*this);
  for (const auto& view : views) draw_for(*view);
  if (extents->extents[i].corrupt) return {};  // reading says so
  if (width < 1 || height < 1) return {Code::other_size, "the index has no size of it"};
  if (lookup->max_pixels > 0 && width * height > lookup->max_pixels)
    return {Code::too_large, "it has more pixels than limits= allows"};
  if (small) return {Code::bad_region, "it is too small for its crop"};
  return {};
}

bool DecodeTask::may_divide(size_t i) const {
  const Sample& sample = samples[i];
  const Cut& cut = sample.cut;
  const Box box = sample.box();
  if (sample.raw.pixels || sample.drawn || cut.whole || cut.padding == 2 || (cut.flip & kFlipY) ||
      box.y0 < 0 || box.y1 <= box.y0 || cut.window[1] < 0 ||
      cut.window[1] > sample.output.height + cut.size[1])
    return false;
  if (!extents) return sample.seek_points.size > 0 && sample.jpeg.size >= kPartialBytes;
  const Extent& extent = extents->extents[i];
  return extents->seekable[i] && extent.length >= static_cast<int64_t>(kPartialBytes);
}

/// Whether seek points may be built for a sample: not by several threads.
bool DecodeTask::builds(size_t i) const { return stride > 0 && (parts_ == 1 || !may_divide(i)); }

/// Whether a sample's bytes are those of its checksum, if it has one: seek points vouch for them.
bool DecodeTask::is_checked(size_t i, const Sample& sample) const {
  if (check || !extents || extents->extents[i].in_memory || !extents->extents[i].has_crc)
    return true;
  return crc32c(sample.jpeg) == extents->extents[i].crc;
}

/// A part of a sample; nothing, with a height of 0, where another part does all of it.
DecodeTask::Work DecodeTask::work_of(size_t i, size_t part) const {
  Work work{samples[i], samples[i].box()};
  if (parts_ == 1) return work;
  if (!may_divide(i)) {
    if (part > 0) work.sample.output.height = 0;
    return work;
  }
  Sample& sample = work.sample;
  const auto height = static_cast<size_t>(sample.output.height);
  const auto row = [&](size_t number) { return static_cast<int>(height * number / parts_); };
  const int begin = row(part), end = row(part + 1);
  sample.cut.window[1] += begin;
  sample.output.data = static_cast<uint8_t*>(sample.output.data) + begin * sample.output.row_stride;
  sample.output.height = end - begin;
  // A row of the output comes from those that a filter's support, at most 3, reaches from there.
  const double scale = static_cast<double>(work.box.height()) / std::max(sample.cut.size[1], 1);
  const double reach = 3 * std::max(scale, 1.0) + 2;
  const double top = sample.cut.window[1] * scale - reach;
  const double bottom = (sample.cut.window[1] + sample.output.height) * scale + reach;
  const double last = work.box.height();
  const int first = work.box.y0;
  work.box.y0 = first + static_cast<int>(std::clamp(top, 0.0, last));
  work.box.y1 = first + static_cast<int>(std::ceil(std::clamp(bottom, 0.0, last)));
  return work;
}

Status DecodeTask::work(size_t step) {
  const size_t i = step / parts_;
  if (!skip.empty() && skip[i]) return {};
  look_up();
  if (no_memory_) return {Code::out_of_memory, "not enough memory for the rows of the index"};
  if (!refused_.empty() && !refused_[i].ok()) return refused_[i];
  Work work = work_of(i, step % parts_);
  if (work.sample.output.height == 0) return {};
  const auto start = Clock::now();
  auto begun = start;
  if (extents) {
    const uint64_t before = thread_reader().bytes_read();
    const Status status = read(i, work);
    begun = Clock::now();
    bytes_read_.fetch_add(thread_reader().bytes_read() - before, std::memory_order_relaxed);
    read_.fetch_add(nanoseconds(begun - start), std::memory_order_relaxed);
    if (!status.ok()) return status;
  }
  const Status status = decode(i, work);
  decode_.fetch_add(nanoseconds(Clock::now() - begun), std::memory_order_relaxed);
  if (extents) thread_reader().trim();
  return status;
}

Status DecodeTask::read(size_t i, Work& work) {
  Sample& sample = work.sample;
  const Extent& extent = extents->extents[i];
  sample.orientation = extent.orientation;
  if (extent.check_size) {
    sample.expected_width = extents->widths[i];
    sample.expected_height = extents->heights[i];
  }
  const int8_t encoding = extents->encodings[i];
  if (!is_native(encoding) && !extent.corrupt)
    return {Code::not_jpeg, "an encoding for another decoder"};
  ByteSpan blob;
  bool done = false;
  if (Status s = read_parts(i, work, done); done || !s.ok()) return s;
  if (Status s = thread_reader().read(*extents, i, check, blob); !s.ok()) return s;
  if (encoding != kRawEncoding) {
    sample.jpeg = blob;
    const FileStamp& stamp = thread_reader().stamp();
    if (extent.has_stamp && !(extent.stamp == stamp)) {
      sample.seek_points = {};  // they are of the file as it was
    } else if (sample.seek_points.size == 0) {
      sample.seek_points = extent.seek_points;
      if (extent.table_size > 0)
        if (Status s = thread_reader().read_table(*extents, i, sample.seek_points); !s.ok())
          return s;
    }
    if (builds(i)) built[i].stamp = stamp;
    return {};
  }
  const int64_t width = extents->widths[i], height = extents->heights[i];
  if (width < 1 || height < 1 || static_cast<int64_t>(blob.size) != 3 * width * height)
    return {Code::cut_short, "it has not as many bytes as its pixels need"};
  sample.seek_points = {};
  sample.raw.pixels = blob.data;
  const bool exchanged = Turn(sample.orientation).exchanged;
  sample.raw.width = static_cast<int>(exchanged ? height : width);
  sample.raw.height = static_cast<int>(exchanged ? width : height);
  sample.raw.channels = 3;
  sample.raw.row_stride = static_cast<size_t>(3 * sample.raw.width);
  return {};
}

/// What all views of a sample need of its JPEG. False: the seek points cannot tell, or it is as
/// good as all.
bool DecodeTask::plan_parts(size_t i, const Box& box, ByteSpan seek_points, Parts& parts) const {
  if (!parts.table.open(seek_points).ok()) return false;
  const auto add = [&](const Box& needed, const DecodeTask& task) {
    const Box stored = stored_box(extents->extents[i], needed, parts.table);
    if (task.samples[i].cut.whole || !stored.inside(parts.table.width(), parts.table.height()))
      return false;
    parts.mcus = around(parts.mcus, parts.table.mcus_of(stored));
    return true;
  };
  bool some = add(box, *this);
  for (const auto& view : views) some = some && add(view->samples[i].box(), *view);
  if (!some || !parts.table.parts(parts.mcus, parts.bytes)) return false;
  if (extents->extents[i].is_partial()) return true;
  join_parts(parts.bytes);
  size_t bytes = 0;
  for (const ByteRange& part : parts.bytes) bytes += part.end - part.begin;
  return worth_it(bytes, parts.table.jpeg_size());
}

/// Reads and checks the parts of a large JPEG that the crop needs. False in `read`: read it whole.
Status DecodeTask::read_parts(size_t i, Work& work, bool& read) {
  Sample& sample = work.sample;
  const Extent& extent = extents->extents[i];
  if (!may_be_partial(*extents, i) || (extent.in_memory && !extent.is_partial())) return {};
  ByteSpan seek_points = sample.seek_points;
  if (seek_points.size == 0) {
    if (Status s = seek_points_of(*extents, i, seek_points); !s.ok()) return s;
    if (extent.table_size > 0) sample.seek_points = seek_points;
  }
  Parts parts;
  if (!plan_parts(i, work.box, seek_points, parts)) return {};
  const Status status = thread_reader().read_parts(*extents, i, parts.table.jpeg_size(),
                                                   parts.bytes, sample.jpeg, read);
  if (!status.ok() || !read) return status;
  if (check && !parts.table.is_sound(parts.mcus, sample.jpeg.data))
    return {Code::changed, "its bytes have changed since it was packed"};
  sample.present = parts.mcus;
  sample.seek_points = seek_points;
  return {};
}

Status DecodeTask::decode(size_t i, Work& work) {
  Sample& sample = work.sample;
  // Nothing else vouches for bytes without checksum and seek points, and a crop may not get to
  // where they were cut. Pillow decodes all of it, and judges.
  if (extents && !extents->extents[i].has_crc && !sample.raw.pixels &&
      sample.seek_points.size == 0 && lacks_end(sample.jpeg))
    return {Code::truncated, "the file has no end-of-image marker", sample.jpeg.size};
  if (builds(i) && !sample.raw.pixels && sample.seek_points.size == 0 &&
      sample.jpeg.size >= kWorthBuilding && is_checked(i, sample)) {
    // A damaged JPEG may still have the region whole. The decoder finds out.
    SeekPoints made = std::move(build_seek_points({sample.jpeg}, stride)[0]);
    if (made.status.ok()) {
      std::vector<uint8_t>& table = built[i].table;
      table = std::move(made.packed);
      sample.seek_points = {table.data(), table.size()};
    }
  }
  if (views.empty()) return thread_decoder().run(sample, options);
  std::vector<SampleView> all = {{&sample, &options}};
  for (const auto& view : views) all.push_back({&view->samples[i], &view->options});
  return thread_decoder().run(sample, all.data(), all.size());
}

void DecodeTask::prepare() {
  look_up();
  if (no_memory_) return;
  try {
    std::vector<uint8_t> others = skip;
    others.resize(samples.size());
    for (size_t i = 0; i < refused_.size(); i++) others[i] = others[i] || !refused_[i].ok();
    for (size_t i = 0; i < samples.size(); i++) {
      const Extent& extent = extents->extents[i];
      Parts parts;
      ByteSpan table;
      if (others[i] || extent.table_size == 0 || extent.file < 0 || extent.in_memory ||
          !may_be_partial(*extents, i))
        continue;
      // The read of the sample reports the error.
      if (!thread_reader().read_table(*extents, i, table).ok() ||
          !plan_parts(i, samples[i].box(), table, parts))
        continue;
      will_need(*extents, i, parts.bytes);
      others[i] = 1;
    }
    will_need(*extents, others);
  } catch (const std::bad_alloc&) {
    // It is only advice.
  }
}

}  // namespace fastdata
