#include "augment/canvas.h"

#include <algorithm>
#include <cstring>

#include "simd/kernels.h"

namespace fastdata {

Status Canvas::lay_out(int width, int height, int channels, Planes& planes) {
  if (width < 1 || height < 1) return {Code::bad_parameters, "an image without pixels"};
  if (channels != 1 && channels != 3)
    return {Code::bad_parameters, "an image of other than 1 or 3 channels"};
  const size_t stride = round_up(static_cast<size_t>(width), 64);
  if (stride * channels > kMaxSize / height)
    return {Code::too_large, "an augmented image of more than 1 GiB"};
  planes = {nullptr, width, height, channels, stride};
  return {};
}

void Mixture::begin(const Planes& image, float weight) {
  clear();
  const size_t size = image.size();
  std::memcpy(original.reserve(size), image.data, size);
  float* sum = sums.reserve<float>(size);
  std::fill_n(sum, size, 0.f);
  kernels().add_weighted(image.data, size, weight, sum);
  width = image.width;
  height = image.height;
  channels = image.channels;
}

Status Canvas::reset(int width, int height, int channels) {
  mix.clear();
  if (Status s = lay_out(width, height, channels, image_); !s.ok()) return s;
  image_.data = buffers_[current_].reserve(image_.size() + kRowPadding);
  return {};
}

Status Canvas::begin(int width, int height, int channels, Planes& next) {
  if (Status s = lay_out(width, height, channels, next_); !s.ok()) return s;
  next_.data = buffers_[1 - current_].reserve(next_.size() + kRowPadding);
  next = next_;
  return {};
}

void Canvas::swap() {
  std::swap(image_, next_);
  current_ = 1 - current_;
}

void Canvas::trim(size_t keep) {
  for (Buffer* buffer : {&buffers_[0], &buffers_[1], &scratch, &mix.original, &mix.sums})
    if (buffer->size() > keep) buffer->release();
}

}  // namespace fastdata
