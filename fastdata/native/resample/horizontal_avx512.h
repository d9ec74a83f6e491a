// The horizontal pass with AVX-512: VBMI brings any of 64 source bytes to any output,
// VNNI sums four taps an instruction. Where outputs have many taps of their own, as of large
// photographs, these are loaded instead: of 2,600 pixels to 224, a gather takes twice as long.
#pragma once

namespace fastdata {
namespace {

enum HorizontalMode {
  kPermute,  // 16 neighbouring outputs within 64 source bytes
  kRuns,     // anything: each output's own 16 neighbouring bytes
};

/// A weight's signed digits of base 256, as VNNI multiplies unsigned bytes by signed ones.
template <bool kWide>
constexpr int kDigits = kWide ? 3 : 2;

/// Four taps of 16 outputs; of kRuns, 16 taps of four outputs.
struct TapGroup {
  union {
    alignas(64) uint8_t index[64];  // kPermute: of the byte in the group's window
    int32_t offset[4];              // kRuns: of the first of the 16 bytes in the row
  };
  int8_t digits[3][64];  // the lowest first
};

/// plan.data: the windows' offsets, then the groups' tap groups.
FASTDATA_INLINE size_t bases_size(const HorizontalPlan& plan) {
  return round_up(sizeof(int32_t) * plan.groups, 64);
}

template <bool kWide>
FASTDATA_INLINE void put_weight(int weight, int at, TapGroup& taps) {
  for (int d = 0; d < kDigits<kWide>; d++) {
    taps.digits[d][at] = static_cast<int8_t>(weight);
    weight = (weight + 128) >> 8;
  }
}

template <bool kWide>
void plan_taps(const Axis& axis, const int32_t* bases, const HorizontalPlan& plan, TapGroup* taps) {
  for (int g = 0; g < plan.groups; g++)
    for (int s = 0; s < plan.steps; s++, taps++)
      for (int lane = 0; lane < 16; lane++) {
        const int i = 16 * g + lane;
        const bool output = i < axis.outputs;
        const int from = output ? axis.first[i] - axis.begin + 4 * s : 0;
        const auto* weights = output ? axis.weights_of<kWide>(i) + 4 * s : nullptr;
        const int left = output ? axis.taps[i] - 4 * s : 0;
        for (int t = 0; t < 4; t++) {
          taps->index[4 * lane + t] = static_cast<uint8_t>(t < left ? from + t - bases[g] : 0);
          put_weight<kWide>(t < left ? weights[t] : 0, 4 * lane + t, *taps);
        }
      }
}

/// Quarter q of a group has its outputs q, q + 4, q + 8 and q + 12, so that `add_within_lanes`
/// gives them in order.
template <bool kWide>
void plan_runs(const Axis& axis, const HorizontalPlan& plan, TapGroup* taps) {
  for (int quarter = 0; quarter < 4 * plan.groups; quarter++)
    for (int s = 0; s < plan.steps; s++, taps++)
      for (int lane = 0; lane < 4; lane++) {
        const int i = quarter / 4 * 16 + 4 * lane + quarter % 4;
        const int left = i < axis.outputs ? axis.taps[i] - 16 * s : 0;
        const auto* weights = left > 0 ? axis.weights_of<kWide>(i) + 16 * s : nullptr;
        taps->offset[lane] = left > 0 ? axis.first[i] - axis.begin + 16 * s : 0;
        for (int t = 0; t < 16; t++)
          put_weight<kWide>(t < left ? weights[t] : 0, 16 * lane + t, *taps);
      }
}

void plan_horizontal(const Axis& axis, HorizontalPlan& plan) {
  plan.axis = &axis;
  plan.groups = ceil_div(axis.outputs, 16);
  plan.mode = kPermute;
  for (int g = 0; g < plan.groups; g++)
    if (window_of(axis, 16 * g, 16).size > 64) plan.mode = kRuns;
  const bool runs = plan.mode == kRuns;
  plan.steps = ceil_div(axis.max_taps, runs ? 16 : 4);
  const size_t count = static_cast<size_t>(runs ? 4 * plan.groups : plan.groups) * plan.steps;
  uint8_t* data = plan.data.reserve(bases_size(plan) + sizeof(TapGroup) * count);
  auto* bases = reinterpret_cast<int32_t*>(data);
  for (int g = 0; g < plan.groups; g++) bases[g] = window_of(axis, 16 * g, 16).first - axis.begin;
  auto* taps = reinterpret_cast<TapGroup*>(data + bases_size(plan));
  if (runs)
    axis.wide ? plan_runs<true>(axis, plan, taps) : plan_runs<false>(axis, plan, taps);
  else if (axis.wide)
    plan_taps<true>(axis, bases, plan, taps);
  else
    plan_taps<false>(axis, bases, plan, taps);
}

template <int kCount, int kPlanes>
FASTDATA_INLINE I join_digits(const I (&parts)[kCount][kPlanes], int plane) {
  I sum = parts[kCount - 1][plane];
  for (int d = kCount - 2; d >= 0; d--) sum = add32(parts[d][plane], sll32<8>(sum));
  return sum;
}

/// 16 outputs of each plane, as 32-bit integers.
template <int kPlanes, bool kWide>
FASTDATA_INLINE void sum_taps(const TapGroup* taps, int steps, const uint8_t* const* planes,
                              int base, I* sums) {
  constexpr int kCount = kDigits<kWide>, kBits = kBitsOf<kWide>;
  I parts[kCount][kPlanes], window[kPlanes];
  for (int p = 0; p < kPlanes; p++) {
    for (int d = 0; d < kCount; d++) parts[d][p] = d ? zero() : set32(1 << (kBits - 1));
    window[p] = load(planes[p] + base);
  }
  for (int s = 0; s < steps; s++) {
    I weights[kCount];
    for (int d = 0; d < kCount; d++) weights[d] = load(taps[s].digits[d]);
    const I from = load(taps[s].index);
    for (int p = 0; p < kPlanes; p++) {
      const I bytes = _mm512_permutexvar_epi8(from, window[p]);
      for (int d = 0; d < kCount; d++)
        parts[d][p] = _mm512_dpbusd_epi32(parts[d][p], bytes, weights[d]);
    }
  }
  for (int p = 0; p < kPlanes; p++) sums[p] = sra32<kBits>(join_digits(parts, p));
}

/// For each 128-bit lane, the sums of a's, b's, c's and d's four words there.
FASTDATA_INLINE I add_within_lanes(I a, I b, I c, I d) {
  const I ab = add32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const I cd = add32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return add32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

/// Bytes 16 at a time, from four places.
FASTDATA_INLINE I load_runs(const uint8_t* from, const int32_t* offset) {
  const auto run = [&](int i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + offset[i]));
  };
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(run(0)), run(1), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(run(2)), run(3), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/// The same of kRuns.
template <int kPlanes, bool kWide>
FASTDATA_INLINE void sum_runs(const TapGroup* taps, int steps, const uint8_t* const* planes,
                              I* sums) {
  constexpr int kCount = kDigits<kWide>, kBits = kBitsOf<kWide>;
  I quarters[4][kPlanes];
  for (int q = 0; q < 4; q++) {
    I parts[kCount][kPlanes];
    for (int p = 0; p < kPlanes; p++)
      for (int d = 0; d < kCount; d++) parts[d][p] = zero();
    for (int s = 0; s < steps; s++, taps++) {
      I weights[kCount];
      for (int d = 0; d < kCount; d++) weights[d] = load(taps->digits[d]);
      for (int p = 0; p < kPlanes; p++) {
        const I bytes = load_runs(planes[p], taps->offset);
        for (int d = 0; d < kCount; d++)
          parts[d][p] = _mm512_dpbusd_epi32(parts[d][p], bytes, weights[d]);
      }
    }
    for (int p = 0; p < kPlanes; p++) quarters[q][p] = join_digits(parts, p);
  }
  for (int p = 0; p < kPlanes; p++) {
    const I sum = add_within_lanes(quarters[0][p], quarters[1][p], quarters[2][p], quarters[3][p]);
    sums[p] = sra32<kBits>(add32(sum, set32(1 << (kBits - 1))));
  }
}

template <int kPlanes, bool kPermuted, bool kWide>
FASTDATA_INLINE void resample_row(const HorizontalPlan& plan, int steps,
                                  const uint8_t* const* planes, uint8_t* out, size_t out_stride) {
  const auto* bases = plan.data.get<int32_t>();
  const auto* taps = reinterpret_cast<const TapGroup*>(plan.data.get() + bases_size(plan));
  // Packing works within 128-bit lanes; this puts its words of four outputs in order.
  const I order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int g = 0; g < plan.groups; g += 4) {
    I sums[4][kPlanes];
    for (int i = 0; i < 4; i++) {
      const auto first = static_cast<size_t>(g + i) * steps;
      if (g + i < plan.groups && kPermuted)
        sum_taps<kPlanes, kWide>(taps + first, steps, planes, bases[g + i], sums[i]);
      else if (g + i < plan.groups)
        sum_runs<kPlanes, kWide>(taps + 4 * first, steps, planes, sums[i]);
      else
        for (int p = 0; p < kPlanes; p++) sums[i][p] = zero();
    }
    for (int p = 0; p < kPlanes; p++) {
      const I bytes = packus16(packs32(sums[0][p], sums[1][p]), packs32(sums[2][p], sums[3][p]));
      store(out + p * out_stride + 16 * g, _mm512_permutexvar_epi32(order, bytes));
    }
  }
}

template <int kPlanes, bool kWide>
void horizontal_planes(const HorizontalPlan& plan, const uint8_t* const* planes, uint8_t* out,
                       size_t out_stride) {
  if (plan.mode == kRuns)
    resample_row<kPlanes, false, kWide>(plan, plan.steps, planes, out, out_stride);
  else if (plan.steps == 1)  // known to the compiler, the loop over the steps goes away
    resample_row<kPlanes, true, kWide>(plan, 1, planes, out, out_stride);
  else if (plan.steps == 2)
    resample_row<kPlanes, true, kWide>(plan, 2, planes, out, out_stride);
  else
    resample_row<kPlanes, true, kWide>(plan, plan.steps, planes, out, out_stride);
}

template <bool kWide>
void horizontal_weighed(const HorizontalPlan& plan, const uint8_t* const* planes, int plane_count,
                        uint8_t* out, size_t out_stride) {
  if (plane_count == 3) return horizontal_planes<3, kWide>(plan, planes, out, out_stride);
  for (int p = 0; p < plane_count; p++)
    horizontal_planes<1, kWide>(plan, planes + p, out + p * out_stride, out_stride);
}

void horizontal(const HorizontalPlan& plan, const uint8_t* const* planes, int plane_count,
                uint8_t* out, size_t out_stride) {
  if (plan.axis->wide)
    horizontal_weighed<true>(plan, planes, plane_count, out, out_stride);
  else
    horizontal_weighed<false>(plan, planes, plane_count, out, out_stride);
}

}  // namespace
}  // namespace fastdata
