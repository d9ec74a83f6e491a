// Describes an encoded image by its headers: kind, size, EXIF orientation.
#pragma once

#include "common.h"
#include "jpeg/jpeg_header.h"
#include "status.h"

namespace fastdata {

struct ImageInfo {
  const char* encoding = "unknown";  // else one of kEncodingNames
  int width = 0, height = 0;         // 0: not in the bytes given
  int components = 0;
  const char* sampling = "";  // of a JPEG
  bool progressive = false;
  int orientation = 0;  // of a JPEG, as `exif_orientation`
  Status native;        // ok: this core decodes it; else why not
};

/// In the place of an orientation: the one of the image's header.
constexpr int kOrientationOfHeader = -1;

/// The orientation that Pillow 13's `Image.getexif` finds: 1 to 8, and 1 where there is none.
/// 0: the EXIF data are unusual or damaged, and Pillow must interpret them.
int exif_orientation(const JpegHeader& header);

/// `bytes` may end anywhere; more of them may tell more.
ImageInfo probe(ByteSpan bytes);

/// Whether Pillow decodes a JPEG with this header, too, and an end marker follows its first scan.
/// Checks the header of the first scan and all Huffman tables before it; decodes nothing. Anything
/// unusual is refused, damaged or not.
bool is_plain_jpeg(ByteSpan jpeg);

}  // namespace fastdata
