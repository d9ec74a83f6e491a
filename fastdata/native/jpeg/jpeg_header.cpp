#include "jpeg/jpeg_header.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "jpeg/segments.h"

namespace fastdata {

namespace {

/// The segments that decide the colour space, besides the component ids.
struct ColourHints {
  bool jfif = false;
  bool adobe = false;
  uint8_t adobe_transform = 0;
};

Status read_sof(Segment s, uint8_t marker, JpegHeader& h) {
  const size_t at = s.offset();
  if (h.frame_marker) return {Code::bad_marker, "a second frame header", at};
  h.frame_marker = marker;
  h.precision = s.u8();
  h.height = s.u16();
  h.width = s.u16();
  h.component_count = s.u8();
  if (s.failed()) return short_segment(s);
  if (h.width == 0 || h.height == 0)
    return {Code::bad_dimensions, "the frame has no width or no height", at};
  if (h.component_count < 1 || h.component_count > 4)
    return {Code::bad_marker, "the frame has no components, or more than four", at};
  for (int i = 0; i < h.component_count; i++) {
    Component& c = h.components[i];
    c.id = s.u8();
    const uint8_t hv = s.u8();
    c.h = hv >> 4;
    c.v = hv & 15;
    c.quantisation_table = s.u8();
    if (s.failed()) return short_segment(s);
    if (c.h < 1 || c.h > 4 || c.v < 1 || c.v > 4)
      return {Code::bad_marker, "bad sampling factors", s.offset()};
    if (c.quantisation_table > 3)
      return {Code::bad_marker, "bad quantisation table id", s.offset()};
  }
  return {};
}

Sampling classify(const JpegHeader& h) {
  if (h.component_count == 1) return Sampling::grey;
  if (h.component_count != 3) return Sampling::other;
  for (int i = 1; i < 3; i++)
    if (h.components[i].h != 1 || h.components[i].v != 1) return Sampling::other;
  switch (h.components[0].h << 4 | h.components[0].v) {
    case 0x11: return Sampling::s444;
    case 0x21: return Sampling::s422;
    case 0x22: return Sampling::s420;
    case 0x12: return Sampling::s440;
    default: return Sampling::other;
  }
}

/// libjpeg's rules (jdapimin.c, default_decompress_parms) for three components.
bool is_ycc(const JpegHeader& h, const ColourHints& hints) {
  if (h.component_count != 3) return true;
  if (hints.jfif) return true;
  if (hints.adobe) return hints.adobe_transform != 0;
  const Component* c = h.components;
  return !(c[0].id == 'R' && c[1].id == 'G' && c[2].id == 'B');
}

Status read_sos(Segment s, JpegHeader& h) {
  const size_t at = s.offset();
  const int count = s.u8();
  if (count != h.component_count)
    return {Code::unsupported, "a baseline JPEG whose first scan has not all components", at};
  for (int i = 0; i < count; i++) {
    Component& c = h.components[i];
    const uint8_t id = s.u8(), tables = s.u8();
    if (s.failed()) return short_segment(s);
    if (id != c.id) return {Code::unsupported, "the scan reorders the components", at};
    c.dc_table = tables >> 4;
    c.ac_table = tables & 15;
    if (c.dc_table > 3 || c.ac_table > 3)
      return {Code::bad_marker, "bad Huffman table id in the scan header", at};
  }
  const int spectral_start = s.u8(), spectral_end = s.u8(), approximation = s.u8();
  if (s.failed()) return short_segment(s);
  if (spectral_start != 0 || spectral_end != 63 || approximation != 0)
    return {Code::unsupported, "the scan is not a baseline one", at};
  return {};
}

void set_geometry(JpegHeader& h) {
  h.sampling = classify(h);
  // A scan of one component is not interleaved: its MCU is one block, whatever
  // the sampling factors say (T.81, A.2.2).
  if (h.component_count == 1) h.components[0].h = h.components[0].v = 1;
  int h_max = 1, v_max = 1;
  h.blocks_per_mcu = 0;
  for (int i = 0; i < h.component_count; i++) {
    const Component& c = h.components[i];
    h_max = std::max<int>(h_max, c.h);
    v_max = std::max<int>(v_max, c.v);
    h.blocks_per_mcu += c.h * c.v;
  }
  h.mcu_width = 8 * h_max;
  h.mcu_height = 8 * v_max;
  h.mcus_per_row = ceil_div(h.width, h.mcu_width);
  h.mcu_rows = ceil_div(h.height, h.mcu_height);
}

Status check_supported(const JpegHeader& h, size_t at) {
  const uint8_t known[] = {kSof0, kSof1, kSof2};
  if (std::find(std::begin(known), std::end(known), h.frame_marker) == std::end(known))
    return {Code::unsupported, "neither a baseline nor a progressive JPEG of Huffman codes", at};
  if (h.precision != 8) return {Code::unsupported, "not 8 bits a sample", at};
  if (h.component_count == 2 || h.component_count == 4)
    return {Code::unsupported, "neither grey nor YCbCr", at};
  if (h.sampling == Sampling::other) return {Code::unsupported, "unusual chroma sampling", at};
  if (!h.ycc) return {Code::unsupported, "RGB, not YCbCr", at};
  return {};
}

Status check_tables(const JpegHeader& h) {
  for (int i = 0; i < h.component_count; i++) {
    const Component& c = h.components[i];
    if (!h.quantisation_present[c.quantisation_table])
      return {Code::missing_table, "no quantisation table", h.scan_offset};
    if (!h.dc[c.dc_table].present || !h.ac[c.ac_table].present)
      return {Code::missing_table, "no Huffman table", h.scan_offset};
  }
  return {};
}

bool begins(const Segment& s, const char* name, size_t length) {
  return s.left() >= length && std::memcmp(s.bytes(), name, length) == 0;
}

/// Takes EXIF and XMP data. Pillow joins several segments of the one, and takes the last of the
/// other.
void read_app1(const Segment& s, JpegHeader& h) {
  constexpr char exif[] = "Exif\0", xmp[] = "http://ns.adobe.com/xap/1.0/";
  if (begins(s, exif, sizeof exif)) {
    h.several_exif |= h.exif.data != nullptr;
    h.exif = {s.bytes() + sizeof exif, s.left() - sizeof exif};
  } else if (begins(s, xmp, sizeof xmp)) {
    h.xmp = {s.bytes() + sizeof xmp, s.left() - sizeof xmp};
  }
}

/// Takes colour hints from an application segment. Pillow does not open an image that has one too
/// short for what Pillow reads from it.
Status read_app(uint8_t marker, const Segment& s, ColourHints& hints) {
  const bool jfif = marker == kApp0 && begins(s, "JFIF", 4);
  const bool adobe = marker == kApp14 && begins(s, "Adobe", 5);
  const bool icc = marker == kApp2 && begins(s, "ICC_PROFILE\0", 12);
  if (((jfif || adobe) && s.left() < 7) || (icc && s.left() < 14))
    return {Code::unsupported, "an application segment that is too short", s.offset()};
  hints.jfif |= jfif && s.left() >= 14 && s.bytes()[4] == 0;
  if (adobe && s.left() >= 12) {
    hints.adobe = true;
    hints.adobe_transform = s.bytes()[11];
  }
  return {};
}

/// Walks the marker segments. Stops after the frame header, or before the scan.
Status walk(ByteSpan jpeg, JpegHeader& h, bool frame_only) {
  if (jpeg.size < 3 || jpeg.data[0] != 0xFF || jpeg.data[1] != kSoi || jpeg.data[2] != 0xFF)
    return {Code::not_jpeg, "does not begin with a JPEG start-of-image marker"};
  ColourHints hints;
  size_t pos = 2, frame_at = 0;
  for (;;) {
    uint8_t marker;
    Segment segment;
    if (frame_only) pos = skip_garbage(jpeg, pos);
    if (Status s = next_segment(jpeg, pos, marker, segment); !s.ok()) return s;

    Status status;
    if (is_frame_marker(marker)) {
      status = read_sof(segment, marker, h);
      frame_at = pos;
      if (status.ok()) {
        set_geometry(h);
        if (frame_only) return {};
      }
    } else if (marker >= kApp0 && marker <= kApp15) {
      status = read_app(marker, segment, hints);
      if (marker == kApp1) read_app1(segment, h);
    } else if (marker == kSos) {
      if (!h.frame_marker) return {Code::bad_marker, "a scan before the frame header", pos};
      h.ycc = is_ycc(h, hints);
      if (Status s = check_supported(h, frame_at); !s.ok()) return s;
      h.first_scan = pos;
      h.scan_offset = segment.end();
      const size_t left = segment.left(), count = left ? *segment.bytes() : 0;
      if (left != 4 + 2 * count)
        return {Code::bad_marker, "a scan header of impossible length", pos};
      if (h.progressive()) return {};
      if (Status s = read_sos(segment, h); !s.ok()) return s;
      return check_tables(h);
    } else if (marker == kDqt || marker == kDht || marker == kDri) {
      status = read_tables(marker, segment, h);
    } else if (marker != kCom && !(marker == kDac && (frame_only || h.arithmetic()))) {
      return {Code::unsupported, "an unusual marker in the header", pos};
    }
    if (!status.ok()) return status;
    pos = segment.end();
  }
}

}  // namespace

Status read_frame(ByteSpan jpeg, JpegHeader& header) {
  header = JpegHeader{};
  return walk(jpeg, header, /*frame_only=*/true);
}

Status read_header(ByteSpan jpeg, JpegHeader& header) {
  header = JpegHeader{};
  return walk(jpeg, header, /*frame_only=*/false);
}

const char* sampling_name(Sampling sampling) {
  switch (sampling) {
    case Sampling::grey: return "grey";
    case Sampling::s444: return "4:4:4";
    case Sampling::s422: return "4:2:2";
    case Sampling::s420: return "4:2:0";
    case Sampling::s440: return "4:4:0";
    case Sampling::other: break;
  }
  return "other";
}

}  // namespace fastdata
