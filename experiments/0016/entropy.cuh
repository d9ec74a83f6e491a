// Entropy decoding on a GPU: a thread decodes the MCUs from one seek point to the next, a thread
// block the segments of one image. CUDA C++, and C++ for the host in simulate.cpp.
//
// Nothing that it is given is trusted but the sizes and pointers in Batch and Image's range of
// segments, which are checked once. docs/design/0016-entropy-decoding-on-the-gpu.md says why each
// read and write is within bounds; comments here name its paragraphs.
#pragma once

#include "batch.h"

#ifdef __CUDACC__
#define FASTDATA_SHARED(Type, name) __shared__ Type name
#define FASTDATA_THREADS      // what follows is done by each thread of a block
#define FASTDATA_EVENT(name)  // counted where the kernel is simulated
#endif

namespace gpu {

// Bits of a look-up in shared memory. Longer codes take a loop.
constexpr uint32_t kLookupBits = 9;
constexpr uint32_t kThreads = 128;  // of a block; where there are more segments they take turns

/// An image's tables in shared memory.
struct Shared {
  // symbol << 8 | length of its code; length 0: the code is longer, or there is none.
  uint16_t lookup[kTables][1 << kLookupBits];
  uint32_t limit[kTables][17];  // as HuffmanTable's (jpeg/huffman.h)
  int32_t first[kTables][17];
  uint8_t symbols[kTables][256];
  uint8_t bad[kTables];
};

/// The symbol and length of the code that begins `next16`, as an entry of the look-up, if it has
/// from `from` to `to` bits; else 0. Bounds: tables.
__device__ inline uint32_t find_code(const Shared& shared, uint32_t table, uint32_t next16,
                                     uint32_t from, uint32_t to) {
  for (uint32_t length = from; length <= to; length++)
    if (next16 < shared.limit[table][length]) {
      const uint32_t index = shared.first[table][length] + (next16 >> (16 - length));
      return static_cast<uint32_t>(shared.symbols[table][index & 255]) << 8 | length;
    }
  return 0;
}

/// Whether the table is a Huffman code, as derive_table has it; its limits (T.81, annex C).
__device__ inline void derive_table(const HuffmanCodes& codes, uint32_t table, Shared& shared) {
  uint32_t code = 0, index = 0;
  bool bad = false;
  for (uint32_t length = 1; length <= 16; length++) {
    const uint32_t count = codes.counts[length - 1];
    shared.first[table][length] = static_cast<int32_t>(index - code);
    code += count;
    index += count;
    bad |= count && code >= 1u << length;
    shared.limit[table][length] = code << (16 - length);
    code <<= 1;
  }
  if (table < 2)
    for (uint32_t i = 0; i < index && i < 256; i++) bad |= codes.symbols[i] > 15;
  shared.bad[table] = bad;
}

/// A segment's bits, stuffed zeros left out, followed by zeros.
struct Bits {
  const uint32_t* words;
  uint32_t pos, end;        // bytes
  uint64_t bits = 0;        // the next bits, left-aligned; below `count`: zeros
  uint32_t count = 0;       // of them
  uint32_t missing = 0;     // of these, beyond the segment's end
  bool after_0xff = false;  // which is data if a zero follows, or nothing

  __device__ void append(uint32_t byte) {
    bits |= static_cast<uint64_t>(byte) << (56 - count);
    count += 8;
  }

  /// Leaves at least 32 bits. Bounds: bytes, bits in hand.
  __device__ void refill() {
    while (count < 32) {
      if (pos >= end) {
        if (after_0xff) {  // its zero would be in the next segment
          after_0xff = false;
          append(0xFF);
        } else {
          count += 32;
          missing += 32;
        }
        continue;
      }
      const uint32_t begin = pos & ~3u, word = words[pos / 4];
      FASTDATA_EVENT(words);
      // Adding one clears the upper bit of a 0xFF alone, or of a byte that a 0xFF's carry reaches.
      const bool has_0xff = word & ~(word + 0x01010101) & 0x80808080;
      if (pos == begin && begin + 4 <= end && !after_0xff && !has_0xff) {
        bits |= static_cast<uint64_t>(__byte_perm(word, 0, 0x0123)) << (32 - count);
        count += 32;
        pos += 4;
        continue;
      }
      FASTDATA_EVENT(slow_words);
      const uint32_t stop = begin + 4 < end ? begin + 4 : end;
      for (; pos < stop; pos++) {
        const uint32_t byte = word >> pos % 4 * 8 & 0xFF;
        if (after_0xff) {
          after_0xff = false;
          if (byte) {  // a marker
            pos = end;
            break;
          }
          append(0xFF);
        } else if (byte == 0xFF) {
          after_0xff = true;
        } else {
          append(byte);
        }
      }
    }
  }

