"""torchvision's transforms, v1 and v2, in the terms of `fastdata.transforms`.

Transforms are known by their exact type: a subclass may do anything, unless it has no more than
another constructor. torchvision is never imported here: where it is not imported already, there is
none of its transforms.

What is kept is what the transforms would return: shape, dtype, and the values within 1/255 of
Pillow's crop and resize. On PIL images torchvision always antialiases, whatever ``antialias``
says; on tensors only where that is asked for. Floats are resized, warped and coloured as bytes
are, and then converted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from fastdata.errors import UsageError
from fastdata.transforms import torchvision_pixels
from fastdata.transforms.augmentations import RandomApply, RandomChoice, RandomOrder
from fastdata.transforms.conversion import (
    HAS_NO_FLOATS,
    HAS_TENSOR,
    NOT_KNOWN,
    Conversion,
    Found,
    kind_of,
    name_in,
)
from fastdata.transforms.descriptions import (
    FLOATS,
    CenterCrop,
    FiveCrop,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    TenCrop,
    Transform,
)


def parts(transform: Any) -> Sequence[Any] | None:
    """The transforms in a Compose, a preset of one, a ``torch.nn.Sequential``; None for others."""
    if _version(transform) is not None and kind_of(transform).__name__ == "Compose":
        return tuple(transform.transforms)
    if name_in(transform, "torch.nn") == "Sequential":
        return tuple(transform)
    return None


def views(transform: Any) -> FiveCrop | TenCrop | None:
    """A FiveCrop or TenCrop, in ours; None for anything else."""
    if _version(transform) is None or kind_of(transform).__name__ not in ("FiveCrop", "TenCrop"):
        return None
    if kind_of(transform).__name__ == "FiveCrop":
        return FiveCrop(transform.size)
    return TenCrop(transform.size, transform.vertical_flip)


def translate(transform: Any, kind: str, dtype: str) -> Found:
    """One transform that is not a Compose, as `fastdata.transforms.libraries.translate`."""
    version, name = _version(transform), kind_of(transform).__name__
    if _is_identity(transform):
        return Conversion()
    if version is None or not is_known(transform):
        return NOT_KNOWN if version is None else torchvision_pixels.DECLINED.get(name, NOT_KNOWN)
    if reason := _inconsistent(transform):
        return reason
    try:
        if name in _TRANSLATORS:
            return _TRANSLATORS[name](transform, version, kind, dtype)
        return torchvision_pixels.translate(transform, version, kind, dtype)
    except (AttributeError, UsageError, TypeError, ValueError) as error:
        # Its own arguments make no sense; torchvision will say so when it is called.
        return f"its arguments are not known: {getattr(error, 'what', error)}"


def is_known(transform: Any) -> bool:
    """Whether there is something in here for a transform of this type."""
    if _is_identity(transform):
        return True
    name = kind_of(transform).__name__
    known = name in _TRANSLATORS or name in torchvision_pixels.TRANSLATORS
    return known and _version(transform) is not None


def _inconsistent(transform: Any) -> str:
    """Say what a constructor has derived from parameters that are other ones now; "" for none."""
    own: dict[str, Any] = vars(transform)
    for name in ("policies", "_policies"):
        if name in own and own[name] != transform._get_policies(transform.policy):
            return f"its {name} are not those of its policy"
    if "_fill" in own:
        utilities = sys.modules["torchvision.transforms.v2._utils"]
        if own["_fill"] != utilities._setup_fill_arg(transform.fill):
            return "its _fill is not that of its fill"
    if "_log_ratio" in own:
        torch = sys.modules["torch"]
        if not torch.equal(own["_log_ratio"], torch.log(torch.tensor(transform.ratio))):
            return "its _log_ratio is not that of its ratio"
    return ""


def _is_identity(transform: Any) -> bool:
    return name_in(transform, "torch.nn") == "Identity"


def _version(transform: Any) -> int | None:
    """1 or 2: whose transform it is; None: not torchvision's."""
    for module, version in _VERSIONS.items():
        if name_in(transform, module):
            return version
    return None


