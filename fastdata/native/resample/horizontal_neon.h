// The horizontal pass with NEON: a table look-up brings source bytes to their outputs,
// by patterns that are prepared once an image.
#pragma once

namespace fastdata {
namespace {

/// kBytes: 8 outputs. The weights are split into 8 + 6 bits, all of them unsigned, so
/// that bytes times bytes are summed in 16 bits. floor((64 * high + low) / 2^13) is exact
/// from the parts while high and low fit 16 bits: four taps whose weights sum to 2^13 do.
struct ByteGroup {
  alignas(16) uint8_t index[2][16];  // [t / 2][t % 2 * 8 + i]: tap t of output i
  uint8_t high[2][16], low[2][16];
  int32_t base;  // the first of the group's source bytes
};

/// kWords: two taps of 4 outputs.
template <bool kWide>
struct WordStep {
  alignas(16) uint8_t index[16];
  int16_t weight[kParts<kWide>][8];  // [t % 2 * 4 + i]
};
constexpr size_t kWordHead = 16;  // before a group's steps: the first of its source bytes
constexpr int kNoByte = 0xFF;     // what a look-up turns into zero

void plan_bytes(const Axis& axis, HorizontalPlan& plan) {
  plan.groups = ceil_div(axis.outputs, 8);
  auto* groups = plan.data.reserve<ByteGroup>(plan.groups);
  std::memset(static_cast<void*>(groups), 0, sizeof *groups * plan.groups);
  for (int i = 0; i < axis.outputs; i++) {
    ByteGroup& group = groups[i / 8];
    if (i % 8 == 0) group.base = window_of(axis, i, 8).first - axis.begin;
    for (int t = 0; t < axis.taps[i]; t++) {
      const int weight = axis.weights_of<false>(i)[t], at = t % 2 * 8 + i % 8;
      group.index[t / 2][at] = static_cast<uint8_t>(axis.first[i] - axis.begin + t - group.base);
      group.high[t / 2][at] = static_cast<uint8_t>(weight >> 6);
      group.low[t / 2][at] = static_cast<uint8_t>(weight & 63);
    }
  }
}

template <bool kWide>
void plan_words(const Axis& axis, HorizontalPlan& plan) {
  plan.groups = ceil_div(axis.outputs, 4);
  plan.steps = ceil_div(axis.max_taps, 2);
  const size_t stride = kWordHead + sizeof(WordStep<kWide>) * plan.steps;
  uint8_t* data = plan.data.reserve(stride * plan.groups);
  for (int g = 0; g < plan.groups; g++, data += stride) {
    const int32_t base = window_of(axis, 4 * g, 4).first - axis.begin;
    std::memcpy(data, &base, sizeof base);
    auto* steps = reinterpret_cast<WordStep<kWide>*>(data + kWordHead);
    for (int s = 0; s < plan.steps; s++)
      for (int word = 0; word < 8; word++) {
        const int i = 4 * g + word % 4, t = 2 * s + word / 4;
        const bool used = i < axis.outputs && t < axis.taps[i];
        const int index = used ? axis.first[i] - axis.begin + t - base : kNoByte;
        steps[s].index[2 * word] = static_cast<uint8_t>(index);
        steps[s].index[2 * word + 1] = kNoByte;
        const int weight = used ? axis.weights_of<kWide>(i)[t] : 0;
        for (int part = 0; part < kParts<kWide>; part++)
          steps[s].weight[part][word] = part_of<kWide>(weight, part);
      }
  }
}

/// Four taps of eight outputs: the bytes times one half of the weights.
FASTDATA_INLINE uint16x8_t four_products(uint8x16_t taps01, uint8x16_t taps23, uint8x16_t w01,
                                         uint8x16_t w23) {
  uint16x8_t sum = vmull_u8(vget_low_u8(taps01), vget_low_u8(w01));
  sum = vmlal_high_u8(sum, taps01, w01);
  sum = vmlal_u8(sum, vget_low_u8(taps23), vget_low_u8(w23));
  return vmlal_high_u8(sum, taps23, w23);
}

void horizontal_bytes(const HorizontalPlan& plan, const uint8_t* const* planes, int plane_count,
                      uint8_t* out, size_t out_stride) {
  const auto* groups = plan.data.get<ByteGroup>();
  for (int g = 0; g < plan.groups; g++) {
    const ByteGroup& group = groups[g];
    const uint8x16_t index0 = vld1q_u8(group.index[0]), index1 = vld1q_u8(group.index[1]);
    const uint8x16_t high0 = vld1q_u8(group.high[0]), high1 = vld1q_u8(group.high[1]);
    const uint8x16_t low0 = vld1q_u8(group.low[0]), low1 = vld1q_u8(group.low[1]);
    for (int p = 0; p < plane_count; p++) {
      const uint8x16_t source = vld1q_u8(planes[p] + group.base);
      const uint8x16_t taps01 = vqtbl1q_u8(source, index0), taps23 = vqtbl1q_u8(source, index1);
      const uint16x8_t high = four_products(taps01, taps23, high0, high1);
      const uint16x8_t low = four_products(taps01, taps23, low0, low1);
      vst1_u8(out + p * out_stride + g * 8,
              vrshrn_n_u16(vsraq_n_u16(high, low, 6), kWeightBits - 6));
    }
  }
}

/// Products of neighbours are not added to each other, but four taps on to four sums.
FASTDATA_INLINE int32x4_t multiply_add(int32x4_t sum, int16x8_t a, int16x8_t b) {
  return vmlal_high_s16(vmlal_s16(sum, vget_low_s16(a), vget_low_s16(b)), a, b);
}

FASTDATA_INLINE int16x8_t eight_words(const uint8_t* bytes) {
  return vreinterpretq_s16_u16(vmovl_u8(vld1_u8(bytes)));
}

template <bool kWide>
void horizontal_words(const HorizontalPlan& plan, const uint8_t* const* planes, int plane_count,
                      uint8_t* out, size_t out_stride) {
  constexpr int kBits = kBitsOf<kWide>;
  const size_t stride = kWordHead + sizeof(WordStep<kWide>) * plan.steps;
  const uint8_t* data = plan.data.get();
  for (int g = 0; g < plan.groups; g++, data += stride) {
    int32_t base;
    std::memcpy(&base, data, sizeof base);
    const auto* steps = reinterpret_cast<const WordStep<kWide>*>(data + kWordHead);
    for (int p = 0; p < plane_count; p++) {
      const uint8x16_t source = vld1q_u8(planes[p] + base);
      int32x4_t high = vdupq_n_s32(0), sum = vdupq_n_s32(1 << (kBits - 1));
      for (int s = 0; s < plan.steps; s++) {
        const int16x8_t taps = vreinterpretq_s16_u8(vqtbl1q_u8(source, vld1q_u8(steps[s].index)));
        sum = multiply_add(sum, taps, vld1q_s16(steps[s].weight[0]));
        if constexpr (kWide) high = multiply_add(high, taps, vld1q_s16(steps[s].weight[1]));
      }
      if constexpr (kWide) sum = vaddq_s32(sum, vshlq_n_s32(high, kWideWeightBits / 2));
      const int16x4_t words = vmovn_s32(vshrq_n_s32(sum, kBits));
      const uint8x8_t bytes = vqmovun_s16(vcombine_s16(words, words));
      const uint32_t four = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
      std::memcpy(out + p * out_stride + g * 4, &four, 4);
    }
  }
}

int dot_product(const Axis& axis, int output, const uint8_t* source) {
  const int16_t* weights = axis.weights_of<false>(output);
  int32x4_t sum = vdupq_n_s32(0);
  int t = 0;
  for (; t + 8 <= axis.stride; t += 8)  // weights beyond the taps are zero
    sum = multiply_add(sum, eight_words(source + t), vld1q_s16(weights + t));
  int total = vaddvq_s32(sum);
  for (; t < axis.taps[output]; t++) total += source[t] * weights[t];
  return total;
}

/// The same with wide weights.
int wide_dot_product(const Axis& axis, int output, const uint8_t* source) {
  const int taps = axis.taps[output];
  const WeightPair* pairs = axis.pairs_of(output);
  int32x4_t high = vdupq_n_s32(0), sum = vdupq_n_s32(0);
  int t = 0;
  for (; t + 4 < taps; t += 8) {  // weights beyond the taps, to a multiple of four, are zero
    const int32x4x2_t weights = vld2q_s32(&pairs[t / 2].high);
    const int16x8_t words = eight_words(source + t);
    high = multiply_add(high, words, vreinterpretq_s16_s32(weights.val[0]));
    sum = multiply_add(sum, words, vreinterpretq_s16_s32(weights.val[1]));
  }
  if (t < taps) {
    const int32x2x2_t weights = vld2_s32(&pairs[t / 2].high);
    const int16x4_t words = vget_low_s16(eight_words(source + t));
    high = vmlal_s16(high, words, vreinterpret_s16_s32(weights.val[0]));
    sum = vmlal_s16(sum, words, vreinterpret_s16_s32(weights.val[1]));
  }
  return vaddvq_s32(vaddq_s32(sum, vshlq_n_s32(high, kWideWeightBits / 2)));
}

}  // namespace
}  // namespace fastdata
