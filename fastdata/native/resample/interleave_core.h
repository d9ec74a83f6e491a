// Planes to interleaved pixels and back, pixel by pixel: what the vector paths use for the last
// few.
#pragma once

namespace fastdata {
namespace {

void interleave_from(int x, const uint8_t* __restrict r, const uint8_t* __restrict g,
                     const uint8_t* __restrict b, int n, uint8_t* __restrict out) {
  for (; x < n; x++) {
    out[3 * x] = r[x];
    out[3 * x + 1] = g[x];
    out[3 * x + 2] = b[x];
  }
}

void deinterleave_from(int x, const uint8_t* __restrict in, int n, uint8_t* __restrict r,
                       uint8_t* __restrict g, uint8_t* __restrict b) {
  for (; x < n; x++) {
    r[x] = in[3 * x];
    g[x] = in[3 * x + 1];
    b[x] = in[3 * x + 2];
  }
}

}  // namespace
}  // namespace fastdata
