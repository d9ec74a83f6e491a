// Images that are turned to be upright, as their EXIF orientation says.
#pragma once

#include "buffer.h"
#include "resample/pixels.h"

namespace fastdata {

/// How an upright image comes from the stored one, whose axes are mirrored, then exchanged.
struct Turn {
  bool mirrored_x = false, mirrored_y = false, exchanged = false;

  Turn() = default;
  /// The turn of an EXIF orientation, as in Pillow's `ImageOps.exif_transpose`; none for other
  /// numbers.
  explicit Turn(int orientation)
      : mirrored_x(orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8),
        mirrored_y(orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7),
        exchanged(orientation >= 5 && orientation <= 8) {}

  bool any() const { return mirrored_x || mirrored_y || exchanged; }

  /// The box of the stored image, of width x height, that a box of the upright one comes from.
  Box stored(const Box& box, int width, int height) const;
};

/// A box of another source, turned. All of it is held in memory.
class TurnedRows final : public RowSource {
 public:
  /// `inner` has selected `stored`, which `turn` makes `upright` of. Reads all its rows.
  void open(RowSource& inner, const Box& stored, const Box& upright, const Turn& turn);

  bool grey() const override { return planes_ == 1; }
  void row(int y, const uint8_t** planes) override;
  Status status() const override { return status_; }

  /// Frees what a very large image needed.
  void trim(size_t keep);

 private:
  void place_strip(const uint8_t* strip, size_t strip_stride, int width, bool mirrored,
                   uint8_t* out) const;

  Box box_;
  int planes_ = 3;
  size_t stride_ = 0;
  Status status_;
  Buffer rows_, strip_;
};

}  // namespace fastdata
