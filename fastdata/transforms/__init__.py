"""Image transforms that the native core executes; descriptions, not code.

The public classes are in `fastdata.transforms.descriptions`; `fastdata.transforms.compile` makes
of a pipeline what the core does and what is left to call; `fastdata.transforms.pillow` does the
same to one image.
"""

from fastdata.transforms import pillow
from fastdata.transforms.descriptions import (
    CenterCrop,
    Compose,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Transform,
    Views,
)

__all__ = [
    "CenterCrop",
    "Compose",
    "Normalize",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "Transform",
    "Views",
]

Transform._call = staticmethod(pillow.call)
