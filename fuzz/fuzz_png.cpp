// The fuzz target: any bytes as a PNG's inflated rows and palette, under any header. Nothing may
// crash or trip a sanitizer, or write beyond the requested rows.
//
// An input is 8 bytes of header, a palette's length (1 byte) and bytes, and the rows.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "png/png.h"

using namespace fastdata;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kControl = 9;
  if (size < kControl) return 0;
  PngHeader header;
  header.width = 1 + data[0];
  header.height = 1 + data[1];
  header.depth = data[2] % 18;
  header.colour = static_cast<PngColour>(data[3] % 8);
  header.numbers = data[4] & 2;
  const int rows = data[5];
  const size_t entries = data[8] < size - kControl ? data[8] : size - kControl;
  // Of their own size each, so that a byte read too many is seen.
  const std::vector<uint8_t> palette(data + kControl, data + kControl + entries);
  const std::vector<uint8_t> inflated(data + kControl + entries, data + size);
  if (!header.valid()) {
    uint8_t none = 0;
    if (png_pixels(header, {inflated.data(), inflated.size()}, {}, rows, &none).ok()) abort();
    return 0;
  }
  const size_t written = static_cast<size_t>(header.width) * header.channels() * rows;
  std::vector<uint8_t> out(written + 1, 77);
  const Status status = png_pixels(header, {inflated.data(), inflated.size()},
                                   {palette.data(), palette.size()}, rows, out.data());
  if (out[written] != 77) abort();
  if (status.ok() && inflated.size() < header.inflated_bytes(rows)) abort();
  return 0;
}
