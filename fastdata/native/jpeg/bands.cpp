#include "jpeg/bands.h"

#include <algorithm>

#include "jpeg/bit_reader.h"

namespace fastdata {
namespace {

constexpr uint32_t kSlow = kAcEscape << 8;

/// The entries of a symbol that ends 2^run blocks, or more by its extra bits.
void fill_ends(uint32_t* out, int span, int length, int run) {
  if (length + run > kAcLookupBits) {
    std::fill_n(out, span, kSlow);
    return;
  }
  const int each = span >> run;
  for (int extra = 0; extra < 1 << run; extra++, out += each)
    std::fill_n(out, each,
                static_cast<uint32_t>(length + run) | kAcEndOfBlock << 8 |
                    static_cast<uint32_t>((1 << run) + extra) << 16);
}

/// One code and, of an end of blocks, its extra bits.
bool find_symbol(BandScan& band, BandSymbol& symbol, int& size) {
  Stream& s = *band.stream;
  refill(s.cursor);
  const HuffmanTable::Symbol found = band.table->find(static_cast<uint32_t>(s.cursor.bits >> 48));
  if (found.length == 0) return fail(s, "a bit pattern that is no Huffman code");
  consume(s.cursor, found.length);
  symbol.run = found.value >> 4;
  size = found.value & 15;
  symbol.end = size == 0 && symbol.run < 15;
  if (symbol.end) {
    const auto extra = static_cast<uint32_t>((s.cursor.bits >> 1) >> (63 - symbol.run));
    band.end_run = (1u << symbol.run) + extra;
    consume(s.cursor, symbol.run);
  }
  return true;
}

}  // namespace

void build_first_lookup(const HuffmanSpec& spec, int low, uint32_t lookup[1 << kAcLookupBits]) {
  constexpr int kBits = kAcLookupBits;
  const int used = for_each_code(spec, kBits, [&](uint8_t symbol, int length, int entry, int span) {
    uint32_t* out = lookup + entry;
    const uint32_t run = symbol >> 4;
    const int size = symbol & 15;
    if (size == 0 && run < 15) {
      fill_ends(out, span, length, static_cast<int>(run));
    } else if (size == 0 || length + size > kBits || size + low > 15) {
      std::fill_n(out, span, kSlow);
    } else {
      const int each = span >> size, half = 1 << (size - 1);
      const uint32_t base = static_cast<uint32_t>(length + size) | (run + 1) << 8;
      for (int extra = 0; extra < 2 * half; extra++, out += each) {
        const int value = extra < half ? extra - 2 * half + 1 : extra;
        std::fill_n(out, each, base | static_cast<uint32_t>(value) << (16 + low));
      }
    }
  });
  std::fill(lookup + used, lookup + (1 << kBits), kSlow);
}

void build_refining_lookup(const HuffmanSpec& spec, uint32_t lookup[1 << kAcLookupBits]) {
  constexpr int kBits = kAcLookupBits;
  const int used = for_each_code(spec, kBits, [&](uint8_t symbol, int length, int entry, int span) {
    const uint32_t run = symbol >> 4;
    const int size = symbol & 15;
    if (size == 0 && run < 15)
      fill_ends(lookup + entry, span, length, static_cast<int>(run));
    else
      std::fill_n(lookup + entry, span,
                  size == 1 ? static_cast<uint32_t>(length + 1) | 1u << (16 + run) : kSlow);
  });
  std::fill(lookup + used, lookup + (1 << kBits), kSlow);
}

bool slow_first(BandScan& band, BandSymbol& symbol) {
  int size;
  if (!find_symbol(band, symbol, size)) return false;
  Stream& s = *band.stream;
  if (size + band.low > 15) return fail(s, "a coefficient of more than 16 bits");
  symbol.value = extend(s.cursor.bits, size) * (1 << band.low);
  consume(s.cursor, size);
  return true;
}

bool slow_refining(BandScan& band, BandSymbol& symbol) {
  int size;
  if (!find_symbol(band, symbol, size)) return false;
  Stream& s = *band.stream;
  if (size > 1) return fail(s, "a new coefficient of more than one bit");
  symbol.value = size ? s.cursor.bits >> 63 ? 1 : -1 : 0;
  consume(s.cursor, size);
  return true;
}

}  // namespace fastdata
