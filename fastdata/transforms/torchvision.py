"""Steps for torchvision's transforms, v1 and v2.

Transforms are known by their exact type: a subclass may do anything, unless it has no more than
another constructor. torchvision is never imported here: where it is not imported already, there is
none of its transforms. A transform that has a class of its name here is made by that class
(`Step.from_torchvision`).

Results keep shape, dtype, and values within 1/255 of Pillow's crop and resize. On PIL images
torchvision always antialiases, whatever ``antialias`` says; on tensors only where that is asked
for. Floats are resized, warped and coloured as bytes are, and then converted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import ModuleType
from typing import Any

from PIL import Image

from fastdata.transforms import colours, crops, output, policies, resizes, targets, warps
from fastdata.transforms.base import Filling
from fastdata.transforms.checks import PILLOW_FILTERS, as_values
from fastdata.transforms.crops import CenterCrop
from fastdata.transforms.identity import name_in
from fastdata.transforms.nodes import Apply, ChosenStep, OnTensors, ShuffledSteps
from fastdata.transforms.outcomes import (
    BEFORE_FLOATS,
    FLOATS,
    HAS_NO_FLOATS,
    HAS_TENSOR,
    NOT_KNOWN,
    TENSORS,
    Conversion,
    Declined,
    Translation,
    default_floats,
    tensor_image,
)
from fastdata.transforms.output import Normalize
from fastdata.transforms.reading import Step
from fastdata.transforms.resizes import RandomResizedCrop, Resize
from fastdata.transforms.targets import Delivery, dtypes_of

_BOXES = Declined("it is for boxes and key points, which images of a class do not have")
_CROPS = Declined("it makes several crops of an image", moves=True)
_BATCHES = Declined("it mixes the images of a batch: give it to the loader as batch_transform")

#: Why the core leaves these to torchvision.
_DECLINED = {
    **dict.fromkeys(("ClampKeyPoints", "SanitizeKeyPoints"), _BOXES),
    **dict.fromkeys(("CutMix", "MixUp"), _BATCHES),
    **dict.fromkeys(("FiveCrop", "TenCrop"), _CROPS),
    "SetClampingMode": _BOXES,
    "Lambda": Declined("it calls a function of the user's"),
    "UniformTemporalSubsample": Declined("it is for videos"),
    "ElasticTransform": Declined(
        "its displacements are torch's own draws, blurred by torch", moves=True
    ),
    "JPEG": Declined("the core decodes JPEGs and does not encode them", moves=False),
    "LinearTransformation": Declined("it multiplies floats by a matrix", moves=False),
}


def _steps_of(module: ModuleType) -> dict[str, type[Step]]:
    return {
        name: one
        for name, one in vars(module).items()
        if isinstance(one, type) and issubclass(one, Step) and one.__module__ == module.__name__
    }


#: The class that makes each transform, by their name.
_STEPS: dict[str, type[Step]] = {
    name: step
    for module in (colours, crops, output, policies, resizes, targets, warps)
    for name, step in _steps_of(module).items()
    if step is not Delivery
} | {"RandomApply": Apply, "RandomChoice": ChosenStep, "RandomOrder": ShuffledSteps}

_VERSIONS = {
    "torchvision.transforms": 1,
    "torchvision.transforms.v2": 2,
    "torchvision.transforms._presets": 2,
}


def translate(transform: Any, kind: str, dtype: str) -> Translation | None:
    """Translate one of torchvision's, as `Libraries.translate`; None for anything else."""
    if name_in(transform, "torch.nn") == "Identity":
        return Conversion()
    version, name = _version(transform), type(transform).__name__
    if version is None:
        return None
    if name not in _CONVERSIONS and name not in _STEPS:
        return _DECLINED.get(name, NOT_KNOWN)
    if reason := _inconsistent(transform):
        return Declined(reason)
    if name in _CONVERSIONS:
        return _conversion(name, transform, version, kind, dtype)
    return _translate_step(_STEPS[name], transform, version, kind, dtype)


