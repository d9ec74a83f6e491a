#include "jpeg/scans.h"

#include <algorithm>
#include <cstring>

#include "jpeg/restart.h"
#include "jpeg/segments.h"

namespace fastdata {
namespace {

constexpr int kMaxLow = 13;  // Al: jdphuff.c
// Of each component, in zig-zag order: SAVED_COEFS of jdcoefct.c.
constexpr int kEstimated = 10;

/// The marker behind a scan's data. Restart markers are part of it.
size_t end_of_scan(ByteSpan jpeg, size_t from) {
  for (;;) {
    from = find_marker(jpeg, from);
    if (from + 2 > jpeg.size) return jpeg.size;
    const uint8_t marker = jpeg.data[from + 1];
    if (marker < kRst0 || marker > kRst7) return from;
    from += 2;
  }
}

}  // namespace

void ScanReader::open(ByteSpan jpeg, const JpegHeader& header) {
  jpeg_ = jpeg;
  frame_ = &header;
  header_ = header;
  pos_ = header.first_scan;
  std::memset(known_, -1, sizeof known_);
}

Status ScanReader::next(Scan& scan, bool& found) {
  found = false;
  if (pos_ != frame_->first_scan) pos_ = end_of_scan(jpeg_, pos_);
  for (;;) {
    while (pos_ + 2 <= jpeg_.size && jpeg_.data[pos_] == 0xFF && jpeg_.data[pos_ + 1] == 0xFF)
      pos_++;
    if (pos_ + 2 <= jpeg_.size && jpeg_.data[pos_] == 0xFF && jpeg_.data[pos_ + 1] == kEoi)
      return {};
    uint8_t marker;
    Segment segment;
    if (Status s = next_segment(jpeg_, pos_, marker, segment); !s.ok()) return s;
    if (marker == kSos) {
      found = true;
      header_.scan_offset = segment.end();
      const Status s = read_sos(pos_, {segment.bytes(), segment.left()}, scan);
      pos_ = segment.end();
      return s;
    }
    const bool skipped = (marker >= kApp0 && marker <= kApp15) || marker == kCom;
    if (!skipped && marker != kDqt && marker != kDht && marker != kDri)
      return {Code::unsupported, "an unusual marker between two scans", pos_};
    if (Status s = read_tables(marker, segment, header_); !s.ok()) return s;
    pos_ = segment.end();
  }
}

Status ScanReader::read_sos(size_t at, ByteSpan segment, Scan& scan) {
  const uint8_t* p = segment.data;
  const int count = segment.size ? *p++ : 0;
  if (count < 1 || count > frame_->component_count ||
      segment.size != static_cast<size_t>(4 + 2 * count))
    return {Code::bad_marker, "a scan header of impossible length", at};
  header_.component_count = count;
  int next = 0;  // of the frame's components; a scan has them in the frame's order
  for (int i = 0; i < count; i++, p += 2) {
    while (next < frame_->component_count && frame_->components[next].id != p[0]) next++;
    if (next == frame_->component_count)
      return {Code::unsupported, "the scan reorders the components", at};
    Component& c = header_.components[i];
    c = frame_->components[next];
    c.dc_table = p[1] >> 4;
    c.ac_table = p[1] & 15;
    if (c.dc_table > 3 || c.ac_table > 3)
      return {Code::bad_marker, "bad Huffman table id in the scan header", at};
    scan.component[i] = next++;
  }
  scan.first = p[0];
  scan.last = p[1];
  scan.high = p[2] >> 4;
  scan.low = p[2] & 15;
  set_geometry();
  return take_bits(at, scan);
}

/// Checks that the scan's bits are those that come next, and that its tables are there.
Status ScanReader::take_bits(size_t at, const Scan& scan) {
  if (scan.first > scan.last || scan.last > 63 || scan.low > kMaxLow ||
      (scan.high && scan.high != scan.low + 1))
    return {Code::bad_marker, "a scan of no coefficients that there are", at};
  if (scan.first == 0 ? scan.last > 0 : header_.component_count > 1)
    return {Code::bad_marker, "a scan that a progressive JPEG cannot have", at};
  const bool has_dc = scan.first == 0, has_ac = scan.last > 0;
  for (int i = 0; i < header_.component_count; i++) {
    const Component& c = header_.components[i];
    const int component = scan.component[i];
    int8_t* known = known_[component];
    if (!has_dc && known[0] < 0)
      return {Code::unsupported, "a component whose DC coefficients do not come first", at};
    for (int k = scan.first; k <= scan.last; k++) {
      if (known[k] != (scan.high ? scan.high : -1))
        return {Code::unsupported, "a scan that repeats another or comes too soon", at};
      known[k] = static_cast<int8_t>(scan.low);
    }
    if ((has_dc && !scan.high && !header_.dc[c.dc_table].present) ||
        (has_ac && !header_.ac[c.ac_table].present))
      return {Code::missing_table, "no Huffman table", at};
    if (!has_dc || scan.high) continue;  // not the component's first
    if (!header_.quantisation_present[c.quantisation_table])
      return {Code::missing_table, "no quantisation table", at};
    std::memcpy(quantisation_[component], header_.quantisation[c.quantisation_table],
                sizeof quantisation_[component]);
  }
  return {};
}

/// A scan of one component is not interleaved: its MCU is one block, and there are only as many as
/// the component needs (T.81, A.2.2).
void ScanReader::set_geometry() {
  JpegHeader& h = header_;
  h.mcus_per_row = frame_->mcus_per_row;
  h.mcu_rows = frame_->mcu_rows;
  h.blocks_per_mcu = 0;
  if (h.component_count == 1) {
    Component& c = h.components[0];
    h.mcus_per_row = ceil_div(h.width * c.h, frame_->mcu_width);
    h.mcu_rows = ceil_div(h.height * c.v, frame_->mcu_height);
    c.h = c.v = 1;
  }
  for (int i = 0; i < h.component_count; i++)
    h.blocks_per_mcu += h.components[i].h * h.components[i].v;
}

bool ScanReader::complete() const {
  for (int i = 0; i < frame_->component_count; i++)
    for (int k = 0; k < kEstimated; k++)
      if (known_[i][k] != 0) return false;
  return true;
}

}  // namespace fastdata
