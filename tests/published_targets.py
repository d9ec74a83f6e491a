"""Classes of published detection and segmentation scripts, which no package has.

Written for the tests: they derive from the same classes of torchvision's as the scripts' own, and
call the same functions in the same order.
"""

from __future__ import annotations

from typing import Any

import PIL.Image
import torch
from torchvision_stub import import_torchvision

import_torchvision()

import torchvision  # noqa: E402
import torchvision.transforms.v2 as T  # noqa: E402, N812
import torchvision.transforms.v2.functional as F  # noqa: E402, N812
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import functional  # noqa: E402

BoundingBoxes, Image, Mask = tv_tensors.BoundingBoxes, tv_tensors.Image, tv_tensors.Mask

_KEYS = ["format", "canvas_size"]


def as_target(tensor: Any, key: str, box_format: str = "xyxy", spatial_size: Any = None) -> Any:
    assert key in ("boxes", "masks"), "a key that is not known"
    if key == "boxes":
        named = getattr(tv_tensors.BoundingBoxFormat, box_format.upper())
        about = dict(zip(_KEYS, [named, spatial_size]))  # noqa: B905
        return BoundingBoxes(tensor, **about)
    return Mask(tensor)


class EmptyTransform(T.Transform):  # type: ignore[misc]
    def forward(self, *inputs: Any) -> Any:
        inputs = inputs if len(inputs) > 1 else inputs[0]
        return inputs  # noqa: RET504


class RandomIoUCrop(T.RandomIoUCrop):  # type: ignore[misc]
    """torchvision's, with a probability."""

    def __init__(self, *args: Any, p: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.p = p

    def __call__(self, *inputs: Any) -> Any:
        if torch.rand(1) >= self.p:
            return inputs if len(inputs) > 1 else inputs[0]
        return super().forward(*inputs)


class ConvertBoxes(T.Transform):  # type: ignore[misc]
    """Boxes in a format, as shares of the sides if that is asked for."""

    _transformed_types = (BoundingBoxes,)

    def __init__(self, fmt: str = "", normalize: bool = False) -> None:
        super().__init__()
        self.fmt = fmt
        self.normalize = normalize

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return self._convert(inpt)

    def _convert(self, inpt: Any) -> Any:
        size = getattr(inpt, _KEYS[1])
        if self.fmt:
            before = inpt.format.value.lower()
            inpt = torchvision.ops.box_convert(inpt, in_fmt=before, out_fmt=self.fmt.lower())
            inpt = as_target(inpt, "boxes", box_format=self.fmt.upper(), spatial_size=size)
        if self.normalize:
            inpt = inpt / torch.tensor(size[::-1]).tile(2)[None]
        return inpt


class ConvertPILImage(T.Transform):  # type: ignore[misc]
    _transformed_types = (PIL.Image.Image,)

    def __init__(self, dtype: str = "float32", scale: bool = True) -> None:
        super().__init__()
        self.dtype = dtype
        self.scale = scale

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        inpt = F.pil_to_tensor(inpt)
        if self.dtype == "float32":
            inpt = inpt.float()
        if self.scale:
            inpt = inpt / 255.0
        return Image(inpt)


class PadIfSmaller(T.Transform):  # type: ignore[misc]
    def __init__(self, size: int, fill: Any = 0) -> None:
        super().__init__()
        self.size = size
        self.fill = T._utils._setup_fill_arg(fill)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        _, height, width = T._utils.query_chw(flat_inputs)
        padding = [0, 0, max(self.size - width, 0), max(self.size - height, 0)]
        return dict(padding=padding, needs_padding=any(padding))  # noqa: C408

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if not params["needs_padding"]:
            return inpt
        fill = T._utils._convert_fill_arg(T._utils._get_fill(self.fill, type(inpt)))
        return T.functional.pad(inpt, padding=params["padding"], fill=fill)


class Policy(T.Compose):  # type: ignore[misc]
    """A Compose that leaves out some transforms from an epoch on, which its dataset names."""

    def __init__(self, ops: list[Any], policy: dict[str, Any] | None = None) -> None:
        super().__init__(ops)
        self.policy = policy or {"name": "default"}
        self.seen = 0

    def forward(self, *inputs: Any) -> Any:
        return self.get_forward(self.policy["name"])(*inputs)

    def get_forward(self, name: str) -> Any:
        return {
            "default": self.default_forward,
            "stop_epoch": self.stop_epoch_forward,
            "stop_sample": self.stop_sample_forward,
        }[name]

    def default_forward(self, *inputs: Any) -> Any:
        sample = inputs if len(inputs) > 1 else inputs[0]
        for transform in self.transforms:
            sample = transform(sample)
        return sample

    def stop_epoch_forward(self, *inputs: Any) -> Any:
        sample = inputs if len(inputs) > 1 else inputs[0]
        epoch = sample[-1].epoch
        for transform in self.transforms:
            if type(transform).__name__ in self.policy["ops"] and epoch >= self.policy["epoch"]:
                pass
            else:
                sample = transform(sample)
        return sample

    def stop_sample_forward(self, *inputs: Any) -> Any:
        self.seen += 1
        return self.default_forward(*inputs)


class Preset:
    """A pipeline that is called, as in torchvision's references."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, img: Any, target: Any) -> Any:
        return self.transforms(img, target)


class Epochs:
    """The epoch, as datasets of the scripts keep it."""

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    @property
    def epoch(self) -> int:
        return self._epoch if hasattr(self, "_epoch") else -1


class FixedSizeCrop(torch.nn.Module):
    """A crop with the arithmetic of scripts from before v2, on a dict that it changes."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, image: Any, target: Any) -> Any:
        _, height, width = functional.get_dimensions(image)
        left = int(max(width - self.side, 0) * torch.rand(1))
        image = functional.crop(image, 0, left, height, min(width, self.side))
        target["boxes"][:, 0::2] -= left
        return image, target
