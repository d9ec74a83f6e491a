// What the entropy decoding kernel is given and what it leaves, and how a program has it run: on
// a GPU (launch.cu) or simulated (simulate.cpp). docs/design/0016-entropy-decoding-on-the-gpu.md.
#pragma once

#include <cstdint>
#include <vector>

namespace gpu {

constexpr uint32_t kBlockSize = 64;   // coefficients in an 8x8 block
constexpr uint32_t kTables = 4;       // Huffman tables of an image: two for DC, two for AC
constexpr uint32_t kMaxPlan = 6;      // blocks in an MCU
constexpr uint8_t kUnchecked = 0xFF;  // as a segment's end_bit: it may end anywhere

/// A Huffman table as a DHT segment has it (T.81, B.2.4.2). Untrusted.
struct HuffmanCodes {
  uint8_t counts[16];  // of codes of 1 to 16 bits
  uint8_t symbols[256];
};

/// An image's tables, which are one thread block's, and its segments.
struct Image {
  uint32_t first_segment, segments;
  // Blocks in an MCU, from bit 24 on; below, four bits for each: its component (0 to 2), which
  // of the DC tables, which of the AC tables.
  uint32_t plan;
  HuffmanCodes tables[kTables];  // DC, DC, AC, AC
};

/// MCUs from a seek point on, in one MCU row. Untrusted.
struct Segment {
  uint32_t begin, end;           // of its bytes, stuffed zeros included, in the batch's
  uint32_t first_block, blocks;  // where its coefficients go
  uint8_t begin_bit;             // of the first byte, from the most significant on
  uint8_t end_bit;               // of the last byte, where the next segment begins; 0: behind it
  int16_t predictor[3];          // of the components' DC coefficients
  int16_t end_predictor[3];      // the next segment's
};

enum class Outcome : uint32_t {
  ok,
  bad_table,    // a table is no Huffman code: the image's segments are not decoded
  bad_segment,  // not within the batch's bytes or blocks
  bad_code,     // bits that are no Huffman code
  bad_run,      // beyond the end of a block
  truncated,    // the segment has fewer bits than its blocks took
  wrong_end,    // not where, or with the predictors with which, the next segment begins
};

struct Result {
  Outcome outcome;
  uint32_t symbols;  // that were decoded, at most 64 a block
};

/// The same on the device: pointers to memory of at least the sizes beside them.
struct Batch {
  const uint32_t* words;  // the bytes, up to the next multiple of four
  uint32_t bytes;
  const Image* images;
  uint32_t image_count;
  const Segment* segments;
  uint32_t segment_count;
  int16_t* coefficients;  // in zig-zag order, all zero before
  uint32_t block_count;
  Result* results;  // of the segments; those of no image are left alone
};

struct HostBatch {
  std::vector<uint8_t> bytes;
  std::vector<Image> images;
  std::vector<Segment> segments;
  uint32_t block_count = 0;
};

struct Decoded {
  std::vector<int16_t> coefficients;
  std::vector<Result> results;
};

/// Runs the kernel.
void decode(const HostBatch& batch, Decoded& out);

/// Milliseconds of the last decode() on a GPU; zeros where the kernel is simulated.
struct Spent {
  float copied;   // bytes, images and segments to the device, from pageable memory
  float cleared;  // coefficients
  float decoded;
};
extern Spent spent;

/// What happened on the way, where the kernel is simulated.
struct Events {
  uint64_t words;       // of the bytes loaded
  uint64_t slow_words;  // with a 0xFF, or in part a segment's
  uint64_t long_codes;  // longer than the look-up's bits
};
extern Events events;

}  // namespace gpu
