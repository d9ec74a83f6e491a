// What an encoded image is, from its first bytes.
#pragma once

#include "common.h"
#include "jpeg/jpeg_header.h"
#include "status.h"

namespace fastdata {

struct ImageInfo {
  const char* encoding = "unknown";  // "jpeg", "png", "webp", "gif", "bmp"
  int width = 0, height = 0;         // 0: not in the bytes given
  int components = 0;
  const char* sampling = "";  // of a JPEG
  bool progressive = false, arithmetic = false;
  Status native;  // ok: this core decodes it; else why not
};

/// `bytes` may end anywhere; more of them may tell more.
ImageInfo probe(ByteSpan bytes);

}  // namespace fastdata
