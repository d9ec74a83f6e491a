"""Classes and functions of well-known training scripts, which no package has.

Written for the tests: they have the names and attributes of the scripts' classes, draw from the
same generators, and call the same operations in the same order. `recipe_makers` makes recipes of
them. Each script's classes stand in a class of its name.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from PIL import ImageFilter, ImageOps

import_torchvision()

from torchvision import transforms  # noqa: E402

# --- several views -----------------------------------------------------------------------------


class MoCo:
    """MoCo's, of versions 1 and 2, and SimSiam's."""

    class TwoCropsTransform:
        def __init__(self, base_transform: Any) -> None:
            self.base_transform = base_transform

        def __call__(self, x: Any) -> Any:
            q = self.base_transform(x)
            k = self.base_transform(x)
            return [q, k]

    class GaussianBlur:
        def __init__(self, sigma: Sequence[float] = (0.1, 2.0)) -> None:
            self.sigma = sigma

        def __call__(self, x: Any) -> Any:
            sigma = random.uniform(self.sigma[0], self.sigma[1])
            x = x.filter(ImageFilter.GaussianBlur(radius=sigma))
            return x  # noqa: RET504


class MoCoV3:
    """Blurs as MoCo."""

    class TwoCropsTransform:
        def __init__(self, base_transform1: Any, base_transform2: Any) -> None:
            self.base_transform1 = base_transform1
            self.base_transform2 = base_transform2

        def __call__(self, x: Any) -> Any:
            im1 = self.base_transform1(x)
            im2 = self.base_transform2(x)
            return [im1, im2]

    class Solarize:
        def __call__(self, x: Any) -> Any:
            return ImageOps.solarize(x)


class SupContrast:
    class TwoCropTransform:
        def __init__(self, transform: Any) -> None:
            self.transform = transform

        def __call__(self, x: Any) -> Any:
            return [self.transform(x), self.transform(x)]


class SimCLR:
    """Of the version in PyTorch."""

    class ContrastiveLearningViewGenerator:
        def __init__(self, base_transform: Any, n_views: int = 2) -> None:
            self.base_transform = base_transform
            self.n_views = n_views

        def __call__(self, x: Any) -> Any:
            return [self.base_transform(x) for i in range(self.n_views)]

    class GaussianBlur:
        def __init__(self, kernel_size: int) -> None:
            self.r = kernel_size // 2
            self.k = self.r * 2 + 1
            options: Any = {"padding": 0, "bias": False, "groups": 3}
            self.blur_h = torch.nn.Conv2d(3, 3, (self.k, 1), **options)
            self.blur_v = torch.nn.Conv2d(3, 3, (1, self.k), **options)
            self.blur = torch.nn.Sequential(
                torch.nn.ReflectionPad2d(self.r), self.blur_h, self.blur_v
            )
            self.pil_to_tensor = transforms.ToTensor()
            self.tensor_to_pil = transforms.ToPILImage()

        def __call__(self, img: Any) -> Any:
            sigma = np.random.uniform(0.1, 2.0)
            x = np.exp(-np.power(np.arange(-self.r, self.r + 1), 2) / (2 * sigma * sigma))
            weights = torch.from_numpy(x / x.sum()).float().view(1, -1).repeat(3, 1)
            with torch.no_grad():
                self.blur_h.weight.copy_(weights.view(3, 1, self.k, 1))
                self.blur_v.weight.copy_(weights.view(3, 1, 1, self.k))
                blurred = self.blur(self.pil_to_tensor(img)[None])[0]
            return self.tensor_to_pil(blurred)


class BarlowTwins:
    class Transform:
        def __init__(self, transform: Any, transform_prime: Any) -> None:
            self.transform = transform
            self.transform_prime = transform_prime

        def __call__(self, x: Any) -> Any:
            y1 = self.transform(x)
            y2 = self.transform_prime(x)
            return y1, y2

    class GaussianBlur:
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


class VICReg:
    """Draws as Barlow Twins, by NumPy."""

    class TrainTransform(BarlowTwins.Transform):
        pass

    class GaussianBlur(BarlowTwins.GaussianBlur):
        def __call__(self, img: Any) -> Any:
            if np.random.rand() < self.p:
                sigma = np.random.rand() * 1.9 + 0.1
                return img.filter(ImageFilter.GaussianBlur(sigma))
            return img

    class Solarization(BarlowTwins.Solarization):
        def __call__(self, img: Any) -> Any:
            if np.random.rand() < self.p:
                return ImageOps.solarize(img)
            return img


class BYOL:
    """Of versions in PyTorch."""

    class MultiViewDataInjector:
        def __init__(self, transforms: Sequence[Any]) -> None:
            self.transforms = transforms

        def __call__(self, sample: Any) -> Any:
            return [transform(sample) for transform in self.transforms]

    class RandomApply(torch.nn.Module):
        def __init__(self, fn: Any, p: float) -> None:
            super().__init__()
            self.fn = fn
            self.p = p

        def forward(self, x: Any) -> Any:
            if random.random() > self.p:
                return x
            return self.fn(x)


class DINO:
    class DataAugmentationDINO:
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

    class GaussianBlur:
        def __init__(
            self, p: float = 0.5, radius_min: float = 0.1, radius_max: float = 2.0
        ) -> None:
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

    Solarization = BarlowTwins.Solarization


class IBOT:
    """Blurs and solarises as DINO."""

    class DataAugmentationiBOT(DINO.DataAugmentationDINO):
        def __init__(self, *transforms: Any, global_crops_number: int = 2, **options: Any) -> None:
            super().__init__(*transforms, **options)
            self.global_crops_number = global_crops_number

        def __call__(self, image: Any) -> Any:
            crops = []
            crops.append(self.global_transfo1(image))
            for _ in range(self.global_crops_number - 1):
                crops.append(self.global_transfo2(image))
            for _ in range(self.local_crops_number):
                crops.append(self.local_transfo(image))
            return crops


class SwAV:
    class MultiCropDataset:
        """Views of one image, as the dataset of this name makes them."""

        def __init__(self, trans: Sequence[Any]) -> None:
            self.trans = trans

        def __call__(self, image: Any) -> Any:
            return list(map(lambda trans: trans(image), self.trans))  # noqa: C417

    class PILRandomGaussianBlur(DINO.GaussianBlur):
        def __call__(self, img: Any) -> Any:
            do_it = np.random.rand() <= self.prob
            if not do_it:
                return img
            return img.filter(
                ImageFilter.GaussianBlur(radius=random.uniform(self.radius_min, self.radius_max))
            )


class MSN:
    class MultiViewTransform:
        def __init__(
            self, rand_transform: Any, focal_transform: Any, rand_views: int, focal_views: int
        ) -> None:
            self.rand_views = rand_views
            self.focal_views = focal_views
            self.rand_transform = rand_transform
            self.focal_transform = focal_transform

        def __call__(self, img: Any) -> Any:
            img_views = []
            if self.rand_views > 0:
                img_views += [self.rand_transform(img) for i in range(self.rand_views)]
            if self.focal_views > 0:
                img_views += [self.focal_transform(img) for i in range(self.focal_views)]
            return img_views

    class GaussianBlur(DINO.GaussianBlur):
        def __call__(self, img: Any) -> Any:
            if torch.bernoulli(torch.tensor(self.prob)) == 0:
                return img
            radius = self.radius_min + torch.rand(1) * (self.radius_max - self.radius_min)
            return img.filter(ImageFilter.GaussianBlur(radius=float(radius)))


# --- supervised training -----------------------------------------------------------------------


class References:
    """Those of torchvision's scripts for classification."""

    class ClassificationPresetTrain:
        def __init__(self, transforms: Any) -> None:
            self.transforms = transforms

        def __call__(self, img: Any) -> Any:
            return self.transforms(img)

    class ClassificationPresetEval(ClassificationPresetTrain):
        pass


