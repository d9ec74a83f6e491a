#include "seek_points.h"

#include <algorithm>
#include <cstring>

#include "buffer.h"
#include "crc32c.h"
#include "huffman.h"
#include "kernels.h"
#include "restart.h"

namespace fastdata {
namespace {

// The layout's fixed part (docs/formats/seek-points.md).
constexpr uint8_t kVersion = 1;
constexpr size_t kVersionAt = 0;
constexpr size_t kDeltaBitsAt = 1;
constexpr size_t kIntervalAt = 2;
constexpr size_t kLengthAt = 4;
constexpr size_t kHeaderCrcAt = 8;
constexpr size_t kMinDeltaAt = 12;
constexpr size_t kComponentsAt = 16;
constexpr size_t kComponentSize = 3;
constexpr unsigned kMaxDeltaBits = 32;
constexpr unsigned kMaxPredictorBits = 16;

template <typename T>
T get(ByteSpan from, size_t at) {
  T value;
  std::memcpy(&value, from.data + at, sizeof value);  // all supported machines are little-endian
  return value;
}
template <typename T>
void put(std::vector<uint8_t>& to, size_t at, T value) {
  std::memcpy(to.data() + at, &value, sizeof value);
}

/// `count` bits, at most 32, from bit `at` on, least significant first.
uint32_t get_bits(ByteSpan from, size_t at, unsigned count) {
  const size_t byte = at / 8;
  uint64_t word = 0;
  std::memcpy(&word, from.data + byte, std::min<size_t>(8, from.size - byte));
  return static_cast<uint32_t>(word >> at % 8 & ((uint64_t{1} << count) - 1));
}
void put_bits(std::vector<uint8_t>& to, size_t at, unsigned count, uint32_t value) {
  for (unsigned i = 0; i < count; i++, at++)
    if (value >> i & 1) to[at / 8] |= static_cast<uint8_t>(1 << at % 8);
}

unsigned bits_for(uint64_t range) {
  unsigned bits = 0;
  while (range >> bits) bits++;
  return bits;
}

struct Point {
  uint64_t position;  // in bits, in the file
  int32_t predictor[kMaxComponents];
};

/// Follows the file's bytes, stuffed zeros included, as a stream goes through the
/// unstuffed ones.
class FilePosition {
 public:
  FilePosition(ByteSpan jpeg, size_t begin) : jpeg_(jpeg), begin_(begin), byte_(begin) {}

  /// The stream counts from `byte` on, if it did not already.
  void restart_at(size_t byte) {
    if (byte == begin_) return;
    begin_ = byte_ = byte;
    unstuffed_ = 0;
  }
  uint64_t advance_to(uint64_t unstuffed_bits) {
    uint64_t count = unstuffed_bits / 8 - unstuffed_;
    unstuffed_ += count;
    while (count) {
      const auto* at = jpeg_.data + byte_;
      const auto* ff = static_cast<const uint8_t*>(
          std::memchr(at, 0xFF, std::min<uint64_t>(count, jpeg_.size - byte_)));
      const uint64_t step = ff ? ff - at + 1 : count;
      byte_ += step + (ff ? 1 : 0);
      count -= step;
    }
    return byte_ * 8 + unstuffed_bits % 8;
  }

