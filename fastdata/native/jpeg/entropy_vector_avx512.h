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

VectorStop decode_vector(VectorLanes& lanes) {
  const VectorTables& tables = *lanes.tables;
  const uint8_t* const bytes = lanes.bytes;
  int16_t* const coefficients = lanes.coefficients - 1;  // indices count from 1
  const I low_bits = load(kLowBits), one = set32(1), block_size = set32(kBlockSize);
  const I dc = load(tables.dc), ac = load(tables.ac), next = load(tables.next);
  const I last_block = load(lanes.last_block);
  I position = load(lanes.position), lookup = load(lanes.lookup), index = load(lanes.index);
  I block = load(lanes.block), plan = load(lanes.plan);
  const I odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  for (;;) {
    // A load serves three symbols: it takes as long as all the rest of one.
    const I byte = _mm512_srli_epi32(position, 3);
    I first = gather_bits(lower(byte), bytes), second = gather_bits(upper(byte), bytes);
    I skip = _mm512_and_si512(position, set32(7));
    for (int turn = 0; turn < kVectorTurns; turn++) {
      first = shift_out(first, lower(skip));
      second = shift_out(second, upper(skip));
      const I bits = _mm512_permutex2var_epi32(first, odd, second);  // the upper half of each
      const I entry = _mm512_mask_i32gather_epi32(
          zero(), 0xFFFF, add32(_mm512_srli_epi32(bits, 32 - kVectorLookupBits), lookup),
          tables.lookup, 4);
      const I length = _mm512_and_si512(entry, set32(31));
      const I advance = _mm512_maskz_srli_epi16(0x55555555, entry, 9);
      const I then = _mm512_srli_epi32(entry, 25);
      const I value = extra_bits(_mm512_rolv_epi32(bits, _mm512_srli_epi32(entry, 16)),
                                 permute32(_mm512_srli_epi32(entry, 5), low_bits));
      const I behind = extra_bits(_mm512_rolv_epi32(bits, entry),
                                  permute32(_mm512_srli_epi32(entry, 21), low_bits));

      const I at = add32(index, advance), after = add32(at, then);
      const __mmask16 full = _mm512_cmpge_epu32_mask(at, block_size);
      const __mmask16 ends = _mm512_cmpge_epu32_mask(after, block_size);
      const __mmask16 beyond = _mm512_cmpgt_epu32_mask(at, block_size);
      const __mmask16 slow = _mm512_test_epi32_mask(at, set32(128)) |
                             _mm512_mask_cmplt_epu32_mask(beyond, advance, block_size) |
                             _mm512_mask_test_epi32_mask(full, then, then);
      const auto inside = static_cast<__mmask16>(~(beyond | slow));
#ifdef FASTDATA_CHECK_LANES
      alignas(64) uint32_t read[kVectorStreams], written[kVectorStreams];
      store(read, position);
      store(written, add32(block, at));
      check_lanes(lanes, read, written, inside);
#endif
      // A symbol alone writes a zero behind its coefficient: a later one's place, or the next
      // block's.
      _mm512_mask_i32scatter_epi32(coefficients, inside, add32(block, at),
                                   _mm512_or_si512(value, sll32<16>(behind)), 2);
      const __mmask16 ended = _mm512_mask_cmpeq_epi32_mask(ends, block, last_block);
      if (FASTDATA_LIKELY(_kortestz_mask16_u8(slow, ended))) {
        position = add32(position, length);
        index = _mm512_mask_mov_epi32(after, ends, one);
        block = _mm512_mask_add_epi32(block, ends, block, block_size);
        plan = _mm512_mask_permutexvar_epi32(plan, ends, plan, next);
        lookup = _mm512_mask_permutexvar_epi32(permute32(plan, ac), ends, plan, dc);
        skip = length;
        continue;
      }
      // The same, but for the slow lanes.
      const __mmask16 taken = static_cast<__mmask16>(~slow), done = ends & taken;
      position = _mm512_mask_add_epi32(position, taken, position, length);
      index = _mm512_mask_mov_epi32(_mm512_mask_mov_epi32(index, taken, after), done, one);
      block = _mm512_mask_add_epi32(block, done, block, block_size);
      plan = _mm512_mask_permutexvar_epi32(plan, done, plan, next);
      lookup = _mm512_mask_permutexvar_epi32(lookup, taken, plan, ac);
      lookup = _mm512_mask_permutexvar_epi32(lookup, done, plan, dc);
      store(lanes.position, position);
      store(lanes.lookup, lookup);
      store(lanes.index, index);
      store(lanes.block, block);
      store(lanes.plan, plan);
      return {slow, static_cast<uint32_t>(ended & taken)};
    }
  }
}

}  // namespace
}  // namespace fastdata
