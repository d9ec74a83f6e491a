// A PNG's pixels from its inflated data: rows unfiltered, then brought to 8-bit grey or RGB as
// Pillow's convert("RGB") does, or to numbers as np.array(Image.open(file)) has them. Chunks and
// inflating are Python's (fastdata/decode/png.py).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common.h"
#include "status.h"

namespace fastdata {

// Colour types of a PNG (ISO/IEC 15948, table 11.1).
enum class PngColour : uint8_t { grey = 0, rgb = 2, palette = 3, grey_alpha = 4, rgb_alpha = 6 };

/// The IHDR chunk.
struct PngHeader {
  int width = 0, height = 0;
  int depth = 8;  // bits of a sample, or of an index into the palette
  PngColour colour = PngColour::rgb;
  // Of the result: indices rather than colours of a palette, 0 and 1 rather than 255 of one bit,
  // 16-bit grey as two bytes, the lower first, and all channels that there are.
  bool numbers = false;

  /// Whether there may be such an image, and this module decodes it: 16-bit grey to numbers
  /// alone, and that with alpha to colours alone.
  bool valid() const;
  /// Samples of a pixel, as stored.
  int samples() const;
  /// Bytes of a pixel of the result: 1 for grey, with alpha or without, else 3; or those of its
  /// numbers.
  int channels() const;
  /// Bytes of a row, without the filter's.
  size_t row_bytes() const;
  /// Inflated bytes of the first `rows` rows.
  size_t inflated_bytes(int rows) const;
};

/// Writes the first `rows` rows, interleaved, without gaps, to `out`. Colours leave out an alpha
/// channel.
///
/// `palette` has three bytes a colour. Fails with truncated where `inflated` has fewer bytes than
/// the rows need, with bad_scan_data on a filter that there is not, or a colour that the palette
/// does not have. Throws std::bad_alloc.
Status png_pixels(const PngHeader& header, ByteSpan inflated, ByteSpan palette, int rows,
                  uint8_t* out);

}  // namespace fastdata
