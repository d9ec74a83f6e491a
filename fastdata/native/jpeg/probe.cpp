#include "jpeg/probe.h"

#include <algorithm>
#include <cstring>

#include "jpeg/huffman.h"
#include "jpeg/scans.h"
#include "jpeg/segments.h"

namespace fastdata {
namespace {

bool has(ByteSpan b, size_t at, const char* magic, size_t length) {
  return b.size >= at + length && std::memcmp(b.data + at, magic, length) == 0;
}

uint32_t little(const uint8_t* p, int bytes) {
  uint32_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | p[i];
  return value;
}
uint32_t big(const uint8_t* p, int bytes) {
  uint32_t value = 0;
  for (int i = 0; i < bytes; i++) value = value << 8 | p[i];
  return value;
}

void probe_png(ByteSpan b, ImageInfo& info) {
  info.encoding = "png";
  if (b.size < 26) return;
  info.width = static_cast<int>(big(b.data + 16, 4) & INT32_MAX);
  info.height = static_cast<int>(big(b.data + 20, 4) & INT32_MAX);
  switch (b.data[25]) {  // colour type
    case 0: info.components = 1; break;
    case 4: info.components = 2; break;
    case 6: info.components = 4; break;
    default: info.components = 3;
  }
}

void probe_webp(ByteSpan b, ImageInfo& info) {
  info.encoding = "webp";
  info.components = 3;
  if (b.size < 30) return;
  const uint8_t* p = b.data;
  if (has(b, 12, "VP8 ", 4)) {
    info.width = static_cast<int>(little(p + 26, 2) & 0x3FFF);
    info.height = static_cast<int>(little(p + 28, 2) & 0x3FFF);
  } else if (has(b, 12, "VP8L", 4)) {
    const uint32_t bits = little(p + 21, 4);
    info.width = static_cast<int>(bits & 0x3FFF) + 1;
    info.height = static_cast<int>(bits >> 14 & 0x3FFF) + 1;
    info.components = bits >> 28 & 1 ? 4 : 3;
  } else if (has(b, 12, "VP8X", 4)) {
    info.width = static_cast<int>(little(p + 24, 3)) + 1;
    info.height = static_cast<int>(little(p + 27, 3)) + 1;
    info.components = p[20] & 0x10 ? 4 : 3;
  }
}

void probe_bmp(ByteSpan b, ImageInfo& info) {
  info.encoding = "bmp";
  info.components = 3;
  if (b.size < 26) return;
  if (little(b.data + 14, 4) == 12) {  // BITMAPCOREHEADER, of OS/2
    info.width = static_cast<int>(little(b.data + 18, 2));
    info.height = static_cast<int>(little(b.data + 20, 2));
    return;
  }
  info.width = static_cast<int>(little(b.data + 18, 4) & INT32_MAX);
  const auto height = static_cast<int32_t>(little(b.data + 22, 4));  // negative: top-down
  info.height = height == INT32_MIN ? 0 : height < 0 ? -height : height;
}

void probe_gif(ByteSpan b, ImageInfo& info) {
  info.encoding = "gif";
  info.components = 3;
  if (b.size < 10) return;
  info.width = static_cast<int>(little(b.data + 6, 2));
  info.height = static_cast<int>(little(b.data + 8, 2));
}

constexpr int kMaxSide = 65'500;  // JPEG_MAX_DIMENSION of libjpeg's jmorecfg.h

const char* jpeg_encoding(uint8_t frame_marker) {
  switch (frame_marker) {
    case kSof0:
    case kSof1: return "jpeg";
    case kSof2: return "jpeg-progressive";
    case kSof9:
    case kSof10: return "jpeg-arithmetic";
    default: return "jpeg-other";
  }
}

void probe_jpeg(ByteSpan b, ImageInfo& info) {
  info.encoding = "jpeg";
  JpegHeader header;
  info.native = read_header(b, header);
  if (!header.frame_marker && !read_frame(b, header).ok()) return;
  info.encoding = jpeg_encoding(header.frame_marker);
  info.width = header.width;
  info.height = header.height;
  info.components = header.component_count;
  info.sampling = sampling_name(header.sampling);
  info.progressive = header.progressive();
  info.orientation = exif_orientation(header);
}

}  // namespace

ImageInfo probe(ByteSpan bytes) {
  ImageInfo info;
  if (has(bytes, 0, "\xFF\xD8\xFF", 3)) {
    probe_jpeg(bytes, info);
    return info;
  }
  info.native = {Code::not_jpeg, "not a JPEG"};
  if (has(bytes, 0, "\x89PNG\r\n\x1A\n", 8))
    probe_png(bytes, info);
  else if (has(bytes, 0, "RIFF", 4) && has(bytes, 8, "WEBP", 4))
    probe_webp(bytes, info);
  else if (has(bytes, 0, "GIF8", 4))
    probe_gif(bytes, info);
  else if (has(bytes, 0, "BM", 2))
    probe_bmp(bytes, info);
  return info;
}

bool is_plain_jpeg(ByteSpan jpeg) {
  JpegHeader header;
  if (!read_header(jpeg, header).ok() || std::max(header.width, header.height) > kMaxSide ||
      lacks_end(jpeg))
    return false;
  HuffmanTable table;
  for (int i = 0; i < 4; i++)
    for (const bool is_dc : {true, false}) {
      const HuffmanSpec& spec = is_dc ? header.dc[i] : header.ac[i];
      if (spec.present && !derive_table(spec, is_dc, table).ok()) return false;
    }
  if (!header.progressive()) return true;
  ScanReader scans;
  Scan scan;
  bool found;
  scans.open(jpeg, header);
  return scans.next(scan, found).ok() && found;
}

}  // namespace fastdata
