// Extents of any rows of an index.
//
// Records are read where they are used, by `pread`: a file that is cut off under a memory map ends
// the process. Nothing in them is believed: a row that is damaged or makes no sense gives an extent
// that is marked corrupt.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/extents.h"
#include "io/record.h"

namespace fastdata {

/// The dataset that an index describes; its rows are checked against it.
struct IndexedDataset {
  std::shared_ptr<Files> files;
  std::string root;      // where rows with a path of their own lie; empty: nowhere
  int64_t classes = 0;   // labels are below
  bool upright = false;  // images are turned as their orientation says
  uint32_t seed = 0;     // of the rows' checksums (io/record.h)
};

class RecordTable {
 public:
  /// `records_at`: offset of the first of `rows` records; `heap_size` bytes follow the last.
  RecordTable(IndexedDataset dataset, std::shared_ptr<Files> index, int64_t records_at,
              int64_t rows, int64_t heap_size);

  int64_t rows() const { return rows_; }
  const std::string& path() const { return index_->path(0); }

  /// Takes seek points of rows that have none in the index from a file, once there are some.
  void learn(std::shared_ptr<Files> learnt) { std::atomic_store(&learnt_, std::move(learnt)); }

  /// The extents of rows that there are; fails if the index cannot be opened. For any number of
  /// threads. Throws std::bad_alloc.
  Status gather(const std::vector<int64_t>& rows, Extents& out, int& error_number) const;

 private:
  /// Files that are open while rows are gathered; none learnt: null.
  struct Opened {
    std::shared_ptr<OpenFile> index, learnt;
    std::vector<uint8_t> names;
  };
  void fill(int64_t number, size_t i, Opened& opened, Extents& out) const;
  /// Fills in where the seek points of sample i are.
  void find_table(const Record& record, int64_t names_at, size_t i, const OpenFile* learnt,
                  Extents& out) const;
  /// Fills in where sample i lies; `path`: the row's own file, empty if it has none. Returns why
  /// that makes no sense, or null.
  const char* find_file(const Record& record, ByteSpan path, size_t i, Extents& out) const;

  IndexedDataset dataset_;
  std::shared_ptr<Files> index_, learnt_;
  int64_t records_at_, rows_, heap_size_;
};

}  // namespace fastdata
