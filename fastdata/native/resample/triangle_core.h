// Weights of the bilinear filter for outputs of at most four taps: plain loops for the
// compiler's vectoriser, as a crop resized to some 224 pixels needs them anew for every image.
// The arithmetic is that of resample.cpp's build_filtered, operation by operation.
#pragma once

namespace fastdata {
namespace {

void triangle(const TriangleTaps& of, int count, int32_t* __restrict first,
              int32_t* __restrict taps, int32_t* __restrict weights) {
  const double support = of.scale < 1.0 ? 1.0 : of.scale, ss = 1.0 / support;
  const int32_t inputs = of.inputs;
  for (int i = 0; i < count; i++) {
    const double center = (of.first + i + 0.5) * of.scale;
    int32_t begin = static_cast<int32_t>(center - support + 0.5);
    int32_t end = static_cast<int32_t>(center + support + 0.5);
    begin = begin < 0 ? 0 : begin;
    end = end > inputs ? inputs : end;
    first[i] = begin;
    taps[i] = end - begin;
    double k[4], sum = 0.0;
    for (int t = 0; t < 4; t++) {
      const double weight = 1.0 - std::abs((t + begin - center + 0.5) * ss);
      k[t] = weight > 0.0 && begin + t < end ? weight : 0.0;
      sum += k[t];
    }
    const double normal = 1.0 / sum;  // the tap at the centre has more than nothing
    for (int t = 0; t < 4; t++)
      weights[t * count + i] = static_cast<int32_t>(k[t] * normal * of.one + 0.5);
  }
}

}  // namespace
}  // namespace fastdata
