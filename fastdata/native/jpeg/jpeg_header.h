// The marker segments before the entropy-coded data (ITU-T T.81, annex B).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "common.h"
#include "status.h"

namespace fastdata {

constexpr int kBlockSize = 64;  // coefficients in an 8x8 block
constexpr int kMaxComponents = 3;
constexpr int kMaxBlocksPerMcu = 6;

/// zig-zag index -> natural (row-major) index; T.81 figure A.6.
inline constexpr uint8_t kNaturalOrder[kBlockSize] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,   //
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,  //
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,  //
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/// One table of a DHT segment as in the file.
struct HuffmanSpec {
  bool present = false;
  std::array<uint8_t, 17> counts{};    // counts[l]: codes of length l, l = 1..16
  std::array<uint8_t, 256> symbols{};  // in order of increasing code length

  bool operator==(const HuffmanSpec&) const = default;
};

struct Component {
  uint8_t id = 0;
  uint8_t h = 1, v = 1;  // sampling factors H_i, V_i
  uint8_t quantisation_table = 0;
  uint8_t dc_table = 0, ac_table = 0;
};

enum class Sampling : uint8_t { grey, s444, s422, s420, s440, other };

/// All that a decoder must know before the first entropy-coded bit.
struct JpegHeader {
  int width = 0, height = 0;
  int component_count = 0;
  int precision = 0;
  uint8_t frame_marker = 0;  // 0xC0 baseline, 0xC1 extended, 0xC2 progressive, ...
  Component components[4];
  uint16_t quantisation[4][kBlockSize] = {};  // natural order
  bool quantisation_present[4] = {};
  HuffmanSpec dc[4], ac[4];
  int restart_interval = 0;  // MCUs between restart markers, 0: none
  size_t scan_offset = 0;    // first byte of (the first scan's) entropy-coded data
  size_t first_scan = 0;     // the first one's marker
  bool ycc = true;           // three components are YCbCr, not RGB
  Sampling sampling = Sampling::other;
  ByteSpan exif, xmp;  // what segments of that kind hold, in the JPEG; empty: there are none
  bool several_exif = false;

  // MCU geometry of interleaved scans.
  int mcu_width = 0, mcu_height = 0;  // in pixels
  int mcus_per_row = 0, mcu_rows = 0;
  int blocks_per_mcu = 0;

  int mcu_count() const { return mcus_per_row * mcu_rows; }

  // By the frame marker (T.81, table B.1).
  bool progressive() const { return (frame_marker & 3) == 2; }
  bool arithmetic() const { return frame_marker & 8; }
};

/// MCUs [first_col, end_col) of the rows [first_row, end_row).
struct McuBox {
  int first_col = 0, end_col = 0, first_row = 0, end_row = 0;

  bool holds(const McuBox& other) const {
    return first_col <= other.first_col && first_row <= other.first_row &&
           end_col >= other.end_col && end_row >= other.end_row;
  }
};

/// The smallest box that holds both, of which the first may be empty.
inline McuBox around(const McuBox& a, const McuBox& b) {
  if (a.end_row == 0) return b;
  return {std::min(a.first_col, b.first_col), std::max(a.end_col, b.end_col),
          std::min(a.first_row, b.first_row), std::max(a.end_row, b.end_row)};
}

/// Reads the markers up to and including the frame header. Fills the size, the
/// components, the sampling and the frame marker; enough to describe any JPEG. Garbage between
/// segments is skipped.
Status read_frame(ByteSpan jpeg, JpegHeader& header);

/// Reads all markers up to the first scan, and checks that this core can decode it: a
/// baseline (or extended, 8-bit) or progressive JPEG, Huffman-coded, grey or YCbCr.
/// Anything else is `unsupported`; the status of a damaged header has the reason and the place. Of
/// progressive JPEGs, scans' headers are not read, and Huffman tables may be missing.
Status read_header(ByteSpan jpeg, JpegHeader& header);

const char* sampling_name(Sampling sampling);

}  // namespace fastdata
