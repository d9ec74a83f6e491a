"""DINOv2's transforms (``dinov2.data``) in our terms.

They are known by their exact type; dinov2 is never imported here. Its ``GaussianBlur`` is
torchvision's RandomApply with another constructor, which hands over ``1 - p``: it blurs with that
probability.
"""

from __future__ import annotations

from typing import Any

from fastdata.transforms.originals import name_in
from fastdata.transforms.outcomes import Found, to_tensor


def translate(transform: Any, kind: str, dtype: str) -> Found | None:
    """One of DINOv2's transforms; None for anything else.

    As `Libraries.translate` of `fastdata.transforms.reading`.
    """
    if name_in(transform, "dinov2.data.transforms") != "MaybeToTensor":
        return None
    return to_tensor(kind)
