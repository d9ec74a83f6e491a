// Entropy-coded data to coefficients, thirty-two streams at a time, one in each lane of two
// vectors: while one waits for what it gathers, the other is decoded.
//
// The loop of entropy_core.h decodes a symbol of this stream, then of that, and spends much
// of its time on branches that nobody can predict: where a block ends, which symbols
// escape. Here a step decodes a symbol of every stream, each end of a block is a bit of a
// mask, and what is left to branches is rare. It takes a processor that gathers and scatters,
// an image with enough seek points to keep the lanes busy, and no restart markers.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer.h"
#include "common.h"
#include "jpeg/entropy.h"
#include "jpeg/huffman.h"
#include "jpeg/jpeg_header.h"

namespace fastdata {

constexpr int kVectorLanes = 16;
constexpr int kVectorStreams = 2 * kVectorLanes;
constexpr int kVectorLookupBits = 11;  // 10 and 12 cost 3% and 1% of all
constexpr int kVectorTurns = 3;        // look-ups of each stream to a load; 2 and 4 cost 3% and 6%
// A load of eight bytes has at least 57 bits that are of use.
constexpr int kVectorMaxLength = 57 / kVectorTurns;

/// MCUs from a seek point on, in one MCU row.
struct SeekSegment {
  const uint8_t* source = nullptr;      // their bytes of the scan, zeros stuffed, to
  const uint8_t* source_end = nullptr;  // where the next segment begins, its byte included
  int bit = 0;                          // of the first byte; from the most significant on
  int end_bit = 0;       // of the last byte: where the next segment begins; 0 if in the one after
  bool checked = false;  // the next segment follows, and must begin where this one ends
  int16_t predictor[kMaxComponents] = {};
  int16_t end_predictor[kMaxComponents] = {};  // the next segment's, if checked
  uint32_t blocks = 0;
  int row = 0, col = 0, end_col = 0;  // the MCUs [col, end_col)

  static constexpr uint32_t kMaxBlocks = 128;
  static constexpr size_t kMaxBytes = 12288;
};

/// Takes decoded segments, in no order.
class SegmentSink {
 public:
  virtual ~SegmentSink() = default;
  /// Coefficients in zig-zag order, 64 a block. Must leave them zero.
  virtual void decoded(const SeekSegment& segment, int16_t* coefficients) = 0;
};

// A look-up entry is one symbol or, where the look-up's bits hold them, two: an AC symbol and an
// end of block, or a coefficient that follows without zeros. By bits:
//    0-4   length of the codes and their extra bits
//    5-8   how many extra bits the first symbol has
//    9-15  how far it advances in the block: run + 1, kVectorEndOfBlock, kVectorSlow (the code is
//          longer than the look-up or does not exist, or it and its extra bits are longer than a
//          turn's share of a load)
//   16-20  length of the first code and its extra bits
//   21-24  how many extra bits the second symbol has
//   25-31  how far that advances: 0 (there is none), 1, kVectorEndOfBlock
// Indices count from 1, so that 64 is a block's last coefficient, more an end of block (or a run
// beyond it), and bit 7 a slow symbol. Where the first of two symbols is a block's last
// coefficient, the second is no AC symbol: the slow path takes the first alone.
constexpr uint32_t kVectorEndOfBlock = 64;
constexpr uint32_t kVectorSlow = 127;

struct VectorTables {
  static constexpr int kEntries = 1 << kVectorLookupBits;
  static constexpr int kAcTables = 4 * kEntries;  // behind the DC tables
  static constexpr int kIdle = 8 * kEntries;      // an entry that does not advance

  /// Rebuilds the look-ups whose codes differ from the last image's.
  void build(const EntropyTables& tables);

  alignas(64) uint32_t lookup[kIdle + 1] = {};
  // By block of the MCU: where its look-ups are, and the block after it. The last place is
  // an idle lane's.
  alignas(64) uint32_t dc[kVectorLanes], ac[kVectorLanes], next[kVectorLanes];
  HuffmanSpec built[8];  // the codes of the look-ups
};

/// The loop's state, which it keeps in registers.
struct VectorLanes {
  alignas(64) uint32_t position[kVectorStreams];    // of the next bit in `bytes`
  alignas(64) uint32_t lookup[kVectorStreams];      // the table of the next symbol
  alignas(64) uint32_t index[kVectorStreams];       // of the last coefficient, from 1
  alignas(64) uint32_t block[kVectorStreams];       // its block's place in `coefficients`
  alignas(64) uint32_t last_block[kVectorStreams];  // the place of the segment's last block
  alignas(64) uint32_t plan[kVectorStreams];        // the block's place in the MCU
  const uint8_t* bytes;
  int16_t* coefficients;  // there is a place before the first
  const VectorTables* tables;
  uint32_t bytes_size, coefficients_size;  // for check_lanes
};

/// Aborts if a vector of the loop is about to read or write where it must not: no sanitizer sees
/// what a vector gathers and scatters. Only fuzzing calls it (FASTDATA_CHECK_LANES).
void check_lanes(const VectorLanes& lanes, const uint32_t* position, const uint32_t* place,
                 uint32_t written);

/// Lanes that need attention, a bit each.
struct VectorStop {
  uint32_t slow;   // the next symbol needs the slow path (T.81, F.2.2)
  uint32_t ended;  // the segment's last block has been decoded
};

/// Gives AC entries, kEntries of them, the second symbols that their bits hold.
using JoinSymbols = void (*)(uint32_t* lookup);

/// Decodes until a lane needs attention. DC coefficients are left as differences.
using DecodeVector = VectorStop (*)(VectorLanes& lanes);

/// Whether vectors are used: where a measurement says that they pay; or, for tests, always or
/// never where there are any.
enum class VectorUse { measured, always, never };
void use_vector(VectorUse use);

/// Regions that vectors have decoded, by all threads.
uint64_t vector_regions();

/// Decodes the segments of one image at a time, with memory that it keeps for the next.
class VectorDecoder {
 public:
  /// Whether this processor can, and it pays: fewer segments leave lanes idle.
  static bool worth(size_t segments);

  /// False: a segment is not what it should be, and some may not have been handed over.
  /// Segments that follow one another have been checked to be what one stream would have
  /// decoded, so that a seek table that lies is found out.
  bool run(const EntropyTables& tables, const std::vector<SeekSegment>& segments,
           SegmentSink& sink);

 private:
  bool start(int lane);
  bool decode_symbol(int lane, bool& ended);
  bool finish(int lane);
  int16_t* lane_coefficients(int lane) const;

  const EntropyTables* tables_ = nullptr;
  const std::vector<SeekSegment>* segments_ = nullptr;
  SegmentSink* sink_ = nullptr;
  std::vector<uint32_t> order_;  // of the segments, longest first
  size_t next_ = 0;              // in that order
  int busy_ = 0;                 // lanes
  const SeekSegment* segment_[kVectorStreams] = {};
  uint32_t end_[kVectorStreams] = {};  // position behind the segment's last bit
  bool dirty_ = false;                 // coefficients are left from a failed image

  VectorTables vector_tables_;
  VectorLanes lanes_;
  Buffer bytes_, coefficients_;
};

}  // namespace fastdata
