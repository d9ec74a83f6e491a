// The decoding loop. Included by one file for each instruction set (target.h): the code
// is the same, but BMI2's shifts take its chain of dependent instructions
// from six to four a symbol.
//
// All of this pays by measurement. An image has some 70,000 AC symbols, 4,000 block
// ends and 2,500 escapes; the branches at block ends are the ones that mispredict. So
// the path through a block's end is short: the next block's tables are at hand, its
// DC difference needs no refill (Note [Bits in hand]), the DC entry holds the total
// length. Two symbols a look-up save nothing.
#pragma once

namespace fastdata {
namespace {

/// The next block's DC difference, on the bits in hand.
FASTDATA_INLINE bool fast_begin_block(Cursor& cursor, Stream& s) {
  const BlockPlan& plan = *s.next_plan;
  uint32_t entry = plan.dc[cursor.bits >> (64 - kDcLookupBits)];
  if (FASTDATA_UNLIKELY(entry == 0)) {
    s.cursor = cursor;
    const bool ok = begin_block(s);
    cursor = s.cursor;
    return ok;
  }
  const unsigned total = entry & 63, code = entry >> 8 & 63;
  const uint64_t extra = cursor.bits << code;
  consume(cursor, entry);
  const int value = static_cast<int>((extra >> 1) >> (63 - (total - code)));
  const int bias = static_cast<int32_t>(entry) >> 16;
  const int negative = ~static_cast<int>(static_cast<int64_t>(extra) >> 63);
  uint32_t& predictor = s.predictor[plan.component];
  predictor += static_cast<uint32_t>(value + (bias & negative));
  cursor.block[0] = static_cast<int16_t>(predictor);
  cursor.k = 0;
  cursor.ac = plan.ac;
  s.plan = &plan;
  s.next_plan = plan.next;
  return true;
}

FASTDATA_INLINE bool end_block(Cursor& cursor, Stream& s, RunSource& runs, unsigned last) {
  *s.last++ = static_cast<uint8_t>(last);
  cursor.block += kBlockSize;
  const uint32_t left = --s.blocks_left;
  if (FASTDATA_UNLIKELY((left == 0) | (cursor.pos > s.limit))) {
    s.cursor = cursor;
    const bool ok = leave_block(s, runs);
    cursor = s.cursor;
    return ok;
  }
  return fast_begin_block(cursor, s);
}

/// A cursor that decodes.
struct DecodeCursor : Cursor {
  explicit DecodeCursor(const Stream& s) : Cursor(s.cursor) {}
};

/// One AC symbol, if it is an ordinary coefficient; else leaves the cursor as it is.
FASTDATA_INLINE bool step(DecodeCursor& cursor, uint32_t& entry) {
  entry = cursor.ac[cursor.bits >> (64 - kAcLookupBits)];
  const unsigned k = cursor.k + (entry >> 8 & 0xFF);
  if (FASTDATA_UNLIKELY(k >= 63)) return false;
  consume(cursor, entry);
  cursor.k = k;
  cursor.block[kNaturalOrder[k]] = static_cast<int16_t>(entry >> 16);
  return true;
}

/// Decodes what `step` leaves: an end of block, a last coefficient, an escape, a long
/// code. False: the stream has no more work, or failed.
FASTDATA_INLINE bool special(DecodeCursor& cursor, Stream& s, RunSource& runs, uint32_t entry) {
  // So that `step` does not mask the length for both: its shift needs no mask, and the
  // instruction would be one more in the chain from a symbol to the next.
  asm("" : "+r"(entry));
  if (!(entry & kAcEscape << 8)) {
    consume(cursor, entry);
    unsigned last = cursor.k;
    if (FASTDATA_UNLIKELY(!(entry & kAcEndOfBlock << 8))) {
      if (cursor.k + (entry >> 8 & 0xFF) != 63) return fail(s, "a run beyond the end of a block");
      cursor.block[63] = static_cast<int16_t>(entry >> 16);
      last = 63;
    }
    return end_block(cursor, s, runs, last);
  }
  if (FASTDATA_LIKELY(entry & 63)) {
    const unsigned size = entry >> 16 & 15;
    const uint64_t extra = cursor.bits << (entry & 63);
    consume(cursor, entry >> 25);
    refill(cursor);
    const unsigned k = cursor.k + (entry >> 20 & 31);
    const int16_t value = static_cast<int16_t>(extend(extra, size));
    if (FASTDATA_UNLIKELY(k >= 63)) {
      if (k > 63) return fail(s, "a run beyond the end of a block");
      cursor.block[63] = value;
      return end_block(cursor, s, runs, 63);
    }
    cursor.k = k;
    cursor.block[kNaturalOrder[k]] = value;
    return true;
  }
  s.cursor = cursor;
  const bool ok = slow_symbol(s, runs);
  static_cast<Cursor&>(cursor) = s.cursor;
  return ok;
}

/// A cursor that skips: the look-up of this block's skip entries beside it.
struct SkipCursor : Cursor {
  const uint16_t* skip;

