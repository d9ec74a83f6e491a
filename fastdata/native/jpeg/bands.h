// The AC scans of progressive JPEGs: a band of one component's coefficients, their upper bits
// first, one bit more in each later scan (ITU-T T.81, G.1.2.2 and G.1.2.3).
#pragma once

#include <cstdint>

#include "common.h"
#include "jpeg/entropy.h"
#include "jpeg/huffman.h"

namespace fastdata {

/// The decoder of one band's scan. A block is known by its mask of coefficients that are not zero,
/// bit k for zig-zag index k: all that a later scan needs of blocks outside the region.
struct BandScan {
  Stream* stream = nullptr;
  const uint32_t* lookup = nullptr;
  const HuffmanTable* table = nullptr;
  int first = 1, last = 63;  // zig-zag indices, Ss and Se
  int low = 0;               // Al
  uint32_t end_run = 0;      // blocks from here on that have no further new coefficients
};

/// Decodes the next `blocks` blocks: their masks, and their coefficients in natural order, 64 a
/// block, if `coefficients` is not null. False: the stream failed.
using DecodeBand = bool (*)(BandScan& band, uint32_t blocks, uint64_t* nonzero,
                            int16_t* coefficients);

// An entry of a first scan's look-up, by bits, like AC look-ups (huffman.h):
//    0-5   length of the code and its extra bits; 0: slow
//    8-15  how far the symbol advances in the block: run + 1, kAcEndOfBlock for a run of ends of
//          blocks, kAcEscape for all else: runs without a coefficient, codes and extra bits that
//          the look-up does not hold, coefficients beyond 16 bits
//   16-31  the coefficient, its low bits zero; or the number of blocks that end
// An entry of a refining scan's:
//    0-5   length of the code, and of a new coefficient's sign, or of the extra bits
//    8-15  0 for a new coefficient, kAcEndOfBlock, kAcEscape
//   16-31  2^run, of the zeros before a new coefficient; or the number of blocks that end
void build_first_lookup(const HuffmanSpec& spec, int low, uint32_t lookup[1 << kAcLookupBits]);
void build_refining_lookup(const HuffmanSpec& spec, uint32_t lookup[1 << kAcLookupBits]);

/// A symbol that the look-up left to the slow path. Of a new coefficient in a refining scan `value`
/// is 1 or -1; else it is shifted; 0: none, after a run of 16.
struct BandSymbol {
  bool end = false;  // band.end_run blocks end, this one included
  uint32_t run = 0;
  int value = 0;
};
bool slow_first(BandScan& band, BandSymbol& symbol);
bool slow_refining(BandScan& band, BandSymbol& symbol);

}  // namespace fastdata