def _inconsistent(transform: Any) -> str:
    """Say which attribute no longer follows from the parameters; "" for none."""
    own: dict[str, Any] = vars(transform)
    for name in ("policies", "_policies"):
        if name in own and own[name] != transform._get_policies(transform.policy):
            return f"its {name} are not those of its policy"
    if "_fill" in own:
        utilities = sys.modules["torchvision.transforms.v2._utils"]
        if own["_fill"] != utilities._setup_fill_arg(transform.fill):
            return "its _fill does not follow from its fill"
    if "_log_ratio" in own:
        torch = sys.modules["torch"]
        if not torch.equal(own["_log_ratio"], torch.log(torch.tensor(transform.ratio))):
            return "its _log_ratio does not follow from its ratio"
    return ""


def _version(transform: Any) -> int | None:
    """Return 1 or 2 for torchvision's v1 or v2; None: it is not torchvision's."""
    for module, version in _VERSIONS.items():
        if name_in(transform, module):
            return version
    return None


# --- transforms that have a class here -----------------------------------------------------------


def _translate_step(
    step: type[Step], transform: Any, version: int, kind: str, dtype: str
) -> Step | Declined:
    on_tensors = kind in TENSORS
    if kind in ("pil", "array") and version in step.tensors_only:
        return Declined("it works on tensors, and has a PIL image here")
    if step is Normalize and (kind == "pil" or dtype == "uint8"):
        return HAS_NO_FLOATS
    mask_fill = None
    if isinstance(getattr(transform, "fill", None), dict):
        fills = _fills(transform.fill, kind)
        if isinstance(fills, Declined):
            return fills
        transform = copy(transform)
        transform.fill, mask_fill = fills
    if on_tensors and (reason := _on_tensors(step, transform, dtype)) is not None:
        return reason
    if issubclass(step, Resize) and transform.size is None:
        return Declined("a size of None is not known")
    made = step.from_torchvision(transform, version)
    if mask_fill is not None and isinstance(made, Filling):
        made = replace(made, mask_fill=mask_fill)
    differs = step.otherwise_on_tensors or (dtype == "float32" and step.floats_as_bytes)
    if not on_tensors or isinstance(made, Declined) or not differs:
        return made
    if getattr(made, "interpolation", "") == "bicubic":
        return Declined("torchvision does not do it to tensors by 'bicubic'")
    if getattr(made, "expand", False):
        return Declined("on tensors it expands to other sizes than PIL images")
    fill = getattr(transform, "fill", None)
    if any(value != int(value) for value in as_values(fill or 0)):
        return Declined("its fill is not of whole numbers")
    return OnTensors(made, version, fill is not None)


def _fills(fills: Mapping[Any, Any], kind: str) -> tuple[Any, int | None] | Declined:
    """Return the fill of images of a kind, and of masks, in a dict; 0 where it has none."""
    classes = {"tensor": sys.modules["torch"].Tensor, "image": tensor_image()}
    image = fills.get(classes.get(kind, Image.Image), fills.get("others"))
    image = 0 if image is None else image
    mask = fills.get(sys.modules["torchvision.tv_tensors"].Mask, fills.get("others"))
    if mask is image and isinstance(mask, Sequence):
        return image, None
    if isinstance(mask, Sequence) or int(mask or 0) != (mask or 0):
        return Declined("its fill of masks is no whole number")
    return image, int(mask or 0)


def _on_tensors(step: type[Step], transform: Any, dtype: str) -> Declined | None:
    """Return why a transform of tensors, of bytes or floats, may differ from Pillow's by levels."""
    if issubclass(step, (Resize, RandomResizedCrop)):
        return _resizes_tensors(transform, dtype)
    if step.any_floats:
        return None
    on_floats = dtype != "uint8"
    if on_floats and (dtype != "float32" or not step.floats_as_bytes):
        return Declined("it works on floats here", BEFORE_FLOATS)
    if on_floats and any(as_values(getattr(transform, "fill", None))):
        return Declined("it fills with floats here", BEFORE_FLOATS)
    resizes = hasattr(transform, "antialias")
    if resizes and not (transform.antialias and _mode(transform) == "bilinear"):
        return Declined("on tensors, only bilinear with antialias=True has Pillow's values")
    return None


def _mode(transform: Any) -> Any:
    mode = getattr(transform.interpolation, "value", transform.interpolation)
    return PILLOW_FILTERS.get(mode, mode)


