#include "png/png.h"

#include <cstring>

#include "buffer.h"

namespace fastdata {
namespace {

// The bytes of a pixel, at most four, with room to subtract: compilers make vector instructions of
// what is done to them, on every processor. A row's filters go from pixel to pixel, so that more
// lanes would have nothing to do.
using Words = int16_t __attribute__((vector_size(16)));
using Halves = uint64_t __attribute__((vector_size(16)));

// Bytes become words, and words bytes, in general registers: by way of memory, as compilers have
// it of vectors this short, each pixel would wait for the one before to be stored.
template <int kBytes>
Words load(const uint8_t* from) {
  uint64_t x = 0;
  for (int k = 0; k < kBytes; k++) x |= static_cast<uint64_t>(from[k]) << 8 * k;
  x = (x | x << 16) & 0x0000FFFF0000FFFF;
  x = (x | x << 8) & 0x00FF00FF00FF00FF;
  return reinterpret_cast<Words>(Halves{x, 0});
}

template <int kBytes>
void store(Words words, uint8_t* to) {
  uint64_t x = reinterpret_cast<Halves>(words)[0];
  x = (x | x >> 8) & 0x0000FFFF0000FFFF;
  x |= x >> 16;
  for (int k = 0; k < kBytes; k++) to[k] = static_cast<uint8_t>(x >> 8 * k);
}

inline Words absolute(Words x) { return x < -x ? -x : x; }
inline Words smaller(Words x, Words y) { return x < y ? x : y; }

/// The filter of Alan W. Paeth (ISO/IEC 15948, 9.4): whichever of left, up and upper left is
/// nearest to left + up - upper left, in that order where two are as near.
inline Words paeth_predictor(Words left, Words up, Words upper_left) {
  const Words by_left = up - upper_left, by_up = left - upper_left;
  const Words to_left = absolute(by_left), to_up = absolute(by_up);
  const Words to_upper_left = absolute(by_left + by_up);
  const Words nearest = smaller(smaller(to_left, to_up), to_upper_left);
  return to_left == nearest ? left : to_up == nearest ? up : upper_left;
}

/// The filters that look at the pixel to the left: one after another, its bytes side by side.
template <int kBytes>
void unfilter_sub(const uint8_t* in, size_t count, uint8_t* out) {
  uint8_t left[kBytes] = {};
  for (size_t i = 0; i < count; i += kBytes)
    for (int k = 0; k < kBytes; k++)
      out[i + k] = left[k] = static_cast<uint8_t>(in[i + k] + left[k]);
}

/// Pixels of at most four bytes are one vector; of six and eight, each half goes by itself.
template <int kBytes>
void unfilter_average(const uint8_t* in, const uint8_t* above, size_t count, uint8_t* out) {
  constexpr int kPart = kBytes > 4 ? kBytes / 2 : kBytes;
  for (int part = 0; part < kBytes; part += kPart) {
    Words left = {};
    for (size_t i = part; i < count; i += kBytes) {
      left = (load<kPart>(in + i) + ((left + load<kPart>(above + i)) >> 1)) & 255;
      store<kPart>(left, out + i);
    }
  }
}

template <int kBytes>
void unfilter_paeth(const uint8_t* in, const uint8_t* above, size_t count, uint8_t* out) {
  constexpr int kPart = kBytes > 4 ? kBytes / 2 : kBytes;
  for (int part = 0; part < kBytes; part += kPart) {
    Words left = {}, upper_left = {};
    for (size_t i = part; i < count; i += kBytes) {
      const Words up = load<kPart>(above + i);
      left = (load<kPart>(in + i) + paeth_predictor(left, up, upper_left)) & 255;
      upper_left = up;
      store<kPart>(left, out + i);
    }
  }
}

/// Undoes a row's filter; false if it is unknown. `count` is a multiple of kBytes, the size of a
/// pixel. `above` is the row before, unfiltered, zeros for the first. `out` is neither.
template <int kBytes>
bool unfilter(int filter, const uint8_t* in, const uint8_t* above, size_t count, uint8_t* out) {
  switch (filter) {
    case 0: std::memcpy(out, in, count); return true;
    case 1: unfilter_sub<kBytes>(in, count, out); return true;
    case 2:
      for (size_t i = 0; i < count; i++) out[i] = static_cast<uint8_t>(in[i] + above[i]);
      return true;
    case 3: unfilter_average<kBytes>(in, above, count, out); return true;
    case 4: unfilter_paeth<kBytes>(in, above, count, out); return true;
    default: return false;
  }
}

using Unfilter = bool (*)(int, const uint8_t*, const uint8_t*, size_t, uint8_t*);

Unfilter unfilter_of(int bytes) {
  switch (bytes) {
    case 1: return unfilter<1>;
    case 2: return unfilter<2>;
    case 3: return unfilter<3>;
    case 4: return unfilter<4>;
    case 6: return unfilter<6>;
    default: return unfilter<8>;
  }
}

/// Brings unfiltered rows to 8-bit grey or RGB, or to numbers.
class RowConverter {
 public:
  RowConverter(const PngHeader& header, ByteSpan palette) : header_(header), palette_(palette) {}

