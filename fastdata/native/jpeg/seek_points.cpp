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
constexpr uint8_t kVersion = 1, kPartialVersion = 2;
constexpr size_t kVersionAt = 0;
constexpr size_t kDeltaBitsAt = 1;
constexpr size_t kIntervalAt = 2;
constexpr size_t kLengthAt = 4;
constexpr size_t kHeaderCrcAt = 8;
constexpr size_t kMinDeltaAt = 12;
constexpr size_t kComponentsAt = 16;
// Of version 2.
constexpr size_t kScanAt = 16;
constexpr size_t kScanEndAt = 20;
constexpr size_t kWidthAt = 24;
constexpr size_t kHeightAt = 26;
constexpr size_t kMcuWidthAt = 28;  // in blocks
constexpr size_t kMcuHeightAt = 29;
constexpr size_t kComponentCountAt = 30;
constexpr size_t kPartialComponentsAt = 32;
constexpr size_t kChecksumSize = 4;
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

std::vector<uint8_t> pack(ByteSpan jpeg, const JpegHeader& h, int interval, size_t scan_end,
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

  // A restart marker would have to be looked for in what was not read.
  const bool partial = jpeg.size >= kPartialBytes && h.restart_interval == 0;
  const size_t components = partial ? kPartialComponentsAt : kComponentsAt;
  const size_t deltas = components + kComponentSize * h.component_count;
  const size_t predictors = deltas + ((points.size() - 1) * delta_bits + 7) / 8;
  const size_t checksums = predictors + (points.size() * point_bits + 7) / 8;
  std::vector<uint8_t> packed(checksums + (partial ? points.size() * kChecksumSize : 0), 0);
  packed[kVersionAt] = partial ? kPartialVersion : kVersion;
  packed[kDeltaBitsAt] = static_cast<uint8_t>(delta_bits);
  put(packed, kIntervalAt, static_cast<uint16_t>(interval));
  put(packed, kLengthAt, static_cast<uint32_t>(jpeg.size));
  put(packed, kHeaderCrcAt, crc32c({jpeg.data, h.scan_offset}));
  put(packed, kMinDeltaAt, static_cast<uint32_t>(min_delta));
  for (int c = 0; c < h.component_count; c++) {
    put(packed, components + kComponentSize * c, static_cast<int16_t>(min[c]));
    packed[components + kComponentSize * c + 2] = static_cast<uint8_t>(bits[c]);
  }
  size_t at = deltas * 8;
  for (size_t i = 1; i < points.size(); i++, at += delta_bits)
    put_bits(packed, at,
             static_cast<uint32_t>(points[i].position - points[i - 1].position - min_delta));
  at = predictors * 8;
  for (const Point& p : points)
    for (int c = 0; c < h.component_count; at += bits[c], c++)
      put_bits(packed, at, static_cast<uint32_t>(p.predictor[c] - min[c]));
  if (!partial) return packed;
  put(packed, kScanAt, static_cast<uint32_t>(h.scan_offset));
  put(packed, kScanEndAt, static_cast<uint32_t>(scan_end));
  put(packed, kWidthAt, static_cast<uint16_t>(h.width));
  put(packed, kHeightAt, static_cast<uint16_t>(h.height));
  packed[kMcuWidthAt] = static_cast<uint8_t>(h.mcu_width / 8);
  packed[kMcuHeightAt] = static_cast<uint8_t>(h.mcu_height / 8);
  packed[kComponentCountAt] = static_cast<uint8_t>(h.component_count);
  for (size_t i = 0; i < points.size(); i++) {
    const size_t begin = points[i].position / 8;
    const size_t end = i + 1 < points.size() ? (points[i + 1].position + 7) / 8 : scan_end;
    put(packed, checksums + i * kChecksumSize, crc32c({jpeg.data + begin, end - begin}));
  }
  return packed;
}

