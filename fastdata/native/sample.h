// One sample from bytes to an array: decode, crop, resample, mirror, augment, normalise, erase.
#pragma once

#include "augment/canvas.h"
#include "augment/program.h"
#include "buffer.h"
#include "common.h"
#include "resample/pixels.h"
#include "jpeg/region.h"
#include "resample/resample.h"
#include "status.h"

namespace fastdata {

/// Pixels that need no decoding: uint8, grey or interleaved RGB.
struct RawImage {
  const uint8_t* pixels = nullptr;
  int width = 0, height = 0, channels = 3;
  size_t row_stride = 0;
};

struct Sample {
  ByteSpan jpeg;  // or, if raw.pixels:
  RawImage raw;
  ByteSpan seek_points;  // empty: none
  // What the box was chosen for, of JPEGs; 0: unknown.
  int said_width = 0, said_height = 0;
  bool whole = true;  // the box is the whole image
  Box box;
  // What the box is resized to; 0: the output's size. The output is a window of that.
  int full_width = 0, full_height = 0;
  int window_x = 0, window_y = 0;
  Filter filter = Filter::bilinear;  // that the box is resized with
  bool flip = false;                 // mirrors the window
  // With a program: the size of the window that it begins with, 0: the output's; and what it
  // draws from.
  int canvas_width = 0, canvas_height = 0;
  uint64_t key = 0;
  Output output;
};

/// The same for all samples of a batch.
struct SampleOptions {
  int width = 0, height = 0;  // of the output
  bool dct_scaling = false;
  const PixelProgram* program = nullptr;  // of augmentations
};

/// Keeps its memory from one sample to the next. For one thread.
class SampleDecoder {
 public:
  Status run(const Sample& sample, const SampleOptions& options);

 private:
  Status augment(const Sample& sample, const SampleOptions& options);
  Status decode(const Sample& sample, const SampleOptions& options);
  void copy(RowSource& source, const Box& box, const Output& output);
  void resample_rows_first(RowSource& source, const Box& box, const Output& output);
  void resample_columns_first(RowSource& source, const Box& box, const Output& output);

  RegionDecoder region_;
  RawPixels raw_;
  Axis x_axis_, y_axis_;
  HorizontalPlan plan_;
  Buffer rows_, out_row_;
  RowWriter writer_;
  Canvas canvas_;
  Drawn drawn_;
};

/// The calling thread's own decoder.
SampleDecoder& thread_decoder();

}  // namespace fastdata
