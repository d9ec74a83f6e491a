// The decoding loop. Included by one file for each instruction set (target.h): the code
// is the same, but BMI2's shifts take its chain of dependent instructions
// from six to four a symbol.
//
// What is here pays by measurement. An image has some 70,000 AC symbols, 4,000 block
// ends and 2,500 escapes; the branches at block ends are the ones that mispredict. So
// the path through a block's end is short: the next block's tables are at hand, its
// DC difference needs no refill (Note [Bits in hand]), the DC entry holds the total
// length. Two symbols a look-up save nothing.
#pragma once

namespace fastdata {
namespace {

/// The next block's DC difference, on the bits in hand.
FASTDATA_INLINE bool fast_begin_block(Lane& lane, Stream& s) {
  const BlockPlan& plan = *s.next_plan;
  uint32_t entry = plan.dc[lane.bits >> (64 - kDcLookupBits)];
  if (FASTDATA_UNLIKELY(entry == 0)) {
    s.lane = lane;
    const bool ok = begin_block(s);
    lane = s.lane;
    return ok;
  }
  const unsigned total = entry & 63, code = entry >> 8 & 63;
  const uint64_t extra = lane.bits << code;
  consume(lane, entry);
  const int value = static_cast<int>((extra >> 1) >> (63 - (total - code)));
  const int bias = static_cast<int32_t>(entry) >> 16;
  const int negative = ~static_cast<int>(static_cast<int64_t>(extra) >> 63);
  uint32_t& predictor = s.predictor[plan.component];
  predictor += static_cast<uint32_t>(value + (bias & negative));
  lane.block[0] = static_cast<int16_t>(predictor);
  lane.k = 0;
  lane.ac = plan.ac;
  s.plan = &plan;
  s.next_plan = plan.next;
  return true;
}

FASTDATA_INLINE bool end_block(Lane& lane, Stream& s, RunSource& runs, unsigned last) {
  *s.last++ = static_cast<uint8_t>(last);
  lane.block += kBlockSize;
  const uint32_t left = --s.blocks_left;
  if (FASTDATA_UNLIKELY((left == 0) | (lane.pos > s.limit))) {
    s.lane = lane;
    const bool ok = leave_block(s, runs);
    lane = s.lane;
    return ok;
  }
  return fast_begin_block(lane, s);
}

/// One AC symbol, if it is an ordinary coefficient; else leaves the lane as it is.
FASTDATA_INLINE bool coefficient(Lane& lane, uint32_t& entry) {
  entry = lane.ac[lane.bits >> (64 - kAcLookupBits)];
  const unsigned k = lane.k + (entry >> 8 & 0xFF);
  if (FASTDATA_UNLIKELY(k >= 63)) return false;
  consume(lane, entry);
  lane.k = k;
  lane.block[kNaturalOrder[k]] = static_cast<int16_t>(entry >> 16);
  return true;
}

/// What `coefficient` declined: an end of block, a last coefficient, an escape, a long
/// code. False: this lane has no more work, or failed.
FASTDATA_INLINE bool special(Lane& lane, Stream& s, RunSource& runs, uint32_t entry) {
  // So that `coefficient` does not mask the length for both: its shift needs no mask, and the
  // instruction would be one more in the chain from a symbol to the next.
  asm("" : "+r"(entry));
  if (!(entry & kAcEscape << 8)) {
    consume(lane, entry);
    unsigned last = lane.k;
    if (FASTDATA_UNLIKELY(!(entry & kAcEndOfBlock << 8))) {
      if (lane.k + (entry >> 8 & 0xFF) != 63) return fail(s, "a run beyond the end of a block");
      lane.block[63] = static_cast<int16_t>(entry >> 16);
      last = 63;
    }
    return end_block(lane, s, runs, last);
  }
  if (FASTDATA_LIKELY(entry & 63)) {
    const unsigned size = entry >> 16 & 15;
    const uint64_t extra = lane.bits << (entry & 63);
    consume(lane, entry >> 25);
    refill(lane);
    const unsigned k = lane.k + (entry >> 20 & 31);
    const int16_t value = static_cast<int16_t>(extend(extra, size));
    if (FASTDATA_UNLIKELY(k >= 63)) {
      if (k > 63) return fail(s, "a run beyond the end of a block");
      lane.block[63] = value;
      return end_block(lane, s, runs, 63);
    }
    lane.k = k;
    lane.block[kNaturalOrder[k]] = value;
    return true;
  }
  s.lane = lane;
  const bool ok = slow_symbol(s, runs);
  lane = s.lane;
  return ok;
}

// One symbol of one lane; whatever is special ends the round, so that the next begins
// with a refill.
#define FASTDATA_SYMBOL(i)                                      \
  if constexpr (kLanes > i) {                                   \
    uint32_t entry;                                             \
    if (FASTDATA_UNLIKELY(!coefficient(lane##i, entry))) {      \
      if (special(lane##i, *streams[i], runs, entry)) continue; \
      finished = i;                                             \
      break;                                                    \
    }                                                           \
  }

/// Runs kLanes streams until one of them has nothing left; returns which.
template <int kLanes>
int decode_lanes(Stream* const* streams, RunSource& runs) {
  Lane lane0 = streams[0]->lane, lane1, lane2;
  if constexpr (kLanes > 1) lane1 = streams[1]->lane;
  if constexpr (kLanes > 2) lane2 = streams[2]->lane;
  int finished;
  for (;;) {
    refill(lane0);
    if constexpr (kLanes > 1) refill(lane1);
    if constexpr (kLanes > 2) refill(lane2);
    // clang-format off
    FASTDATA_SYMBOL(0) FASTDATA_SYMBOL(1) FASTDATA_SYMBOL(2)
    FASTDATA_SYMBOL(0) FASTDATA_SYMBOL(1) FASTDATA_SYMBOL(2)
    FASTDATA_SYMBOL(0) FASTDATA_SYMBOL(1) FASTDATA_SYMBOL(2)
    // clang-format on
  }
  if (finished != 0) streams[0]->lane = lane0;
  if constexpr (kLanes > 1)
    if (finished != 1) streams[1]->lane = lane1;
  if constexpr (kLanes > 2)
    if (finished != 2) streams[2]->lane = lane2;
  return finished;
}
#undef FASTDATA_SYMBOL

/// Runs the streams until none has work left, or one fails, which it returns.
template <typename Lanes>
Stream* run_lanes(Stream* const* given, int count, RunSource& runs, Lanes one, Lanes two,
                  Lanes three) {
  static_assert(kMaxStreams == 3);
  Stream* streams[kMaxStreams];
  for (int i = 0; i < count; i++) streams[i] = given[i];
  while (count > 0) {
    const int finished = (count == 3 ? three : count == 2 ? two : one)(streams, runs);
    if (streams[finished]->error) return streams[finished];
    // With one stream fewer the loop goes on: three, two, one.
    streams[finished] = streams[--count];
  }
  return nullptr;
}

Stream* decode_streams(Stream* const* streams, int count, RunSource& runs) {
  return run_lanes(streams, count, runs, decode_lanes<1>, decode_lanes<2>, decode_lanes<3>);
}

/// A lane that skips: the look-up of this block's skip entries beside it.
struct SkipLane : Lane {
  const uint16_t* skip;

  explicit SkipLane(const Stream& s) : Lane(s.lane), skip(s.plan->skip) {}
};

/// One AC symbol, unread but for its length. Advances k, to 63 at an end of block.
FASTDATA_INLINE bool skip_symbol(Lane& lane, Stream& s) {
  refill(lane);
  const uint32_t entry = lane.ac[lane.bits >> (64 - kAcLookupBits)];
  const unsigned advance = entry >> 8 & 0xFF;
  if (advance == kAcEndOfBlock) {
    consume(lane, entry);
    lane.k = 63;
  } else if (advance < kAcEscape) {
    consume(lane, entry);
    lane.k += advance;
  } else if (entry & 63) {
    consume(lane, entry >> 25);
    lane.k += entry >> 20 & 31;
  } else {
    s.lane = lane;
    if (!skip_slow_symbol(s)) return false;
    lane = s.lane;
  }
  if (FASTDATA_UNLIKELY(lane.k > 63)) return fail(s, "a run beyond the end of a block");
  return true;
}

/// As many AC symbols as a look-up holds, if the block goes on after them; else leaves the
/// lane as it is.
FASTDATA_INLINE bool skip_symbols(SkipLane& lane, uint32_t& entry) {
  entry = lane.skip[lane.bits >> (64 - kAcLookupBits)];
  const unsigned k = lane.k + (entry >> 8);
  if (FASTDATA_UNLIKELY(k >= 63)) return false;
  consume(lane, entry);
  lane.k = k;
  return true;
}

/// What `skip_symbols` declined: an end of block; an escape, or a block that may end before
/// the entry's last symbol, which are taken one symbol at a time. False: this lane has no
/// more work, or failed.
FASTDATA_INLINE bool skip_special(SkipLane& lane, Stream& s, RunSource& runs, uint32_t entry) {
  if (FASTDATA_LIKELY((entry & kAcEndOfBlock << 8) && lane.k + (entry >> 8) < 63 + kAcEndOfBlock)) {
    consume(lane, entry);
  } else {
    Lane symbol = lane;
    const bool ok = skip_symbol(symbol, s);
    static_cast<Lane&>(lane) = symbol;
    if (!ok) return false;
    if (lane.k < 63) return true;
  }
  bool ok;
  if (FASTDATA_UNLIKELY((--s.blocks_left == 0) | (lane.pos > s.limit))) {
    s.lane = lane;
    ok = leave_block(s, runs);
    static_cast<Lane&>(lane) = s.lane;
  } else {
    ok = fast_begin_block(lane, s);
  }
  lane.skip = s.plan->skip;
  return ok;
}

#define FASTDATA_SKIP(i)                                             \
  if constexpr (kLanes > i) {                                        \
    uint32_t entry;                                                  \
    if (FASTDATA_UNLIKELY(!skip_symbols(lane##i, entry))) {          \
      if (skip_special(lane##i, *streams[i], runs, entry)) continue; \
      finished = i;                                                  \
      break;                                                         \
    }                                                                \
  }

/// `decode_lanes`, for streams of which only the predictors matter.
template <int kLanes>
int skip_lanes(Stream* const* streams, RunSource& runs) {
  SkipLane lane0(*streams[0]), lane1(*streams[kLanes > 1 ? 1 : 0]),
      lane2(*streams[kLanes > 2 ? 2 : 0]);
  int finished;
  for (;;) {
    refill(lane0);
    if constexpr (kLanes > 1) refill(lane1);
    if constexpr (kLanes > 2) refill(lane2);
    // clang-format off
    FASTDATA_SKIP(0) FASTDATA_SKIP(1) FASTDATA_SKIP(2)
    FASTDATA_SKIP(0) FASTDATA_SKIP(1) FASTDATA_SKIP(2)
    FASTDATA_SKIP(0) FASTDATA_SKIP(1) FASTDATA_SKIP(2)
    // clang-format on
  }
  if (finished != 0) streams[0]->lane = lane0;
  if constexpr (kLanes > 1)
    if (finished != 1) streams[1]->lane = lane1;
  if constexpr (kLanes > 2)
    if (finished != 2) streams[2]->lane = lane2;
  return finished;
}
#undef FASTDATA_SKIP

Stream* skip_streams(Stream* const* streams, int count, RunSource& runs) {
  return run_lanes(streams, count, runs, skip_lanes<1>, skip_lanes<2>, skip_lanes<3>);
}

}  // namespace
}  // namespace fastdata