def _resizes_tensors(transform: Any, dtype: str) -> Declined | None:
    mode = _mode(transform)
    if dtype not in ("uint8", "float32"):
        return Declined(f"it resizes {dtype}", BEFORE_FLOATS)
    # Measured against Pillow on photographs: bilinear is within 1 of 255, of bytes and of
    # floats. So is bicubic of bytes, but for 1 value in 4,000, at most 12 off. Of the nearest
    # ones even nearest-exact takes other pixels where two are as near.
    if mode == "bicubic" and dtype != "uint8":
        return Declined(f"{mode!r} makes floats beyond 0 and 1", BEFORE_FLOATS)
    if mode not in ("bilinear", "bicubic"):
        return Declined(f"{mode!r} gives other values on tensors than on PIL images")
    if not transform.antialias:
        return Declined("on tensors it does not antialias", "write antialias=True")
    return None


# --- conversions -------------------------------------------------------------------------------

_CONVERSIONS = frozenset(
    {
        *("ConvertImageDtype", "Identity", "ImageClassification", "PILToTensor", "RGB", "ToDtype"),
        *("ToImage", "ToPILImage", "ToPureTensor", "ToTensor"),
    }
)


def _conversion(name: str, transform: Any, version: int, kind: str, dtype: str) -> Translation:
    on_tensors = kind in TENSORS
    match name:
        case "Identity" | "RGB":
            return Conversion()
        case "ToTensor" | "PILToTensor" if on_tensors:
            return Conversion() if version == 2 else HAS_TENSOR
        case "ToTensor":
            return default_floats()
        case "PILToTensor":
            return Conversion("tensor")
        case "ToImage":
            return Conversion("image")
        case "ToPureTensor":
            return Conversion(None if kind == "pil" else "tensor"), Delivery(pure=True)
        case "ToPILImage" if kind == "pil":
            again = Declined("it has a PIL image here already")
            return Conversion() if version == 2 else again
        case "ToPILImage":
            bytes_of_rgb = dtype == "uint8" and transform.mode in (None, "RGB")
            floats = Declined("it makes PIL images of floats, or of another mode than RGB")
            return Conversion("pil") if bytes_of_rgb else floats
        case "ImageClassification":
            return _preset(transform, kind, dtype)
        case "ToDtype" if isinstance(transform.dtype, dict):
            return _dtypes(transform, kind, dtype)
        case "ToDtype" if kind == "pil":
            return Conversion()  # it leaves PIL images as they are
        case _ if kind == "pil":
            return Declined("it converts tensors, and has a PIL image here")
    after = str(transform.dtype).removeprefix("torch.")
    return _convert(dtype, after, name == "ConvertImageDtype" or bool(transform.scale))


def _dtypes(transform: Any, kind: str, dtype: str) -> Translation:
    """Translate a ToDtype with a dict, which has dtypes of images and of targets."""
    by_class = transform.dtype
    delivery = Delivery(dtypes_of(by_class))
    if kind == "pil":
        return delivery
    image = tensor_image() if kind == "image" else sys.modules["torch"].Tensor
    if image not in by_class and "others" not in by_class:
        return Declined("it has no dtype for images", raises=True)
    wanted = by_class.get(image, by_class.get("others"))
    after = dtype if wanted is None else str(wanted).removeprefix("torch.")
    converted = _convert(dtype, after, bool(transform.scale))
    return converted if isinstance(converted, Declined) else (converted, delivery)


def _convert(before: str, after: str, scale: bool) -> Conversion | Declined:
    if before == after:
        return Conversion()
    if after not in FLOATS:
        return Declined(f"it makes {after}")
    if before == "uint8" and not scale:
        return Declined("it makes floats from 0 to 255: scale is False")
    if before in ("float16", "bfloat16"):
        return Declined(f"it makes {after} of values rounded to {before}")
    return Conversion(None, after)


def _preset(transform: Any, kind: str, dtype: str) -> Translation:
    """Translate a classification model's ``weights.transforms()``."""
    on_tensors = kind in TENSORS
    if on_tensors and (reason := _resizes_tensors(transform, dtype)) is not None:
        return reason
    floats = Conversion("tensor", "float32") if kind == "pil" else _convert(dtype, "float32", True)
    if isinstance(floats, Declined):
        return floats
    return (
        Resize(tuple(transform.resize_size), transform.interpolation),
        CenterCrop(tuple(transform.crop_size)),
        floats,
        Normalize(tuple(transform.mean), tuple(transform.std)),
    )
