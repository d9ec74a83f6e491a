// The fuzz target of Huffman tables: what the look-up tables say is what the canonical code
// says (T.81, annexes C and F.2.2), for any numbers of codes and any symbols.
//
// An input is a byte that chooses look-ups, 16 numbers of codes, and their symbols.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "jpeg/huffman.h"

using namespace fastdata;

namespace {

constexpr int kEach = 17;  // one look-up in so many is compared

void check(bool right, const char* what, int bits) {
  if (right) return;
  std::fprintf(stderr, "%s look-up of %#x is wrong\n", what, static_cast<unsigned>(bits));
  std::abort();
}

void check_ac(const HuffmanTable& table, const uint32_t* lookup, int bits) {
  const auto [symbol, length] = table.find(static_cast<uint32_t>(bits) << (16 - kAcLookupBits));
  const uint32_t entry = lookup[bits], advance = entry >> 8 & 0xFF;
  const int run = symbol >> 4, size = symbol & 15, total = length + size;
  if (length == 0 || length > kAcLookupBits) return check(entry == kAcEscape << 8, "AC", bits);
  if (size > 0 && total > kAcLookupBits)
    return check(advance >= kAcEscape && (entry >> 16 & 15) == static_cast<uint32_t>(size) &&
                     (entry >> 20 & 31) == static_cast<uint32_t>(run + 1) &&
                     entry >> 25 == static_cast<uint32_t>(total),
                 "AC", bits);
  check((entry & 63) == static_cast<uint32_t>(total), "AC", bits);
  if (size == 0) return check(advance == (run == 15 ? 16 : kAcEndOfBlock), "AC", bits);
  int value = bits >> (kAcLookupBits - total) & ((1 << size) - 1);
  if (value < 1 << (size - 1)) value += 1 - (1 << size);  // figure F.12, EXTEND
  check(advance == static_cast<uint32_t>(run + 1) && static_cast<int16_t>(entry >> 16) == value,
        "AC", bits);
}

/// Symbol by symbol: as far as an entry goes, and that it takes as many as it can.
void check_skip(const HuffmanTable& table, const uint16_t* lookup, int bits) {
  unsigned length = 0, advance = 0, end = 0;
  while (!end && length < kAcLookupBits) {
    const int rest = bits << length & ((1 << kAcLookupBits) - 1), known = kAcLookupBits - length;
    const auto [symbol, code] = table.find(static_cast<uint32_t>(rest) << (16 - kAcLookupBits));
    const int run = symbol >> 4, size = symbol & 15;
    const bool is_end = size == 0 && run < 15;
    if (code == 0 || code > known || length + code + size > kMaxSkipLength) break;
    if (advance + (is_end ? 0 : run + 1) > 63) return;  // how many are joined then does not matter
    length += code + size;
    if (is_end)
      end = kSkipEndOfBlock;
    else
      advance += run + 1;
  }
  check(lookup[bits] == (length ? length | advance << kSkipAdvance | end : kSkipNone), "skip",
        bits);
}

void check_dc(const HuffmanTable& table, const uint32_t* lookup, int bits) {
  const auto [symbol, length] = table.find(static_cast<uint32_t>(bits) << (16 - kDcLookupBits));
  const uint32_t entry = lookup[bits];
  if (length == 0 || length > kDcLookupBits || length + symbol > kMaxDcEntryBits)
    return check(entry == 0, "DC", bits);
  check((entry & 0xFF) == static_cast<uint32_t>(length + symbol) &&
            (entry >> 8 & 0xFF) == static_cast<uint32_t>(length) &&
            static_cast<int16_t>(entry >> 16) == static_cast<int16_t>(1 - (1 << symbol)),
        "DC", bits);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 17) return 0;
  HuffmanSpec spec;
  spec.present = true;
  std::copy(data + 1, data + 17, spec.counts.begin() + 1);
  int codes = 0;
  for (int length = 1; length <= 16; length++) codes += spec.counts[length];
  if (codes > 256) return 0;  // as read_header sees to
  std::copy_n(data + 17, std::min<size_t>(size - 17, 256), spec.symbols.begin());

  HuffmanTable table;
  static uint32_t lookup[1 << kAcLookupBits];
  const int first = data[0] % kEach;
  if (derive_table(spec, false, table).ok()) {
    build_ac_lookup(spec, lookup);
    for (int bits = first; bits < 1 << kAcLookupBits; bits += kEach) check_ac(table, lookup, bits);
    static uint16_t skip[1 << kAcLookupBits];
    build_skip_lookup(spec, skip);
    for (int bits = first; bits < 1 << kAcLookupBits; bits += kEach) check_skip(table, skip, bits);
  }
  if (derive_table(spec, true, table).ok()) {
    build_dc_lookup(spec, lookup);
    for (int bits = first; bits < 1 << kDcLookupBits; bits += kEach) check_dc(table, lookup, bits);
  }
  return 0;
}