  /// A row of pixels; false if a colour is not in the palette.
  bool convert(const uint8_t* in, uint8_t* out) const {
    const bool palette = header_.colour == PngColour::palette;
    const int count = header_.width;
    if (palette && !header_.numbers) return look_up(in, out);
    if (header_.depth < 8) {
      // 1 bit becomes 0 or 255, 2 and 4 bits as much as they repeated would be.
      const bool as_is = header_.numbers && (palette || header_.depth == 1);
      const int scale = as_is ? 1 : 255 / ((1 << header_.depth) - 1);
      for (int i = 0; i < count; i++) out[i] = static_cast<uint8_t>(scale * packed(in, i));
      return true;
    }
    if (header_.colour == PngColour::grey && header_.depth == 16) {
      for (int i = 0; i < count; i++)
        for (size_t k = 0; k < 2; k++) out[i * 2 + k] = in[i * 2 + 1 - k];
      return true;
    }
    // Of 16 bits the upper 8, as Pillow takes them.
    const size_t bytes = header_.depth / 8, pixel = bytes * header_.samples();
    const size_t channels = header_.channels();
    for (int i = 0; i < count; i++)
      for (size_t c = 0; c < channels; c++) out[i * channels + c] = in[i * pixel + c * bytes];
    return true;
  }

 private:
  int packed(const uint8_t* in, int i) const {
    const int bit = i * header_.depth;
    return in[bit / 8] >> (8 - header_.depth - bit % 8) & ((1 << header_.depth) - 1);
  }

  bool look_up(const uint8_t* in, uint8_t* out) const {
    const size_t colours = palette_.size / 3;
    for (int i = 0; i < header_.width; i++) {
      const size_t colour = header_.depth == 8 ? in[i] : packed(in, i);
      if (colour >= colours) return false;
      std::memcpy(out + 3 * i, palette_.data + 3 * colour, 3);
    }
    return true;
  }

  const PngHeader& header_;
  ByteSpan palette_;
};

}  // namespace

bool PngHeader::valid() const {
  if (width < 1 || height < 1 || width > INT32_MAX / 64) return false;
  switch (colour) {
    case PngColour::grey:
      if (depth == 16) return numbers;
      [[fallthrough]];
    case PngColour::palette: return depth == 1 || depth == 2 || depth == 4 || depth == 8;
    case PngColour::grey_alpha:
      if (numbers) return depth == 8;  // Pillow makes four channels of 16 bits
      [[fallthrough]];
    case PngColour::rgb:
    case PngColour::rgb_alpha: return depth == 8 || depth == 16;
    default: return false;
  }
}

int PngHeader::samples() const {
  switch (colour) {
    case PngColour::rgb: return 3;
    case PngColour::grey_alpha: return 2;
    case PngColour::rgb_alpha: return 4;
    default: return 1;
  }
}

int PngHeader::channels() const {
  if (numbers) return colour == PngColour::grey && depth == 16 ? 2 : samples();
  return colour == PngColour::grey || colour == PngColour::grey_alpha ? 1 : 3;
}

size_t PngHeader::row_bytes() const {
  return (static_cast<size_t>(width) * samples() * depth + 7) / 8;
}

size_t PngHeader::inflated_bytes(int rows) const { return (1 + row_bytes()) * rows; }

Status png_pixels(const PngHeader& header, ByteSpan inflated, ByteSpan palette, int rows,
                  uint8_t* out) {
  if (!header.valid()) return {Code::unsupported, "no PNG for the core"};
  if (rows < 1 || rows > header.height) return {Code::bad_region, "rows outside the image"};
  if (inflated.size < header.inflated_bytes(rows))
    return {Code::truncated, "the image's data end early"};

  const int channels = header.channels();
  const size_t stride = static_cast<size_t>(header.width) * channels;
  const RowConverter converter(header, palette);
  const int pixel = header.depth < 8 ? 1 : header.samples() * header.depth / 8;
  const Unfilter unfilter_row = unfilter_of(pixel);
  // Rows that are the result's once unfiltered are put there at once.
  const bool as_is = header.depth == 8 && channels == header.samples();
  const size_t bytes = header.row_bytes();
  Buffer memory;
  uint8_t* scratch = memory.reserve(3 * bytes);
  std::memset(scratch, 0, 3 * bytes);

  const uint8_t* in = inflated.data;
  const uint8_t* above = scratch;  // the zeros before the first row
  for (int y = 0; y < rows; y++, in += 1 + bytes) {
    uint8_t* target = out + y * stride;
    uint8_t* row = as_is ? target : scratch + (1 + y % 2) * bytes;
    if (!unfilter_row(in[0], in + 1, above, bytes, row))
      return {Code::bad_scan_data, "a row has an unknown filter"};
    if (!as_is && !converter.convert(row, target))
      return {Code::bad_scan_data, "a colour that the palette does not have"};
    above = row;
  }
  return {};
}

}  // namespace fastdata
