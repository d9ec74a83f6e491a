// The fuzz target of headers: any bytes as an image's first ones. Nothing may crash or trip a
// sanitizer; who describes an image and who is to decode it agree on it.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "jpeg/huffman.h"
#include "jpeg/jpeg_header.h"
#include "jpeg/orientation.h"
#include "jpeg/probe.h"

using namespace fastdata;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly its size, for the sanitizer to see reads beyond the end.
  const std::vector<uint8_t> bytes(data, data + size);
  const ByteSpan image{bytes.data(), bytes.size()};
  const ImageInfo info = probe(image);
  JpegHeader frame, header;
  (void)read_frame(image, frame);
  const bool native = read_header(image, header).ok();
  if (native && (info.width != header.width || info.height != header.height ||
                 frame.width != header.width || frame.height != header.height)) {
    std::fprintf(stderr, "probed as %d x %d, read as %d x %d\n", info.width, info.height,
                 header.width, header.height);
    std::abort();
  }
  if (is_plain_jpeg(image) && !native) {
    std::fprintf(stderr, "plain, but not decoded\n");
    std::abort();
  }
  const int orientation = exif_orientation(frame);
  if (orientation < 0 || orientation > 8 || (native && exif_orientation(header) != orientation)) {
    std::fprintf(stderr, "orientation %d\n", orientation);
    std::abort();
  }
  static EntropyTables tables;
  if (native && tables.build(header).ok()) tables.build_skip();
  return 0;
}
