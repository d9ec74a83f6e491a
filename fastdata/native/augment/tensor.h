// Operations as torchvision does them to tensors of bytes, which round otherwise than Pillow's; and
// mixtures of images, as its AugMix makes them. Values as operations.h has them, finite.
#pragma once

#include "augment/operations.h"

namespace fastdata {

Status tensor_grayscale(const Call& call, Canvas& canvas);
Status tensor_contrast(const Call& call, Canvas& canvas);
Status tensor_saturation(const Call& call, Canvas& canvas);
Status tensor_sharpness(const Call& call, Canvas& canvas);
Status tensor_hue(const Call& call, Canvas& canvas);
Status tensor_autocontrast(const Call& call, Canvas& canvas);
Status tensor_affine(const Call& call, Canvas& canvas);
Status tensor_perspective(const Call& call, Canvas& canvas);
Status mix_begin(const Call& call, Canvas& canvas);
Status mix_add(const Call& call, Canvas& canvas);
Status mix_blend(const Call& call, Canvas& canvas);
Status mix_end(const Call& call, Canvas& canvas);

}  // namespace fastdata
