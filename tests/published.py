"""Classes and functions of well-known training scripts, which no package has.

Written for the tests: they draw from the same generators as the scripts, and call the same
operations in the same order. `recipe_makers` makes recipes of them.
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

_T = import_torchvision().transforms

# --- several views -----------------------------------------------------------------------------


class TwoCropsTransform:
    """Two random views of one image: MoCo's, SimSiam's."""

    def __init__(self, base_transform: Any) -> None:
        self.base_transform = base_transform

    def __call__(self, x: Any) -> Any:
        q = self.base_transform(x)
        k = self.base_transform(x)
        return [q, k]


class TwoCropTransform:
    """Two random views of one image: SupContrast's."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, x: Any) -> Any:
        return [self.transform(x), self.transform(x)]


class TwoTransforms:
    """Two views of two transforms: MoCo's, version 3."""

    def __init__(self, base_transform1: Any, base_transform2: Any) -> None:
        self.base_transform1 = base_transform1
        self.base_transform2 = base_transform2

    def __call__(self, x: Any) -> Any:
        im1 = self.base_transform1(x)
        im2 = self.base_transform2(x)
        return [im1, im2]


class ContrastiveLearningViewGenerator:
    """So many views of one transform: SimCLR's in PyTorch."""

    def __init__(self, base_transform: Any, n_views: int = 2) -> None:
        self.base_transform = base_transform
        self.n_views = n_views

    def __call__(self, x: Any) -> Any:
        return [self.base_transform(x) for i in range(self.n_views)]


class Pair:
    """A tuple of two views: those of Barlow Twins, VICReg, BYOL and FixMatch."""

    def __init__(self, transform: Any, transform_prime: Any) -> None:
        self.transform = transform
        self.transform_prime = transform_prime

    def __call__(self, sample: Any) -> Any:
        x1 = self.transform(sample)
        x2 = self.transform_prime(sample)
        return x1, x2


class MultiCrop:
    """Two global views and several local ones: DINO's, iBOT's."""

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


class ManyCrops:
    """A list of views, of a list of transforms: SwAV's, MSN's."""

    def __init__(self, trans: Sequence[Any]) -> None:
        self.trans = trans

    def __call__(self, image: Any) -> Any:
        return list(map(lambda trans: trans(image), self.trans))  # noqa: C417


class IBOTCrops(MultiCrop):
    global_crops_number = 3

    def __call__(self, image: Any) -> Any:
        crops = []
        crops.append(self.global_transfo1(image))
        for _ in range(self.global_crops_number - 1):
            crops.append(self.global_transfo2(image))
        for _ in range(self.local_crops_number):
            crops.append(self.local_transfo(image))
        return crops


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


# --- parts of views ----------------------------------------------------------------------------


class SigmaBlur:
    """Pillow's blur by a radius from a list: MoCo's, SimSiam's."""

    def __init__(self, sigma: Sequence[float] = (0.1, 2.0)) -> None:
        self.sigma = sigma

    def __call__(self, x: Any) -> Any:
        sigma = random.uniform(self.sigma[0], self.sigma[1])
        x = x.filter(ImageFilter.GaussianBlur(radius=sigma))
        return x  # noqa: RET504


class Solarize:
    """Pillow's solarisation: MoCo's, version 3."""

    def __init__(self, threshold: int = 128) -> None:
        self.threshold = threshold

    def __call__(self, x: Any) -> Any:
        return ImageOps.solarize(x, self.threshold)


class RadiusBlur:
    """Pillow's blur with a probability: DINO's, iBOT's, DeiT III's."""

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


class NumpyBlur:
    """Pillow's blur, whether it is done drawn by NumPy: SwAV's, MSN's."""

    def __init__(self, p: float = 0.5, radius_min: float = 0.1, radius_max: float = 2.0) -> None:
        self.prob = p
        self.radius_min = radius_min
        self.radius_max = radius_max

    def __call__(self, img: Any) -> Any:
        do_it = np.random.rand() <= self.prob
        if not do_it:
            return img
        return img.filter(
            ImageFilter.GaussianBlur(radius=random.uniform(self.radius_min, self.radius_max))
        )


class MaybeBlur:
    """Pillow's blur, or not: that of Barlow Twins and VICReg."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            sigma = random.random() * 1.9 + 0.1
            return img.filter(ImageFilter.GaussianBlur(sigma))
        return img


class MaybeSolarize:
    """Pillow's solarisation, or not: that of Barlow Twins, VICReg, DINO and DeiT III."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            return ImageOps.solarize(img)
        return img


class MaybeGray:
    """Grey, or not: DeiT III's."""

    def __init__(self, p: float = 0.2) -> None:
        self.p = p
        self.transf = _T.Grayscale(3)

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            return self.transf(img)
        return img


class DeiTFlip(MaybeGray):
    def __init__(self, p: float = 0.2) -> None:
        super().__init__(p)
        self.transf = _T.RandomHorizontalFlip(p=1.0)


class TorchSolarize(torch.nn.Module):
    """As BYOL's are written with torch."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, img: Any) -> Any:
        if torch.rand(1) < self.p:
            return ImageOps.solarize(img, threshold=128)
        return img


# --- masked images -----------------------------------------------------------------------------


class LinearProbeCrop(_T.RandomResizedCrop):
    """TensorFlow's random crop, without attempts: MAE's for linear probing."""

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


class MaskGenerator:
    """A mask of some of the patches: SimMIM's, BEiT's in kind."""

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
    """A picture and the mask of its patches."""

    def __init__(self, transform_img: Any, mask_generator: Any) -> None:
        self.transform_img = transform_img
        self.mask_generator = mask_generator

    def __call__(self, img: Any) -> Any:
        img = self.transform_img(img)
        mask = self.mask_generator()
        return img, mask


class TwoPictures:
    """One crop at two sizes: BEiT's."""

    def __init__(self, size: int, second_size: int) -> None:
        self.size = (size, size)
        self.second_size = (second_size, second_size)

    def __call__(self, img: Any) -> Any:
        i, j, h, w = _T.RandomResizedCrop.get_params(img, (0.08, 1.0), (3 / 4, 4 / 3))
        resized_crop = _T.functional.resized_crop
        mode = _T.InterpolationMode
        return (
            resized_crop(img, i, j, h, w, self.size, mode.BICUBIC),
            resized_crop(img, i, j, h, w, self.second_size, mode.LANCZOS),
        )


class BEiTTransform:
    """A picture, the same for the tokeniser, and the mask of its patches: BEiT's."""

    def __init__(self, common: Any, patch: Any, visual_token: Any, mask_generator: Any) -> None:
        self.common_transform = common
        self.patch_transform = patch
        self.visual_token_transform = visual_token
        self.masked_position_generator = mask_generator

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


class Preset:
    """A pipeline that is called: torchvision's ClassificationPresetTrain and …Eval."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)
