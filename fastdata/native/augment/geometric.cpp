#include "augment/geometric.h"

#include <algorithm>
#include <cstring>

#include "augment/point.h"
#include "simd/kernels.h"

namespace fastdata {

Status flip_horizontal(const Call&, Canvas& canvas) {
  const Planes& image = canvas.image();
  Planes next;
  if (Status s = canvas.begin(image.width, image.height, image.channels, next); !s.ok()) return s;
  for (int c = 0; c < image.channels; c++)
    for (int y = 0; y < image.height; y++)
      kernels().reverse(image.row(c, y), image.width, next.row(c, y));
  canvas.swap();
  return {};
}

Status flip_vertical(const Call&, Canvas& canvas) {
  const Planes& image = canvas.image();
  Planes next;
  if (Status s = canvas.begin(image.width, image.height, image.channels, next); !s.ok()) return s;
  for (int c = 0; c < image.channels; c++)
    for (int y = 0; y < image.height; y++)
      std::memcpy(next.row(c, y), image.row(c, image.height - 1 - y), image.width);
  canvas.swap();
  return {};
}

}  // namespace fastdata
