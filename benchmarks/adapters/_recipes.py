"""Recipes of augmentation, in torchvision's transforms.

Adapters of libraries that run Python transforms use the pipeline as it is; DALI's translates it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

#: Of ImageNet: every recipe ends with this normalisation, in float32.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Steps = Callable[[Any], Sequence[Any]]


class Recipe(NamedTuple):
    """Steps after a random resized crop and a flip.

    Attributes:
        title: What tables call it.
        steps: The augmentations of the uint8 image, from ``torchvision.transforms`` or its ``v2``.
        size: Side of the crop, in pixels.
        last: What follows the normalisation.
    """

    title: str
    steps: Steps
    size: int = 224
    last: Steps = lambda tv: ()


#: "none" is the plain crop and flip, normalised: the ceiling of the others.
RECIPES = {
    "none": Recipe("no augmentation", lambda tv: ()),
    "trivialaugment": Recipe(
        "TrivialAugmentWide, RandomErasing(0.1)",
        lambda tv: [tv.TrivialAugmentWide()],
        size=176,
        last=lambda tv: [tv.RandomErasing(0.1)],
    ),
    "randaugment": Recipe("RandAugment", lambda tv: [tv.RandAugment()]),
    "autoaugment": Recipe("AutoAugment, ImageNet's policy", lambda tv: [tv.AutoAugment()]),
    "colorjitter": Recipe("ColorJitter(0.4, 0.4, 0.4)", lambda tv: [tv.ColorJitter(0.4, 0.4, 0.4)]),
    "colorjitter-hue": Recipe(
        "ColorJitter(0.4, 0.4, 0.4, 0.1)", lambda tv: [tv.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    ),
    "simclr": Recipe(
        "SimCLR with BYOL's solarisation: jitter, grayscale, blur, solarize",
        lambda tv: [
            tv.RandomApply([tv.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            tv.RandomGrayscale(0.2),
            tv.RandomApply([tv.GaussianBlur(23, (0.1, 2.0))], p=0.5),
            tv.RandomSolarize(128, p=0.2),
        ],
    ),
}


def pipeline(tv: Any, recipe: str, geometry: Sequence[Any] = ()) -> Any:
    """Return a torchvision pipeline from a PIL image to a float32 tensor (3, H, W).

    ``tv`` is ``torchvision.transforms`` (all on PIL images) or its ``v2`` (all on uint8 tensors).
    Recipe "" has no augmentation, and values from 0 to 1.
    """
    found = RECIPES[recipe or "none"]
    steps = [*geometry, *found.steps(tv)]
    if hasattr(tv, "ToImage"):
        import torch

        steps = [tv.ToImage(), *steps, tv.ToDtype(torch.float32, scale=True)]
    else:
        steps.append(tv.ToTensor())
    if recipe:
        steps.append(tv.Normalize(MEAN, STD))
    return tv.Compose([*steps, *found.last(tv)])


def crop(tv: Any, kind: str, size: int) -> Sequence[Any]:
    """Return the crops of ImageNet training ("train") or validation ("val")."""
    if kind == "train":
        return [tv.RandomResizedCrop(size), tv.RandomHorizontalFlip()]
    return [tv.Resize(round(size * 256 / 224)), tv.CenterCrop(size)]