  __device__ void consume(uint32_t length) {
    bits <<= length;
    count -= length;
  }
};

/// The value of `size` extra bits at the top of `top` (T.81, F.2.2.1, EXTEND).
__device__ inline int32_t extend(uint32_t top, uint32_t size) {
  const int32_t value = static_cast<int32_t>(top >> 1 >> (31 - size));
  return top >> 31 ? value : value + 1 - (1 << size);
}

__device__ inline Result decode_segment(const Batch& batch, const Segment& segment, uint32_t plan,
                                        const Shared& shared) {
  const uint32_t plan_blocks = plan >> 24;
  // Bounds: segments.
  if (segment.begin > segment.end || segment.end > batch.bytes || segment.begin_bit > 7 ||
      segment.blocks == 0 || segment.first_block > batch.block_count ||
      segment.blocks > batch.block_count - segment.first_block || plan_blocks - 1 >= kMaxPlan)
    return {Outcome::bad_segment, 0};

  Bits in{batch.words, segment.begin, segment.end};
  in.refill();
  in.consume(segment.begin_bit);
  uint32_t predictor0 = segment.predictor[0], predictor1 = segment.predictor[1],
           predictor2 = segment.predictor[2];  // unsigned: hostile bits may wrap them
  int16_t* block = batch.coefficients + static_cast<size_t>(segment.first_block) * kBlockSize;
  uint32_t left = segment.blocks, plan_at = 0, k = 0, symbols = 0;

  // A symbol a turn, wherever in its block: threads whose blocks end at different times stay
  // together.
  for (;;) {
    in.refill();
    const uint32_t block_plan = plan >> 4 * plan_at;
    const uint32_t table = k == 0 ? block_plan >> 2 & 1 : 2 + (block_plan >> 3 & 1);
    uint32_t entry = shared.lookup[table][in.bits >> (64 - kLookupBits)];
    if (entry == 0) {
      FASTDATA_EVENT(long_codes);
      entry = find_code(shared, table, static_cast<uint32_t>(in.bits >> 48), kLookupBits + 1, 16);
      if (entry == 0) return {Outcome::bad_code, symbols};
    }
    symbols++;
    in.consume(entry & 31);
    const uint32_t run = entry >> 12, size = entry >> 8 & 15;
    uint32_t value = extend(static_cast<uint32_t>(in.bits >> 32), size);
    in.consume(size);

    if (k == 0) {
      // Names, not an array: registers have no index.
      const uint32_t component = block_plan & 3;
      value += component == 0 ? predictor0 : component == 1 ? predictor1 : predictor2;
      predictor0 = component == 0 ? value : predictor0;
      predictor1 = component == 1 ? value : predictor1;
      predictor2 = component >= 2 ? value : predictor2;
    }
    if (size == 0 && run != 15 && k != 0) {  // an end of block
      k = kBlockSize;
    } else {
      k += run;
      if (k >= kBlockSize) return {Outcome::bad_run, symbols};
      block[k++] = static_cast<int16_t>(value);
    }
    if (k == kBlockSize) {
      block += kBlockSize;
      k = 0;
      if (++plan_at == plan_blocks) plan_at = 0;
      if (--left == 0) break;
    }
  }

  in.refill();
  if (in.count < in.missing) return {Outcome::truncated, symbols};
  if (segment.end_bit != kUnchecked) {
    const uint32_t unread = segment.end_bit ? 8u - segment.end_bit : 0;
    if (in.count - in.missing != unread ||
        predictor0 != static_cast<uint32_t>(segment.end_predictor[0]) ||
        predictor1 != static_cast<uint32_t>(segment.end_predictor[1]) ||
        predictor2 != static_cast<uint32_t>(segment.end_predictor[2]))
      return {Outcome::wrong_end, symbols};
  }
  return {Outcome::ok, symbols};
}

/// A thread block an image.
__global__ void decode_entropy(Batch batch) {
  FASTDATA_SHARED(Shared, shared);
  const Image& image = batch.images[blockIdx.x];

  FASTDATA_THREADS {
    if (threadIdx.x < kTables) derive_table(image.tables[threadIdx.x], threadIdx.x, shared);
    for (uint32_t i = threadIdx.x; i < kTables * 256; i += blockDim.x)
      shared.symbols[i / 256][i % 256] = image.tables[i / 256].symbols[i % 256];
  }
  __syncthreads();

  FASTDATA_THREADS {
    for (uint32_t i = threadIdx.x; i < kTables << kLookupBits; i += blockDim.x) {
      const uint32_t table = i >> kLookupBits, at = i & ((1 << kLookupBits) - 1);
      shared.lookup[table][at] =
          static_cast<uint16_t>(find_code(shared, table, at << (16 - kLookupBits), 1, kLookupBits));
    }
  }
  __syncthreads();

  FASTDATA_THREADS {
    // Bounds: segments.
    if (image.first_segment <= batch.segment_count &&
        image.segments <= batch.segment_count - image.first_segment)
      for (uint32_t i = threadIdx.x; i < image.segments; i += blockDim.x) {
        const uint32_t s = image.first_segment + i;
        const bool bad = shared.bad[0] | shared.bad[1] | shared.bad[2] | shared.bad[3];
        batch.results[s] = bad ? Result{Outcome::bad_table, 0}
                               : decode_segment(batch, batch.segments[s], image.plan, shared);
      }
  }
}

}  // namespace gpu
