// The 128-bit vector and the operations on it that colour_core.h names; simd_avx2.h has
// the same names for 256 bits. Every aarch64 processor has these instructions.
#pragma once

namespace fastdata {
namespace {

using I = int16x8_t;
constexpr int kVectorBytes = 16;

FASTDATA_INLINE int32x4_t as32(I v) { return vreinterpretq_s32_s16(v); }
FASTDATA_INLINE I from32(int32x4_t v) { return vreinterpretq_s16_s32(v); }

FASTDATA_INLINE I set16(int x) { return vdupq_n_s16(static_cast<int16_t>(x)); }
FASTDATA_INLINE I set32(int x) { return from32(vdupq_n_s32(x)); }

FASTDATA_INLINE I add16(I a, I b) { return vaddq_s16(a, b); }
FASTDATA_INLINE I sub16(I a, I b) { return vsubq_s16(a, b); }
/// The upper half of the product. Not for -32768 times itself, whose double saturates.
FASTDATA_INLINE I mulhi16(I a, I b) { return vshrq_n_s16(vqdmulhq_s16(a, b), 1); }
/// sum + a.even * b.even + a.odd * b.odd
FASTDATA_INLINE I madd_add(I sum, I a, I b) {
  const int32x4_t low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
  const int32x4_t high = vmull_high_s16(a, b);
  return from32(vaddq_s32(as32(sum), vpaddq_s32(low, high)));
}
template <int kBits>
FASTDATA_INLINE I sra16(I v) {
  return vshrq_n_s16(v, kBits);
}
template <int kBits>
FASTDATA_INLINE I sra32(I v) {
  return from32(vshrq_n_s32(as32(v), kBits));
}

FASTDATA_INLINE I lo16(I a, I b) { return vzip1q_s16(a, b); }
FASTDATA_INLINE I hi16(I a, I b) { return vzip2q_s16(a, b); }
FASTDATA_INLINE I packs32(I a, I b) { return vqmovn_high_s32(vqmovn_s32(as32(a)), as32(b)); }

FASTDATA_INLINE I zero() { return vdupq_n_s16(0); }
FASTDATA_INLINE I load(const void* p) { return vld1q_s16(static_cast<const int16_t*>(p)); }
FASTDATA_INLINE void store(void* p, I v) { vst1q_s16(static_cast<int16_t*>(p), v); }
/// The upper half of the product of unsigned words.
FASTDATA_INLINE I mulhi_u16(I a, I b) {
  const uint16x8_t x = vreinterpretq_u16_s16(a), y = vreinterpretq_u16_s16(b);
  const uint32x4_t low = vmull_u16(vget_low_u16(x), vget_low_u16(y));
  const uint32x4_t high = vmull_high_u16(x, y);
  return vreinterpretq_s16_u16(vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high)));
}
template <int kBits>
FASTDATA_INLINE I srl16(I v) {
  return vreinterpretq_s16_u16(vshrq_n_u16(vreinterpretq_u16_s16(v), kBits));
}
template <int kBits>
FASTDATA_INLINE I sll16(I v) {
  return vshlq_n_s16(v, kBits);
}

using F = float32x4_t;
FASTDATA_INLINE F set_float(float x) { return vdupq_n_f32(x); }
FASTDATA_INLINE F add_float(F a, F b) { return vaddq_f32(a, b); }
FASTDATA_INLINE F mul_float(F a, F b) { return vmulq_f32(a, b); }
FASTDATA_INLINE F to_float(I v) { return vcvtq_f32_s32(as32(v)); }
FASTDATA_INLINE I truncated(F v) { return from32(vcvtq_s32_f32(v)); }

/// Half a vector of bytes, widened; and two such, narrowed with saturation.
FASTDATA_INLINE I load_u8_to_16(const uint8_t* p) {
  return vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p)));
}
FASTDATA_INLINE void store_16_to_u8(uint8_t* p, I first, I second) {
  vst1q_u8(p, vqmovun_high_s16(vqmovun_s16(first), second));
}

/// For unstuff_core.h.
constexpr int kFoundBits = 4;  // no instruction gathers one bit of each byte
FASTDATA_INLINE uint64_t copy_and_find(const uint8_t* source, uint8_t* out) {
  const uint8x16_t bytes = vld1q_u8(source);
  vst1q_u8(out, bytes);
  const uint16x8_t equal = vreinterpretq_u16_u8(vceqq_u8(bytes, vdupq_n_u8(0xFF)));
  return vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(equal, 4)), 0);
}

}  // namespace
}  // namespace fastdata