class DeiT:
    """DeiT III's; blurs and solarises as DINO."""

    class gray_scale:  # noqa: N801
        def __init__(self, p: float = 0.2) -> None:
            self.p = p
            self.transf = transforms.Grayscale(3)

        def __call__(self, img: Any) -> Any:
            if random.random() < self.p:
                return self.transf(img)
            return img


class Copied:
    """Copies of classes of timm."""

    class RandomResizedCropAndInterpolation:
        def __init__(self, size: int, scale: Any, ratio: Any, interpolation: Any) -> None:
            self.size = (size, size)
            self.interpolation = interpolation
            self.scale = scale
            self.ratio = ratio

        def __call__(self, img: Any) -> Any:
            box = transforms.RandomResizedCrop.get_params(img, self.scale, self.ratio)
            mode = random.choice(self.interpolation)
            return transforms.functional.resized_crop(img, *box, self.size, mode)


# --- steps that fastdata has no equivalent of ---------------------------------------------------


class _Unknown:
    """Step of which the name alone matters here: it returns the image."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, img: Any) -> Any:
        return img


class MAE:
    class RandomResizedCrop(transforms.RandomResizedCrop):
        """TensorFlow's random crop, without attempts: for linear probing."""

        @staticmethod
        def get_params(img: Any, scale: Any, ratio: Any) -> Any:
            side = min(img.size)
            return 0, 0, side, side


class SimMIM:
    class SimMIMTransform(_Unknown):
        """An image and a mask of its patches."""


class BEiT:
    class DataAugmentationForBEiT(_Unknown):
        """A picture, the same for the tokeniser, and the mask of its patches."""


class Cutout(_Unknown):
    """Squares of zeros in a tensor, anywhere, cut at its borders."""


class Lighting(_Unknown):
    """Noise along the principal components of ImageNet's colours: AlexNet's."""


class RandAugmentMC(_Unknown):
    """Operations of Pillow by random strengths, each done in half of the images: FixMatch's."""


class TransformFixMatch:
    def __init__(self, weak: Any, strong: Any, normalize: Any) -> None:
        self.weak = weak
        self.strong = strong
        self.normalize = normalize

    def __call__(self, x: Any) -> Any:
        weak = self.weak(x)
        strong = self.strong(x)
        return self.normalize(weak), self.normalize(strong)


# --- functions ---------------------------------------------------------------------------------


def _convert_image_to_rgb(image: Any) -> Any:
    return image.convert("RGB")


#: As in scripts, which import `transforms`.
stacked = transforms.Lambda(
    lambda crops: torch.stack([transforms.ToTensor()(crop) for crop in crops])
)
