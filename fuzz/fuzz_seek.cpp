// The fuzz target of seek tables: any bytes as a table of some image. Nothing may crash or trip a
// sanitizer, and a point is the same however it is come to.
//
// An input is the image's MCUs across and down, a byte of switches, one that chooses points, and
// the table. The switches set its size right, its length and its header's checksum.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "io/crc32c.h"
#include "jpeg/jpeg_header.h"
#include "jpeg/seek_points.h"

using namespace fastdata;

namespace {

constexpr size_t kHead = 4;

enum Switch : uint8_t { kColour = 1, kMend = 2, kMendSize = 4 };

/// Gives a table the size that its own numbers ask for (docs/formats/seek-points.md).
void mend_size(std::vector<uint8_t>& table, const JpegHeader& header) {
  const size_t head = 16 + size_t{3} * header.component_count;
  uint16_t interval;
  std::memcpy(&interval, table.data() + 2, 2);
  if (table.size() < head || interval == 0) return;
  const size_t points = size_t((header.mcus_per_row - 1) / interval + 1) * header.mcu_rows;
  size_t bits = 0;
  for (size_t at = 18; at < head; at += 3) bits += table[at] %= 17;
  table[1] %= 33;
  table.resize(head + ((points - 1) * table[1] + 7) / 8 + (points * bits + 7) / 8, 0x5A);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<uint8_t> jpeg(100);
  if (size < kHead) return 0;
  JpegHeader header;
  header.mcus_per_row = 1 + (data[0] & 15);
  header.mcu_rows = 1 + (data[1] & 15);
  header.component_count = data[2] & kColour ? 3 : 1;
  header.scan_offset = jpeg.size() / 2;
  std::vector<uint8_t> table(data + kHead, data + size);
  if ((data[2] & kMend) && table.size() >= 12) {
    const auto length = static_cast<uint32_t>(jpeg.size());
    static const uint32_t crc = crc32c({jpeg.data(), header.scan_offset});
    table[0] = 1;
    std::memcpy(table.data() + 4, &length, 4);
    std::memcpy(table.data() + 8, &crc, 4);
    if (data[2] & kMendSize) mend_size(table, header);
  }
  table.shrink_to_fit();  // for the sanitizer to see reads beyond the end

  SeekTable walked, jumped;
  const ByteSpan image{jpeg.data(), jpeg.size()}, packed{table.data(), table.size()};
  if (!walked.open(packed, image, header).ok() || !jumped.open(packed, image, header).ok())
    return 0;
  const int step = 1 + data[3] % 8;
  for (int i = 0; i < walked.size(); i++) {
    const EntryPoint point = walked.point(i);
    if (i % step) continue;
    const EntryPoint same = jumped.point(i);
    if (point.byte != same.byte || point.bit != same.bit ||
        jumped.byte_after(i) != point.byte + (point.bit > 0) ||
        !std::equal(point.predictor, point.predictor + header.component_count, same.predictor)) {
      std::fprintf(stderr, "point %d differs by the way to it\n", i);
      std::abort();
    }
  }
  return 0;
}
