// Entropy-coded data to coefficients: the streams, and what decodes them.
//
// A stream is a place in the scan and what it takes to go on from there. Several
// streams, each in its own MCU row, are decoded in turns by one loop: the latency
// of one hides behind the work of the others.
#pragma once

#include <cstdint>

#include "common.h"
#include "jpeg/huffman.h"
#include "status.h"

namespace fastdata {

constexpr int kMaxStreams = 3;

/// The part of a stream that the inner loop keeps in registers.
///
/// Note [Count modulo 64]: of `count` only the lower six bits mean anything. Table entries
/// hold their length in the lowest bits, so whole entries are subtracted, unmasked.
struct Cursor {
  uint64_t bits = 0;             // the next bits, left-aligned
  uint32_t count = 0;            // how many of them are valid, modulo 64
  const uint8_t* pos = nullptr;  // the next byte to load
  unsigned k = 0;                // zig-zag index of the last coefficient decoded
  int16_t* block = nullptr;      // where the coefficients go, in natural order
  const uint32_t* ac = nullptr;  // the AC look-up of this block
};

// Note [Unstuffed chunks] (docs/design/0007-native-bounds.md): a stream reads from a private
// buffer, into which the scan's bytes are copied a chunk at a time without the zeros stuffed after
// each 0xFF, so that a refill is one unaligned load without a branch. One block takes at most 64
// codes and their extra bits, 64 * 31 bits; a refill loads eight bytes. So if no more than kReserve
// bytes are left, the next chunk is fetched before the next block, and a buffer that holds the
// scan's end is followed by kReserve zeros: no stream, however hostile, can read past its buffer,
// and the loop asks only once a block.
constexpr size_t kChunk = 8192;
constexpr size_t kReserve = 320;
constexpr size_t kStreamBuffer = kChunk + 64 + kReserve;

struct Stream {
  Cursor cursor;
  const BlockPlan* plan = nullptr;          // of the block being decoded
  const BlockPlan* next_plan = nullptr;     // of the block after it
  uint32_t blocks_left = 0;                 // in this run, the current block included
  uint8_t* last = nullptr;                  // takes each block's last zig-zag index
  const uint8_t* limit = nullptr;           // beyond this, ask before the next block
  uint32_t predictor[kMaxComponents] = {};  // unsigned: hostile streams may wrap it

  const uint8_t* source = nullptr;  // the next scan byte to copy to the buffer
  const uint8_t* source_end = nullptr;
  bool exhausted = false;           // a marker or the end has been reached
  uint8_t* buffer = nullptr;        // kStreamBuffer bytes
  const uint8_t* filled = nullptr;  // end of the valid bytes in it
  uint64_t discarded = 0;           // unstuffed bytes that have left the buffer
  const char* error = nullptr;      // why the stream failed, if it did
  Code error_code = Code::ok;
  int id = 0;  // for the run source

  /// Unstuffed bits read since the stream was opened.
  uint64_t bits_read() const {
    return (discarded + static_cast<uint64_t>(cursor.pos - buffer)) * 8 - cursor.count % 64;
  }
};

/// Where an entropy decoder may start.
struct EntryPoint {
  size_t byte = 0;  // in the JPEG
  int bit = 0;      // 0 to 7, counted from the byte's most significant bit
  int16_t predictor[kMaxComponents] = {};
};

/// Puts the stream at the entry point, before a block's DC difference. Reads no byte
/// at or after `end`, nor beyond the first marker.
void open_stream(Stream& stream, ByteSpan jpeg, const EntryPoint& entry, size_t end);

/// Gives the stream the next `blocks` blocks to decode: `plan` is the first block's,
/// coefficients go to `block` (64 zeros each), last zig-zag indices to `last`.
/// False: the stream failed.
bool start_run(Stream& stream, const BlockPlan* plan, uint32_t blocks, int16_t* block,
               uint8_t* last);

/// True if the stream has read bits that were not there.
bool overran(const Stream& stream);

/// Hands out the work of the streams.
class RunSource {
 public:
  virtual ~RunSource() = default;
  /// The stream has decoded its run. Takes the coefficients and starts another run;
  /// false: there is none, or the stream failed.
  virtual bool next_run(Stream& stream) = 0;
};

/// Decodes the streams' runs until none is left or one stream fails. The order of
/// `streams` changes. Returns the stream that failed, or null.
using DecodeStreams = Stream* (*)(Stream* const* streams, int count, RunSource& runs);

/// The same, but keeps only the predictors: a run's `block` takes DC coefficients that nobody
/// reads, all at its first place, its `last` nothing. The plans' skip tables must have been
/// built. When one stream fails the others are left whole, and may be given again.
using SkipStreams = Stream* (*)(Stream* const* streams, int count, RunSource& runs);

/// Copies [source, end) to `out` without stuffed zeros. Stops at a marker, at `end`, or
/// when `out` has reached `out_end`, of which it may write 63 bytes more.
struct Unstuffed {
  const uint8_t* source;  // the first byte not copied: a marker's 0xFF, if at_marker
  uint8_t* out;
  bool at_marker;
};
using Unstuff = Unstuffed (*)(const uint8_t* source, const uint8_t* end, uint8_t* out,
                              uint8_t* out_end);

// The decoding loop's slow paths. These are
// compiled once, for any processor.
bool fetch_chunk(Stream& stream);                   // false: the stream overran
bool begin_block(Stream& stream);                   // decodes the DC difference of the next block
bool slow_symbol(Stream& stream, RunSource& runs);  // one AC symbol, of any length
bool leave_block(Stream& stream, RunSource& runs);  // at a run's or a chunk's end
bool skip_slow_symbol(Stream& stream);

/// Fails the stream; returns false.
inline bool fail(Stream& stream, const char* why, Code code = Code::bad_scan_data) {
  stream.error = why;
  stream.error_code = code;
  return false;
}

}  // namespace fastdata
