// The horizontal pass with AVX2: source bytes are brought to their outputs by byte
// shuffles, whose patterns are prepared once an image.
#pragma once

namespace fastdata {
namespace {

/// kBytes: 16 outputs. The weights are split into 7 + 6 bits, as maddubs wants
/// signed bytes and sums two products into 16 bits. floor((64 * high + low) / 2^13) is
/// exact from the parts while high and low fit 16 bits: four taps whose weights sum to
/// 2^13 do, the latter unsigned.
struct ByteGroup {
  int32_t base[2];  // the source bytes of outputs 0-7 and 8-15
  alignas(32) uint8_t index[2][32];
  int8_t high[2][32], low[2][32];
};

/// kWords: 8 outputs, `steps` pairs of taps.
struct WordGroup {
  int32_t base[2];
};
template <bool kWide>
struct WordStep {
  alignas(32) uint8_t index[32];
  int16_t weight[kParts<kWide>][16];
};

void plan_bytes(const Axis& axis, HorizontalPlan& plan) {
  plan.groups = ceil_div(axis.outputs, 16);
  auto* groups = plan.data.reserve<ByteGroup>(plan.groups);
  std::memset(static_cast<void*>(groups), 0, sizeof *groups * plan.groups);
  for (int i = 0; i < axis.outputs; i++) {
    ByteGroup& group = groups[i / 16];
    const int half = i / 8 % 2;
    if (i % 8 == 0) group.base[half] = window_of(axis, i, 8).first - axis.begin;
    int weight[4] = {}, index[4] = {};
    for (int t = 0; t < axis.taps[i]; t++) {
      weight[t] = axis.weights_of<false>(i)[t];
      index[t] = axis.first[i] - axis.begin + t - group.base[half];
    }
    if (axis.taps[i] == 1) {  // 2^13 >> 6 is no signed byte: take the sample twice
      weight[0] = weight[1] = 1 << (kWeightBits - 1);
      index[1] = index[0];
    }
    for (int t = 0; t < 4; t++) {
      const int byte = half * 16 + i % 8 * 2 + t % 2;
      group.index[t / 2][byte] = static_cast<uint8_t>(index[t]);
      group.high[t / 2][byte] = static_cast<int8_t>(weight[t] >> 6);
      group.low[t / 2][byte] = static_cast<int8_t>(weight[t] & 63);
    }
  }
}

template <bool kWide>
void plan_words(const Axis& axis, HorizontalPlan& plan) {
  plan.groups = ceil_div(axis.outputs, 8);
  plan.steps = ceil_div(axis.max_taps, 2);
  const size_t stride = sizeof(WordGroup) + 24 + sizeof(WordStep<kWide>) * plan.steps;
  uint8_t* data = plan.data.reserve(stride * plan.groups);
  for (int g = 0; g < plan.groups; g++) {
    auto* group = reinterpret_cast<WordGroup*>(data + g * stride);
    auto* steps = reinterpret_cast<WordStep<kWide>*>(data + g * stride + 32);
    for (int half = 0; half < 2; half++)
      group->base[half] = window_of(axis, g * 8 + half * 4, 4).first - axis.begin;
    for (int s = 0; s < plan.steps; s++)
      for (int word = 0; word < 16; word++) {
        const int half = word / 8, i = g * 8 + half * 4 + word % 8 / 2, t = 2 * s + word % 2;
        const bool used = i < axis.outputs && t < axis.taps[i];
        const int index = used ? axis.first[i] - axis.begin + t - group->base[half] : 0x80;
        steps[s].index[2 * word] = static_cast<uint8_t>(index);
        steps[s].index[2 * word + 1] = 0x80;  // shuffles in a zero
        const int weight = used ? axis.weights_of<kWide>(i)[t] : 0;
        for (int part = 0; part < kParts<kWide>; part++)
          steps[s].weight[part][word] = part_of<kWide>(weight, part);
      }
  }
}

/// 16 bytes from each of two places.
FASTDATA_INLINE I load_pair(const uint8_t* first, const uint8_t* second) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(second)), 1);
}

