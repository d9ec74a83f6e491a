"""timm's augmentations as lists of calls, as `tests/torchvision_calls.py` has torchvision's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from PIL import Image, ImageEnhance, ImageOps
from torchvision_calls import Call

_ENHANCERS = {
    "Brightness": "brightness",
    "Color": "saturation",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
}
_WARPS = {Image.Resampling.BILINEAR: 1, Image.Resampling.BICUBIC: 2}


@contextmanager
def recording() -> Iterator[list[Call]]:
    calls: list[Call] = []

    def note(name: str, *values: Any) -> None:
        calls.append((name, tuple(float(value) for value in values)))

    def operation(name: str) -> Any:
        def call(image: Any, *values: Any) -> Any:
            note(name, *values)
            return image

        return call

    def transform(self: Any, size: Any, method: Any, data: Any, resample: Any, **named: Any) -> Any:
        assert method == Image.Transform.AFFINE
        note("affine", *data, _WARPS[resample], *named["fillcolor"])
        return self

    def point(self: Any, table: Any) -> Any:
        note("solarize_add", table[0], 128)
        return self

    def blurred(self: Any, kernel: Any) -> Any:
        note("box_blur", kernel.radius if isinstance(kernel.radius, float) else kernel.radius[0])
        return self

    with pytest.MonkeyPatch.context() as patch:
        for name in ("posterize", "solarize", "autocontrast", "equalize", "invert"):
            patch.setattr(ImageOps, name, operation(name))
        for name, ours in _ENHANCERS.items():

            def enhance(self: Any, factor: float, ours: str = ours) -> Any:
                note(ours, factor)
                return self.image

            patch.setattr(getattr(ImageEnhance, name), "__init__", _keep_image)
            patch.setattr(getattr(ImageEnhance, name), "enhance", enhance)
        patch.setattr(Image.Image, "transform", transform)
        patch.setattr(Image.Image, "point", point)
        patch.setattr(Image.Image, "filter", blurred)
        yield calls


def _keep_image(self: Any, image: Any) -> None:
    self.image = image
