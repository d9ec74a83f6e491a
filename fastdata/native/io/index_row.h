// One row of an index, of either version, and the extent that it gives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/extents.h"

namespace fastdata {

/// What a row says. Nothing in it is believed.
struct IndexRow {
  int64_t offset = 0, length = 0;
  uint32_t crc = 0;
  int32_t file = -1, label = 0, width = 0, height = 0;
  int8_t encoding = kUnknownEncoding;
  bool has_path = false;
  ByteSpan path;
  const char* corrupt = nullptr;  // what is known to be wrong with it
};

/// The dataset that an index is of: what its rows are checked against.
class IndexedDataset {
 public:
  /// `root`: where rows with a path of their own lie; empty: nowhere. Labels are below `classes`.
  IndexedDataset(std::shared_ptr<Files> files, std::string root, int64_t classes)
      : files_(std::move(files)), root_(std::move(root)), classes_(classes) {}

  const std::shared_ptr<Files>& files() const { return files_; }
  bool has_root() const { return !root_.empty(); }

  /// Sample i of `out`, but for its seek points. A row that makes no sense gives an extent that
  /// is marked corrupt.
  void fill(const IndexRow& row, size_t i, Extents& out) const;

 private:
  std::shared_ptr<Files> files_;
  std::string root_;
  int64_t classes_;
};

}  // namespace fastdata
