// The fuzz target of seek tables: any bytes as a table of some image, of either version. Nothing
// may crash or trip a sanitizer. Each way to a point gives the same point. The ranges to read for a
// part of an image lie in the image.
//
// An input is the image's MCUs across and down, a byte of switches, one that chooses points and a
// part, and the table. The switches fix its size, its fields about the image, and its checksums.
#include <algorithm>
#include <array>
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
constexpr auto kJpeg = [] {
  std::array<uint8_t, 100> bytes{};
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(73 * i);
  return bytes;
}();

enum Switch : uint8_t { kColour = 1, kFix = 2, kFixSize = 4, kPartial = 8, kFixChecksums = 16 };

template <typename T>
void put(std::vector<uint8_t>& table, size_t at, T value) {
  std::memcpy(table.data() + at, &value, sizeof value);
}

/// Fixes a table's fields about its image (docs/formats/seek-points.md).
void fix_head(std::vector<uint8_t>& table, const JpegHeader& header, bool partial) {
  if (table.size() < (partial ? 32 : 12)) return;
  static const uint32_t crc = crc32c({kJpeg.data(), kJpeg.size() / 2});
  table[0] = partial ? 2 : 1;
  put(table, 4, static_cast<uint32_t>(kJpeg.size()));
  put(table, 8, crc);
  if (!partial) return;
  put(table, 16, static_cast<uint32_t>(header.scan_offset));
  put(table, 20, static_cast<uint32_t>(header.scan_offset + table[20] % (kJpeg.size() / 2 + 1)));
  put(table, 24, static_cast<uint16_t>(8 * header.mcus_per_row - table[24] % 8));
  put(table, 26, static_cast<uint16_t>(8 * header.mcu_rows - table[26] % 8));
  table[28] = table[29] = 1;
  table[30] = static_cast<uint8_t>(header.component_count);
}

/// Gives a table the size that its own numbers ask for (docs/formats/seek-points.md).
void fix_size(std::vector<uint8_t>& table, const JpegHeader& header, bool partial) {
  const size_t components = partial ? 32 : 16;
  const size_t head = components + size_t{3} * header.component_count;
  uint16_t interval;
  std::memcpy(&interval, table.data() + 2, 2);
  if (table.size() < head || interval == 0) return;
  const size_t points = size_t((header.mcus_per_row - 1) / interval + 1) * header.mcu_rows;
  size_t bits = 0;
  for (size_t at = components + 2; at < head; at += 3) bits += table[at] %= 17;
  table[1] %= 33;
  table.resize(head + ((points - 1) * table[1] + 7) / 8 + (points * bits + 7) / 8 +
                   (partial ? 4 * points : 0),
               0x5A);
}

/// Gives the segments that lie in the image their checksums.
void fix_checksums(std::vector<uint8_t>& bytes) {
  SeekTable table;
  if (!table.open(ByteSpan{bytes.data(), bytes.size()}).ok()) return;
  for (int i = 0; i < table.size(); i++) {
    const size_t begin = table.point(i).byte, end = table.byte_after(i + 1);
    if (begin < end && end <= kJpeg.size())
      put(bytes, bytes.size() - 4 * static_cast<size_t>(table.size() - i),
          crc32c({kJpeg.data() + begin, end - begin}));
  }
}

void require(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

/// Asks for a part of the image, as the loader does without having it.
void use_parts(ByteSpan packed, uint8_t choice) {
  SeekTable table;
  if (!table.open(packed).ok() || table.jpeg_size() != kJpeg.size()) return;
  const bool rows = choice & 8;  // whole ones
  const int x = rows ? 0 : choice * 37 % table.width(), y = choice * 11 % table.height();
  const Box box{x, y, rows ? table.width() : x + 1, std::min(y + 1 + choice % 20, table.height())};
  const McuBox mcus = table.mcus_of(box);
  // Of exactly its size, for the sanitizer to see reads beyond the end.
  const std::vector<uint8_t> image(kJpeg.begin(), kJpeg.end());
  std::vector<ByteRange> parts;
  const bool found = table.parts(mcus, parts);
  for (const ByteRange& part : parts)
    require(!found || (part.begin <= part.end && part.end <= image.size()), "a part lies outside");
  const bool sound = found && table.is_sound(mcus, image.data());
  SegmentRun run;
  if (!table.run_of(mcus, run)) return;
  require(run.bytes.begin < run.bytes.end && run.bytes.end <= image.size(), "a run lies outside");
  const std::vector<uint8_t> fetched(image.data() + run.bytes.begin, image.data() + run.bytes.end);
  const bool run_sound = table.is_sound(run, {fetched.data(), fetched.size()});
  if (rows && found && table.header_crc() == crc32c({image.data(), table.header_size()}))
    require(sound == run_sound, "rows are sound by one way and not by the other");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead) return 0;
  JpegHeader header;
  header.mcus_per_row = 1 + (data[0] & 15);
  header.mcu_rows = 1 + (data[1] & 15);
  header.component_count = data[2] & kColour ? 3 : 1;
  header.scan_offset = kJpeg.size() / 2;
  const bool partial = data[2] & kPartial;
  std::vector<uint8_t> table(data + kHead, data + size);
  if (data[2] & kFix) {
    fix_head(table, header, partial);
    if ((data[2] & kFixSize) && table.size() >= 12) fix_size(table, header, partial);
    if (partial && (data[2] & kFixChecksums)) fix_checksums(table);
  }
  table.shrink_to_fit();  // for the sanitizer to see reads beyond the end

  SeekTable walked, jumped;
  const ByteSpan image{kJpeg.data(), kJpeg.size()}, packed{table.data(), table.size()};
  use_parts(packed, data[3]);
  if (!walked.open(packed, image, header).ok() || !jumped.open(packed, image, header).ok())
    return 0;
  const int step = 1 + data[3] % 8;
  for (int i = 0; i < walked.size(); i++) {
    const EntryPoint point = walked.point(i);
    if (i % step) continue;
    const EntryPoint same = jumped.point(i);
    require(
        point.byte == same.byte && point.bit == same.bit &&
            jumped.byte_after(i) == point.byte + (point.bit > 0) &&
            std::equal(point.predictor, point.predictor + header.component_count, same.predictor),
        "a point differs by the way to it");
  }
  return 0;
}
