"""DINOv2's transforms (``dinov2.data``) in our terms.

They are known by their exact type; dinov2 is never imported here. Its ``GaussianBlur`` is
torchvision's RandomApply with another constructor, which hands over ``1 - p``: it blurs with that
probability.
"""

from __future__ import annotations

from typing import Any

from fastdata.errors import UsageError
from fastdata.transforms.conversion import Found, name_in
from fastdata.transforms.descriptions import Views
from fastdata.transforms.timm import to_tensor


def views(transform: Any) -> Views | None:
    """A ``DataAugmentationDINO``, in ours; None for anything else."""
    if not name_in(transform, "dinov2.data.augmentations"):
        return None
    try:
        whole, part = (
            transform.geometric_augmentation_global,
            transform.geometric_augmentation_local,
        )
        compose, count = type(whole), int(transform.local_crops_number)
        first, second = (
            compose([whole, augmentation])
            for augmentation in (transform.global_transfo1, transform.global_transfo2)
        )
        local = compose([part, transform.local_transfo])
        both = range(2)
        return Views.grouped(
            [first, second, *[local] * count],
            (
                ("global_crops", both),
                ("global_crops_teacher", both),
                ("local_crops", range(2, 2 + count)),
                ("offsets", range(0)),
            ),
        )
    except (AttributeError, TypeError, UsageError, ValueError):  # another version's
        return None


def translate(transform: Any, kind: str, dtype: str) -> Found | None:
    """One of DINOv2's transforms; None for anything else.

    As `fastdata.transforms.libraries.translate`.
    """
    known = name_in(transform, "dinov2.data.transforms") == "MaybeToTensor"
    return to_tensor(kind) if known else None
