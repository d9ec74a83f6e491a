// uint8 to normalised float32 and bfloat16: plain loops for the compiler's vectoriser.
// The build forbids contraction (-ffp-contract=off): a fused multiply-add would round
// once where other processors round twice.
#pragma once

namespace fastdata {
namespace {

constexpr int kPeriod = Kernels::kPeriod;

/// Rounds to nearest, ties to even. Finite values only.
FASTDATA_INLINE uint16_t bfloat16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

FASTDATA_INLINE void convert(float value, float* out) { *out = value; }

/// bfloat16, to nearest, ties to even. Finite values only.
struct BFloat16 {
  uint16_t bits;
};
FASTDATA_INLINE void convert(float value, BFloat16* out) { out->bits = bfloat16_of(value); }

struct Float16 {
  uint16_t bits;
};
#if defined(FASTDATA_HAVE_F16C)
FASTDATA_INLINE void convert(float value, Float16* out) {
  out->bits = static_cast<uint16_t>(
      _mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT), 0));
}
#else
/// IEEE 754 binary16, to nearest, ties to even, as the F16C instruction rounds.
inline void convert(float value, Float16* out) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7FFFFFFF;
  if (bits >= 0x477FF000) {  // rounds to infinity
    bits = 0x7C00;
  } else if (bits >= 0x38800000) {
    bits = (bits + 0xFFF + (bits >> 13 & 1) - 0x38000000) >> 13;
  } else if (bits >= 0x33000000) {  // below 2^-14: subnormal, a multiple of 2^-24
    const int shift = 126 - static_cast<int>(bits >> 23);
    const uint32_t mantissa = (bits & 0x7FFFFF) | 0x800000;
    bits = (mantissa + (1u << (shift - 1)) - 1 + (mantissa >> shift & 1)) >> shift;
  } else {
    bits = 0;
  }
  out->bits = static_cast<uint16_t>(sign | bits);
}
#endif

template <typename T>
FASTDATA_INLINE void normalise(const uint8_t* __restrict in, int n, const float* __restrict scale,
                               const float* __restrict offset, T* __restrict out) {
  int i = 0;
  for (; i + kPeriod <= n; i += kPeriod)  // the inner loop is what becomes vectors
    for (int j = 0; j < kPeriod; j++)
      convert(static_cast<float>(in[i + j]) * scale[j] + offset[j], out + i + j);
  for (int j = 0; i < n; i++, j++)
    convert(static_cast<float>(in[i]) * scale[j] + offset[j], out + i);
}

void to_float32(const uint8_t* in, int n, const float* scale, const float* offset, float* out) {
  normalise(in, n, scale, offset, out);
}
void to_float16(const uint8_t* in, int n, const float* scale, const float* offset, uint16_t* out) {
  normalise(in, n, scale, offset, reinterpret_cast<Float16*>(out));
}
void to_bfloat16(const uint8_t* in, int n, const float* scale, const float* offset, uint16_t* out) {
  normalise(in, n, scale, offset, reinterpret_cast<BFloat16*>(out));
}

}  // namespace
}  // namespace fastdata
