// The rows of an index (docs/formats/index.md): records of one size, which lie in the
// order of the rows, and the heap behind them, which holds what has no fixed size.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common.h"

namespace fastdata {

/// As in the file: all supported machines are little-endian.
struct Record {
  int64_t offset, length;  // of the blob
  int64_t heap_at;         // where in the heap the key begins, then path, seek table, its checksum
  int32_t file, label, width, height;
  uint32_t blob_crc;
  uint32_t names_crc;  // of key and path
  uint16_t key_size, path_size;
  uint32_t table_size;  // without its checksum; 0: there is neither
  uint8_t encoding, channels;
  uint8_t orientation;  // EXIF's, 1 to 8; others mean 1
  uint8_t zero;
  uint32_t crc;  // of generation and row's number, 8 bytes each, and the 60 bytes before
};
static_assert(sizeof(Record) == 64 && std::is_trivially_copyable_v<Record>);

constexpr size_t kTableCrcSize = 4;

inline size_t names_size(const Record& record) {
  return size_t{record.key_size} + record.path_size;
}

/// Bytes of a row in the heap.
inline size_t heap_size(const Record& record) {
  return names_size(record) + (record.table_size ? record.table_size + kTableCrcSize : 0);
}

/// `seed`: CRC-32C of the packing's generation, so that no row of another packing is sound.
uint32_t record_crc(const Record& record, int64_t row, uint32_t seed = 0);

/// Whether the record is one of `row`'s, unchanged.
inline bool is_sound(const Record& record, int64_t row, uint32_t seed = 0) {
  return record.crc == record_crc(record, row, seed);
}

/// Where a row's learnt seek points are (docs/formats/learnt.md); zeros: there are none.
struct LearntEntry {
  int64_t at, size;              // of the table, which its checksum follows
  int64_t file_size, file_time;  // of the file that the table was built from; zeros: any
};
static_assert(sizeof(LearntEntry) == 32 && std::is_trivially_copyable_v<LearntEntry>);

constexpr int64_t kLearntAt = 64;  // of the first row's entry
constexpr int64_t kMostLearnt = 1 << 24;

/// Checksum of generation, row's number and seek table.
uint32_t table_crc(ByteSpan table, int64_t row, uint32_t seed = 0);

/// Whether a seek table, which its checksum follows, is one of `row`'s, unchanged.
bool is_table_sound(ByteSpan table, int64_t row, uint32_t seed = 0);

}  // namespace fastdata
