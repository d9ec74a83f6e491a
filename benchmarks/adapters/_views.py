"""Recipes of several views, as their authors' scripts have them.

Where a script has a class of its own, `Recipe.ours` has what docs/loader.md puts in its place, and
`Recipe.views` calls Pillow, as the script's class does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastdata.benchmarks.adapters._recipes import MEAN, STD
from PIL import ImageFilter, ImageOps


@dataclass(frozen=True)
class Recipe:
    """One list of transforms as the script has it, and one for `fastdata.transforms.Views`."""

    views: Sequence[Any]
    ours: Sequence[Any]

    def __call__(self, image: Any) -> list[Any]:
        """An image's views."""
        return [view(image) for view in self.views]


def _blurred(image: Any) -> Any:
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


class _Script:
    """What the scripts are made of; of Pillow's operations, or what stands for them."""

    def __init__(self, tv: Any, pillow: bool) -> None:
        self.tv, self._pillow = tv, pillow

    def crop(
        self, size: int, scale: tuple[float, float] = (0.08, 1.0), filtered: str = "bicubic"
    ) -> Any:
        mode = self.tv.InterpolationMode(filtered)
        return self.tv.RandomResizedCrop(size, scale=scale, interpolation=mode)

    def flip(self) -> Any:
        return self.tv.RandomHorizontalFlip(p=0.5)

    def colours(self, *jitter: float) -> list[Any]:
        """Jitter by that much in four of five images, and grey in one of five."""
        distorted = self.tv.RandomApply([self.tv.ColorJitter(*jitter)], p=0.8)
        return [distorted, self.tv.RandomGrayscale(p=0.2)]

    def blur(self, p: float) -> Any:
        """Pillow's, by a radius of 0.1 to 2."""
        blur = _blurred if self._pillow else self.tv.GaussianBlur(9, (0.1, 2.0))
        return self.tv.RandomApply([blur], p=p)

    def solarised(self, p: float) -> Any:
        if self._pillow:
            return self.tv.RandomApply([ImageOps.solarize], p=p)
        return self.tv.RandomSolarize(128, p=p)

    def view(self, *steps: Any) -> Any:
        normalise = self.tv.Normalize(MEAN, STD)
        return self.tv.Compose([*steps, self.tv.ToTensor(), normalise])


def _dino(
    s: _Script, whole: tuple[float, float], part: tuple[float, float], count: int
) -> list[Any]:
    """DINO's ``DataAugmentationDINO`` (main_dino.py), and iBOT's ``DataAugmentationiBOT``."""
    colours = [s.flip(), *s.colours(0.4, 0.4, 0.2, 0.1)]
    first = s.view(s.crop(224, whole), *colours, s.blur(1.0))
    second = s.view(s.crop(224, whole), *colours, s.blur(0.1), s.solarised(0.2))
    return [first, second, *[s.view(s.crop(96, part), *colours, s.blur(0.5))] * count]


def _dinov2(s: _Script) -> list[Any]:
    """DINOv2's ``DataAugmentationDINO``, whose ``GaussianBlur(p)`` blurs with probability 1 - p."""
    tv = s.tv
    colours = [s.flip(), *s.colours(0.4, 0.4, 0.2, 0.1)]

    def view(size: int, scale: tuple[float, float], blurred: float, *more: Any) -> Any:
        blur = tv.RandomApply([tv.GaussianBlur(9, (0.1, 2.0))], p=blurred)
        return s.view(s.crop(size, scale), *colours, blur, *more)

    whole, solarised = (0.32, 1.0), tv.RandomSolarize(threshold=128, p=0.2)
    local = view(98, (0.05, 0.32), 0.5)
    return [view(224, whole, 0.0), view(224, whole, 0.9, solarised), *[local] * 8]


def _swav(s: _Script) -> list[Any]:
    """SwAV's ``MultiCropDataset``."""
    return [
        s.view(
            s.crop(size, scale, "bilinear"), s.flip(), *s.colours(0.8, 0.8, 0.8, 0.2), s.blur(0.5)
        )
        for size, scale, count in ((224, (0.14, 1.0), 2), (96, (0.05, 0.14), 6))
        for _ in range(count)
    ]


def _msn(s: _Script) -> list[Any]:
    """MSN's ``MultiViewTransform``, with the defaults of ``make_transforms``."""
    colours = [s.flip(), *s.colours(0.8, 0.8, 0.8, 0.2), s.blur(0.5)]
    whole = s.view(s.crop(224, (0.3, 1.0), "bilinear"), *colours)
    return [whole] * 2 + [s.view(s.crop(96, (0.05, 0.3), "bilinear"), *colours)] * 10


def _simclr(s: _Script) -> list[Any]:
    """SimCLR's two views, of one transform."""
    blur = s.tv.RandomApply([s.tv.GaussianBlur(23, (0.1, 2.0))], p=0.5)
    crop = s.crop(224, filtered="bilinear")
    return [s.view(crop, s.flip(), *s.colours(0.8, 0.8, 0.8, 0.2), blur)] * 2


def _moco(s: _Script) -> list[Any]:
    """MoCo's two views, of version 2."""
    crop = s.crop(224, (0.2, 1.0), "bilinear")
    return [s.view(crop, *s.colours(0.4, 0.4, 0.4, 0.1), s.blur(0.5), s.flip())] * 2


def _two(s: _Script, filtered: str) -> list[Any]:
    """The two views of BYOL and MoCo v3: one always blurred, one solarised now and then."""
    crop, colours = s.crop(224, filtered=filtered), s.colours(0.4, 0.4, 0.2, 0.1)
    return [
        s.view(crop, *colours, s.blur(1.0), s.flip()),
        s.view(crop, *colours, s.blur(0.1), s.solarised(0.2), s.flip()),
    ]


_RECIPES = {
    "DINO, 2 + 8 crops": partial(_dino, whole=(0.4, 1.0), part=(0.05, 0.4), count=8),
    "DINOv2, 2 + 8 crops": _dinov2,
    "iBOT, 2 + 10 crops": partial(_dino, whole=(0.25, 1.0), part=(0.05, 0.25), count=10),
    "SwAV, 2 + 6 crops": _swav,
    "MSN, 2 + 10 crops": _msn,
    "SimCLR, 2 views": _simclr,
    "BYOL, 2 views": partial(_two, filtered="bicubic"),
    "MoCo v2, 2 views": _moco,
    "MoCo v3, 2 views": partial(_two, filtered="bilinear"),
}
#: All recipes, by name.
NAMES = tuple(_RECIPES)


def recipe(name: str, tv: Any) -> Recipe:
    """One of `NAMES`.

    Args:
        name: Its name.
        tv: ``torchvision.transforms``.
    """
    make = _RECIPES[name]
    return Recipe(make(_Script(tv, pillow=True)), make(_Script(tv, pillow=False)))
