#include "resample/pixels.h"

#include <cstring>

#include "simd/kernels.h"

namespace fastdata {

void RawPixels::row(int y, const uint8_t** planes) {
  const int n = box_.width();
  const size_t stride = round_up(n, 64) + kRowPadding;
  uint8_t* out = planes_.reserve(3 * stride);
  const uint8_t* in =
      pixels_ + static_cast<size_t>(y) * row_stride_ + static_cast<size_t>(box_.x0) * channels_;
  if (grey())
    std::memcpy(out, in, n);
  else
    kernels().deinterleave(in, n, out, out + stride, out + 2 * stride);
  for (int p = 0; p < channels_; p++) planes[p] = out + p * stride;
}

void PaddedRows::open(RowSource& inner, const Box& box, const Box& outer,
                      const uint8_t (&fill)[3]) {
  inner_ = &inner;
  box_ = box;
  outer_ = outer;
  fill_ = fill;
  planes_ = inner.grey() && fill[0] == fill[1] && fill[0] == fill[2] ? 1 : 3;
}

void PaddedRows::row(int y, const uint8_t** planes) {
  const size_t n = static_cast<size_t>(outer_.width()), stride = round_up(n, 64) + kRowPadding;
  const bool within = y >= box_.y0 && y < box_.y1 && box_.x0 >= outer_.x0 && box_.x1 <= outer_.x1;
  const uint8_t* source[3] = {};
  if (within) inner_->row(y, source);
  uint8_t* out = rows_.reserve(planes_ * stride);
  for (int p = 0; p < planes_; p++, out += stride) {
    std::memset(out, fill_[p], n);
    if (within)
      std::memcpy(out + (box_.x0 - outer_.x0), source[inner_->grey() ? 0 : p],
                  static_cast<size_t>(box_.width()));
    planes[p] = out;
  }
}

size_t size_of(DataType type) {
  switch (type) {
    case DataType::uint8: return 1;
    case DataType::float32: return 4;
    default: return 2;
  }
}

namespace {

void convert(const Output& output, const uint8_t* in, int n, const float* scale,
             const float* offset, void* out) {
  const Kernels& k = kernels();
  switch (output.type) {
    case DataType::uint8: std::memcpy(out, in, n); break;
    case DataType::float32: k.to_float32(in, n, scale, offset, static_cast<float*>(out)); break;
    case DataType::float16: k.to_float16(in, n, scale, offset, static_cast<uint16_t*>(out)); break;
    case DataType::bfloat16:
      k.to_bfloat16(in, n, scale, offset, static_cast<uint16_t*>(out));
      break;
  }
}

}  // namespace

void RowWriter::write(const Output& output, int y, int n, const uint8_t* const* planes, bool grey) {
  const uint8_t* channels[3] = {planes[0], planes[grey ? 0 : 1], planes[grey ? 0 : 2]};
  uint8_t* out = static_cast<uint8_t*>(output.data) + y * output.row_stride;
  if (output.plane_stride) {
    for (int c = 0; c < output.channels; c++)
      convert(output, channels[c], n, output.scale + c * Kernels::kPeriod,
              output.offset + c * Kernels::kPeriod, out + c * output.plane_stride);
  } else if (output.type == DataType::uint8) {
    kernels().interleave(channels[0], channels[1], channels[2], n, out);
  } else {
    uint8_t* row = interleaved_.reserve(3 * static_cast<size_t>(n));
    kernels().interleave(channels[0], channels[1], channels[2], n, row);
    convert(output, row, 3 * n, output.scale, output.offset, out);
  }
}

}  // namespace fastdata
