// Operations that move pixels or mix them with others, as torchvision.transforms.functional does
// them to a Pillow image; values as operations.h has them, finite.
#pragma once

#include "augment/operations.h"

namespace fastdata {

Status affine(const Call& call, Canvas& canvas);
Status perspective(const Call& call, Canvas& canvas);
Status gaussian_blur(const Call& call, Canvas& canvas);
Status box_blur(const Call& call, Canvas& canvas);
Status gaussian_noise(const Call& call, Canvas& canvas);
Status crop(const Call& call, Canvas& canvas);
Status resize(const Call& call, Canvas& canvas);
Status pad(const Call& call, Canvas& canvas);
Status flip_horizontal(const Call& call, Canvas& canvas);
Status flip_vertical(const Call& call, Canvas& canvas);

}  // namespace fastdata
