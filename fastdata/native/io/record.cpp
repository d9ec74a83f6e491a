#include "io/record.h"

#include <cstddef>
#include <cstring>

#include "io/crc32c.h"

namespace fastdata {
namespace {

/// With exchanged halves: a CRC behind its own bytes makes the CRC of both a constant, and a file's
/// checksum would not depend on its records.
uint32_t crc_of_row(ByteSpan bytes, int64_t row, uint32_t seed) {
  const uint32_t crc =
      crc32c(bytes, crc32c({reinterpret_cast<const uint8_t*>(&row), sizeof row}, seed));
  return crc << 16 | crc >> 16;
}

}  // namespace

uint32_t record_crc(const Record& record, int64_t row, uint32_t seed) {
  return crc_of_row({reinterpret_cast<const uint8_t*>(&record), offsetof(Record, crc)}, row, seed);
}

uint32_t table_crc(ByteSpan table, int64_t row, uint32_t seed) {
  return crc_of_row(table, row, seed);
}

bool is_table_sound(ByteSpan table, int64_t row, uint32_t seed) {
  uint32_t crc;
  static_assert(sizeof crc == kTableCrcSize);
  std::memcpy(&crc, table.end(), sizeof crc);
  return crc == table_crc(table, row, seed);
}

}  // namespace fastdata
