"""DINOv2's transforms (``dinov2.data``) in our terms.

They are known by their exact type; dinov2 is never imported here. Its ``GaussianBlur`` is
torchvision's RandomApply with another constructor, which hands over ``1 - p``: it blurs with that
probability.
"""

from __future__ import annotations

from typing import Any

from fastdata.transforms.conversion import Found, name_in
from fastdata.transforms.timm import to_tensor


def translate(transform: Any, kind: str, dtype: str) -> Found | None:
    """One of DINOv2's transforms; None for anything else.

    As `fastdata.transforms.libraries.translate`.
    """
    known = name_in(transform, "dinov2.data.transforms") == "MaybeToTensor"
    return to_tensor(kind) if known else None
