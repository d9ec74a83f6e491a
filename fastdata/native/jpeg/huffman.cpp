#include "jpeg/huffman.h"

#include <algorithm>
#include <cstring>

namespace fastdata {

Status derive_table(const HuffmanSpec& spec, bool is_dc, HuffmanTable& table) {
  uint32_t code = 0;
  int index = 0;
  for (int length = 1; length <= 16; length++) {
    table.first[length] = index - static_cast<int>(code);
    code += spec.counts[length];
    index += spec.counts[length];
    // No code may be all ones (T.81, annex C), so the next one must still fit.
    if (spec.counts[length] && code >= (1u << length))
      return {Code::bad_huffman_table, "an over-subscribed Huffman code"};
    table.limit[length] = code << (16 - length);
    code <<= 1;
  }
  std::memcpy(table.symbols, spec.symbols.data(), sizeof table.symbols);
  if (is_dc)
    for (int i = 0; i < index; i++)
      if (table.symbols[i] > 15) return {Code::bad_huffman_table, "a DC category above 15"};
  return {};
}

namespace {

FASTDATA_INLINE void fill(uint32_t* out, int count, uint32_t value) {
  // Powers of two from 1 to 1024: whole vectors or single words.
  for (int i = 0; i < count; i++) out[i] = value;
}

}  // namespace

void build_ac_lookup(const HuffmanSpec& spec, uint32_t lookup[1 << kAcLookupBits]) {
  constexpr int kBits = kAcLookupBits;
  const int used = for_each_code(spec, kBits, [&](uint8_t symbol, int length, int entry, int span) {
    uint32_t* out = lookup + entry;
    const uint32_t run = symbol >> 4, size = symbol & 15;
    if (size == 0) {
      const uint32_t advance = run == 15 ? 16 : kAcEndOfBlock;
      fill(out, span, static_cast<uint32_t>(length) | advance << 8);
    } else if (length + static_cast<int>(size) <= kBits) {
      // Each value of the extra bits has its own entries: first the negative
      // values, from -(2^size - 1) up, then the positive ones (T.81, table F.1).
      const int each = span >> size, half = 1 << (size - 1);
      const uint32_t base = (length + size) | (run + 1) << 8;
      for (int extra = 0; extra < 2 * half; extra++, out += each) {
        const int value = extra < half ? extra - 2 * half + 1 : extra;
        fill(out, each, base | static_cast<uint32_t>(value) << 16);
      }
    } else {
      fill(out, span,
           static_cast<uint32_t>(length) | kAcEscape << 8 | size << 16 | (run + 1) << 20 |
               (length + size) << 25);
    }
  });
  fill(lookup + used, (1 << kBits) - used, kAcEscape << 8);
}

void build_dc_lookup(const HuffmanSpec& spec, uint32_t lookup[1 << kDcLookupBits]) {
  constexpr int kBits = kDcLookupBits;
  const int used = for_each_code(spec, kBits, [&](uint8_t symbol, int length, int entry, int span) {
    const int total = length + symbol;
    const uint32_t bias = static_cast<uint32_t>(1 - (1 << symbol)) << 16;
    fill(lookup + entry, span,
         total <= kMaxDcEntryBits ? total | static_cast<uint32_t>(length) << 8 | bias : 0);
  });
  fill(lookup + used, (1 << kBits) - used, 0);
}

void build_skip_lookup(const HuffmanSpec& spec, uint16_t lookup[1 << kAcLookupBits]) {
  constexpr int kBits = kAcLookupBits;
  // The look-ups of fewer bits, each from 2^bits on, give what may follow a symbol.
  uint16_t shorter[1 << kBits];
  for (int bits = 0; bits <= kBits; bits++) {
    uint16_t* const out = bits < kBits ? shorter + (1 << bits) : lookup;
    const int used = for_each_code(spec, bits, [&](uint8_t symbol, int length, int at, int span) {
      const int run = symbol >> 4, size = symbol & 15, rest = bits - length - size;
      const bool end = size == 0 && run < 15;
      const unsigned advance = end ? 0 : run + 1;
      const unsigned one = (length + size) | advance << kSkipAdvance | (end ? kSkipEndOfBlock : 0);
      if (end || rest <= 0) {
        const bool fits = kBits - rest <= kMaxSkipLength;
        std::fill_n(out + at, span, fits ? one : kSkipNone);
        return;
      }
      const uint16_t* const next = shorter + (1 << rest);
      for (int i = 0; i < span; i++) {
        const unsigned entry = next[i & ((1 << rest) - 1)];
        const bool joins =
            entry != kSkipNone && advance + (entry >> kSkipAdvance & 63) < 64;  // six bits
        out[at + i] = static_cast<uint16_t>(joins ? one + entry : one);
      }
    });
    std::fill(out + used, out + (1 << bits), kSkipNone);
  }
}

void EntropyTables::build_lookups() {
  if (lookups_built) return;
  for (int i = 0; i < 4; i++) {
    if (dc_used >> i & 1) build_dc_lookup(header->dc[i], dc_lookup[i]);
    if (ac_used >> i & 1) build_ac_lookup(header->ac[i], ac_lookup[i]);
  }
  lookups_built = true;
}

void EntropyTables::build_skip() {
  if (skip_built) return;
  build_lookups();
  for (int i = 0; i < 4; i++)
    if (ac_used >> i & 1) build_skip_lookup(header->ac[i], skip_lookup[i]);
  skip_built = true;
}

Status EntropyTables::build(const JpegHeader& jpeg) {
  header = &jpeg;
  dc_used = ac_used = 0;
  lookups_built = skip_built = false;
  int block = 0;
  for (int i = 0; i < jpeg.component_count; i++) {
    const Component& c = jpeg.components[i];
    if (!(dc_used >> c.dc_table & 1))
      if (Status s = derive_table(jpeg.dc[c.dc_table], true, dc_table[c.dc_table]); !s.ok())
        return s;
    if (!(ac_used >> c.ac_table & 1))
      if (Status s = derive_table(jpeg.ac[c.ac_table], false, ac_table[c.ac_table]); !s.ok())
        return s;
    dc_used |= 1u << c.dc_table;
    ac_used |= 1u << c.ac_table;
    for (int b = 0; b < c.h * c.v; b++, block++)
      plan[block] = {dc_lookup[c.dc_table],
                     ac_lookup[c.ac_table],
                     skip_lookup[c.ac_table],
                     &dc_table[c.dc_table],
                     &ac_table[c.ac_table],
                     &plan[block + 1],
                     i};
  }
  plan[block - 1].next = &plan[0];
  return {};
}

}  // namespace fastdata
