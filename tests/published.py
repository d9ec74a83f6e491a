"""Classes of well-known training scripts, written for the tests: same names, draws, operations."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np
import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from PIL import ImageFilter, ImageOps

import_torchvision()

from torchvision import transforms  # noqa: E402


class _Held:
    """Base of classes that keep their arguments as attributes, in the order of `held`."""

    held: ClassVar[dict[str, Any]] = {}

    def __init__(self, *values: Any, **named: Any) -> None:
        vars(self).update(self.held, **dict(zip(self.held, values, strict=False)), **named)


# --- several views -----------------------------------------------------------------------------


class MoCo:
    """MoCo's, of versions 1 and 2, and SimSiam's."""

    class TwoCropsTransform(_Held):
        held: ClassVar = {"base_transform": None}

        def __call__(self, x: Any) -> Any:
            return [self.base_transform(x), self.base_transform(x)]

    class GaussianBlur(_Held):
        held: ClassVar = {"sigma": (0.1, 2.0)}

        def __call__(self, x: Any) -> Any:
            sigma = random.uniform(self.sigma[0], self.sigma[1])
            return x.filter(ImageFilter.GaussianBlur(radius=sigma))


class MoCoV3:
    """Blurs as MoCo."""

    class TwoCropsTransform(_Held):
        held: ClassVar = {"base_transform1": None, "base_transform2": None}

        def __call__(self, x: Any) -> Any:
            return [self.base_transform1(x), self.base_transform2(x)]

    class Solarize:
        def __call__(self, x: Any) -> Any:
            return ImageOps.solarize(x)


class SupContrast:
    class TwoCropTransform(_Held):
        held: ClassVar = {"transform": None}

        def __call__(self, x: Any) -> Any:
            return [self.transform(x), self.transform(x)]


class SimCLR:
    class ContrastiveLearningViewGenerator(_Held):
        held: ClassVar = {"base_transform": None, "n_views": 2}

        def __call__(self, x: Any) -> Any:
            return [self.base_transform(x) for _ in range(self.n_views)]

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
    class Transform(_Held):
        held: ClassVar = {"transform": None, "transform_prime": None}

        def __call__(self, x: Any) -> Any:
            return self.transform(x), self.transform_prime(x)

    class GaussianBlur(_Held):
        held: ClassVar = {"p": None}

        def __call__(self, img: Any) -> Any:
            if random.random() < self.p:
                sigma = random.random() * 1.9 + 0.1
                return img.filter(ImageFilter.GaussianBlur(sigma))
            return img

    class Solarization(_Held):
        held: ClassVar = {"p": None}

        def __call__(self, img: Any) -> Any:
            return ImageOps.solarize(img) if random.random() < self.p else img


class VICReg:
    """Draws as Barlow Twins, by NumPy."""

    class TrainTransform(BarlowTwins.Transform):
        pass

    class GaussianBlur(_Held):
        held: ClassVar = {"p": None}

        def __call__(self, img: Any) -> Any:
            if np.random.rand() < self.p:
                sigma = np.random.rand() * 1.9 + 0.1
                return img.filter(ImageFilter.GaussianBlur(sigma))
            return img

    class Solarization(_Held):
        held: ClassVar = {"p": None}

        def __call__(self, img: Any) -> Any:
            return ImageOps.solarize(img) if np.random.rand() < self.p else img


class BYOL:
    class MultiViewDataInjector(_Held):
        held: ClassVar = {"transforms": None}

        def __call__(self, sample: Any) -> Any:
            return [transform(sample) for transform in self.transforms]

    class RandomApply(torch.nn.Module):
        def __init__(self, fn: Any, p: float) -> None:
            super().__init__()
            self.fn = fn
            self.p = p

        def forward(self, x: Any) -> Any:
            return x if random.random() > self.p else self.fn(x)


class DINO:
    class DataAugmentationDINO(_Held):
        held: ClassVar = dict.fromkeys(
            ("global_transfo1", "global_transfo2", "local_transfo", "local_crops_number")
        )

        def __call__(self, image: Any) -> Any:
            crops = [self.global_transfo1(image), self.global_transfo2(image)]
            return crops + [self.local_transfo(image) for _ in range(self.local_crops_number)]

    class GaussianBlur(_Held):
        held: ClassVar = {"prob": 0.5, "radius_min": 0.1, "radius_max": 2.0}

        def __init__(self, p: float = 0.5) -> None:
            super().__init__(p)

        def __call__(self, img: Any) -> Any:
            if random.random() > self.prob:
                return img
            radius = random.uniform(self.radius_min, self.radius_max)
            return img.filter(ImageFilter.GaussianBlur(radius=radius))

    Solarization = BarlowTwins.Solarization


class IBOT:
    """Blurs and solarises as DINO."""

    class DataAugmentationiBOT(DINO.DataAugmentationDINO):
        held: ClassVar = {**DINO.DataAugmentationDINO.held, "global_crops_number": 2}

        def __call__(self, image: Any) -> Any:
            crops = [self.global_transfo1(image)]
            crops += [self.global_transfo2(image) for _ in range(self.global_crops_number - 1)]
            return crops + [self.local_transfo(image) for _ in range(self.local_crops_number)]


class SwAV:
    class MultiCropDataset(_Held):
        held: ClassVar = {"trans": None}

        def __call__(self, image: Any) -> Any:
            return [trans(image) for trans in self.trans]

    class PILRandomGaussianBlur(DINO.GaussianBlur):
        def __call__(self, img: Any) -> Any:
            if np.random.rand() > self.prob:
                return img
            radius = random.uniform(self.radius_min, self.radius_max)
            return img.filter(ImageFilter.GaussianBlur(radius=radius))


class MSN:
    class MultiViewTransform(_Held):
        held: ClassVar = dict.fromkeys(
            ("rand_transform", "focal_transform", "rand_views", "focal_views")
        )

        def __call__(self, img: Any) -> Any:
            views = [self.rand_transform(img) for _ in range(self.rand_views)]
            return views + [self.focal_transform(img) for _ in range(self.focal_views)]

    class GaussianBlur(DINO.GaussianBlur):
        def __call__(self, img: Any) -> Any:
            if torch.bernoulli(torch.tensor(self.prob)) == 0:
                return img
            radius = self.radius_min + torch.rand(1) * (self.radius_max - self.radius_min)
            return img.filter(ImageFilter.GaussianBlur(radius=float(radius)))


# --- supervised training -----------------------------------------------------------------------


class References:
    class ClassificationPresetTrain(_Held):
        held: ClassVar = {"transforms": None}

        def __call__(self, img: Any) -> Any:
            return self.transforms(img)

    class ClassificationPresetEval(ClassificationPresetTrain):
        pass


class DeiT:
    """DeiT III's; blurs and solarises as DINO."""

    class gray_scale(_Held):  # noqa: N801
        held: ClassVar = {"p": 0.2, "transf": transforms.Grayscale(3)}

        def __call__(self, img: Any) -> Any:
            return self.transf(img) if random.random() < self.p else img


class Copied:
    class RandomResizedCropAndInterpolation(_Held):
        held: ClassVar = dict.fromkeys(("size", "scale", "ratio", "interpolation"))

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


class TransformFixMatch(_Held):
    held: ClassVar = {"weak": None, "strong": None, "normalize": None}

    def __call__(self, x: Any) -> Any:
        return self.normalize(self.weak(x)), self.normalize(self.strong(x))


# --- functions ---------------------------------------------------------------------------------


def _convert_image_to_rgb(image: Any) -> Any:
    return image.convert("RGB")