  explicit SkipCursor(const Stream& s) : Cursor(s.cursor), skip(s.plan->skip) {}
};

/// One AC symbol, unread but for its length. Advances k, to 63 at an end of block.
FASTDATA_INLINE bool skip_symbol(Cursor& cursor, Stream& s) {
  refill(cursor);
  const uint32_t entry = cursor.ac[cursor.bits >> (64 - kAcLookupBits)];
  const unsigned advance = entry >> 8 & 0xFF;
  if (advance == kAcEndOfBlock) {
    consume(cursor, entry);
    cursor.k = 63;
  } else if (advance < kAcEscape) {
    consume(cursor, entry);
    cursor.k += advance;
  } else if (entry & 63) {
    consume(cursor, entry >> 25);
    cursor.k += entry >> 20 & 31;
  } else {
    s.cursor = cursor;
    if (!skip_slow_symbol(s)) return false;
    cursor = s.cursor;
  }
  if (FASTDATA_UNLIKELY(cursor.k > 63)) return fail(s, "a run beyond the end of a block");
  return true;
}

/// As many AC symbols as a look-up holds, if the block does not end with them; else leaves the
/// cursor as it is.
FASTDATA_INLINE bool step(SkipCursor& cursor, uint32_t& entry) {
  entry = cursor.skip[cursor.bits >> (64 - kAcLookupBits)];
  const unsigned k = cursor.k + (entry >> kSkipAdvance);
  if (FASTDATA_UNLIKELY(k >= 63)) return false;
  consume(cursor, entry);
  cursor.k = k;
  return true;
}

/// Skips what `step` leaves: an end of block; an escape, or a block that may end before
/// the entry's last symbol, which are taken one symbol at a time. False: the stream has no
/// more work, or failed.
FASTDATA_INLINE bool special(SkipCursor& cursor, Stream& s, RunSource& runs, uint32_t entry) {
  if (FASTDATA_LIKELY((entry & kSkipEndOfBlock) && cursor.k + (entry >> kSkipAdvance & 63) < 63)) {
    consume(cursor, entry);
  } else {
    Cursor symbol = cursor;
    const bool ok = skip_symbol(symbol, s);
    static_cast<Cursor&>(cursor) = symbol;
    if (!ok) return false;
    if (cursor.k < 63) return true;
  }
  bool ok;
  if (FASTDATA_UNLIKELY((--s.blocks_left == 0) | (cursor.pos > s.limit))) {
    s.cursor = cursor;
    ok = leave_block(s, runs);
    static_cast<Cursor&>(cursor) = s.cursor;
  } else {
    refill(cursor);
    ok = fast_begin_block(cursor, s);
  }
  cursor.skip = s.plan->skip;
  return ok;
}

// One step of one cursor; whatever is special ends the round, so that the next begins with a
// refill. A macro, as it holds `continue` and `break`: with functions that return whether the round
// ends, regions from seek points took 10% longer with AVX2.
#define FASTDATA_STEP(i)                                          \
  if constexpr (kStreams > i) {                                   \
    uint32_t entry;                                               \
    if (FASTDATA_UNLIKELY(!step(cursor##i, entry))) {             \
      if (special(cursor##i, *streams[i], runs, entry)) continue; \
      finished = i;                                               \
      break;                                                      \
    }                                                             \
  }

/// Runs kStreams streams until one of them has nothing left; returns which.
template <typename StreamCursor, int kStreams>
int run_streams(Stream* const* streams, RunSource& runs) {
  StreamCursor cursor0(*streams[0]), cursor1(*streams[kStreams > 1 ? 1 : 0]),
      cursor2(*streams[kStreams > 2 ? 2 : 0]);
  int finished;
  for (;;) {
    refill(cursor0);
    if constexpr (kStreams > 1) refill(cursor1);
    if constexpr (kStreams > 2) refill(cursor2);
    // clang-format off
    FASTDATA_STEP(0) FASTDATA_STEP(1) FASTDATA_STEP(2)
    FASTDATA_STEP(0) FASTDATA_STEP(1) FASTDATA_STEP(2)
    FASTDATA_STEP(0) FASTDATA_STEP(1) FASTDATA_STEP(2)
    // clang-format on
  }
  if (finished != 0) streams[0]->cursor = cursor0;
  if constexpr (kStreams > 1)
    if (finished != 1) streams[1]->cursor = cursor1;
  if constexpr (kStreams > 2)
    if (finished != 2) streams[2]->cursor = cursor2;
  return finished;
}
#undef FASTDATA_STEP

/// Runs the streams until none has work left, or one fails, which it returns.
template <typename StreamCursor>
Stream* run_in_turns(Stream* const* given, int count, RunSource& runs) {
  static_assert(kMaxStreams == 3);
  Stream* streams[kMaxStreams];
  for (int i = 0; i < count; i++) streams[i] = given[i];
  while (count > 0) {
    const int finished = count == 3   ? run_streams<StreamCursor, 3>(streams, runs)
                         : count == 2 ? run_streams<StreamCursor, 2>(streams, runs)
                                      : run_streams<StreamCursor, 1>(streams, runs);
    if (streams[finished]->error) return streams[finished];
    // The loop continues with one stream fewer: three, two, one.
    streams[finished] = streams[--count];
  }
  return nullptr;
}

Stream* decode_streams(Stream* const* streams, int count, RunSource& runs) {
  return run_in_turns<DecodeCursor>(streams, count, runs);
}

Stream* skip_streams(Stream* const* streams, int count, RunSource& runs) {
  return run_in_turns<SkipCursor>(streams, count, runs);
}

}  // namespace
}  // namespace fastdata
