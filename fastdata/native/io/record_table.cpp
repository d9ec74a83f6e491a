#include "io/record_table.h"

#include <cstring>

#include "io/crc32c.h"

namespace fastdata {
namespace {

constexpr int32_t kMaxSide = 1 << 27;

/// Whether a path stays below the folder that it is relative to.
bool stays_below(ByteSpan path) {
  if (path.size == 0 || path.data[0] == '/' || std::memchr(path.data, 0, path.size)) return false;
  const uint8_t* part = path.begin();
  for (const uint8_t* p = path.begin();; p++) {
    if (p != path.end() && *p != '/') continue;
    if (p - part == 2 && part[0] == '.' && part[1] == '.') return false;
    if (p == path.end()) return true;
    part = p + 1;
  }
}

}  // namespace

RecordTable::RecordTable(IndexedDataset dataset, std::shared_ptr<Files> index, int64_t records_at,
                         int64_t rows, int64_t heap_size)
    : dataset_(std::move(dataset)),
      index_(std::move(index)),
      records_at_(records_at),
      rows_(rows),
      heap_size_(heap_size) {}

Status RecordTable::gather(const std::vector<int64_t>& rows, Extents& out,
                           int& error_number) const {
  error_number = 0;
  out.tables = {{dataset_.files, index_, std::atomic_load(&learnt_), dataset_.seed}};
  Opened opened;
  if (Status s = index_->open(0, opened.index, error_number); !s.ok()) return s;
  int ignored;  // without them, samples are decoded more slowly
  if (const auto& learnt = out.tables[0].learnt;
      learnt && !learnt->open(0, opened.learnt, ignored).ok())
    opened.learnt.reset();
  for (size_t i = 0; i < rows.size(); i++) fill(rows[i], i, opened, out);
  return {};
}

void RecordTable::fill(int64_t number, size_t i, Opened& opened, Extents& out) const {
  Extent& extent = out.extents[i];
  Record record{};
  int error_number;
  const int64_t at = records_at_ + number * static_cast<int64_t>(sizeof record);
  if (!opened.index->read(at, sizeof record, reinterpret_cast<uint8_t*>(&record), error_number)
           .ok()) {
    extent.corrupt = "the index ends before its row, or cannot be read there";
    return;
  }
  if (!is_sound(record, number, dataset_.seed)) {
    extent.corrupt = "its row in the index is damaged";
    return;
  }
  out.labels[i] = record.label;
  out.encodings[i] = known_encoding(record.encoding);
  extent.offset = record.offset;
  extent.length = record.length;
  extent.crc = record.blob_crc;
  extent.has_crc = true;
  if (record.width < 0 || record.height < 0 || record.width > kMaxSide ||
      record.height > kMaxSide) {
    extent.corrupt = "its width or height is below zero, or too large";
  } else {
    out.widths[i] = record.width;
    out.heights[i] = record.height;
  }
  if (dataset_.upright) {
    extent.orientation = record.orientation <= 8 ? static_cast<int8_t>(record.orientation) : 1;
    out.turn_size(i);
  }
  if (record.label < 0 || record.label >= dataset_.classes)
    extent.corrupt = "its label is not that of a class";
  if (record.offset < 0 || record.length < 0 || record.length > INT64_MAX - record.offset)
    extent.corrupt = "its offset or length is below zero, or too large";
  if (record.heap_at < 0 || record.heap_at > heap_size_ - static_cast<int64_t>(heap_size(record))) {
    extent.corrupt = "its key lies outside the index";
    return;
  }
  const int64_t names_at =
      records_at_ + rows_ * static_cast<int64_t>(sizeof record) + record.heap_at;
  ByteSpan path;
  if (!dataset_.root.empty() && record.path_size > 0) {
    std::vector<uint8_t>& names = opened.names;
    names.resize(names_size(record));
    if (!opened.index->read(names_at, names.size(), names.data(), error_number).ok())
      extent.corrupt = "the index ends before its path, or cannot be read there";
    else if (crc32c({names.data(), names.size()}) != record.names_crc)
      extent.corrupt = "its path in the index is damaged";
    else
      path = {names.data() + record.key_size, record.path_size};
  }
  const char* wrong = find_file(record, path, i, out);
  if (!extent.corrupt) extent.corrupt = wrong;
  extent.row = number;
  find_table(record, names_at, i, opened.learnt.get(), out);
  out.seekable[i] = extent.table_size > 0;
}

void RecordTable::find_table(const Record& record, int64_t names_at, size_t i,
                             const OpenFile* learnt, Extents& out) const {
  Extent& extent = out.extents[i];
  extent.table_at = names_at + static_cast<int64_t>(names_size(record));
  extent.table_size = record.table_size;
  if (record.table_size > 0 || !learnt || out.encodings[i] != kJpegEncoding) return;
  find_learnt(*learnt, extent.row, extent);
}

const char* RecordTable::find_file(const Record& record, ByteSpan path, size_t i,
                                   Extents& out) const {
  if (path.size > 0) {
    if (!stays_below(path)) return "its path leaves the dataset's root";
    if (record.file != -1) return "the index gives it both a path and a file";
    out.set_path(
        i, dataset_.root + '/' + std::string(reinterpret_cast<const char*>(path.data), path.size));
    return nullptr;
  }
  if (record.file < 0 || static_cast<size_t>(record.file) >= dataset_.files->count())
    return "the index puts it in a file that does not exist";
  Extent& extent = out.extents[i];
  extent.file = record.file;
  if (extent.corrupt || extent.offset <= dataset_.files->size(record.file) - extent.length)
    return nullptr;
  return "the index puts it beyond its file's end";
}

}  // namespace fastdata
