// uint8 to normalised float32 and bfloat16: plain loops for the compiler's vectoriser.
// The build forbids contraction (-ffp-contract=off): a fused multiply-add would round
// once where other processors round twice.
#pragma once

namespace fastdata {
namespace {

constexpr int kPeriod = Kernels::kPeriod;

FASTDATA_INLINE void convert(float value, float* out) { *out = value; }

FASTDATA_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Both round to nearest, ties to even. Finite values only.
struct BFloat16 {
  uint16_t bits;
};
FASTDATA_INLINE void convert(float value, BFloat16* out) {
  const uint32_t bits = bits_of(value);
  out->bits = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/// IEEE 754 binary16. In integers: compilers make no vectors of the conversion instructions.
struct Float16 {
  uint16_t bits;
};
FASTDATA_INLINE void convert(float value, Float16* out) {
  const uint32_t magnitude = bits_of(value) & 0x7FFFFFFF;
  const uint32_t normal = (magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000) >> 13;
  // Below 2^-14 a number is a multiple of 2^-24: the last bit of what is 0.5 and more.
  const uint32_t subnormal = bits_of(__builtin_fabsf(value) + 0.5f) - 0x3F000000;
  const uint32_t is_normal = 0u - (magnitude >= 0x38800000);  // as a mask: branches make no vectors
  uint32_t half = (normal & is_normal) | (subnormal & ~is_normal);
  half = half < 0x7C00 ? half : 0x7C00;  // infinite
  out->bits = static_cast<uint16_t>(half | (bits_of(value) >> 16 & 0x8000));
}

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