/// One image's scan, MCU by MCU, and the seek points passed.
class Walk {
 public:
  Stream stream;
  size_t image = 0;  // its place in the batch

  /// Starts the first run. False: the stream failed; or the image did not get so far, and
  /// `status` says why.
  bool open(ByteSpan jpeg, int stride, int interval, Status& status);

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

bool Walk::open(ByteSpan jpeg, int stride, int interval, Status& status) {
  jpeg_ = jpeg;
  points_.clear();
  if (status = read_header(jpeg, header_); !status.ok()) return false;
  if (header_.progressive()) {
    status = {Code::unsupported, "seek points are of baseline JPEGs", header_.first_scan};
    return false;
  }
  if (jpeg.size > UINT32_MAX / 8) {
    status = {Code::unsupported, "larger than 512 MiB", 0};
    return false;
  }
  if (status = tables_.build(header_); !status.ok()) return false;
  tables_.build_skip();
  if (stride > 0 && header_.width / 16 >= stride) stride *= 2;
  interval_ = interval > 0 ? interval : std::clamp(stride / header_.mcu_width, 1, 65535);
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
  packed = pack(jpeg_, header_, interval_, marker, points_);
  return {};
}

/// Walks through the images of a batch, several at a time; a walk that ends takes the next.
class Batch final : private RunSource {
 public:
  /// With points every `interval` MCUs; 0: every `stride` pixels.
  Batch(const std::vector<ByteSpan>& jpegs, int stride, int interval = 0)
      : jpegs_(jpegs),
        stride_(stride),
        interval_(interval),
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
      if (walk.open(jpegs_[next_image_++], stride_, interval_, status)) return true;
      if (status.ok()) status = walk.failure();
    }
    walk.stream.error = nullptr;
    return false;
  }

  const std::vector<ByteSpan>& jpegs_;
  int stride_, interval_;
  std::vector<SeekPoints> results_;
  std::vector<Walk> walks_;
  size_t next_image_ = 0;
};

}  // namespace

std::vector<SeekPoints> build_seek_points(const std::vector<ByteSpan>& jpegs, int stride) {
  return Batch(jpegs, stride).run();
}

Status check_seek_points(ByteSpan packed, ByteSpan jpeg) {
  JpegHeader header;
  SeekTable table;
  if (Status s = read_header(jpeg, header); !s.ok()) return s;
  if (Status s = table.open(packed, jpeg, header); !s.ok()) return s;
  const std::vector<ByteSpan> jpegs = {jpeg};
  const SeekPoints made = std::move(Batch(jpegs, 0, table.interval()).run()[0]);
  if (!made.status.ok()) return {Code::bad_seek_points, made.status.detail, 0};
  SeekTable right;
  if (Status s = right.open({made.packed.data(), made.packed.size()}, jpeg, header); !s.ok())
    return s;
  for (int i = 0; i < right.size(); i++) {
    const EntryPoint point = table.point(i), expected = right.point(i);
    if (point.byte != expected.byte || point.bit != expected.bit ||
        !std::equal(point.predictor, point.predictor + header.component_count, expected.predictor))
      return {Code::bad_seek_points, "a point that decoding does not get to", 0};
  }
  if (table.has_checksums() &&
      !table.is_sound({0, header.mcus_per_row, 0, header.mcu_rows}, jpeg.data))
    return {Code::bad_seek_points, "checksums of other bytes", 0};
  return {};
}