void horizontal_bytes(const HorizontalPlan& plan, const uint8_t* const* planes, int plane_count,
                      uint8_t* out, size_t out_stride) {
  const auto* groups = plan.data.get<ByteGroup>();
  const I round = set16(1 << (kWeightBits - 6 - 1));
  for (int g = 0; g < plan.groups; g++) {
    const ByteGroup& group = groups[g];
    const I index0 = load(group.index[0]), index1 = load(group.index[1]);
    const I high0 = load(group.high[0]), high1 = load(group.high[1]);
    const I low0 = load(group.low[0]), low1 = load(group.low[1]);
    for (int p = 0; p < plane_count; p++) {
      const I source = load_pair(planes[p] + group.base[0], planes[p] + group.base[1]);
      const I taps01 = _mm256_shuffle_epi8(source, index0);
      const I taps23 = _mm256_shuffle_epi8(source, index1);
      const I high =
          add16(_mm256_maddubs_epi16(taps01, high0), _mm256_maddubs_epi16(taps23, high1));
      const I low = add16(_mm256_maddubs_epi16(taps01, low0), _mm256_maddubs_epi16(taps23, low1));
      const I sum = add16(add16(high, round), _mm256_srli_epi16(low, 6));
      const I value = _mm256_srli_epi16(sum, kWeightBits - 6);
      const I bytes = _mm256_permute4x64_epi64(packus16(value, value), 0x08);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + p * out_stride + g * 16),
                       _mm256_castsi256_si128(bytes));
    }
  }
}

template <bool kWide>
void horizontal_words(const HorizontalPlan& plan, const uint8_t* const* planes, int plane_count,
                      uint8_t* out, size_t out_stride) {
  constexpr int kBits = kBitsOf<kWide>;
  const size_t stride = sizeof(WordGroup) + 24 + sizeof(WordStep<kWide>) * plan.steps;
  const uint8_t* data = plan.data.get();
  for (int g = 0; g < plan.groups; g++, data += stride) {
    const auto* group = reinterpret_cast<const WordGroup*>(data);
    const auto* steps = reinterpret_cast<const WordStep<kWide>*>(data + 32);
    for (int p = 0; p < plane_count; p++) {
      const I source = load_pair(planes[p] + group->base[0], planes[p] + group->base[1]);
      I high = zero(), sum = set32(1 << (kBits - 1));
      for (int s = 0; s < plan.steps; s++) {
        const I taps = _mm256_shuffle_epi8(source, load(steps[s].index));
        sum = madd_add(sum, taps, load(steps[s].weight[0]));
        if constexpr (kWide) high = madd_add(high, taps, load(steps[s].weight[1]));
      }
      if constexpr (kWide) sum = add32(sum, sll32<kWideWeightBits / 2>(high));
      sum = sra32<kBits>(sum);
      sum = packus16(packs32(sum, sum), zero());
      const int first = _mm256_cvtsi256_si32(sum), second = _mm256_extract_epi32(sum, 4);
      uint8_t* to = out + p * out_stride + g * 8;
      std::memcpy(to, &first, 4);
      std::memcpy(to + 4, &second, 4);
    }
  }
}

/// Eight bytes times eight weights, neighbours added.
FASTDATA_INLINE __m128i eight_products(const uint8_t* bytes, const int16_t* weights) {
  const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  const __m128i w = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights));
  return _mm_madd_epi16(_mm_cvtepu8_epi16(b), w);
}

int dot_product(const Axis& axis, int output, const uint8_t* source) {
  const int16_t* weights = axis.weights_of<false>(output);
  __m128i sum = _mm_setzero_si128();
  int t = 0;
  for (; t + 8 <= axis.stride; t += 8)  // weights beyond the taps are zero
    sum = _mm_add_epi32(sum, eight_products(source + t, weights + t));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
  int total = _mm_cvtsi128_si32(sum);
  for (; t < axis.taps[output]; t++) total += source[t] * weights[t];
  return total;
}

/// The same with wide weights: pairs of taps twice, beside the weights' upper and lower halves.
int wide_dot_product(const Axis& axis, int output, const uint8_t* source) {
  const int taps = axis.taps[output];
  const WeightPair* pairs = axis.pairs_of(output);
  const __m128i order = _mm_setr_epi8(0, -1, 1, -1, 0, -1, 1, -1, 2, -1, 3, -1, 2, -1, 3, -1);
  const I orders = _mm256_setr_m128i(order, _mm_add_epi8(order, _mm_set1_epi16(4)));
  I sums = zero();
  int t = 0;
  for (; t + 4 < taps; t += 8) {  // weights beyond the taps, to a multiple of four, are zero
    const I bytes =
        _mm256_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(source + t)));
    sums = madd_add(sums, _mm256_shuffle_epi8(bytes, orders), load(pairs + t / 2));
  }
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  if (t < taps) {
    int32_t four;
    std::memcpy(&four, source + t, 4);
    const __m128i words = _mm_shuffle_epi8(_mm_cvtsi32_si128(four), order);
    const auto* weights = reinterpret_cast<const __m128i*>(pairs + t / 2);
    sum = _mm_add_epi32(sum, _mm_madd_epi16(words, _mm_loadu_si128(weights)));
  }
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  const __m128i high = _mm_slli_epi32(sum, kWideWeightBits / 2);
  return _mm_cvtsi128_si32(_mm_add_epi32(high, _mm_shuffle_epi32(sum, 0xB1)));
}

}  // namespace
}  // namespace fastdata
