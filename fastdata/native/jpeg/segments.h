// Marker segments (ITU-T T.81, annex B), and those that define tables: they may stand before any
// scan.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common.h"
#include "jpeg/jpeg_header.h"
#include "status.h"

namespace fastdata {

// Marker codes, T.81 table B.1.
enum Marker : uint8_t {
  kSof0 = 0xC0,
  kSof1 = 0xC1,
  kSof2 = 0xC2,
  kDht = 0xC4,
  kJpg = 0xC8,
  kSof9 = 0xC9,
  kSof10 = 0xCA,
  kDac = 0xCC,
  kSof15 = 0xCF,
  kRst0 = 0xD0,
  kRst7 = 0xD7,
  kSoi = 0xD8,
  kEoi = 0xD9,
  kSos = 0xDA,
  kDqt = 0xDB,
  kDri = 0xDD,
  kApp0 = 0xE0,
  kApp1 = 0xE1,
  kApp2 = 0xE2,
  kApp14 = 0xEE,
  kApp15 = 0xEF,
  kCom = 0xFE,
  kTem = 0x01,
};

constexpr bool is_frame_marker(uint8_t m) {
  return m >= kSof0 && m <= kSof15 && m != kDht && m != kJpg && m != kDac;
}

/// The payload of one marker segment, read front to back; every read is checked.
class Segment {
 public:
  Segment() = default;
  Segment(ByteSpan jpeg, size_t begin, size_t end) : jpeg_(jpeg), pos_(begin), end_(end) {}

  size_t left() const { return end_ - pos_; }
  size_t offset() const { return pos_; }
  size_t end() const { return end_; }
  const uint8_t* bytes() const { return jpeg_.data + pos_; }

  /// Reads past the end give zero and set failed(): the callers check once.
  uint8_t u8() {
    if (pos_ >= end_) {
      failed_ = true;
      return 0;
    }
    return jpeg_.data[pos_++];
  }
  uint16_t u16() {
    const int high = u8();
    return static_cast<uint16_t>(high << 8 | u8());
  }
  bool failed() const { return failed_; }

 private:
  ByteSpan jpeg_;
  size_t pos_ = 0, end_ = 0;
  bool failed_ = false;
};

/// The segment whose marker must stand at `pos`, which moves to that marker's 0xFF.
Status next_segment(ByteSpan jpeg, size_t& pos, uint8_t& marker, Segment& segment);

/// Summary of all markers of a JPEG, including those between its scans.
struct Outline {
  int scans = 0;
  bool ended = false;  // there is an end-of-image marker
};
Outline outline(ByteSpan jpeg);

/// Finds the next marker of a segment from `pos` on. libjpeg and Pillow skip the bytes before it.
size_t skip_garbage(ByteSpan jpeg, size_t pos);

/// Whether bytes begin as a JPEG and have no end-of-image marker: so do files that were cut.
/// Costs a look at the last bytes; where others follow the marker, a search for it.
bool lacks_end(ByteSpan bytes);

Status short_segment(const Segment& segment);

/// Reads a DQT, DHT or DRI segment into the header; leaves it alone if it is another.
Status read_tables(uint8_t marker, Segment segment, JpegHeader& header);

}  // namespace fastdata
