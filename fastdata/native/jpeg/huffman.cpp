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
  const int used = for_each_code<kBits>(spec, [&](uint8_t symbol, int length, int entry, int span) {
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
  const int used = for_each_code<kBits>(spec, [&](uint8_t symbol, int length, int entry, int span) {
    const int total = length + symbol;
    const uint32_t bias = static_cast<uint32_t>(1 - (1 << symbol)) << 16;
    fill(lookup + entry, span,
         total <= kMaxDcEntryBits ? total | static_cast<uint32_t>(length) << 8 | bias : 0);
  });
  fill(lookup + used, (1 << kBits) - used, 0);
}

void build_skip_tables(const HuffmanSpec& dc, const HuffmanSpec& ac, SkipTables& tables) {
  constexpr int kBits = kAcLookupBits, kSize = 12;
  constexpr unsigned kMask = SkipTables::kEntries - 1, kMaxAdvance = 63 - 16;
  int used = for_each_code<kBits>(dc, [&](uint8_t symbol, int length, int entry, int span) {
    const int total = length + symbol;
    std::fill_n(tables.dc + entry, span, total <= kMaxSkipLength ? total | symbol << kSize : 0);
  });
  std::fill(tables.dc + used, tables.dc + SkipTables::kEntries, 0);
  // Single symbols with the number of their extra bits; an end of block advances by none.
  uint16_t single[SkipTables::kEntries];
  used = for_each_code<kBits>(ac, [&](uint8_t symbol, int length, int entry, int span) {
    const int run = symbol >> 4, size = symbol & 15, total = length + size;
    const int advance = size == 0 && run < 15 ? 0 : run + 1;
    std::fill_n(single + entry, span,
                total <= kMaxSkipLength ? total | advance << kSkipAdvance | size << kSize : 0);
  });
  std::fill(single + used, single + SkipTables::kEntries, 0);
  for (unsigned bits = 0; bits <= kMask; bits++) {
    unsigned length = 0, advance = 0, end = 0;
    while (advance <= kMaxAdvance) {  // one more still fits six bits
      const unsigned entry = single[bits << length & kMask], total = entry & 63;
      const unsigned code = total - (entry >> kSize);
      if (total == 0 || length + code > kBits || length + total > kMaxSkipLength) break;
      length += total;
      const unsigned step = entry >> kSkipAdvance & 63;
      if (step == 0) {
        end = kSkipEndOfBlock;
        break;
      }
      advance += step;
    }
    tables.ac[bits] = static_cast<uint16_t>(
        length == 0 ? kSkipSlow : length | advance << kSkipAdvance | end);
    const unsigned entry = single[bits] & 0xFFF;
    tables.one[bits] = static_cast<uint16_t>(
        entry == 0 ? kSkipSlow : entry >> kSkipAdvance ? entry : entry | kSkipEndOfBlock);
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
  for (int i = 0; i < header->component_count; i++)
    if (skip_of[i] == i) {
      const Component& c = header->components[i];
      build_skip_tables(header->dc[c.dc_table], header->ac[c.ac_table], skip[i]);
    }
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
    skip_of[i] = 0;
    while (jpeg.components[skip_of[i]].dc_table != c.dc_table ||
           jpeg.components[skip_of[i]].ac_table != c.ac_table)
      skip_of[i]++;
    for (int b = 0; b < c.h * c.v; b++, block++)
      plan[block] = {dc_lookup[c.dc_table],
                     ac_lookup[c.ac_table],
                     skip[skip_of[i]].ac,
                     &dc_table[c.dc_table],
                     &ac_table[c.ac_table],
                     &plan[block + 1],
                     i};
  }
  plan[block - 1].next = &plan[0];
  return {};
}

}  // namespace fastdata
