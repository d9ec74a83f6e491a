// One sample from bytes to an array: decode, crop, resample, mirror, augment, normalise, erase.
#pragma once

#include <vector>

#include "augment/canvas.h"
#include "augment/program.h"
#include "buffer.h"
#include "common.h"
#include "geometry/cut.h"
#include "resample/pixels.h"
#include "jpeg/region.h"
#include "resample/resample.h"
#include "resample/turned.h"
#include "status.h"

namespace fastdata {

/// Pixels that need no decoding: uint8, grey or interleaved RGB.
struct RawImage {
  const uint8_t* pixels = nullptr;
  int width = 0, height = 0, channels = 3;
  size_t row_stride = 0;
};

/// The image that a sample is made of.
struct SampleImage {
  ByteSpan jpeg;  // or, if raw.pixels:
  RawImage raw;
  McuBox present;        // of the JPEG; empty: all of it
  ByteSpan seek_points;  // empty: none
  // The size that boxes were chosen for, of JPEGs; 0: unknown.
  int expected_width = 0, expected_height = 0;
  // By which the image is turned before anything else, so that boxes and sizes are the upright
  // image's: an EXIF orientation; 0: it is not; kOrientationOfHeader: the JPEG's own.
  int orientation = 0;
};

struct Sample : SampleImage {
  Cut cut;
  Output output;
  const Drawn* drawn = nullptr;  // for the canvas; null: nothing, or by the program

  Box box() const { return {cut.box[0], cut.box[1], cut.box[2], cut.box[3]}; }
};

/// The same for all samples of a batch.
struct SampleOptions {
  int max_scans = kUsualMaxScans;        // JPEGs of more are not decoded
  const StepProgram* program = nullptr;  // if steps change pixels
  uint8_t fill[3] = {};                  // R, G, B of what cuts have outside the image
};

/// One of the views of an image; the image that the sample may have is not looked at.
struct SampleView {
  const Sample* sample;
  const SampleOptions* options;

  bool on_canvas() const { return options->program || sample->drawn; }
  /// Of the canvas: masks have those of their output, and no program.
  int channels() const { return options->program ? 3 : sample->output.channels; }
};

/// Keeps its memory from one sample to the next. For one thread.
class SampleDecoder {
 public:
  Status run(const Sample& sample, const SampleOptions& options);

  /// Several views of one image: what they share of it is decoded once where that costs less.
  /// Each is the same, to the bit, as alone. The status of the first that fails.
  Status run(const SampleImage& image, const SampleView* views, size_t count);

 private:
  /// What a view needs of the image, and how that is resampled.
  struct Plan {
    Box crop, wanted;           // of the image; they may reach outside
    Box needed;                 // what is wanted of the image itself
    Box stored;                 // where that is before the image is turned
    bool as_is = false;         // not resampled
    int width = 0, height = 0;  // of the window, within the resized image
    int left = 0, top = 0;      // of it in the output, whose rest is filled
    int full_width = 0, full_height = 0;
    Axis x_axis, y_axis;
  };

  Status decode(const SampleImage& image, const SampleView* views, size_t count);
  Status find_turn(const SampleImage& image);
  Status plan(const SampleImage& image, const SampleView& view, Plan& plan);
  static void plan_axes(const Cut& cut, const int (&first)[2], Plan& plan);
  bool share(const SampleImage& image, int max_scans, size_t count);
  Status render(const SampleView& view, const Plan& plan, RowSource& source);
  void place(RowSource& source, const Plan& plan, const uint8_t (&fill)[3], const Output& output);
  void resample(RowSource& source, const Plan& plan, const Output& output);
  void copy(RowSource& source, const Box& box, const Output& output);
  void resample_rows_first(RowSource& source, const Plan& plan, const Output& output);
  void resample_columns_first(RowSource& source, const Plan& plan, const Output& output);

  RegionDecoder region_;
  RawPixels raw_;
  Turn turn_;
  TurnedRows turned_;
  PaddedRows padded_;
  std::vector<Plan> plans_;  // of the views
  HorizontalPlan horizontal_;
  Buffer rows_, out_row_;
  RowWriter writer_;
  Canvas canvas_;
  Drawn drawn_;
};

/// The calling thread's own decoder.
SampleDecoder& thread_decoder();

}  // namespace fastdata
