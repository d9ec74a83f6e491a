#include "io/index_row.h"

#include <cstring>

namespace fastdata {
namespace {

constexpr size_t kMaxPath = size_t{1} << 16;
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

void IndexedDataset::fill(const IndexRow& row, size_t i, Extents& out) const {
  Extent& extent = out.extents[i];
  extent.corrupt = row.corrupt;
  out.labels[i] = row.label;
  extent.offset = row.offset;
  extent.length = row.length;
  extent.crc = row.crc;
  extent.has_crc = true;
  if (row.offset < 0 || row.length < 0 || row.length > INT64_MAX - row.offset)
    extent.corrupt = "its offset or length is below zero, or too large";
  if (row.label < 0 || row.label >= classes_) extent.corrupt = "its label is not that of a class";

  if (row.has_path) {
    if (!stays_below(row.path) || row.path.size > kMaxPath)
      extent.corrupt = "its path leaves the dataset's root";
    else if (row.file != -1)
      extent.corrupt = "the index gives it a path, and a file besides";
    else
      out.set_path(i, root_ + '/' +
                          std::string(reinterpret_cast<const char*>(row.path.data), row.path.size));
  } else if (row.file < 0 || static_cast<size_t>(row.file) >= files_->count()) {
    if (!extent.corrupt) extent.corrupt = "the index puts it in a file that there is not";
  } else {
    extent.file = row.file;
    if (!extent.corrupt && extent.offset > files_->size(row.file) - extent.length)
      extent.corrupt = "the index puts it beyond its file's end";
  }

  if (row.encoding == kUnknownEncoding && !extent.corrupt)
    extent.corrupt = "its encoding is unknown";
  out.encodings[i] = row.encoding;
  if (row.width < 0 || row.height < 0 || row.width > kMaxSide || row.height > kMaxSide) {
    extent.corrupt = "its width or height is below zero, or too large";
  } else {
    out.widths[i] = row.width;
    out.heights[i] = row.height;
  }
}

}  // namespace fastdata
