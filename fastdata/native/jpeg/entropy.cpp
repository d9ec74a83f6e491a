#include "jpeg/entropy.h"

#include <algorithm>
#include <cstring>

#include "jpeg/bit_reader.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

/// Copies scan bytes behind the `tail` bytes already in the buffer.
void fill_buffer(Stream& s, size_t tail) {
  const Unstuffed u = kernels().unstuff(s.source, s.source_end, s.buffer + tail, s.buffer + kChunk);
  s.source = u.source;
  s.exhausted = u.at_marker || u.source == s.source_end;
  s.filled = u.out;
  if (s.exhausted) std::memset(u.out, 0, kReserve);
  // Buffers are longer than kReserve unless exhausted.
  s.limit = s.exhausted ? s.filled : s.filled - kReserve;
}

}  // namespace

void open_stream(Stream& s, ByteSpan jpeg, const EntryPoint& entry, size_t end) {
  s.source = jpeg.data + entry.byte;
  s.source_end = jpeg.data + end;
  s.discarded = 0;
  s.error = nullptr;
  for (int c = 0; c < kMaxComponents; c++)
    s.predictor[c] = static_cast<uint32_t>(static_cast<int32_t>(entry.predictor[c]));
  fill_buffer(s, 0);
  s.cursor = Cursor{};
  s.cursor.pos = s.buffer;
  refill(s.cursor);
  consume(s.cursor, entry.bit);
}

bool overran(const Stream& s) {
  return s.exhausted &&
         s.bits_read() > (s.discarded + static_cast<uint64_t>(s.filled - s.buffer)) * 8;
}

bool fetch_chunk(Stream& s) {
  if (s.exhausted) {
    if (overran(s)) return fail(s, "the scan ends early", Code::truncated);
    return true;
  }
  const size_t read = s.cursor.pos - s.buffer;
  const size_t tail = s.filled - s.cursor.pos;
  std::memmove(s.buffer, s.cursor.pos, tail);
  s.discarded += read;
  s.cursor.pos = s.buffer;
  fill_buffer(s, tail);
  return true;
}

namespace {

/// One code, of any length. `bits` must hold 16 of them.
bool find_code(Stream& s, const HuffmanTable& table, HuffmanTable::Symbol& symbol) {
  symbol = table.find(static_cast<uint32_t>(s.cursor.bits >> 48));
  if (symbol.length == 0) return fail(s, "a bit pattern that is no Huffman code");
  return true;
}

/// The next DC difference, added to its predictor.
bool decode_dc(Stream& s, const BlockPlan& plan) {
  refill(s.cursor);
  HuffmanTable::Symbol symbol;
  if (!find_code(s, *plan.dc_table, symbol)) return false;
  consume(s.cursor, symbol.length);
  s.predictor[plan.component] += static_cast<uint32_t>(extend(s.cursor.bits, symbol.value));
  consume(s.cursor, symbol.value);
  return true;
}

}  // namespace

bool begin_block(Stream& s) {
  const BlockPlan& plan = *s.next_plan;
  if (!decode_dc(s, plan)) return false;
  s.cursor.block[0] = static_cast<int16_t>(s.predictor[plan.component]);
  s.cursor.k = 0;
  s.cursor.ac = plan.ac;
  s.plan = &plan;
  s.next_plan = plan.next;
  return true;
}

bool start_run(Stream& s, const BlockPlan* plan, uint32_t blocks, int16_t* block, uint8_t* last) {
  if (s.cursor.pos > s.limit && !fetch_chunk(s)) return false;
  s.next_plan = plan;
  s.blocks_left = blocks;
  s.cursor.block = block;
  s.last = last;
  return begin_block(s);
}

bool leave_block(Stream& s, RunSource& runs) {
  if (s.cursor.pos > s.limit && !fetch_chunk(s)) return false;
  if (s.blocks_left == 0) return runs.next_run(s);
  return begin_block(s);
}

namespace {

/// Decodes one AC symbol code by code (T.81, F.2.2.2): `run` and `value`, or an end of
/// block. Advances k.
enum class Ac { coefficient, end_of_block, failed };
Ac decode_ac(Stream& s, int& value) {
  refill(s.cursor);
  HuffmanTable::Symbol symbol;
  if (!find_code(s, *s.plan->ac_table, symbol)) return Ac::failed;
  consume(s.cursor, symbol.length);
  const unsigned run = symbol.value >> 4, size = symbol.value & 15;
  if (size == 0 && run != 15) return Ac::end_of_block;
  s.cursor.k += run + 1;
  if (s.cursor.k > 63) {
    fail(s, "a run beyond the end of a block");
    return Ac::failed;
  }
  value = extend(s.cursor.bits, size);
  consume(s.cursor, size);
  return Ac::coefficient;
}

}  // namespace

bool slow_symbol(Stream& s, RunSource& runs) {
  int value;
  switch (decode_ac(s, value)) {
    case Ac::failed: return false;
    case Ac::coefficient:
      s.cursor.block[kNaturalOrder[s.cursor.k]] = static_cast<int16_t>(value);
      if (s.cursor.k < 63) return true;
      break;
    case Ac::end_of_block: break;
  }
  *s.last++ = static_cast<uint8_t>(s.cursor.k);
  s.cursor.block += kBlockSize;
  s.blocks_left--;
  return leave_block(s, runs);
}

bool skip_slow_symbol(Stream& s) {
  int value;
  switch (decode_ac(s, value)) {
    case Ac::failed: return false;
    case Ac::coefficient: return true;
    case Ac::end_of_block: s.cursor.k = 63; return true;
  }
  return true;
}

}  // namespace fastdata
