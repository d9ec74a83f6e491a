// Decoding the AC scans of progressive JPEGs (bands.h). Included by one file for each instruction
// set (target.h): the code is the same, but BMI2 finds the n-th zero of a mask in three cycles, and
// AVX-512 corrects a block without a loop.
#pragma once

#include "jpeg/bands.h"

namespace fastdata {
namespace {

/// The bit of `mask` that as many of its lower ones precede as `power`, 2^n, says; 0: there is
/// none.
FASTDATA_INLINE uint64_t nth_bit(uint64_t mask, uint32_t power) {
#if defined(FASTDATA_HAVE_BMI2)
  return _pdep_u64(power, mask);
#else
  for (; power > 1; power >>= 1) mask &= mask - 1;
  return mask & (0 - mask);
#endif
}

/// The chunk's end is looked for once a block. Note [Unstuffed chunks]
FASTDATA_INLINE bool ready_for_block(Cursor& cursor, Stream& s) {
  if (FASTDATA_LIKELY(cursor.pos <= s.limit)) return true;
  s.cursor = cursor;
  const bool ok = fetch_chunk(s);
  cursor = s.cursor;
  return ok;
}

template <bool kKeep>
FASTDATA_INLINE bool first_block(BandScan& band, Cursor& cursor, uint64_t* nonzero,
                                 int16_t* coefficients) {
  Stream& s = *band.stream;
  const uint32_t* const lookup = band.lookup;
  const auto last = static_cast<unsigned>(band.last);
  auto k = static_cast<unsigned>(band.first - 1);
  uint64_t mask = 0;
  uint32_t entry;
  // One coefficient, if it is an ordinary one that is not the band's last.
  const auto coefficient = [&] {
    entry = lookup[cursor.bits >> (64 - kAcLookupBits)];
    const unsigned at = k + (entry >> 8 & 0xFF);
    if (FASTDATA_UNLIKELY(at >= last)) return false;
    consume(cursor, entry);
    k = at;
    mask |= uint64_t{1} << k;
    if (kKeep) coefficients[kNaturalOrder[k]] = static_cast<int16_t>(entry >> 16);
    return true;
  };
  for (;;) {
    refill(cursor);
    if (coefficient() && coefficient() && coefficient()) continue;
    const uint32_t advance = entry >> 8 & 0xFF;
    int value = static_cast<int16_t>(entry >> 16);
    if (FASTDATA_LIKELY(advance == kAcEndOfBlock)) {
      consume(cursor, entry);
      band.end_run = entry >> 16;
      break;
    }
    if (advance < kAcEndOfBlock) {
      consume(cursor, entry);
      k += advance;
    } else {
      BandSymbol symbol;
      s.cursor = cursor;
      const bool ok = slow_first(band, symbol);
      cursor = s.cursor;
      if (!ok) return false;
      if (symbol.end) break;
      k += symbol.run + 1;
      value = symbol.value;
    }
    if (k > last) return fail(s, "a run beyond the end of a band");
    if (value) {
      mask |= uint64_t{1} << k;
      if (kKeep) coefficients[kNaturalOrder[k]] = static_cast<int16_t>(value);
    }
    if (k == last) {
      band.end_run = 1;
      break;
    }
  }
  *nonzero |= mask;
  return true;
}

template <bool kKeep>
bool decode_first(BandScan& band, uint32_t blocks, uint64_t* nonzero, int16_t* coefficients) {
  Stream& s = *band.stream;
  Cursor cursor = s.cursor;
  for (uint32_t i = 0;;) {
    const uint32_t ended = band.end_run < blocks - i ? band.end_run : blocks - i;
    i += ended;
    band.end_run -= ended;
    if (i == blocks) break;
    if (!ready_for_block(cursor, s) ||
        !first_block<kKeep>(band, cursor, nonzero + i,
                            kKeep ? coefficients + size_t{i} * kBlockSize : nullptr))
      return false;
  }
  s.cursor = cursor;
  return true;
}

/// The next bits, one for each coefficient that was not zero before, behind those taken already.
FASTDATA_INLINE void take_corrections(Cursor& cursor, unsigned count, uint64_t& corrections) {
  // A refill leaves 56 bits, a code and a sign take 12 of them.
  if (FASTDATA_UNLIKELY(count > 44)) {
    refill(cursor);
    corrections = corrections << 32 | cursor.bits >> 32;
    consume(cursor, 32);
    refill(cursor);
    count -= 32;
  }
  corrections = corrections << count | (cursor.bits >> 1) >> (63 - count);
  consume(cursor, count);
}

/// Adds a bit to each coefficient of a block that was not zero `before`: the upper bits of
/// `corrections`, in zig-zag order.
FASTDATA_INLINE void correct(int16_t* coefficients, uint64_t before, uint64_t corrections,
                             int low) {
#if defined(FASTDATA_HAVE_CORRECT)
  correct_block(coefficients, _pdep_u64(reverse_bits(corrections), before), low);
#else
  for (; before; before &= before - 1, corrections <<= 1) {
    int16_t& value = coefficients[kNaturalOrder[__builtin_ctzll(before)]];
    const int step = static_cast<int>(corrections >> 63) << low;
    value = static_cast<int16_t>(value + (value < 0 ? -step : step));
  }
#endif
}

template <bool kKeep>
FASTDATA_INLINE bool refine_block(BandScan& band, Cursor& cursor, uint64_t* nonzero,
                                  int16_t* coefficients) {
  Stream& s = *band.stream;
  const uint64_t last = uint64_t{1} << band.last;
  const uint64_t band_mask = (last | (last - 1)) & (~uint64_t{0} << band.first);
  const uint64_t before = *nonzero & band_mask;
  if (band.end_run && before == 0) {
    band.end_run--;
    return true;
  }
  // The rest of the band: coefficients that were not zero before, and those that were.
  uint64_t known = before, zeros = ~before & band_mask;
  uint64_t corrections = 0, found = 0;
  refill(cursor);
  if (band.end_run == 0) {
    for (;;) {
      const uint32_t entry = band.lookup[cursor.bits >> (64 - kAcLookupBits)];
      uint32_t power = entry >> 16;
      uint64_t negative = 0;  // of a new coefficient: all ones if it is
      bool is_new = true;
      if (FASTDATA_LIKELY((entry >> 8 & 0xFF) == 0)) {
        negative = ((cursor.bits << ((entry & 63) - 1)) >> 63) - 1;
        consume(cursor, entry);
      } else if (FASTDATA_LIKELY((entry >> 8 & 0xFF) == kAcEndOfBlock)) {
        consume(cursor, entry);
        band.end_run = power;
        break;
      } else {
        BandSymbol symbol;
        s.cursor = cursor;
        const bool ok = slow_refining(band, symbol);
        cursor = s.cursor;
        if (!ok) return false;
        if (symbol.end) break;
        power = 1u << symbol.run;
        is_new = symbol.value != 0;
        negative = symbol.value < 0 ? ~uint64_t{0} : 0;
        refill(cursor);
      }
      const uint64_t place = nth_bit(zeros, power);
      if (FASTDATA_UNLIKELY(place == 0)) return fail(s, "a run beyond the end of a band");
      const uint64_t passed = known & (place - 1);
      take_corrections(cursor, static_cast<unsigned>(__builtin_popcountll(passed)), corrections);
      known -= passed;
      zeros &= 0 - (place << 1);
      if (FASTDATA_LIKELY(is_new)) {
        found |= place;
        if (kKeep) {
          const int value = 1 << band.low;
          coefficients[kNaturalOrder[__builtin_ctzll(place)]] = static_cast<int16_t>(
              (value ^ static_cast<int>(negative)) - static_cast<int>(negative));
        }
      }
      if (place == last) {
        band.end_run = 1;
        break;
      }
      refill(cursor);
    }
    refill(cursor);
  }
  band.end_run--;
  take_corrections(cursor, static_cast<unsigned>(__builtin_popcountll(known)), corrections);
  *nonzero |= found;
  if (kKeep && before) {
    corrections <<= 64 - __builtin_popcountll(before);
    correct(coefficients, before, corrections, band.low);
  }
  return true;
}

template <bool kKeep>
bool refine(BandScan& band, uint32_t blocks, uint64_t* nonzero, int16_t* coefficients) {
  Stream& s = *band.stream;
  Cursor cursor = s.cursor;
  for (uint32_t i = 0; i < blocks; i++)
    if (!ready_for_block(cursor, s) ||
        !refine_block<kKeep>(band, cursor, nonzero + i,
                             kKeep ? coefficients + size_t{i} * kBlockSize : nullptr))
      return false;
  s.cursor = cursor;
  return true;
}

bool decode_band(BandScan& band, uint32_t blocks, uint64_t* nonzero, int16_t* coefficients) {
  return coefficients ? decode_first<true>(band, blocks, nonzero, coefficients)
                      : decode_first<false>(band, blocks, nonzero, nullptr);
}

bool refine_band(BandScan& band, uint32_t blocks, uint64_t* nonzero, int16_t* coefficients) {
  return coefficients ? refine<true>(band, blocks, nonzero, coefficients)
                      : refine<false>(band, blocks, nonzero, nullptr);
}

}  // namespace
}  // namespace fastdata
