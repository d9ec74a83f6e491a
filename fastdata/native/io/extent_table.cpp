#include "io/extent_table.h"

#include <algorithm>
#include <cstring>

namespace fastdata {
namespace {

constexpr size_t kMaxPath = size_t{1} << 16;
constexpr int32_t kMaxSide = 1 << 27;

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

ExtentTable::ExtentTable(std::shared_ptr<Files> files, std::string root, int64_t rows,
                         int64_t batch_rows, int64_t classes)
    : files_(std::move(files)),
      root_(std::move(root)),
      rows_(rows),
      batch_rows_(batch_rows),
      classes_(classes),
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
  out.files = files_;
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
  Extent& extent = out.extents[i];
  out.labels[i] = load<int32_t>(batch.label, at);
  extent.offset = load<int64_t>(batch.offset, at);
  extent.length = load<int64_t>(batch.length, at);
  extent.crc = load<uint32_t>(batch.crc32c, at);
  extent.has_crc = true;
  if (extent.offset < 0 || extent.length < 0 || extent.length > INT64_MAX - extent.offset)
    extent.corrupt = "its offset or length is below zero, or too large";
  if (out.labels[i] < 0 || out.labels[i] >= classes_)
    extent.corrupt = "its label is not that of a class";

  ByteSpan path;
  const int32_t file = load<int32_t>(batch.file, at);
  const Found found = root_.empty() ? Found::null : find(batch.path, at, path);
  if (found == Found::corrupt) {
    extent.corrupt = "its path lies outside the index";
  } else if (found == Found::value) {
    if (!stays_below(path) || path.size > kMaxPath)
      extent.corrupt = "its path leaves the dataset's root";
    else
      out.set_path(i,
                   root_ + '/' + std::string(reinterpret_cast<const char*>(path.data), path.size));
  } else if (file < 0 || static_cast<size_t>(file) >= files_->count()) {
    extent.corrupt = "the index puts it in a file that there is not";
  } else {
    extent.file = file;
    if (!extent.corrupt && extent.offset > files_->size(file) - extent.length)
      extent.corrupt = "the index puts it beyond its file's end";
  }

  const int8_t place = load<int8_t>(batch.encoding, at);
  int8_t encoding = kUnknownEncoding;
  if (place >= 0) encoding = batch.encodings[place];
  if (encoding == kUnknownEncoding) extent.corrupt = "its encoding is unknown";
  out.encodings[i] = encoding;
  const int32_t width = load<int32_t>(batch.width, at), height = load<int32_t>(batch.height, at);
  if (width < 0 || height < 0 || width > kMaxSide || height > kMaxSide) {
    extent.corrupt = "its width or height is below zero, or too large";
  } else {
    out.widths[i] = width;
    out.heights[i] = height;
  }
  if (find(batch.seek_points, at, extent.seek_points) == Found::corrupt)
    extent.corrupt = "its seek points lie outside the index";
  out.seekable[i] = extent.seek_points.size > 0;
}

}  // namespace fastdata
