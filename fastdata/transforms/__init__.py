"""Image transforms that the native core executes; descriptions, not code.

Names, arguments and pixels are torchvision's (``torchvision.transforms``, version 0.28)::

    train = Compose([RandomResizedCrop(224), RandomHorizontalFlip(), Normalize(MEAN, STD)])
    val = Compose([Resize(256), CenterCrop(224), Normalize(MEAN, STD)])

Each may also be called with one PIL image, in any dataset's ``transform`` on torch's path. That
always gives a tensor, (3, height, width): uint8 from 0 to 255, or floats after :class:`Normalize`;
after :class:`Views` a list of them, or a dict of lists. A call draws from torch's global generator:
one number of 64 bits (a view), if anything is random. ``torch.manual_seed`` governs it. Only
calling them needs torch.

A transform is one class: its fields, its checks, the size it leaves, its nodes in the core's
program. `fastdata.transforms.compile` makes programs of pipelines.
"""

from fastdata.transforms.base import Transform
from fastdata.transforms.colours import (
    ColorJitter,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    PillowBlur,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomSolarize,
)
from fastdata.transforms.containers import Compose, RandomApply, RandomChoice, RandomOrder, Views
from fastdata.transforms.crops import (
    CenterCrop,
    FixedSizeCrop,
    Pad,
    PadToSize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
from fastdata.transforms.output import Normalize, RandomErasing
from fastdata.transforms.policies import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from fastdata.transforms.resizes import (
    RandomResize,
    RandomResizedCrop,
    RandomShortestSize,
    Resize,
    ResizeKeepRatio,
    ResizeToSequence,
    ScaleJitter,
)
from fastdata.transforms.schedule import BySize, Schedule
from fastdata.transforms.targets import (
    ClampBoundingBoxes,
    ConvertBoundingBoxFormat,
    RandomIoUCrop,
    RandomZoomOut,
    SanitizeBoundingBoxes,
)
from fastdata.transforms.warps import RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "AugMix",
    "AutoAugment",
    "BySize",
    "CenterCrop",
    "ClampBoundingBoxes",
    "ColorJitter",
    "Compose",
    "ConvertBoundingBoxFormat",
    "FixedSizeCrop",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "Normalize",
    "Pad",
    "PadToSize",
    "PillowBlur",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Resize",
    "ResizeKeepRatio",
    "ResizeToSequence",
    "SanitizeBoundingBoxes",
    "ScaleJitter",
    "Schedule",
    "Transform",
    "TrivialAugmentWide",
    "Views",
]
