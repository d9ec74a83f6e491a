#include "jpeg/seek_points.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "buffer.h"
#include "io/crc32c.h"
#include "jpeg/huffman.h"
#include "simd/kernels.h"
#include "jpeg/restart.h"

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
/// All bits of `value`, from bit `at` on, where only zeros are yet.
void put_bits(std::vector<uint8_t>& to, size_t at, uint32_t value) {
  const size_t byte = at / 8, size = std::min<size_t>(8, to.size() - byte);
  uint64_t word = 0;
  std::memcpy(&word, to.data() + byte, size);
  word |= static_cast<uint64_t>(value) << at % 8;
  std::memcpy(to.data() + byte, &word, size);
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
  FilePosition() = default;
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
  size_t begin_ = 0;
  uint64_t byte_ = 0, unstuffed_ = 0;
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
    put_bits(packed, at,
             static_cast<uint32_t>(points[i].position - points[i - 1].position - min_delta));
  at = predictors * 8;
  for (const Point& p : points)
    for (int c = 0; c < h.component_count; at += bits[c], c++)
      put_bits(packed, at, static_cast<uint32_t>(p.predictor[c] - min[c]));
  return packed;
}

/// One image's scan, MCU by MCU, and the seek points passed.
class Walk {
 public:
  Stream stream;
  size_t image = 0;  // its place in the batch

  /// Starts the first run. False: the stream failed; or the image did not get so far, and
  /// `status` says why.
  bool open(ByteSpan jpeg, int stride, Status& status);

  /// Starts the run after the one that has been decoded. False: the stream failed.
  bool go_on();

  /// Whether all MCUs have been decoded, once a run has been.
  bool at_end() const { return scan_.mcu() == header_.mcu_count(); }

  /// To be called at the end of the scan.
  Status finish(std::vector<uint8_t>& packed) const;

  Status failure() const { return {stream.error_code, stream.error, source()}; }

 private:
  bool start_run_here();
  bool note_point();
  size_t source() const { return static_cast<size_t>(stream.source - jpeg_.data); }

  ByteSpan jpeg_;
  JpegHeader header_;
  EntropyTables tables_;
  ScanPosition scan_;
  FilePosition file_;
  Buffer buffer_;
  int16_t unread_[kBlockSize];
  int interval_ = 0;
  std::vector<Point> points_;
};

bool Walk::open(ByteSpan jpeg, int stride, Status& status) {
  jpeg_ = jpeg;
  points_.clear();
  if (status = read_header(jpeg, header_); !status.ok()) return false;
  if (header_.several_scans) {
    status = {Code::unsupported, "several scans have no seek points", header_.first_scan};
    return false;
  }
  if (jpeg.size > UINT32_MAX / 8) {
    status = {Code::unsupported, "larger than 512 MiB", 0};
    return false;
  }
  if (status = tables_.build(header_); !status.ok()) return false;
  tables_.build_skip();
  interval_ = std::clamp(stride / header_.mcu_width, 1, 65535);
  stream.buffer = buffer_.reserve(kStreamBuffer);
  EntryPoint start;
  start.byte = header_.scan_offset;
  scan_.open(stream, jpeg, header_, start, 0, jpeg.size);
  file_ = FilePosition(jpeg, header_.scan_offset);
  return start_run_here();
}

bool Walk::go_on() {
  if (!scan_.restart_if_due(stream)) return false;
  file_.restart_at(scan_.opened_byte());
  return start_run_here();
}

bool Walk::start_run_here() {
  const int col = scan_.mcu() % header_.mcus_per_row;
  if (col % interval_ == 0 && !note_point()) return false;
  const int to_point = std::min(interval_ - col % interval_, header_.mcus_per_row - col);
  const int count = scan_.run_length(to_point);
  scan_.advance(count);
  return start_run(stream, tables_.plan, static_cast<uint32_t>(count) * header_.blocks_per_mcu,
                   unread_, nullptr);
}

bool Walk::note_point() {
  Point p;
  p.position = file_.advance_to(stream.bits_read());
  for (int c = 0; c < kMaxComponents; c++) {
    p.predictor[c] = static_cast<int32_t>(stream.predictor[c]);
    if (p.predictor[c] != static_cast<int16_t>(p.predictor[c]))
      return fail(stream, "a DC predictor beyond 16 bits");
  }
  points_.push_back(p);
  return true;
}

Status Walk::finish(std::vector<uint8_t>& packed) const {
  const size_t marker = find_marker(jpeg_, source());
  if (marker + 2 > jpeg_.size) return {Code::truncated, "no end-of-image marker", jpeg_.size};
  if (jpeg_.data[marker + 1] != 0xD9)
    return {Code::unsupported, "something else than the end of the image after the scan", marker};
  packed = pack(jpeg_, header_, interval_, points_);
  return {};
}

/// Walks through the images of a batch, several at a time; a walk that ends takes the next.
class Batch final : private RunSource {
 public:
  Batch(const std::vector<ByteSpan>& jpegs, int stride)
      : jpegs_(jpegs),
        stride_(stride),
        results_(jpegs.size()),
        walks_(std::min<size_t>(jpegs.size(), kMaxStreams)) {}

  std::vector<SeekPoints> run() {
    Stream* streams[kMaxStreams];
    for (Walk& walk : walks_) {
      walk.stream.id = static_cast<int>(&walk - walks_.data());
      take_image(walk);
    }
    for (;;) {
      int count = 0;
      for (Walk& walk : walks_)
        if (walk.image < jpegs_.size()) streams[count++] = &walk.stream;
      if (count == 0) return std::move(results_);
      if (const Stream* failed = kernels().skip_streams(streams, count, *this)) {
        Walk& walk = walks_[failed->id];
        results_[walk.image].status = walk.failure();
        take_image(walk);
      }
    }
  }

 private:
  bool next_run(Stream& stream) override {
    Walk& walk = walks_[stream.id];
    SeekPoints& result = results_[walk.image];
    if (overran(stream))
      result.status = {Code::truncated, "the scan ends early", walk.failure().offset};
    else if (walk.at_end())
      result.status = walk.finish(result.packed);
    else if (walk.go_on())
      return true;
    else
      result.status = walk.failure();
    return take_image(walk);
  }

  /// Begins the next image that can be begun. False: there is none.
  bool take_image(Walk& walk) {
    while ((walk.image = next_image_) < jpegs_.size()) {
      Status& status = results_[next_image_].status;
      if (walk.open(jpegs_[next_image_++], stride_, status)) return true;
      if (status.ok()) status = walk.failure();
    }
    walk.stream.error = nullptr;
    return false;
  }

  const std::vector<ByteSpan>& jpegs_;
  int stride_;
  std::vector<SeekPoints> results_;
  std::vector<Walk> walks_;
  size_t next_image_ = 0;
};

}  // namespace

std::vector<SeekPoints> build_seek_points(const std::vector<ByteSpan>& jpegs, int stride) {
  return Batch(jpegs, stride).run();
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
