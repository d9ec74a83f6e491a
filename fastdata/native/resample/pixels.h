// Rows of pixels: where they come from, where they go.
#pragma once

#include <cstddef>
#include <cstdint>

#include "buffer.h"
#include "common.h"
#include "status.h"

namespace fastdata {

/// Pixels x0 <= x < x1, y0 <= y < y1.
struct Box {
  int x0 = 0, y0 = 0, x1 = 0, y1 = 0;

  int width() const { return x1 - x0; }
  int height() const { return y1 - y0; }
  /// Not empty, and within an image of that size.
  bool inside(int w, int h) const {
    return 0 <= x0 && x0 < x1 && x1 <= w && 0 <= y0 && y0 < y1 && y1 <= h;
  }
};

/// A box of an image, row by row.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual bool grey() const = 0;
  /// Row y of the image, from the box's left edge: one plane if grey, else R, G, B, each
  /// padded (Note [Padded rows]). Valid until the next call.
  virtual void row(int y, const uint8_t** planes) = 0;
  /// The first error of the rows so far; after one, pixels are arbitrary.
  virtual Status status() const { return {}; }
};

/// Pixels in memory, uint8, grey or interleaved RGB.
class RawPixels final : public RowSource {
 public:
  void open(const uint8_t* pixels, size_t row_stride, int channels) {
    pixels_ = pixels;
    row_stride_ = row_stride;
    channels_ = channels;
  }
  void select(const Box& box) { box_ = box; }

  bool grey() const override { return channels_ == 1; }
  void row(int y, const uint8_t** planes) override;

 private:
  const uint8_t* pixels_ = nullptr;
  size_t row_stride_ = 0;
  int channels_ = 3;
  Box box_;
  Buffer planes_;
};

enum class DataType { uint8, float32, float16, bfloat16 };

/// Another source's box, and a colour around it.
class PaddedRows final : public RowSource {
 public:
  /// `inner` has selected `box`, a part of `outer`.
  void open(RowSource& inner, const Box& box, const Box& outer, const uint8_t (&fill)[3]);

  bool grey() const override { return planes_ == 1; }
  void row(int y, const uint8_t** planes) override;
  Status status() const override { return inner_->status(); }

 private:
  RowSource* inner_ = nullptr;
  Box box_, outer_;
  const uint8_t* fill_ = nullptr;
  int planes_ = 3;
  Buffer rows_;
};

size_t size_of(DataType type);

/// An image in the caller's memory: rows of interleaved RGB pixels, or a plane for each of its
/// channels, 3 or 1. Values are uint8, or value * scale + offset with a scale and an offset a
/// channel.
struct Output {
  void* data = nullptr;
  int width = 0, height = 0;
  ptrdiff_t row_stride = 0;    // in bytes
  ptrdiff_t plane_stride = 0;  // in bytes; 0: interleaved
  int channels = 3;            // 1: a plane, of grey images alone
  DataType type = DataType::uint8;
  const float* scale = nullptr;   // Kernels::kPeriod values in memory order,
  const float* offset = nullptr;  // for each plane in turn if not interleaved
};

/// Writes rows to an Output.
class RowWriter {
 public:
  /// Row y, n pixels. `planes` as RowSource gives them; grey becomes as many equal channels.
  void write(const Output& output, int y, int n, const uint8_t* const* planes, bool grey);

 private:
  Buffer interleaved_;
};

}  // namespace fastdata
