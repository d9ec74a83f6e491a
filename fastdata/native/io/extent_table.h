// The columns of an index of version 1, an Arrow file, in place, and the extents of any of its
// rows.
//
// Nothing in the columns is believed: a row that makes no sense gives an extent that is
// marked corrupt, and no offset is followed that does not lie within its buffer.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "io/extents.h"
#include "io/index_row.h"

namespace fastdata {

/// An Arrow array of strings or bytes: offsets are int32, perhaps not aligned.
struct VariableColumn {
  bool present = false;               // else all values are null
  int64_t first = 0;                  // row 0's place in the buffers below
  const uint8_t* validity = nullptr;  // bits; null: none is null
  const uint8_t* offsets = nullptr;
  ByteSpan data;
};

/// The columns of one record batch. Fixed-width ones point to row 0's value.
struct TableBatch {
  bool added = false;
  const uint8_t* file = nullptr;      // int32
  const uint8_t* offset = nullptr;    // int64
  const uint8_t* length = nullptr;    // int64
  const uint8_t* width = nullptr;     // int32
  const uint8_t* height = nullptr;    // int32
  const uint8_t* encoding = nullptr;  // int8, a place in the dictionary
  const uint8_t* crc32c = nullptr;    // uint32
  const uint8_t* label = nullptr;     // int32
  VariableColumn path, seek_points;
  std::array<int8_t, 128> encodings;  // codes of encodings, by place in the dictionary
};

class ExtentTable {
 public:
  /// All batches but the last have `batch_rows` rows.
  ExtentTable(IndexedDataset dataset, int64_t rows, int64_t batch_rows);

  int64_t rows() const { return rows_; }
  size_t batch_count() const { return batches_.size(); }
  int64_t rows_of(size_t batch) const;
  bool has(size_t batch) const { return batches_[batch].added; }
  size_t batch_of(int64_t row) const { return static_cast<size_t>(row / batch_rows_); }

  /// Adds a batch that is not there yet, with rows_of(batch) rows; its buffers must be as long
  /// as the rows need, and outlive the table and what it has gathered.
  void add(size_t batch, TableBatch columns);

  /// The extents of rows whose batches are there. For any number of threads.
  void gather(const std::vector<int64_t>& rows, Extents& out) const;

 private:
  void fill(const TableBatch& batch, int64_t at, size_t i, Extents& out) const;

  IndexedDataset dataset_;
  int64_t rows_, batch_rows_;
  std::vector<TableBatch> batches_;
};

}  // namespace fastdata