Status SeekTable::open(ByteSpan packed, ByteSpan jpeg, const JpegHeader& h) {
  const auto bad = [](const char* why, size_t at) {
    return Status{Code::bad_seek_points, why, at};
  };
  if (packed.size < kComponentsAt) return bad("the seek table ends early", packed.size);
  Layout layout{h.component_count, h.mcus_per_row, h.mcu_rows, h.scan_offset, kComponentsAt};
  if (packed.data[kVersionAt] == kPartialVersion) {
    if (Status s = open(packed); !s.ok()) return s;
    if (layout_.component_count != layout.component_count ||
        layout_.mcus_per_row != layout.mcus_per_row || layout_.mcu_rows != layout.mcu_rows ||
        layout_.scan_offset != layout.scan_offset || h.restart_interval)
      return bad("made from another JPEG", kScanAt);
    layout = layout_;
  } else if (packed.data[kVersionAt] != kVersion) {
    return bad("an unknown version", kVersionAt);
  }
  if (get<uint32_t>(packed, kLengthAt) != jpeg.size)
    return bad("made from a JPEG of another length", kLengthAt);
  if (get<uint32_t>(packed, kHeaderCrcAt) != crc32c({jpeg.data, h.scan_offset}))
    return bad("made from a JPEG with another header", kHeaderCrcAt);
  return lay_out(packed, layout);
}

Status SeekTable::open(ByteSpan packed) {
  const auto bad = [](const char* why, size_t at) {
    return Status{Code::bad_seek_points, why, at};
  };
  if (packed.size < kPartialComponentsAt) return bad("the seek table ends early", packed.size);
  if (packed.data[kVersionAt] != kPartialVersion) return bad("an unknown version", kVersionAt);
  const int mcu_width = 8 * packed.data[kMcuWidthAt], mcu_height = 8 * packed.data[kMcuHeightAt];
  const int components = packed.data[kComponentCountAt];
  const int width = get<uint16_t>(packed, kWidthAt), height = get<uint16_t>(packed, kHeightAt);
  if (mcu_width < 8 || mcu_width > 16 || mcu_height < 8 || mcu_height > 16 || width == 0 ||
      height == 0 || (components != 1 && components != 3))
    return bad("made from no image", kWidthAt);
  width_ = width;
  height_ = height;
  mcu_width_ = mcu_width;
  mcu_height_ = mcu_height;
  return lay_out(packed, {components, ceil_div(width, mcu_width), ceil_div(height, mcu_height),
                          get<uint32_t>(packed, kScanAt), kPartialComponentsAt});
}

Status SeekTable::lay_out(ByteSpan packed, const Layout& layout) {
  const auto bad = [](const char* why, size_t at) {
    return Status{Code::bad_seek_points, why, at};
  };
  const size_t deltas = layout.components_at + kComponentSize * layout.component_count;
  if (packed.size < deltas) return bad("the seek table ends early", packed.size);
  layout_ = layout;
  jpeg_size_ = scan_end_ = get<uint32_t>(packed, kLengthAt);
  const bool partial = layout.components_at == kPartialComponentsAt;
  if (partial) {
    scan_end_ = get<uint32_t>(packed, kScanEndAt);
    if (layout.scan_offset > scan_end_ || scan_end_ > jpeg_size_)
      return bad("a scan that does not end in the JPEG", kScanEndAt);
  }
  interval_ = get<uint16_t>(packed, kIntervalAt);
  if (interval_ == 0) return bad("no MCUs between seek points", kIntervalAt);
  delta_bits_ = packed.data[kDeltaBitsAt];
  if (delta_bits_ > kMaxDeltaBits) return bad("differences of more than 32 bits", kDeltaBitsAt);
  min_delta_ = get<uint32_t>(packed, kMinDeltaAt);

  component_count_ = layout.component_count;
  point_bits_ = 0;
  for (int c = 0; c < component_count_; c++) {
    const size_t at = layout.components_at + kComponentSize * c;
    predictor_min_[c] = get<int16_t>(packed, at);
    predictor_bits_[c] = packed.data[at + 2];
    if (predictor_bits_[c] > kMaxPredictorBits) return bad("predictors of more than 16 bits", at);
    point_bits_ += predictor_bits_[c];
  }
  points_per_row_ = ceil_div(layout.mcus_per_row, interval_);
  size_ = points_per_row_ * layout.mcu_rows;
  const size_t count = size_;
  const size_t predictors = deltas + ((count - 1) * delta_bits_ + 7) / 8;
  const size_t checksums = predictors + (count * point_bits_ + 7) / 8;
  if (packed.size != checksums + (partial ? count * kChecksumSize : 0))
    return bad("a seek table of the wrong size", packed.size);
  checksums_ = partial ? checksums : 0;
  packed_ = packed;
  deltas_ = deltas * 8;
  predictors_ = predictors * 8;
  rewind();
  return {};
}

