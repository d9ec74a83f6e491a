"""Classes and functions of well-known training scripts, which no package has.

Written for the tests: they have the names and attributes of the scripts' classes, draw from the
same generators, and call the same operations in the same order. `recipe_makers` makes recipes of
them. Each script's classes stand in a class of its name.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

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


# --- masked images -----------------------------------------------------------------------------


class MAE:
    class RandomResizedCrop(transforms.RandomResizedCrop):
        """TensorFlow's random crop, without attempts: for linear probing."""

        @staticmethod
        def get_params(img: Any, scale: Any, ratio: Any) -> Any:
            width, height = img.size
            area = height * width
            target_area = area * torch.empty(1).uniform_(scale[0], scale[1]).item()
            log_ratio = torch.log(torch.tensor(ratio))
            aspect_ratio = torch.exp(torch.empty(1).uniform_(log_ratio[0], log_ratio[1])).item()

            w = int(round(math.sqrt(target_area * aspect_ratio)))  # noqa: RUF046
            h = int(round(math.sqrt(target_area / aspect_ratio)))  # noqa: RUF046
            w = min(w, width)
            h = min(h, height)

            i = torch.randint(0, height - h + 1, size=(1,)).item()
            j = torch.randint(0, width - w + 1, size=(1,)).item()
            return i, j, h, w


class SimMIM:
    class MaskGenerator:
        """A mask of some of the patches: BEiT's in kind."""

        def __init__(self, input_size: int, patch_size: int, ratio: float) -> None:
            self.rand_size = input_size // patch_size
            self.token_count = self.rand_size**2
            self.mask_count = int(np.ceil(self.token_count * ratio))

        def __call__(self) -> Any:
            mask_idx = np.random.permutation(self.token_count)[: self.mask_count]
            mask = np.zeros(self.token_count, dtype=int)
            mask[mask_idx] = 1
            return mask.reshape((self.rand_size, self.rand_size))

    class SimMIMTransform:
        def __init__(self, transform_img: Any, mask_generator: Any) -> None:
            self.transform_img = transform_img
            self.mask_generator = mask_generator

        def __call__(self, img: Any) -> Any:
            img = self.transform_img(img)
            mask = self.mask_generator()
            return img, mask


class BEiT:
    class RandomResizedCropAndInterpolationWithTwoPic:
        def __init__(self, size: int, second_size: int) -> None:
            self.size = (size, size)
            self.second_size = (second_size, second_size)

        def __call__(self, img: Any) -> Any:
            i, j, h, w = transforms.RandomResizedCrop.get_params(img, (0.08, 1.0), (3 / 4, 4 / 3))
            resized_crop = transforms.functional.resized_crop
            mode = transforms.InterpolationMode
            return (
                resized_crop(img, i, j, h, w, self.size, mode.BICUBIC),
                resized_crop(img, i, j, h, w, self.second_size, mode.LANCZOS),
            )

    class DataAugmentationForBEiT:
        """A picture, the same for the tokeniser, and the mask of its patches."""

        def __init__(self, common: Any, patch: Any, visual_token: Any, masks: Any) -> None:
            self.common_transform = common
            self.patch_transform = patch
            self.visual_token_transform = visual_token
            self.masked_position_generator = masks

        def __call__(self, image: Any) -> Any:
            for_patches, for_visual_tokens = self.common_transform(image)
            return (
                self.patch_transform(for_patches),
                self.visual_token_transform(for_visual_tokens),
                self.masked_position_generator(),
            )


# --- tensors -----------------------------------------------------------------------------------


