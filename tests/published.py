"""Classes of training scripts in the form in which their authors have published them.

Written for the tests: what they do to an image is what matters, not their words.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from PIL import ImageFilter, ImageOps
from torchvision_stub import import_torchvision

import_torchvision()
from torchvision import transforms  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZE = transforms.Normalize(MEAN, STD)

# --- what is done to a PIL image --------------------------------------------------------------


class MoCoBlur:
    def __init__(self, sigma: Any = (0.1, 2.0)) -> None:
        self.sigma = list(sigma)

    def __call__(self, x: Any) -> Any:
        sigma = random.uniform(self.sigma[0], self.sigma[1])
        x = x.filter(ImageFilter.GaussianBlur(radius=sigma))
        return x  # noqa: RET504


class MoCoSolarize:
    def __call__(self, x: Any) -> Any:
        return ImageOps.solarize(x)


class DINOBlur:
    def __init__(self, p: float = 0.5, radius_min: float = 0.1, radius_max: float = 2.0) -> None:
        self.prob = p
        self.radius_min = radius_min
        self.radius_max = radius_max

    def __call__(self, img: Any) -> Any:
        do_it = random.random() <= self.prob
        if not do_it:
            return img
        return img.filter(
            ImageFilter.GaussianBlur(radius=random.uniform(self.radius_min, self.radius_max))
        )


class SwAVBlur(DINOBlur):
    def __call__(self, img: Any) -> Any:
        do_it = np.random.rand() <= self.prob
        if not do_it:
            return img
        return img.filter(
            ImageFilter.GaussianBlur(radius=random.uniform(self.radius_min, self.radius_max))
        )


class BarlowBlur:
    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            sigma = random.random() * 1.9 + 0.1
            return img.filter(ImageFilter.GaussianBlur(sigma))
        return img


class Solarization:
    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            return ImageOps.solarize(img)
        return img


class DeiTGray:
    def __init__(self, p: float = 0.2) -> None:
        self.p = p
        self.transf = transforms.Grayscale(3)

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            return self.transf(img)
        return img


class DeiTFlip(DeiTGray):
    def __init__(self, p: float = 0.2) -> None:
        super().__init__(p)
        self.transf = transforms.RandomHorizontalFlip(p=1.0)


class TorchSolarize(torch.nn.Module):
    """As BYOL's are written with torch."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, img: Any) -> Any:
        if torch.rand(1) < self.p:
            return ImageOps.solarize(img, threshold=128)
        return img


def clips_rgb(image: Any) -> Any:
    return image.convert("RGB")


# --- what makes several views -----------------------------------------------------------------


class MoCoTwice:
    def __init__(self, base_transform: Any) -> None:
        self.base_transform = base_transform

    def __call__(self, x: Any) -> Any:
        q = self.base_transform(x)
        k = self.base_transform(x)
        return [q, k]


class MoCoV3Pair:
    def __init__(self, base_transform1: Any, base_transform2: Any) -> None:
        self.base_transform1 = base_transform1
        self.base_transform2 = base_transform2

    def __call__(self, x: Any) -> Any:
        im1 = self.base_transform1(x)
        im2 = self.base_transform2(x)
        return [im1, im2]


class SimCLRViews:
    def __init__(self, base_transform: Any, n_views: int = 2) -> None:
        self.base_transform = base_transform
        self.n_views = n_views

    def __call__(self, x: Any) -> Any:
        return [self.base_transform(x) for i in range(self.n_views)]


class SupContrastTwice:
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, x: Any) -> Any:
        return [self.transform(x), self.transform(x)]


class DINOCrops:
    def __init__(self, first: Any, second: Any, local: Any, local_crops_number: int) -> None:
        self.global_transfo1 = first
        self.global_transfo2 = second
        self.local_crops_number = local_crops_number
        self.local_transfo = local

    def __call__(self, image: Any) -> Any:
        crops = []
        crops.append(self.global_transfo1(image))
        crops.append(self.global_transfo2(image))
        for _ in range(self.local_crops_number):
            crops.append(self.local_transfo(image))
        return crops


class IBOTCrops(DINOCrops):
    global_crops_number = 3

    def __call__(self, image: Any) -> Any:
        crops = []
        crops.append(self.global_transfo1(image))
        for _ in range(self.global_crops_number - 1):
            crops.append(self.global_transfo2(image))
        for _ in range(self.local_crops_number):
            crops.append(self.local_transfo(image))
        return crops


class SwAVCrops:
    def __init__(self, *trans: Any) -> None:
        self.trans = list(trans)

    def __call__(self, image: Any) -> Any:
        return list(map(lambda trans: trans(image), self.trans))  # noqa: C417


class BarlowPair:
    def __init__(self, transform: Any, transform_prime: Any) -> None:
        self.transform = transform
        self.transform_prime = transform_prime

    def __call__(self, x: Any) -> Any:
        y1 = self.transform(x)
        y2 = self.transform_prime(x)
        return y1, y2


class VICRegPair(BarlowPair):
    def __call__(self, sample: Any) -> Any:
        x1 = self.transform(sample)
        x2 = self.transform_prime(sample)
        return x1, x2


class FixMatchPair:
    def __init__(self, weak: Any, strong: Any, normalize: Any) -> None:
        self.weak = weak
        self.strong = strong
        self.normalize = normalize

    def __call__(self, x: Any) -> Any:
        weak = self.weak(x)
        strong = self.strong(x)
        return self.normalize(weak), self.normalize(strong)


class NamedCrops:
    """A dict of views, of which two names share some."""

    def __init__(self, whole: Any, part: Any) -> None:
        self.whole = whole
        self.part = part

    def __call__(self, image: Any) -> Any:
        output = {}
        first, second = self.whole(image), self.whole(image)
        output["global_crops"] = [first, second]
        output["global_crops_teacher"] = [first, second]
        output["local_crops"] = [self.part(image) for _ in range(2)]
        output["offsets"] = ()
        return output


class SimMIMMask:
    def __init__(self, input_size: int = 24, patch_size: int = 4, ratio: float = 0.6) -> None:
        self.side = input_size // patch_size
        self.count = self.side**2
        self.masked = int(self.count * ratio)

    def __call__(self) -> Any:
        chosen = np.random.permutation(self.count)[: self.masked]
        mask = np.zeros(self.count, dtype=int)
        mask[chosen] = 1
        return mask.reshape((self.side, self.side))


class SimMIMPair:
    def __init__(self, *steps: Any) -> None:
        self.transform_img = transforms.Compose(
            [
                transforms.Lambda(lambda img: img.convert("RGB") if img.mode != "RGB" else img),
                *steps,
            ]
        )
        self.mask_generator = SimMIMMask()

    def __call__(self, img: Any) -> Any:
        img = self.transform_img(img)
        mask = self.mask_generator()
        return img, mask
