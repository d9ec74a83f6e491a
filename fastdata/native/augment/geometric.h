// Operations that move pixels, as torchvision.transforms.functional does them to a Pillow image;
// values as operations.h has them, finite.
#pragma once

#include "augment/operations.h"

namespace fastdata {

Status affine(const Call& call, Canvas& canvas);
Status perspective(const Call& call, Canvas& canvas);
Status flip_horizontal(const Call& call, Canvas& canvas);
Status flip_vertical(const Call& call, Canvas& canvas);

}  // namespace fastdata