void SeekTable::rewind() {
  cursor_ = 0;
  cursor_position_ = static_cast<uint64_t>(layout_.scan_offset) * 8;
}

// Note [Regions] in region.cpp, in pixels.
McuBox SeekTable::mcus_of(const Box& box) const {
  const int grow_x = mcu_width_ > 8 ? 2 : 0, grow_y = mcu_height_ > 8 ? 2 : 0;
  return {std::max(0, box.x0 - grow_x) / mcu_width_,
          std::min(ceil_div(box.x1 + grow_x, mcu_width_), layout_.mcus_per_row),
          std::max(0, box.y0 - grow_y) / mcu_height_,
          std::min(ceil_div(box.y1 + grow_y, mcu_height_), layout_.mcu_rows)};
}

bool SeekTable::parts(const McuBox& mcus, std::vector<ByteRange>& parts) {
  parts.assign(1, {0, layout_.scan_offset});
  rewind();
  const int first = mcus.first_col / interval_, end = ceil_div(mcus.end_col, interval_);
  for (int row = mcus.first_row; row < mcus.end_row; row++) {
    const int at = row * points_per_row_;
    const size_t begin = position(at + first) / 8;
    parts.push_back({begin, byte_after(at + end)});
    if (begin >= parts.back().end || parts.back().end > scan_end_) return false;
  }
  return true;
}

bool SeekTable::run_of(const McuBox& mcus, SegmentRun& run) {
  rewind();
  run.first = mcus.first_row * points_per_row_ + mcus.first_col / interval_;
  run.end = (mcus.end_row - 1) * points_per_row_ + ceil_div(mcus.end_col, interval_);
  run.bytes.begin = position(run.first) / 8;
  run.bytes.end = byte_after(run.end);
  return run.bytes.begin < run.bytes.end && run.bytes.end <= scan_end_;
}

uint32_t SeekTable::header_crc() const { return get<uint32_t>(packed_, kHeaderCrcAt); }

bool SeekTable::is_sound(const McuBox& mcus, const uint8_t* jpeg) {
  if (crc32c({jpeg, layout_.scan_offset}) != header_crc()) return false;
  rewind();
  const int first = mcus.first_col / interval_, end = ceil_div(mcus.end_col, interval_);
  for (int row = mcus.first_row; row < mcus.end_row; row++) {
    const int at = row * points_per_row_;
    if (!are_sound(at + first, at + end, {jpeg, scan_end_}, 0)) return false;
  }
  return true;
}

bool SeekTable::is_sound(const SegmentRun& run, ByteSpan bytes) {
  rewind();
  return 0 <= run.first && run.first < run.end && run.end <= size_ &&
         are_sound(run.first, run.end, bytes, run.bytes.begin);
}

bool SeekTable::are_sound(int first, int end, ByteSpan bytes, size_t at) {
  for (int i = first; i < end; i++) {
    const size_t begin = position(i) / 8, stop = byte_after(i + 1);
    if (begin < at || begin >= stop || stop > scan_end_ || stop - at > bytes.size ||
        crc32c({bytes.data + (begin - at), stop - begin}) !=
            get<uint32_t>(packed_, checksums_ + static_cast<size_t>(i) * kChecksumSize))
      return false;
  }
  return true;
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

size_t SeekTable::byte_after(int index) {
  return index < size_ ? (position(index) + 7) / 8 : scan_end_;
}

}  // namespace fastdata
