// Gaussian blur in two passes of floats, as exact as torchvision's sums of the kernel's square.
// Each sums pairs of values that lie as far from the middle as each other, times one weight.
#pragma once

#include <cstddef>

namespace fastdata {

constexpr int kMaxBlurKernel = 255;

/// One pass of a row, plus `start`. taps[-radius] to taps[radius] are read, n floats of each;
/// weights[t] is the weight of taps[-t] and taps[t]. n is a multiple of 32.
using BlurRow = void (*)(const float* const* taps, const float* weights, int radius, size_t n,
                         float start, float* out);

}  // namespace fastdata