class Cutout:
    """Squares of zeros in a tensor, anywhere, cut at its borders."""

    def __init__(self, n_holes: int, length: int) -> None:
        self.n_holes = n_holes
        self.length = length

    def __call__(self, img: Any) -> Any:
        h = img.size(1)
        w = img.size(2)
        mask = np.ones((h, w), np.float32)
        for _ in range(self.n_holes):
            y = np.random.randint(h)
            x = np.random.randint(w)
            y1 = np.clip(y - self.length // 2, 0, h)
            y2 = np.clip(y + self.length // 2, 0, h)
            x1 = np.clip(x - self.length // 2, 0, w)
            x2 = np.clip(x + self.length // 2, 0, w)
            mask[y1:y2, x1:x2] = 0.0
        mask = torch.from_numpy(mask)
        mask = mask.expand_as(img)
        return img * mask


class Lighting:
    """Noise along the principal components of ImageNet's colours: AlexNet's."""

    def __init__(self, alphastd: float, eigval: Any, eigvec: Any) -> None:
        self.alphastd = alphastd
        self.eigval = torch.tensor(eigval)
        self.eigvec = torch.tensor(eigvec)

    def __call__(self, img: Any) -> Any:
        if self.alphastd == 0:
            return img
        alpha = img.new_empty(3).normal_(0, self.alphastd)
        rgb = (self.eigvec.type_as(img) * alpha.view(1, 3) * self.eigval.view(1, 3)).sum(1)
        return img.add(rgb.view(3, 1, 1).expand_as(img))


IMAGENET_PCA: tuple[Any, Any] = (
    [0.2175, 0.0188, 0.0045],
    [
        [-0.5675, 0.7192, 0.4009],
        [-0.5808, -0.0045, -0.8140],
        [-0.5836, -0.6948, 0.4203],
    ],
)


# --- FixMatch ----------------------------------------------------------------------------------

_STEPS = 10


def _enhanced(kind: Any) -> Callable[..., Any]:
    def enhance(img: Any, v: int, max_v: float, bias: float = 0) -> Any:
        return kind(img).enhance(float(v) * max_v / _STEPS + bias)

    return enhance


def _signed(v: int, max_v: float) -> float:
    value = float(v) * max_v / _STEPS
    return -value if random.random() < 0.5 else value


def auto_contrast(img: Any, **kwargs: Any) -> Any:
    return ImageOps.autocontrast(img)


def equalize(img: Any, **kwargs: Any) -> Any:
    return ImageOps.equalize(img)


def identity(img: Any, **kwargs: Any) -> Any:
    return img


def posterize(img: Any, v: int, max_v: float, bias: float = 0) -> Any:
    return ImageOps.posterize(img, int(v * max_v / _STEPS) + int(bias))


def rotate(img: Any, v: int, max_v: float, bias: float = 0) -> Any:
    return img.rotate(_signed(v, max_v))


def shear_x(img: Any, v: int, max_v: float, bias: float = 0) -> Any:
    return img.transform(img.size, Image.AFFINE, (1, _signed(v, max_v), 0, 0, 1, 0))


def shear_y(img: Any, v: int, max_v: float, bias: float = 0) -> Any:
    return img.transform(img.size, Image.AFFINE, (1, 0, 0, _signed(v, max_v), 1, 0))


def solarize(img: Any, v: int, max_v: float, bias: float = 0) -> Any:
    return ImageOps.solarize(img, 256 - int(v * max_v / _STEPS))


def translate_x(img: Any, v: int, max_v: float, bias: float = 0) -> Any:
    moved = int(_signed(v, max_v) * img.size[0])
    return img.transform(img.size, Image.AFFINE, (1, 0, moved, 0, 1, 0))


def translate_y(img: Any, v: int, max_v: float, bias: float = 0) -> Any:
    moved = int(_signed(v, max_v) * img.size[1])
    return img.transform(img.size, Image.AFFINE, (1, 0, 0, 0, 1, moved))


def cutout(img: Any, size: int) -> Any:
    """A grey square, cut at the borders."""
    w, h = img.size
    x0 = int(max(0, np.random.uniform(0, w) - size / 2.0))
    y0 = int(max(0, np.random.uniform(0, h) - size / 2.0))
    x1 = int(min(w, x0 + size))
    y1 = int(min(h, y0 + size))
    img = img.copy()
    ImageDraw.Draw(img).rectangle((x0, y0, x1, y1), (127, 127, 127))
    return img


class TransformFixMatch:
    def __init__(self, weak: Any, strong: Any, normalize: Any) -> None:
        self.weak = weak
        self.strong = strong
        self.normalize = normalize

    def __call__(self, x: Any) -> Any:
        weak = self.weak(x)
        strong = self.strong(x)
        return self.normalize(weak), self.normalize(strong)


class RandAugmentMC:
    """Operations of Pillow by random strengths, each done in half of the images: FixMatch's."""

    def __init__(self, n: int, m: int) -> None:
        self.n = n
        self.m = m
        self.augment_pool = [
            (auto_contrast, 0, 0),
            (_enhanced(ImageEnhance.Brightness), 0.9, 0.05),
            (_enhanced(ImageEnhance.Color), 0.9, 0.05),
            (_enhanced(ImageEnhance.Contrast), 0.9, 0.05),
            (equalize, 0, 0),
            (identity, 0, 0),
            (posterize, 4, 4),
            (rotate, 30, 0),
            (_enhanced(ImageEnhance.Sharpness), 0.9, 0.05),
            (shear_x, 0.3, 0),
            (shear_y, 0.3, 0),
            (solarize, 256, 0),
            (translate_x, 0.3, 0),
            (translate_y, 0.3, 0),
        ]

    def __call__(self, img: Any) -> Any:
        ops = random.choices(self.augment_pool, k=self.n)
        for op, max_v, bias in ops:
            v = np.random.randint(1, self.m)
            if random.random() < 0.5:
                img = op(img, v=v, max_v=max_v, bias=bias)
        return cutout(img, int(32 * 0.5))


# --- functions ---------------------------------------------------------------------------------


def _convert_image_to_rgb(image: Any) -> Any:
    return image.convert("RGB")


#: As in scripts, which import `transforms`.
stacked = transforms.Lambda(
    lambda crops: torch.stack([transforms.ToTensor()(crop) for crop in crops])
)
