// The loop of entropy_vector.h. Included by level_avx512.cpp, inside its region.
#pragma once

namespace fastdata {
namespace {

using Half = __m256i;  // what there is of eight lanes

FASTDATA_INLINE Half lower(I v) { return _mm512_castsi512_si256(v); }
FASTDATA_INLINE Half upper(I v) { return _mm512_extracti64x4_epi64(v, 1); }
FASTDATA_INLINE I permute32(I indices, I table) { return _mm512_permutexvar_epi32(indices, table); }
/// Eight bytes from each offset, the first the most significant.
FASTDATA_INLINE I gather_bits(Half offsets, const uint8_t* bytes) {
  const I reverse =
      _mm512_broadcast_i32x4(_mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8));
  return _mm512_shuffle_epi8(_mm512_mask_i32gather_epi64(zero(), 0xFF, offsets, bytes, 1), reverse);
}
FASTDATA_INLINE I shift_out(I bits, Half counts) {
  return _mm512_sllv_epi64(bits, _mm512_cvtepu32_epi64(counts));
}

/// n low bits, by n.
constexpr uint32_t kLowBits[16] = {0,    1,     3,     7,     0xF,   0x1F,   0x3F,   0x7F,
                                   0xFF, 0x1FF, 0x3FF, 0x7FF, 0xFFF, 0x1FFF, 0x3FFF, 0x7FFF};

/// The value of extra bits, the lowest of `bits` that `mask` has (T.81, F.2.2.1, EXTEND), in 16
/// bits.
FASTDATA_INLINE I extra_bits(I bits, I mask) {
  const I extra = _mm512_and_si512(bits, mask);
  const __mmask16 negative = _mm512_cmple_epu32_mask(extra, _mm512_srli_epi32(mask, 1));
  return sub16(extra, _mm512_maskz_mov_epi32(negative, mask));
}

/// The constants that all lanes share.
struct VectorConstants {
  explicit VectorConstants(const VectorLanes& lanes)
      : bytes(lanes.bytes),
        coefficients(lanes.coefficients - 1),
        lookups(lanes.tables->lookup),
        dc(load(lanes.tables->dc)),
        ac(load(lanes.tables->ac)),
        next(load(lanes.tables->next)) {}

  const uint8_t* bytes;
  int16_t* coefficients;  // indices count from 1
  const uint32_t* lookups;
  I dc, ac, next;
};

/// The streams in the lanes of one vector, from `lane` on: their state and a step's symbols.
struct VectorGroup {
  I position, lookup, index, block, plan, last_block;
  I first, second, skip;  // bits, of eight lanes each; how many of them have been taken
  I bits, entry, after;
  __mmask16 ends, slow, ended;

  FASTDATA_INLINE VectorGroup(const VectorLanes& lanes, int lane)
      : position(load(lanes.position + lane)),
        lookup(load(lanes.lookup + lane)),
        index(load(lanes.index + lane)),
        block(load(lanes.block + lane)),
        plan(load(lanes.plan + lane)),
        last_block(load(lanes.last_block + lane)) {}

  FASTDATA_INLINE void save(VectorLanes& lanes, int lane) const {
    store(lanes.position + lane, position);
    store(lanes.lookup + lane, lookup);
    store(lanes.index + lane, index);
    store(lanes.block + lane, block);
    store(lanes.plan + lane, plan);
  }

  FASTDATA_INLINE void refill(const VectorConstants& constants) {
    const I byte = _mm512_srli_epi32(position, 3);
    first = gather_bits(lower(byte), constants.bytes);
    second = gather_bits(upper(byte), constants.bytes);
    skip = _mm512_and_si512(position, set32(7));
  }

  FASTDATA_INLINE void look_up(const VectorConstants& constants) {
    const I odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    first = shift_out(first, lower(skip));
    second = shift_out(second, upper(skip));
    bits = _mm512_permutex2var_epi32(first, odd, second);  // the upper half of each
    const I at = add32(_mm512_srli_epi32(bits, 32 - kVectorLookupBits), lookup);
    entry = _mm512_mask_i32gather_epi32(zero(), 0xFFFF, at, constants.lookups, 4);
    skip = _mm512_and_si512(entry, set32(31));
  }

  /// Writes the coefficients, and finds the lanes that need attention.
  FASTDATA_INLINE void write(const VectorConstants& constants, const VectorLanes& lanes) {
    const I low_bits = load(kLowBits), block_size = set32(kBlockSize);
    const I advance = _mm512_maskz_srli_epi16(0x55555555, entry, 9);
    const I then = _mm512_srli_epi32(entry, 25);
    const I value = extra_bits(_mm512_rolv_epi32(bits, _mm512_srli_epi32(entry, 16)),
                               permute32(_mm512_srli_epi32(entry, 5), low_bits));
    const I behind = extra_bits(_mm512_rolv_epi32(bits, entry),
                                permute32(_mm512_srli_epi32(entry, 21), low_bits));

    const I at = add32(index, advance);
    after = add32(at, then);
    const __mmask16 full = _mm512_cmpge_epu32_mask(at, block_size);
    ends = _mm512_cmpge_epu32_mask(after, block_size);
    const __mmask16 beyond = _mm512_cmpgt_epu32_mask(at, block_size);
    // By intrinsics, as GCC would combine masks in general registers.
    slow = _kor_mask16(_mm512_test_epi32_mask(at, set32(128)),
                       _kor_mask16(_mm512_mask_cmplt_epu32_mask(beyond, advance, block_size),
                                   _mm512_mask_test_epi32_mask(full, then, then)));
    const __mmask16 inside = _knot_mask16(_kor_mask16(beyond, slow));
#ifdef FASTDATA_CHECK_LANES
    alignas(64) uint32_t read[kVectorLanes], written[kVectorLanes];
    store(read, position);
    store(written, add32(block, at));
    check_lanes(lanes, read, written, inside);
#else
    (void)lanes;
#endif
    // A symbol alone writes a zero behind its coefficient: a later one's place, or the next
    // block's.
    _mm512_mask_i32scatter_epi32(constants.coefficients, inside, add32(block, at),
                                 _mm512_or_si512(value, sll32<16>(behind)), 2);
    ended = _mm512_mask_cmpeq_epi32_mask(ends, block, last_block);
  }