_VERSIONS = {
    "torchvision.transforms": 1,
    "torchvision.transforms.v2": 2,
    "torchvision.transforms._presets": 2,
}


def _interpolation(transform: Any, kind: str, dtype: str) -> tuple[str, str]:
    """The filter's name, or "" and why it cannot be used."""
    mode = torchvision_pixels.interpolation_name(transform)
    if mode not in ("bilinear", "nearest", "nearest-exact", "bicubic", "lanczos"):
        return "", f"the interpolation {mode!r} is not known"
    if kind in ("tensor", "image"):
        if dtype not in ("uint8", "float32"):
            return "", f"it resizes {dtype}; put it before the conversion"
        # Measured against Pillow on photographs: bilinear is within 1 of 255, of bytes and of
        # floats. So is bicubic of bytes, but for 1 value in 4,000, at most 12 off. Of the nearest
        # ones even nearest-exact takes other pixels where two are as near.
        if mode == "bicubic" and dtype != "uint8":
            return "", f"{mode!r} makes floats beyond 0 and 1; put it before the conversion"
        if mode not in ("bilinear", "bicubic"):
            return "", f"{mode!r} gives other values on tensors than on PIL images"
        if not transform.antialias:
            return "", "on tensors it does not antialias; write antialias=True"
    # Pillow has one way of taking the nearest pixel; torchvision uses it for both names.
    return ("nearest" if mode == "nearest-exact" else mode), ""


def _resize(transform: Any, version: int, kind: str, dtype: str) -> Transform | str:
    name, reason = _interpolation(transform, kind, dtype)
    if reason:
        return reason
    if transform.size is None:
        return "a size of None is not known"
    return Resize(transform.size, name, transform.max_size)


def _random_resized_crop(transform: Any, version: int, kind: str, dtype: str) -> Transform | str:
    name, reason = _interpolation(transform, kind, dtype)
    if reason:
        return reason
    return RandomResizedCrop(transform.size, tuple(transform.scale), tuple(transform.ratio), name)


def _center_crop(transform: Any, version: int, kind: str, dtype: str) -> Transform | str:
    return CenterCrop(transform.size)


def _random_crop(transform: Any, version: int, kind: str, dtype: str) -> Transform | str:
    given: Any = transform.padding
    padding = (0,) if given is None else given if isinstance(given, Sequence) else (given,)
    if version == 2 and given is not None:
        left, right, top, bottom = given  # its constructor has put them in this order
        padding = (left, top, right, bottom)
    if isinstance(transform.fill, dict):
        return "a dict of fills is not known"
    needs = bool(transform.pad_if_needed)
    filled = transform.fill if isinstance(transform.fill, Sequence) else (transform.fill,)
    if dtype != "uint8" and any(filled) and (needs or any(padding)):
        return "it pads floats with others than zeros"
    mode = transform.padding_mode
    if version == 2 and needs and any(padding) and mode in ("reflect", "symmetric"):
        return f"padding twice by {mode!r} is not known"
    return RandomCrop(transform.size, tuple(padding), needs, transform.fill, mode)


def _flip(transform: Any, version: int, kind: str, dtype: str) -> Transform | str:
    return RandomHorizontalFlip(transform.p)


def _normalize(transform: Any, version: int, kind: str, dtype: str) -> Transform | str:
    if kind == "pil" or dtype == "uint8":
        return HAS_NO_FLOATS
    values = []
    for given in (transform.mean, transform.std):
        each = given if hasattr(given, "__len__") else (given,)
        values.append(tuple(float(value) for value in each))
    return Normalize(*values)  # type: ignore[arg-type]


def _to_tensor(transform: Any, version: int, kind: str, dtype: str) -> Conversion | str:
    if kind in ("tensor", "image"):
        return Conversion() if version == 2 else HAS_TENSOR
    name = _dtype(sys.modules["torch"].get_default_dtype())
    return Conversion("tensor", name) if name in FLOATS else f"it makes {name}"


