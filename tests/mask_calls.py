"""Masks of photographs, and what torchvision's functions on ``tv_tensors.Mask`` make of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jpegs import sample_files
from PIL import Image
from torchvision_stub import import_torchvision

from fastdata import transforms as t
from fastdata.transforms.nodes import OnTensors
from fastdata.transforms.tree import native_program

#: Kinds of masks: of a palette, 8, 16 and 1 bits, ids in three bytes, and with an alpha channel.
KINDS = ("P", "L", "I;16", "1", "RGB", "LA", "RGBA")


def photograph(number: int, side: int = 200) -> Any:
    files = sample_files()
    with Image.open(files[number % len(files)]) as image:
        image = image.convert("RGB")
        image.thumbnail((side, side))
        return np.asarray(image)


def mask_of(pixels: Any, kind: str) -> Image.Image:
    light = pixels[..., :3].astype(np.int64).sum(2) // 3
    match kind:
        case "P":
            found = Image.fromarray((light // 13).astype(np.uint8), "P")
            found.putpalette(np.random.default_rng(1).integers(0, 256, 768, np.uint8).tobytes())
            return found
        case "1":
            return Image.fromarray(light > 100)
        case "I;16":
            return Image.fromarray((light * 257 + np.arange(light.shape[1])).astype(np.uint16))
        case "L":
            return Image.fromarray((light // 5).astype(np.uint8))
        case "RGB":
            return Image.fromarray(pixels)
        case _:
            return Image.fromarray(pixels).convert(kind)


def as_png(mask: Image.Image) -> bytes:
    file = io.BytesIO()
    mask.save(file, "PNG")
    return file.getvalue()


class Oracle:
    def __init__(self, mask: Image.Image) -> None:
        self.tv = import_torchvision()
        self.functions = self.tv.transforms.v2.functional
        tensor = self.functions.pil_to_tensor(mask)
        self.dtype = tensor.dtype
        if tensor.dtype == torch.uint16:  # torch mirrors none of these
            tensor = tensor.to(torch.int32)
        self.mask = self.tv.tv_tensors.Mask(tensor)

    def result(self) -> Any:
        return self.mask.as_subclass(torch.Tensor).to(self.dtype).numpy()

    def cut(self, cut: Any, fill: int = 0) -> None:
        """Crop, resize, crop, mirror; fill what lies outside."""
        left, upper, right, lower = cut["box"].tolist()
        self._crop(left, upper, right - left, lower - upper, fill)
        width, height = cut["size"].tolist()
        if self.mask.shape[-2:] != (height, width):
            self._mirror(int(cut["flip"]) >> 2)
            self.mask = self.functions.resize(self.mask, [height, width])
            self._mirror(int(cut["flip"]) >> 2)
        self._crop(*cut["window"].tolist(), *cut["canvas"].tolist(), fill)
        self._mirror(int(cut["flip"]))

    def _crop(self, left: int, upper: int, width: int, height: int, fill: int) -> None:
        rows, columns = self.mask.shape[-2:]
        sides = [-left, -upper, left + width - columns, upper + height - rows]
        more = [max(side, 0) for side in sides]
        mask = self.functions.pad(self.mask, more, fill=fill)
        self.mask = self.functions.crop(mask, upper + more[1], left + more[0], height, width)

    def _mirror(self, bits: int) -> None:
        self.mask = self.functions.horizontal_flip(self.mask) if bits & 1 else self.mask
        self.mask = self.functions.vertical_flip(self.mask) if bits & 2 else self.mask

    def steps(self, steps: Sequence[Any], key: int, width: int, height: int) -> None:
        done = 0
        for at, step in enumerate(steps):
            calls, *_ = native_program(tuple(steps[: at + 1])).draw(key, width, height)
            self._step(step, calls[done:])
            done = len(calls)

    def _step(self, step: Any, calls: Sequence[tuple[str, Sequence[float]]]) -> None:
        inner = step.transform if isinstance(step, OnTensors) else step
        fill = getattr(inner, "fill", (0,))[0] if getattr(inner, "mask_fill", None) is None else 0
        fill = getattr(inner, "mask_fill", None) or fill
        functions, mask = self.functions, self.mask
        if isinstance(inner, t.RandomRotation):
            angle = inner.degrees[0]
            center = None if inner.center is None else list(inner.center)
            self.mask = functions.rotate(mask, angle, center=center, fill=fill)
            return
        if isinstance(inner, t.RandomAffine) and inner.translate is None:
            shear = [inner.shear[0], 0.0]
            angle, scale = inner.degrees[0], inner.scale[0]
            self.mask = functions.affine(mask, angle, [0, 0], scale, shear, fill=fill)
            return
        for name, values in calls:
            mask = self._called(name, list(values), step, fill, mask)
        self.mask = mask

    def _called(self, name: str, v: list[float], step: Any, fill: int, mask: Any) -> Any:
        functions = self.functions
        whole = [int(value) for value in v]
        match name:
            case "flip_horizontal":
                return functions.horizontal_flip(mask)
            case "flip_vertical":
                return functions.vertical_flip(mask)
            case "crop" | "iou_crop":
                return functions.crop(mask, whole[1], whole[0], whole[3], whole[2])
            case "resize":
                return functions.resize(mask, [whole[1], whole[0]])
            case "pad":
                mode = ("constant", "edge", "reflect", "symmetric")[whole[4]]
                return functions.pad(mask, whole[:4], fill=fill, padding_mode=mode)
            case "perspective" | "tensor_perspective":
                return functions.perspective(mask, None, None, coefficients=v[:8], fill=fill)
            case "tensor_affine":
                functional = self.tv.transforms._functional_tensor
                plain = mask.as_subclass(torch.Tensor)
                made = functional.affine(plain, v[:6], "nearest", [float(fill)])
                return self.tv.tv_tensors.Mask(made)
        return mask  # colours