 private:
  ByteSpan jpeg_;
  size_t begin_;
  uint64_t byte_, unstuffed_ = 0;
};

std::vector<uint8_t> pack(ByteSpan jpeg, const JpegHeader& h, int interval,
                          const std::vector<Point>& points) {
  uint64_t min_delta = UINT64_MAX, max_delta = 0;
  for (size_t i = 1; i < points.size(); i++) {
    const uint64_t delta = points[i].position - points[i - 1].position;
    min_delta = std::min(min_delta, delta);
    max_delta = std::max(max_delta, delta);
  }
  if (points.size() == 1) min_delta = 0;
  const unsigned delta_bits = bits_for(max_delta - min_delta);

  int32_t min[kMaxComponents], max[kMaxComponents];
  unsigned bits[kMaxComponents], point_bits = 0;
  for (int c = 0; c < h.component_count; c++) {
    min[c] = max[c] = points[0].predictor[c];
    for (const Point& p : points) {
      min[c] = std::min(min[c], p.predictor[c]);
      max[c] = std::max(max[c], p.predictor[c]);
    }
    bits[c] = bits_for(static_cast<uint32_t>(max[c] - min[c]));
    point_bits += bits[c];
  }

  const size_t deltas = kComponentsAt + kComponentSize * h.component_count;
  const size_t predictors = deltas + ((points.size() - 1) * delta_bits + 7) / 8;
  std::vector<uint8_t> packed(predictors + (points.size() * point_bits + 7) / 8, 0);
  packed[kVersionAt] = kVersion;
  packed[kDeltaBitsAt] = static_cast<uint8_t>(delta_bits);
  put(packed, kIntervalAt, static_cast<uint16_t>(interval));
  put(packed, kLengthAt, static_cast<uint32_t>(jpeg.size));
  put(packed, kHeaderCrcAt, crc32c({jpeg.data, h.scan_offset}));
  put(packed, kMinDeltaAt, static_cast<uint32_t>(min_delta));
  for (int c = 0; c < h.component_count; c++) {
    put(packed, kComponentsAt + kComponentSize * c, static_cast<int16_t>(min[c]));
    packed[kComponentsAt + kComponentSize * c + 2] = static_cast<uint8_t>(bits[c]);
  }
  size_t at = deltas * 8;
  for (size_t i = 1; i < points.size(); i++, at += delta_bits)
    put_bits(packed, at, delta_bits,
             static_cast<uint32_t>(points[i].position - points[i - 1].position - min_delta));
  at = predictors * 8;
  for (const Point& p : points)
    for (int c = 0; c < h.component_count; at += bits[c], c++)
      put_bits(packed, at, bits[c], static_cast<uint32_t>(p.predictor[c] - min[c]));
  return packed;
}

/// Every MCU of the scan, in order; notes the seek points.
Status walk_scan(ByteSpan jpeg, const JpegHeader& h, const EntropyTables& tables, int interval,
                 std::vector<Point>& points) {
  Buffer buffer;
  Stream stream;
  stream.buffer = buffer.reserve(kStreamBuffer);
  const auto failed = [&] {
    return Status{stream.error_code, stream.error,
                  static_cast<size_t>(stream.source - jpeg.data)};
  };
  EntryPoint start;
  start.byte = h.scan_offset;
  ScanPosition scan;
  scan.open(stream, jpeg, h, start, 0, jpeg.size);
  FilePosition file(jpeg, h.scan_offset);

  for (int row = 0; row < h.mcu_rows; row++)
    for (int col = 0; col < h.mcus_per_row;) {
      if (col % interval == 0) {
        Point p;
        p.position = file.advance_to(stream.bits_read());
        for (int c = 0; c < kMaxComponents; c++) {
          p.predictor[c] = static_cast<int32_t>(stream.predictor[c]);
          if (p.predictor[c] != static_cast<int16_t>(p.predictor[c]))
            return {Code::bad_scan_data, "a DC predictor beyond 16 bits",
                    static_cast<size_t>(stream.source - jpeg.data)};
        }
        points.push_back(p);
      }
      const int to_point = std::min(interval - col % interval, h.mcus_per_row - col);
      const int count = scan.run_length(to_point);
      const auto blocks = static_cast<uint32_t>(count) * h.blocks_per_mcu;
      if (!kernels().skip_blocks(stream, tables.plan, blocks)) return failed();
      if (overran(stream))
        return {Code::truncated, "the scan ends early",
                static_cast<size_t>(stream.source - jpeg.data)};
      scan.advance(count);
      col += count;
      if (scan.mcu() == h.mcu_count()) continue;
      if (!scan.restart_if_due(stream)) return failed();
      file.restart_at(scan.opened_byte());
    }
  const size_t marker = find_marker(jpeg, stream.source - jpeg.data);
  if (marker + 2 > jpeg.size) return {Code::truncated, "no end-of-image marker", jpeg.size};
  if (jpeg.data[marker + 1] != 0xD9)
    return {Code::unsupported, "something else than the end of the image after the scan", marker};
  return {};
}

}  // namespace

Status build_seek_points(ByteSpan jpeg, int stride, std::vector<uint8_t>& packed) {
  JpegHeader header;
  if (Status s = read_header(jpeg, header); !s.ok()) return s;
  if (jpeg.size > UINT32_MAX / 8) return {Code::unsupported, "larger than 512 MiB", 0};
  EntropyTables tables;
  if (Status s = tables.build(header); !s.ok()) return s;
  tables.build_skip();
  const int interval = std::clamp(stride / header.mcu_width, 1, 65535);
  std::vector<Point> points;
  if (Status s = walk_scan(jpeg, header, tables, interval, points); !s.ok()) return s;
  packed = pack(jpeg, header, interval, points);
  return {};
}

Status SeekTable::open(ByteSpan packed, ByteSpan jpeg, const JpegHeader& h) {
  const auto bad = [](const char* why, size_t at) {
    return Status{Code::bad_seek_points, why, at};
  };
  const size_t deltas = kComponentsAt + kComponentSize * h.component_count;
  if (packed.size < deltas) return bad("the seek table ends early", packed.size);
  if (packed.data[kVersionAt] != kVersion) return bad("an unknown version", kVersionAt);
  if (get<uint32_t>(packed, kLengthAt) != jpeg.size)
    return bad("made from a JPEG of another length", kLengthAt);
  if (get<uint32_t>(packed, kHeaderCrcAt) != crc32c({jpeg.data, h.scan_offset}))
    return bad("made from a JPEG with another header", kHeaderCrcAt);
  interval_ = get<uint16_t>(packed, kIntervalAt);
  if (interval_ == 0) return bad("no MCUs between seek points", kIntervalAt);
  delta_bits_ = packed.data[kDeltaBitsAt];
  if (delta_bits_ > kMaxDeltaBits) return bad("differences of more than 32 bits", kDeltaBitsAt);
  min_delta_ = get<uint32_t>(packed, kMinDeltaAt);

  component_count_ = h.component_count;
  point_bits_ = 0;
  for (int c = 0; c < component_count_; c++) {
    const size_t at = kComponentsAt + kComponentSize * c;
    predictor_min_[c] = get<int16_t>(packed, at);
    predictor_bits_[c] = packed.data[at + 2];
    if (predictor_bits_[c] > kMaxPredictorBits) return bad("predictors of more than 16 bits", at);
    point_bits_ += predictor_bits_[c];
  }
  points_per_row_ = ceil_div(h.mcus_per_row, interval_);
  size_ = points_per_row_ * h.mcu_rows;
  const size_t count = size_;
  const size_t predictors = deltas + ((count - 1) * delta_bits_ + 7) / 8;
  if (packed.size != predictors + (count * point_bits_ + 7) / 8)
    return bad("a seek table of the wrong size", packed.size);
  packed_ = packed;
  deltas_ = deltas * 8;
  predictors_ = predictors * 8;
  cursor_ = 0;
  cursor_position_ = static_cast<uint64_t>(h.scan_offset) * 8;
  return {};
}

uint64_t SeekTable::position(int index) {
  for (size_t at = deltas_ + static_cast<size_t>(cursor_) * delta_bits_; cursor_ < index;
       cursor_++, at += delta_bits_)
    cursor_position_ += min_delta_ + get_bits(packed_, at, delta_bits_);
  return cursor_position_;
}

EntryPoint SeekTable::point(int index) {
  EntryPoint entry;
  const uint64_t bits = position(index);
  entry.byte = bits / 8;
  entry.bit = bits % 8;
  size_t at = predictors_ + static_cast<size_t>(index) * point_bits_;
  for (int c = 0; c < component_count_; at += predictor_bits_[c], c++)
    entry.predictor[c] =
        static_cast<int16_t>(predictor_min_[c] + get_bits(packed_, at, predictor_bits_[c]));
  return entry;
}

size_t SeekTable::byte_after(int index) { return (position(index) + 7) / 8; }

}  // namespace fastdata