def _pil_to_tensor(transform: Any, version: int, kind: str, dtype: str) -> Conversion | str:
    if kind in ("tensor", "image"):
        return Conversion() if version == 2 else HAS_TENSOR
    return Conversion("tensor")


def _to_image(transform: Any, version: int, kind: str, dtype: str) -> Conversion | str:
    return Conversion("image")


def _to_pil_image(transform: Any, version: int, kind: str, dtype: str) -> Conversion | str:
    if kind == "pil":
        return Conversion() if version == 2 else "it has a PIL image here already"
    if dtype != "uint8" or transform.mode not in (None, "RGB"):
        return "it makes PIL images of floats, or of another mode than RGB"
    return Conversion("pil")


def _to_pure_tensor(transform: Any, version: int, kind: str, dtype: str) -> Conversion | str:
    return Conversion() if kind == "pil" else Conversion("tensor")


def _to_dtype(transform: Any, version: int, kind: str, dtype: str) -> Conversion | str:
    if isinstance(transform.dtype, dict):
        return "a dict of dtypes is not known"
    if kind == "pil":
        return Conversion()  # it leaves PIL images as they are
    return _convert(dtype, _dtype(transform.dtype), bool(transform.scale))


def _convert_image_dtype(transform: Any, version: int, kind: str, dtype: str) -> Conversion | str:
    if kind == "pil":
        return "it converts tensors, and has a PIL image here"
    return _convert(dtype, _dtype(transform.dtype), True)


def _convert(before: str, after: str, scale: bool) -> Conversion | str:
    if before == after:
        return Conversion()
    if after not in FLOATS:
        return f"it makes {after}"
    if before == "uint8" and not scale:
        return "it makes floats from 0 to 255: scale is False"
    if before in ("float16", "bfloat16"):
        return f"it makes {after} of values rounded to {before}"
    return Conversion(None, after)


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _apply(transform: Any, version: int, kind: str, dtype: str) -> Transform | str:
    return RandomApply(tuple(transform.transforms), transform.p)


def _choice(transform: Any, version: int, kind: str, dtype: str) -> Transform | str:
    return RandomChoice(tuple(transform.transforms), transform.p)


def _order(transform: Any, version: int, kind: str, dtype: str) -> Transform | str:
    return RandomOrder(tuple(transform.transforms))


def _preset(transform: Any, version: int, kind: str, dtype: str) -> Found:
    """What a classification model's ``weights.transforms()`` are."""
    name, reason = _interpolation(transform, kind, dtype)
    if reason:
        return reason
    floats = Conversion("tensor", "float32") if kind == "pil" else _convert(dtype, "float32", True)
    if isinstance(floats, str):
        return floats
    return (
        Resize(tuple(transform.resize_size), name),
        CenterCrop(tuple(transform.crop_size)),
        floats,
        Normalize(tuple(transform.mean), tuple(transform.std)),
    )


def _identity(transform: Any, version: int, kind: str, dtype: str) -> Conversion | str:
    return Conversion()


_TRANSLATORS: dict[str, Callable[[Any, int, str, str], Found]] = {
    "CenterCrop": _center_crop,
    "ConvertImageDtype": _convert_image_dtype,
    "Identity": _identity,
    "ImageClassification": _preset,
    "Normalize": _normalize,
    "PILToTensor": _pil_to_tensor,
    "RandomApply": _apply,
    "RandomChoice": _choice,
    "RandomCrop": _random_crop,
    "RandomHorizontalFlip": _flip,
    "RandomOrder": _order,
    "RandomResizedCrop": _random_resized_crop,
    "Resize": _resize,
    "ToDtype": _to_dtype,
    "ToImage": _to_image,
    "RGB": _identity,
    "ToPILImage": _to_pil_image,
    "ToPureTensor": _to_pure_tensor,
    "ToTensor": _to_tensor,
}
