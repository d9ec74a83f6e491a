#include "io/record_table.h"

#include "io/crc32c.h"

namespace fastdata {

RecordTable::RecordTable(IndexedDataset dataset, std::shared_ptr<OpenFile> index,
                         int64_t records_at, int64_t rows, int64_t heap_size)
    : dataset_(std::move(dataset)),
      index_(std::move(index)),
      records_at_(records_at),
      rows_(rows),
      heap_size_(heap_size) {}

void RecordTable::gather(const std::vector<int64_t>& rows, Extents& out) const {
  out.tables = {{dataset_.files(), index_}};
  std::vector<uint8_t> names;
  for (size_t i = 0; i < rows.size(); i++) fill(rows[i], i, names, out);
}

void RecordTable::fill(int64_t number, size_t i, std::vector<uint8_t>& names, Extents& out) const {
  Extent& extent = out.extents[i];
  Record record{};
  int error_number;
  const int64_t at = records_at_ + number * static_cast<int64_t>(sizeof record);
  if (!index_->read(at, sizeof record, reinterpret_cast<uint8_t*>(&record), error_number).ok()) {
    extent.corrupt = "the index ends before its row, or cannot be read there";
    return;
  }
  if (!is_sound(record, number)) {
    extent.corrupt = "its row in the index is damaged";
    return;
  }
  IndexRow row;
  row.offset = record.offset;
  row.length = record.length;
  row.crc = record.blob_crc;
  row.file = record.file;
  row.label = record.label;
  row.width = record.width;
  row.height = record.height;
  row.encoding = known_encoding(record.encoding);
  if (record.heap_at < 0 || record.heap_at > heap_size_ - static_cast<int64_t>(heap_size(record))) {
    row.corrupt = "its key lies outside the index";
    dataset_.fill(row, i, out);
    return;
  }
  const int64_t names_at =
      records_at_ + rows_ * static_cast<int64_t>(sizeof record) + record.heap_at;
  if (dataset_.has_root() && record.path_size > 0) {
    names.resize(names_size(record));
    if (!index_->read(names_at, names.size(), names.data(), error_number).ok())
      row.corrupt = "the index ends before its path, or cannot be read there";
    else if (crc32c({names.data(), names.size()}) != record.names_crc)
      row.corrupt = "its path in the index is damaged";
    row.has_path = !row.corrupt;
    row.path = {names.data() + record.key_size, record.path_size};
  }
  dataset_.fill(row, i, out);
  extent.row = number;
  extent.table_at = names_at + static_cast<int64_t>(names_size(record));
  extent.table_size = record.table_size;
  out.seekable[i] = record.table_size > 0;
}

}  // namespace fastdata
