// Huffman tables: the canonical ones of T.81 annex C, and the look-up tables that
// give a whole symbol, its extra bits included, for the next few bits of a stream.
#pragma once

#include <cstdint>

#include "common.h"
#include "jpeg/jpeg_header.h"
#include "status.h"

namespace fastdata {

constexpr int kAcLookupBits = 11;  // 9 and 10 bits cost 35% and 11%; 12 leave L1
constexpr int kDcLookupBits = 9;

/// Decodes codes of any length, slowly: for the few that the look-up tables lack.
struct HuffmanTable {
  // Codes of length l, left-aligned in 16 bits, are those below limit[l] that no
  // shorter length has claimed; their symbols begin at symbols[first[l] + code].
  uint32_t limit[17];
  int first[17];
  uint8_t symbols[256];

  /// The symbol whose code begins `next16`, the stream's next 16 bits, and that
  /// code's length; length 0 if no code does.
  struct Symbol {
    uint8_t value;
    int length;
  };
  Symbol find(uint32_t next16) const {
    for (int length = 1; length <= 16; length++)
      if (next16 < limit[length])
        return {symbols[(first[length] + (next16 >> (16 - length))) & 255], length};
    return {0, 0};
  }
};

/// Fails where libjpeg would: an over-subscribed code, a code of all ones, a DC
/// category above 15.
Status derive_table(const HuffmanSpec& spec, bool is_dc, HuffmanTable& table);

/// Calls emit(symbol, length, first entry, entries) for each code of at most `bits`, in
/// order of code; returns the first entry without one.
template <typename Emit>
FASTDATA_INLINE int for_each_code(const HuffmanSpec& spec, int bits, Emit emit) {
  int entry = 0, index = 0;
  for (int length = 1; length <= bits; length++) {
    const int span = 1 << (bits - length);
    for (int i = 0; i < spec.counts[length]; i++, index++, entry += span)
      emit(spec.symbols[index], length, entry, span);
  }
  return entry;
}

// An AC entry, by bits:
//    0-5   length of the code and, unless it escapes, of its extra bits; 0: slow
//    8-15  how far the symbol advances in the block: run + 1, kAcEndOfBlock for
//          an end of block, kAcEscape and above for an escape
//   16-31  the coefficient
// An escape's extra bits do not fit the look-up:
//   16-19  their number; 20-24 run + 1; 25-30 length of code and extra bits
// So 'index + advance >= 63' is the one test that singles out all that is not an
// ordinary coefficient: ends of block, the last coefficient, escapes.
constexpr uint32_t kAcEndOfBlock = 64;
constexpr uint32_t kAcEscape = 128;

// A DC entry, by bits: 0-7 length of the code and the difference, 8-15 length of
// the code, 16-31 what to add to a negative difference (1 - 2^category); 0: slow.
//
// Note [Bits in hand] (docs/design/0007-native-bounds.md): a refill leaves at least 56 bits. Three
// look-ups of 11 bits leave 23 for the next block's DC difference, two leave 34 for an escape of 11
// code bits and 15 more. So the loop refills once for three symbols, DC entries
// longer than 23 bits are left to the slow path, which refills first, and a stream
// cannot make the bit count negative whatever it holds.
constexpr int kMaxDcEntryBits = 23;

// A skip entry advances past several AC symbols: those with their codes
// among its bits; the last one's extra bits may lie behind. By bits: 0-5 the symbols' length; 6-11
// how far they advance; 12 the last one is an end of block; 13 there is none, the first is too
// long. Three fit in a refill.
constexpr unsigned kSkipAdvance = 6;
constexpr unsigned kSkipEndOfBlock = 1 << 12, kSkipNone = 1 << 13;
constexpr int kMaxSkipLength = 18;

void build_ac_lookup(const HuffmanSpec& spec, uint32_t lookup[1 << kAcLookupBits]);
void build_dc_lookup(const HuffmanSpec& spec, uint32_t lookup[1 << kDcLookupBits]);
void build_skip_lookup(const HuffmanSpec& spec, uint16_t lookup[1 << kAcLookupBits]);

/// How the blocks of an MCU are decoded, in scan order; `next` goes round.
struct BlockPlan {
  const uint32_t* dc;
  const uint32_t* ac;
  const uint16_t* skip;
  const HuffmanTable* dc_table;
  const HuffmanTable* ac_table;
  const BlockPlan* next;
  int component;
};

/// All that the entropy decoder needs to know of an image. Points into itself.
struct EntropyTables {
  EntropyTables() = default;
  EntropyTables(const EntropyTables&) = delete;
  EntropyTables& operator=(const EntropyTables&) = delete;

  /// All but the look-ups. The DHT contents must have been checked by read_header, and
  /// stay where they are.
  Status build(const JpegHeader& header);

  /// For decode_streams; does nothing the second time.
  void build_lookups();

  /// For skip_streams, and decode_streams too; does nothing the second time.
  void build_skip();

  alignas(64) uint32_t ac_lookup[4][1 << kAcLookupBits];
  alignas(64) uint32_t dc_lookup[4][1 << kDcLookupBits];
  alignas(64) uint16_t skip_lookup[4][1 << kAcLookupBits];
  HuffmanTable ac_table[4], dc_table[4];
  const JpegHeader* header = nullptr;
  unsigned dc_used = 0, ac_used = 0;  // a bit for each table
  bool lookups_built = false, skip_built = false;
  BlockPlan plan[kMaxBlocksPerMcu];
};

}  // namespace fastdata
