// The horizontal pass with AVX-512: VBMI brings any of 64 source bytes to any output,
// VNNI sums four taps an instruction.
#pragma once

namespace fastdata {
namespace {

enum HorizontalMode {
  kPermute,  // 16 neighbouring outputs within 64 source bytes
  kGather,   // anything
};

/// A weight's signed digits of base 256, as VNNI multiplies unsigned bytes by signed ones.
template <bool kWide>
constexpr int kDigits = kWide ? 3 : 2;

/// Four taps of 16 outputs.
struct TapGroup {
  union {
    alignas(64) uint8_t index[64];  // kPermute: of the byte in the group's window
    int32_t offset[16];             // kGather: of the first of the four bytes in the row
  };
  int8_t digits[3][64];  // the lowest first
};

/// plan.data: the windows' offsets, then the groups' tap groups.
FASTDATA_INLINE size_t bases_size(const HorizontalPlan& plan) {
  return round_up(sizeof(int32_t) * plan.groups, 64);
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
        if (plan.mode == kGather) taps->offset[lane] = left > 0 ? from : 0;
        for (int t = 0; t < 4; t++) {
          if (plan.mode == kPermute)
            taps->index[4 * lane + t] = static_cast<uint8_t>(t < left ? from + t - bases[g] : 0);
          int weight = t < left ? weights[t] : 0;
          for (int d = 0; d < kDigits<kWide>; d++) {
            taps->digits[d][4 * lane + t] = static_cast<int8_t>(weight);
            weight = (weight + 128) >> 8;
          }
        }
      }
}

void plan_horizontal(const Axis& axis, HorizontalPlan& plan) {
  plan.axis = &axis;
  plan.groups = ceil_div(axis.outputs, 16);
  plan.steps = ceil_div(axis.max_taps, 4);
  plan.mode = kPermute;
  uint8_t* data = plan.data.reserve(bases_size(plan) + sizeof(TapGroup) * plan.groups * plan.steps);
  auto* bases = reinterpret_cast<int32_t*>(data);
  for (int g = 0; g < plan.groups; g++) {
    const Window window = window_of(axis, 16 * g, 16);
    bases[g] = window.first - axis.begin;
    if (window.size > 64) plan.mode = kGather;
  }
  auto* taps = reinterpret_cast<TapGroup*>(data + bases_size(plan));
  if (axis.wide)
    plan_taps<true>(axis, bases, plan, taps);
  else
    plan_taps<false>(axis, bases, plan, taps);
}

/// 16 outputs of each plane, as 32-bit integers.
template <int kPlanes, bool kPermuted, bool kWide>
FASTDATA_INLINE void sum_taps(const TapGroup* taps, int steps, const uint8_t* const* planes,
                              int base, I* sums) {
  constexpr int kCount = kDigits<kWide>, kBits = kBitsOf<kWide>;
  I parts[kCount][kPlanes], window[kPlanes];
  for (int p = 0; p < kPlanes; p++) {
    for (int d = 0; d < kCount; d++) parts[d][p] = d ? zero() : set32(1 << (kBits - 1));
    if (kPermuted) window[p] = load(planes[p] + base);
  }
  for (int s = 0; s < steps; s++) {
    I weights[kCount];
    for (int d = 0; d < kCount; d++) weights[d] = load(taps[s].digits[d]);
    const I from = load(taps[s].index);
    for (int p = 0; p < kPlanes; p++) {
      const I bytes = kPermuted ? _mm512_permutexvar_epi8(from, window[p])
                                : _mm512_i32gather_epi32(from, planes[p], 1);
      for (int d = 0; d < kCount; d++)
        parts[d][p] = _mm512_dpbusd_epi32(parts[d][p], bytes, weights[d]);
    }
  }
  for (int p = 0; p < kPlanes; p++) {
    I sum = parts[kCount - 1][p];
    for (int d = kCount - 2; d >= 0; d--) sum = add32(parts[d][p], sll32<8>(sum));
    sums[p] = sra32<kBits>(sum);
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
      if (g + i < plan.groups)
        sum_taps<kPlanes, kPermuted, kWide>(taps + static_cast<size_t>(g + i) * steps, steps,
                                            planes, bases[g + i], sums[i]);
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
  if (plan.mode == kGather)
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
