// The scans of a progressive JPEG (ITU-T T.81, G.1.1.1.1).
#pragma once

#include <cstdint>

#include "common.h"
#include "jpeg/jpeg_header.h"
#include "status.h"

namespace fastdata {

/// A scan's header without its components.
struct Scan {
  // Indices in the frame of the components in it; the header that the reader gives has those alone.
  int component[kMaxComponents] = {};
  int first = 0, last = 63;  // zig-zag indices of its coefficients, Ss and Se
  int high = 0, low = 0;     // bits below those sent before, and below those sent now: Ah and Al
};

/// Reads the segments between scans. Accepts only what all decoders take for the same image:
/// no coefficient's bit comes twice or out of order.
class ScanReader {
 public:
  /// `header`: as read_header left it. Both must outlive all further calls.
  void open(ByteSpan jpeg, const JpegHeader& header);

  /// The next scan, if there is one. Else `found` is false: the image has ended.
  Status next(Scan& scan, bool& found);

  /// The scan as a JPEG of its own: the components in it, the geometry of its MCUs, the tables
  /// that are in force, the place of its data.
  const JpegHeader& header() const { return header_; }

  /// The quantisation table of one of the frame's components, as it was at the component's first
  /// scan (libjpeg's latch_quant_tables), in natural order.
  const uint16_t* quantisation(int component) const { return quantisation_[component]; }

  /// Whether all coefficients are known that libjpeg would otherwise estimate from neighbouring
  /// blocks, if there are no more scans (jdcoefct.c, smoothing_ok).
  bool complete() const;

 private:
  Status read_sos(size_t at, ByteSpan segment, Scan& scan);
  Status take_bits(size_t at, const Scan& scan);
  void set_geometry();

  ByteSpan jpeg_;
  const JpegHeader* frame_ = nullptr;
  JpegHeader header_;
  size_t pos_ = 0;                            // of the next marker
  int8_t known_[kMaxComponents][kBlockSize];  // the lowest bit known of a coefficient; -1: none
  uint16_t quantisation_[kMaxComponents][kBlockSize];
};

}  // namespace fastdata
