#include "io/extents.h"

#include <algorithm>

#include "io/crc32c.h"
#include "io/record.h"

namespace fastdata {
namespace {

// A thread keeps at most so much from one sample to the next.
constexpr size_t kKeep = size_t{32} << 20;
// Larger ones are mistakes, or files of some other kind.
constexpr int64_t kMaxBlob = int64_t{1} << 30;
// Two parts are read at once if the gap between them is no larger.
constexpr size_t kJoined = 2048;

Status compare(ByteSpan blob, uint32_t crc) {
  if (crc32c(blob) != crc) return {Code::changed, "its bytes have changed since it was packed"};
  return {};
}

}  // namespace

Extents::Extents(size_t count)
    : extents(count),
      labels(count, 0),
      widths(count, 0),
      heights(count, 0),
      encodings(count, kUnknownEncoding),
      seekable(count, 0) {}

const char* Extents::path(size_t i) const {
  const Extent& extent = extents[i];
  if (extent.file >= 0) return shared(i).files->path(extent.file).c_str();
  return extent.path < paths.size() ? paths.c_str() + extent.path : "";
}

void Extents::set_path(size_t i, const std::string& path) {
  extents[i].file = -1;
  extents[i].path = paths.size();
  paths.append(path.c_str(), path.size() + 1);
}

void Extents::place(const Extents& part, const std::vector<int64_t>& slots) {
  const auto table = static_cast<int32_t>(tables.size());
  const size_t path = paths.size();
  tables.insert(tables.end(), part.tables.begin(), part.tables.end());
  paths += part.paths;
  for (size_t from = 0; from < slots.size(); from++) {
    const auto to = static_cast<size_t>(slots[from]);
    Extent& extent = extents[to] = part.extents[from];
    extent.table += table;
    if (extent.path != SIZE_MAX) extent.path += path;
    labels[to] = part.labels[from];
    widths[to] = part.widths[from];
    heights[to] = part.heights[from];
    encodings[to] = part.encodings[from];
    seekable[to] = part.seekable[from];
  }
}

void find_learnt(const OpenFile& learnt, int64_t row, Extent& extent) {
  LearntEntry entry{};
  int error_number;
  const int64_t at = kLearntAt + row * static_cast<int64_t>(sizeof entry);
  if (!learnt.read(at, sizeof entry, reinterpret_cast<uint8_t*>(&entry), error_number).ok() ||
      entry.at <= 0 || entry.size <= 0 || entry.size > kMostLearnt)
    return;
  extent.learnt = true;
  extent.row = row;
  extent.table_at = entry.at;
  extent.table_size = static_cast<uint32_t>(entry.size);
  extent.stamp = {entry.file_size, entry.file_time};
  extent.has_stamp = entry.file_size > 0 || entry.file_time != 0;
}

Status BlobReader::open(const Extents& extents, size_t i, std::shared_ptr<OpenFile>& file,
                        int64_t& length) {
  error_number_ = 0;
  const Extent& extent = extents.extents[i];
  if (extent.corrupt) return {Code::corrupt_index, extent.corrupt};
  const Status status = extent.file >= 0
                            ? extents.shared(i).files->open(extent.file, file, error_number_)
                            : open_file(extents.path(i), file, error_number_);
  if (!status.ok()) return status;
  stamp_ = file->stamp();
  length = extent.length >= 0 ? extent.length : file->size();
  return {};
}

Status BlobReader::read(const Extents& extents, size_t i, bool check, ByteSpan& blob) {
  const Extent& extent = extents.extents[i];
  if (extent.in_memory && !extent.corrupt) {
    error_number_ = 0;
    if (extent.is_partial()) return {Code::bad_seek_points, "only some of its bytes were fetched"};
    blob = extent.memory;
    stamp_ = {static_cast<int64_t>(blob.size), 0};
    return check && extent.has_crc ? compare(blob, extent.crc) : Status{};
  }
  std::shared_ptr<OpenFile> file;
  int64_t length = 0;
  if (Status s = open(extents, i, file, length); !s.ok()) return s;
  if (length > kMaxBlob) return {Code::too_large, "a sample of more than 2^30 bytes"};
  // Before memory is taken for bytes that do not exist.
  if (extent.offset > file->size() - length)
    return {Code::cut_short, "the file ends before the sample does"};
  const size_t size = static_cast<size_t>(length);
  uint8_t* data = buffer_.reserve(round_up(size + 1, 1 << 16));
  if (Status s = read_file(*file, extent.offset, size, data); !s.ok()) return s;
  blob = {data, size};
  return check && extent.has_crc ? compare(blob, extent.crc) : Status{};
}

Status BlobReader::read_file(const OpenFile& file, int64_t offset, size_t length, uint8_t* out) {
  bytes_read_ += length;
  return file.read(offset, length, out, error_number_);
}

Status BlobReader::read_parts(const Extents& extents, size_t i, size_t size,
                              const std::vector<ByteRange>& parts, ByteSpan& blob, bool& read) {
  const Extent& extent = extents.extents[i];
  read = false;
  if (extent.in_memory) {
    error_number_ = 0;
    if (extent.length != static_cast<int64_t>(size)) return {};
    uint8_t* data = buffer_.reserve(round_up(size + 1, 1 << 16));
    for (const ByteRange& part : parts) {
      const bool first = part.end <= extent.memory.size;
      const ByteSpan from = first ? extent.memory : extent.rows;
      const size_t at = first ? 0 : extent.rows_at;
      if (part.begin < at || part.end - at > from.size) return {};
      std::copy_n(from.data + (part.begin - at), part.end - part.begin, data + part.begin);
    }
    blob = {data, size};
    read = true;
    return {};
  }
  std::shared_ptr<OpenFile> file;
  int64_t length = 0;
  if (Status s = open(extents, i, file, length); !s.ok()) return s;
  if (length != static_cast<int64_t>(size) || length > kMaxBlob ||
      extent.offset > file->size() - length || (extent.has_stamp && !(extent.stamp == stamp_)))
    return {};
  uint8_t* data = buffer_.reserve(round_up(size + 1, 1 << 16));
  for (const ByteRange& part : parts)
    if (Status s = read_file(*file, extent.offset + static_cast<int64_t>(part.begin),
                             part.end - part.begin, data + part.begin);
        !s.ok())
      return s;
  blob = {data, size};
  read = true;
  return {};
}

Status BlobReader::read_head(const Extents& extents, size_t i, size_t count, ByteSpan& head,
                             bool& whole) {
  if (const Extent& extent = extents.extents[i]; extent.in_memory && !extent.corrupt) {
    error_number_ = 0;
    whole = !extent.is_partial() && extent.memory.size <= count;
    head = {extent.memory.data, std::min(extent.memory.size, count)};
    return {};
  }
  std::shared_ptr<OpenFile> file;
  int64_t length = 0;
  if (Status s = open(extents, i, file, length); !s.ok()) return s;
  whole = length <= static_cast<int64_t>(count);
  const size_t size = whole ? static_cast<size_t>(length) : count;
  uint8_t* data = buffer_.reserve(round_up(size + 1, 1 << 12));
  head = {data, size};
  return file->read(extents.extents[i].offset, size, data, error_number_);
}

Status BlobReader::read_table(const Extents& extents, size_t i, ByteSpan& table) {
  const Extent& extent = extents.extents[i];
  table = {table_.reserve(round_up(extent.table_size + kTableCrcSize, 1 << 12)), extent.table_size};
  int error_number;
  bytes_read_ += table.size + kTableCrcSize;
  const SharedFiles& shared = extents.shared(i);
  const uint32_t seed = shared.seed;
  std::shared_ptr<OpenFile> file;
  Status status = (extent.learnt ? shared.learnt : shared.index)->open(0, file, error_number);
  if (status.ok())
    status = file->read(extent.table_at, table.size + kTableCrcSize, table_.get(), error_number);
  else if (!extent.learnt)
    return {status.code == Code::too_many_files ? status.code : Code::corrupt_index, status.detail};
  if (extent.learnt) {  // they can be learnt again
    if (!status.ok() || !is_table_sound(table, extent.row, seed)) table = {};
    return {};
  }
  if (!status.ok())
    return {Code::corrupt_index, "the index ends before its seek points, or cannot be read there"};
  if (!is_table_sound(table, extent.row, seed))
    return {Code::corrupt_index, "its seek points in the index are damaged"};
  return {};
}

void join_parts(std::vector<ByteRange>& parts) {
  size_t count = 0;
  for (const ByteRange& part : parts)
    if (count > 0 && part.begin <= parts[count - 1].end + kJoined)
      parts[count - 1].end = std::max(parts[count - 1].end, part.end);
    else
      parts[count++] = part;
  parts.resize(count);
}

void BlobReader::trim() {
  for (Buffer* buffer : {&buffer_, &table_})
    if (buffer->size() > kKeep) buffer->release();
}

BlobReader& thread_reader() {
  thread_local BlobReader reader;
  return reader;
}

void will_need(const Extents& extents, const std::vector<uint8_t>& skip) {
  std::shared_ptr<OpenFile> file;
  int32_t table = -1, opened = -1;
  for (size_t i = 0; i < extents.size(); i++) {
    const Extent& extent = extents.extents[i];
    if (extent.file < 0 || extent.corrupt || extent.in_memory || (!skip.empty() && skip[i]))
      continue;
    int error_number;
    if (extent.file != opened || extent.table != table) {
      opened = extent.file, table = extent.table;
      // Reading the sample reports the error.
      if (!extents.shared(i).files->open(extent.file, file, error_number).ok()) file.reset();
    }
    if (file) file->will_need(extent.offset, extent.length);
  }
}

void will_need(const Extents& extents, size_t i, const std::vector<ByteRange>& parts) {
  const Extent& extent = extents.extents[i];
  std::shared_ptr<OpenFile> file;
  int error_number;
  if (!extents.shared(i).files->open(extent.file, file, error_number).ok()) return;
  for (const ByteRange& part : parts)
    file->will_need(extent.offset + static_cast<int64_t>(part.begin),
                    static_cast<int64_t>(part.end - part.begin));
}

}  // namespace fastdata
