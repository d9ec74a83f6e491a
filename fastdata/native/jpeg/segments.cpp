#include "jpeg/segments.h"

#include <algorithm>
#include <cstring>

namespace fastdata {

Status short_segment(const Segment& s) {
  return {Code::bad_marker, "a marker segment ends early", s.offset()};
}

namespace {

/// Markers that no segment follows, besides the end of the image; 0 is a byte of data.
bool stands_alone(uint8_t marker) {
  return marker == 0 || marker == kTem || (marker >= kRst0 && marker <= kSoi);
}

bool begins_jpeg(ByteSpan bytes) {
  return bytes.size >= 3 && bytes.data[0] == 0xFF && bytes.data[1] == kSoi && bytes.data[2] == 0xFF;
}

Status read_dqt(Segment s, JpegHeader& h) {
  while (s.left() > 0) {
    const size_t at = s.offset();
    const uint8_t pq_tq = s.u8();
    const int precision = pq_tq >> 4, id = pq_tq & 15;
    if (precision > 1 || id > 3) return {Code::bad_marker, "bad quantisation table id", at};
    for (int k = 0; k < kBlockSize; k++)
      h.quantisation[id][kNaturalOrder[k]] = precision ? s.u16() : s.u8();
    if (s.failed()) return short_segment(s);
    h.quantisation_present[id] = true;
  }
  return {};
}

Status read_dht(Segment s, JpegHeader& h) {
  while (s.left() > 0) {
    const size_t at = s.offset();
    const uint8_t tc_th = s.u8();
    const int table_class = tc_th >> 4, id = tc_th & 15;
    if (table_class > 1 || id > 3) return {Code::bad_huffman_table, "bad Huffman table id", at};
    HuffmanSpec& spec = (table_class ? h.ac : h.dc)[id];
    spec = HuffmanSpec{};
    int total = 0;
    for (int length = 1; length <= 16; length++) total += spec.counts[length] = s.u8();
    if (total > 256) return {Code::bad_huffman_table, "more than 256 Huffman codes", at};
    for (int i = 0; i < total; i++) spec.symbols[i] = s.u8();
    if (s.failed()) return short_segment(s);
    spec.present = true;
  }
  return {};
}

Status read_dri(Segment s, JpegHeader& h) {
  if (s.left() != 2)
    return {Code::bad_marker, "a restart interval of impossible length", s.offset() - 4};
  h.restart_interval = s.u16();
  return {};
}

}  // namespace

Outline outline(ByteSpan jpeg) {
  Outline found;
  const uint8_t* data = jpeg.data;
  for (size_t at = 2; at + 1 < jpeg.size;) {
    const void* next = std::memchr(data + at, 0xFF, jpeg.size - 1 - at);
    if (!next) break;
    at = static_cast<const uint8_t*>(next) - data + 1;
    const uint8_t marker = data[at];
    if (marker == 0xFF) continue;  // a fill byte
    at++;
    found.ended = marker == kEoi;
    if (found.ended) break;
    if (stands_alone(marker)) continue;
    found.scans += marker == kSos;
    if (at + 2 > jpeg.size) break;
    at += std::max<size_t>(data[at] << 8 | data[at + 1], 2);
  }
  return found;
}

bool lacks_end(ByteSpan bytes) {
  if (!begins_jpeg(bytes)) return false;
  const uint8_t* end = bytes.end();
  return !(end[-2] == 0xFF && end[-1] == kEoi) && !outline(bytes).ended;
}

size_t skip_garbage(ByteSpan jpeg, size_t pos) {
  while (pos + 1 < jpeg.size) {
    if (jpeg.data[pos] != 0xFF || jpeg.data[pos + 1] == 0xFF)
      pos++;
    else if (stands_alone(jpeg.data[pos + 1]))
      pos += 2;
    else
      break;
  }
  return pos;
}

Status next_segment(ByteSpan jpeg, size_t& pos, uint8_t& marker, Segment& segment) {
  for (;;) {
    // libjpeg skips anything before the next marker that has a segment, with a warning if that is
    // garbage. So do we not: such a file goes to the decoder that defines what it means.
    if (pos + 4 > jpeg.size) return {Code::truncated, "the header ends early", jpeg.size};
    if (jpeg.data[pos] != 0xFF)
      return {Code::unsupported, "something other than a marker behind a segment", pos};
    marker = jpeg.data[pos + 1];
    if (marker != 0xFF) break;
    pos++;  // a fill byte
  }
  if (marker == kSoi || marker == kEoi)
    return {Code::bad_marker, "a marker that may not stand in the header", pos};
  if (stands_alone(marker))
    return {Code::unsupported, "a marker without a segment behind another one's", pos};
  const size_t length = static_cast<size_t>(jpeg.data[pos + 2]) << 8 | jpeg.data[pos + 3];
  if (length < 2) return {Code::bad_marker, "a marker segment of impossible length", pos};
  if (pos + 2 + length > jpeg.size) return {Code::truncated, "the header ends early", jpeg.size};
  segment = Segment(jpeg, pos + 4, pos + 2 + length);
  return {};
}

Status read_tables(uint8_t marker, Segment segment, JpegHeader& header) {
  switch (marker) {
    case kDqt: return read_dqt(segment, header);
    case kDht: return read_dht(segment, header);
    case kDri: return read_dri(segment, header);
    default: return {};
  }
}

}  // namespace fastdata
