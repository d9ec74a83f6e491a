// YCbCr to RGB in vectors. Included after simd_avx2.h, simd_avx512.h or
// simd_neon.h.
#pragma once

namespace fastdata {
namespace {

/// libjpeg's fixed-point conversion (jdcolor.c; level_scalar.cpp has it as written
/// there) on 16-bit words. 1.402 and 1.772 exceed a signed 16-bit fraction, so their
/// integral parts are added: mulhi(2v, 0.402 * 2^16), rounded, is exact for |v| <= 128.
void ycc_to_rgb(const uint8_t* y_row, const uint8_t* cb_row, const uint8_t* cr_row, int n,
                uint8_t* r_row, uint8_t* g_row, uint8_t* b_row) {
  const I centre = set16(128), one = set16(1), half = set32(1 << 15);
  // -0.34414 and 1 - 0.71414, times 2^16.
  const I g_weights = set32(static_cast<int>(static_cast<uint16_t>(-22554) | 18734u << 16));
  for (int x = 0; x < n; x += kVectorBytes) {
    I r[2], g[2], b[2];
    for (int i = 0; i < 2; i++) {
      const int at = x + i * kVectorBytes / 2;
      const I y = load_u8_to_16(y_row + at);
      const I cb = sub16(load_u8_to_16(cb_row + at), centre);
      const I cr = sub16(load_u8_to_16(cr_row + at), centre);
      const I cb2 = add16(cb, cb), cr2 = add16(cr, cr);
      const I r_part = sra16<1>(add16(mulhi16(cr2, set16(26345)), one));   // 0.402 cr
      const I b_part = sra16<1>(add16(mulhi16(cb2, set16(-14942)), one));  // -0.228 cb
      const I g_low = sra32<16>(madd_add(half, lo16(cb, cr), g_weights));
      const I g_high = sra32<16>(madd_add(half, hi16(cb, cr), g_weights));
      r[i] = add16(add16(r_part, cr), y);
      b[i] = add16(add16(b_part, cb2), y);
      g[i] = add16(sub16(packs32(g_low, g_high), cr), y);
    }
    store_16_to_u8(r_row + x, r[0], r[1]);
    store_16_to_u8(g_row + x, g[0], g[1]);
    store_16_to_u8(b_row + x, b[0], b[1]);
  }
}

}  // namespace
}  // namespace fastdata