  FASTDATA_INLINE bool needs_attention() const { return !_kortestz_mask16_u8(slow, ended); }

  FASTDATA_INLINE void advance(const VectorConstants& constants) {
    position = add32(position, skip);
    index = _mm512_mask_mov_epi32(after, ends, set32(1));
    block = _mm512_mask_add_epi32(block, ends, block, set32(kBlockSize));
    plan = _mm512_mask_permutexvar_epi32(plan, ends, plan, constants.next);
    lookup = _mm512_mask_permutexvar_epi32(permute32(plan, constants.ac), ends, plan, constants.dc);
  }

  /// The same, but for the slow lanes.
  FASTDATA_INLINE void advance_others(const VectorConstants& constants) {
    const auto taken = static_cast<__mmask16>(~slow);
    const __mmask16 done = ends & taken;
    position = _mm512_mask_add_epi32(position, taken, position, skip);
    index = _mm512_mask_mov_epi32(_mm512_mask_mov_epi32(index, taken, after), done, set32(1));
    block = _mm512_mask_add_epi32(block, done, block, set32(kBlockSize));
    plan = _mm512_mask_permutexvar_epi32(plan, done, plan, constants.next);
    lookup = _mm512_mask_permutexvar_epi32(lookup, taken, plan, constants.ac);
    lookup = _mm512_mask_permutexvar_epi32(lookup, done, plan, constants.dc);
    ended &= taken;
  }
};

/// Bits of entries from `begin` on.
template <int begin>
FASTDATA_INLINE I part(I entries, uint32_t mask) {
  return _mm512_and_si512(_mm512_srli_epi32(entries, begin), set32(static_cast<int>(mask)));
}

void join_symbols(uint32_t* lookup) {
  constexpr int kEntries = VectorTables::kEntries;
  const I numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int bits = 0; bits < kEntries; bits += kVectorLanes) {
    // Joining keeps what is read here of a first symbol, so the order does not matter.
    const I first = load(lookup + bits), taken = part<16>(first, 31);
    const I rest = _mm512_and_si512(_mm512_sllv_epi32(add32(set32(bits), numbers), taken),
                                    set32(kEntries - 1));
    const I second = _mm512_mask_i32gather_epi32(zero(), 0xFFFF, rest, lookup, 4);
    const I size = part<5>(second, 15), advance = part<9>(second, 127);
    const I length = add32(taken, part<16>(second, 31));
    const I looked_at = sub32(length, size);  // both codes, the first's extra bits
    __mmask16 joins = _mm512_cmplt_epu32_mask(part<9>(first, 127), set32(kVectorEndOfBlock));
    joins &= _mm512_cmplt_epu32_mask(taken, set32(kVectorLookupBits));
    joins &= _mm512_cmpeq_epu32_mask(advance, set32(kVectorEndOfBlock)) |
             _mm512_cmpeq_epu32_mask(advance, set32(1));
    joins &= _mm512_cmple_epu32_mask(looked_at, set32(kVectorLookupBits));
    joins &= _mm512_cmple_epu32_mask(length, set32(kVectorMaxLength));
    const I kept = _mm512_and_si512(first, set32(~31));
    const I behind = _mm512_or_si512(_mm512_slli_epi32(size, 21), _mm512_slli_epi32(advance, 25));
    _mm512_mask_storeu_epi32(lookup + bits, joins,
                             _mm512_or_si512(_mm512_or_si512(kept, length), behind));
  }
}

VectorStop decode_vector(VectorLanes& lanes) {
  const VectorConstants constants(lanes);
  VectorGroup a(lanes, 0), b(lanes, kVectorLanes);
  for (;;) {
    // A load serves three symbols: it takes as long as all the rest of one.
    a.refill(constants);
    b.refill(constants);
    for (int turn = 0; turn < kVectorTurns; turn++) {
      a.look_up(constants);
      b.look_up(constants);
      a.write(constants, lanes);
      b.write(constants, lanes);
      if (FASTDATA_LIKELY(!a.needs_attention() && !b.needs_attention())) {
        a.advance(constants);
        b.advance(constants);
        continue;
      }
      a.advance_others(constants);
      b.advance_others(constants);
      a.save(lanes, 0);
      b.save(lanes, kVectorLanes);
      return {a.slow | static_cast<uint32_t>(b.slow) << kVectorLanes,
              a.ended | static_cast<uint32_t>(b.ended) << kVectorLanes};
    }
  }
}

}  // namespace
}  // namespace fastdata
