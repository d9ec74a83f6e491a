// A rectangle of a JPEG: which MCUs it needs, their decoding into component
// planes, and from these its rows of RGB or grey, libjpeg's full decode to the bit.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer.h"
#include "common.h"
#include "jpeg/coefficients.h"
#include "jpeg/entropy.h"
#include "jpeg/entropy_vector.h"
#include "jpeg/idct.h"
#include "jpeg/jpeg_header.h"
#include "resample/pixels.h"
#include "jpeg/restart.h"
#include "jpeg/seek_points.h"
#include "status.h"

namespace fastdata {

/// Decodes one region at a time, with memory that it keeps for the next. For one thread.
class RegionDecoder final : public RowSource, private RunSource, private SegmentSink {
 public:
  /// Reads the header. `jpeg` must outlive all further calls. Of the scan there may be no more than
  /// what `SeekTable::parts` names for the MCUs that are `present`; empty: all of it.
  Status open(ByteSpan jpeg, const McuBox& present = {});

  const JpegHeader& header() const { return header_; }

  /// Decodes `box` of the image into the planes. With an empty seek table, all
  /// of the scan before the box's last row is decoded too. An image of more than `max_scans` scans
  /// is `unsupported`.
  Status decode(const Box& box, ByteSpan seek_points, int max_scans);

  /// The same for rows that are asked for once, top-down: of a large box with seek points, only
  /// the first MCU rows are decoded, others when they are asked for (Note [Bands]).
  Status begin(const Box& box, ByteSpan seek_points, int max_scans);

  /// Goes on with a part of the box that was decoded: its rows are what `decode` would give.
  void select(const Box& box) { box_ = box; }

  // The rows of the box, top-down from box.y0; valid until the next call.
  bool grey() const override { return header_.component_count == 1; }
  void row(int y, const uint8_t** planes) override;
  Status status() const override { return status_; }

  /// Frees what a very large image needed.
  void trim(size_t keep);

 private:
  /// One component's samples in the decoded MCUs.
  struct Plane {
    int h_factor = 1, v_factor = 1;  // pixels a sample, 1 or 2
    int width = 0, height = 0;       // of the whole component, without padding
    int x0 = 0, y0 = 0;              // the plane's first sample in the component
    size_t stride = 0;
    Buffer samples;

    const uint8_t* at(int x, int y) const {
      return samples.get() + static_cast<size_t>(y - y0) * stride + (x - x0);
    }
  };

  /// A stream's MCU row in progress.
  struct RowStream {
    Stream stream;
    ScanPosition scan;
    Buffer buffer, coefficients, last;
    int index = -1;     // of the MCU row; -1: none yet
    int col = 0;        // the next MCU to decode
    int first_col = 0;  // of the coefficients: MCUs [first_col, col) are decoded, not transformed
    int end_col = 0;    // where this piece of the row ends
  };

  Status open_region(const Box& box, ByteSpan seek_points, int max_scans);
  void plan_planes(const Box& box);
  void reserve_planes(bool in_bands);
  Status decode_band();
  void advance_to(int y);
  bool decode_segments();
  bool list_segments();
  void decoded(const SeekSegment& segment, int16_t* coefficients) override;
  Status decode_scan();
  Status decode_scans();
  bool next_run(Stream& stream) override;
  bool open_row(RowStream& row);
  bool open_piece(RowStream& row);
  bool continue_piece(RowStream& row);
  void transform_piece(RowStream& row);
  /// Coefficients of the MCUs [first_col, end_col) of a row to samples.
  /// `last`: as BlockRow's; null in zig-zag order.
  void transform(int row, int first_col, int end_col, CoefficientOrder order, int16_t* coefficients,
                 uint8_t* last);
  /// One row of a component's blocks; row and column count from the planes' first.
  void transform_blocks(int component, int block_row, int block_col, const BlockRow& blocks,
                        const uint16_t* quantisation, IdctRow idct_row);
  const uint8_t* chroma_row(int component, int y);

  ByteSpan jpeg_;
  McuBox present_;
  JpegHeader header_;
  EntropyTables tables_;
  Box box_;
  int first_col_ = 0, end_col_ = 0, first_row_ = 0, end_row_ = 0;  // MCUs
  // Note [Bands]: MCU rows of a band; those that are decoded last; the planes' first one.
  int band_rows_ = 0, band_first_ = 0, band_end_ = 0, top_row_ = 0;
  Status status_;
  Plane planes_[kMaxComponents];

  int max_scans_ = 0;
  bool seeking_ = false;
  SeekTable table_;
  int next_row_ = 0;
  RowStream rows_[kMaxStreams];
  bool dirty_ = false;  // coefficients are left from a failed image

  std::vector<SeekSegment> segments_;
  VectorDecoder vector_;
  CoefficientDecoder coefficients_;

  Buffer rgb_, upsampled_, sums_;
};

}  // namespace fastdata
