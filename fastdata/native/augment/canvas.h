// An image in memory that operations change: planes of bytes, and room for the next ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "buffer.h"
#include "common.h"
#include "resample/resample.h"
#include "status.h"

namespace fastdata {

/// 1 (grey) or 3 (R, G, B) planes of uint8, one after the other. A row begins at a multiple of 64
/// bytes; what lies between its pixels and the next row may be read and written, its values mean
/// nothing. The last plane is followed by kRowPadding bytes more (Note [Padded rows]). So an
/// operation on single pixels may take all planes as one array of size() bytes.
struct Planes {
  uint8_t* data = nullptr;
  int width = 0, height = 0, channels = 0;
  size_t stride = 0;  // from one row to the next, a multiple of 64

  size_t plane_size() const { return stride * height; }
  size_t size() const { return plane_size() * channels; }
  uint8_t* plane(int channel) const { return data + plane_size() * channel; }
  uint8_t* row(int channel, int y) const { return plane(channel) + stride * y; }
};

/// A weighted sum of images of one size, while it is made.
struct Mixture {
  Buffer original;  // the image that it began with
  Buffer sums;      // floats, one for each byte
  int width = 0, height = 0, channels = 0;

  bool fits(const Planes& image) const {
    return image.width == width && image.height == height && image.channels == channels;
  }
  /// Keeps the image, and begins with it. Throws std::bad_alloc.
  void begin(const Planes& image, float weight);
  void clear() { width = height = channels = 0; }
};

/// The image, and a second buffer for operations that cannot work in place. Keeps its memory from
/// one image to the next. For one thread. Methods that need memory throw std::bad_alloc.
class Canvas {
 public:
  static constexpr size_t kMaxSize = size_t{1} << 30;  // of the planes, in bytes

  const Planes& image() const { return image_; }

  /// Begins a new image, whose pixels the caller writes. bad_parameters: a size below 1, or other
  /// than 1 or 3 channels; too_large: above kMaxSize.
  Status reset(int width, int height, int channels);

  /// Room for the image that an operation makes of this one; `swap` puts it in its place.
  /// Fails as `reset` does, and then changes nothing.
  Status begin(int width, int height, int channels, Planes& next);
  void swap();
  /// Makes an image of a size and puts it in the place of this one; `write` writes each row of each
  /// channel. Fails as `begin`.
  template <typename Write>
  Status make(int width, int height, const Write& write) {
    Planes next;
    if (Status s = begin(width, height, image_.channels, next); !s.ok()) return s;
    for (int c = 0; c < next.channels; c++)
      for (int y = 0; y < height; y++) write(c, y, next.row(c, y));
    swap();
    return {};
  }
  /// The same; `write` writes a row of all channels.
  template <typename Write>
  Status make_rows(int width, int height, const Write& write) {
    Planes next;
    if (Status s = begin(width, height, image_.channels, next); !s.ok()) return s;
    for (int y = 0; y < height; y++) {
      uint8_t* rows[3];
      for (int c = 0; c < next.channels; c++) rows[c] = next.row(c, y);
      write(y, rows);
    }
    swap();
    return {};
  }

  /// Gives back each buffer that is larger than `keep` bytes.
  void trim(size_t keep);

  // Memory that operations keep from one call to the next.
  Buffer scratch;
  Axis x_axis, y_axis;
  HorizontalPlan plan;
  Mixture mix;

 private:
  static Status lay_out(int width, int height, int channels, Planes& planes);

  Buffer buffers_[2];
  int current_ = 0;
  Planes image_, next_;
};

}  // namespace fastdata
