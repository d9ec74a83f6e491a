#include "io/extent_table.h"

#include <algorithm>
#include <cstring>

namespace fastdata {
namespace {

template <typename T>
T load(const uint8_t* column, int64_t at) {
  T value;
  std::memcpy(&value, column + static_cast<size_t>(at) * sizeof(T), sizeof(T));
  return value;
}

enum class Found { value, null, corrupt };

Found find(const VariableColumn& column, int64_t at, ByteSpan& value) {
  if (!column.present) return Found::null;
  const int64_t i = column.first + at;
  if (column.validity && !(column.validity[i / 8] >> (i % 8) & 1)) return Found::null;
  const int64_t begin = load<int32_t>(column.offsets, i);
  const int64_t end = load<int32_t>(column.offsets, i + 1);
  if (begin < 0 || end < begin || static_cast<size_t>(end) > column.data.size)
    return Found::corrupt;
  value = {column.data.data + begin, static_cast<size_t>(end - begin)};
  return Found::value;
}

}  // namespace

ExtentTable::ExtentTable(IndexedDataset dataset, int64_t rows, int64_t batch_rows)
    : dataset_(std::move(dataset)),
      rows_(rows),
      batch_rows_(batch_rows),
      batches_(static_cast<size_t>(rows / batch_rows + (rows % batch_rows != 0))) {}

int64_t ExtentTable::rows_of(size_t batch) const {
  return batch + 1 < batches_.size() ? batch_rows_
                                     : rows_ - static_cast<int64_t>(batch) * batch_rows_;
}

void ExtentTable::add(size_t batch, TableBatch columns) {
  columns.added = true;
  batches_[batch] = columns;
}

void ExtentTable::gather(const std::vector<int64_t>& rows, Extents& out) const {
  out.tables = {{dataset_.files(), nullptr}};
  // The rows lie anywhere: what they need is fetched while others are worked on.
  constexpr size_t kAhead = 16;
  const auto prefetch = [&](int64_t row) {
    const TableBatch& b = batches_[batch_of(row)];
    const int64_t at = row % batch_rows_;
    for (const uint8_t* column : {b.file, b.width, b.height, b.crc32c, b.label})
      __builtin_prefetch(column + 4 * at);
    for (const uint8_t* column : {b.offset, b.length}) __builtin_prefetch(column + 8 * at);
    __builtin_prefetch(b.encoding + at);
    for (const VariableColumn* column : {&b.path, &b.seek_points}) {
      if (!column->present) continue;
      __builtin_prefetch(column->offsets + 4 * (column->first + at));
      if (column->validity) __builtin_prefetch(column->validity + (column->first + at) / 8);
    }
  };
  for (size_t i = 0; i < std::min(kAhead, rows.size()); i++) prefetch(rows[i]);
  for (size_t i = 0; i < rows.size(); i++) {
    if (i + kAhead < rows.size()) prefetch(rows[i + kAhead]);
    fill(batches_[batch_of(rows[i])], rows[i] % batch_rows_, i, out);
  }
}

void ExtentTable::fill(const TableBatch& batch, int64_t at, size_t i, Extents& out) const {
  IndexRow row;
  row.offset = load<int64_t>(batch.offset, at);
  row.length = load<int64_t>(batch.length, at);
  row.crc = load<uint32_t>(batch.crc32c, at);
  row.file = load<int32_t>(batch.file, at);
  row.label = load<int32_t>(batch.label, at);
  row.width = load<int32_t>(batch.width, at);
  row.height = load<int32_t>(batch.height, at);
  const int8_t place = load<int8_t>(batch.encoding, at);
  if (place >= 0) row.encoding = batch.encodings[place];
  const Found path = dataset_.has_root() ? find(batch.path, at, row.path) : Found::null;
  row.has_path = path == Found::value;
  if (path == Found::corrupt) row.corrupt = "its path lies outside the index";
  Extent& extent = out.extents[i];
  dataset_.fill(row, i, out);
  if (find(batch.seek_points, at, extent.seek_points) == Found::corrupt)
    extent.corrupt = "its seek points lie outside the index";
  out.seekable[i] = extent.seek_points.size > 0;
}

}  // namespace fastdata
