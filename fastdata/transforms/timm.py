"""Steps for timm's transforms (version 1.0), as its ``create_transform`` makes them.

They are known by their exact type, and timm is never imported here. Its augmentations call Pillow,
and pixels are Pillow's. Strengths may be drawn, too: normally distributed around a policy's, and
held within bounds, before an operation makes a number of its own of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fastdata.transforms.checks import as_values
from fastdata.transforms.crops import CenterCrop, RandomCrop
from fastdata.transforms.identity import Translators, changed, name_in, override
from fastdata.transforms.nodes import (
    Apply,
    ChosenStep,
    DrawnNumber,
    MixedSteps,
    Operation,
    Policy,
    SampledSteps,
    operation,
)
from fastdata.transforms.outcomes import (
    TENSORS,
    Conversion,
    Declined,
    Translation,
    on_pil,
    to_tensor,
)
from fastdata.transforms.output import RandomErasing
from fastdata.transforms.reading import Chain, Step
from fastdata.transforms.resizes import RandomResizedCrop, ResizeKeepRatio, ResizeToSequence
from fastdata.transforms.tree import BLENDED_SUM, BLENDS, HEIGHT, NO_CENTER, TO_ZERO, UP, WIDTH


def mixes_bytes(collate_fn: Any) -> bool:
    """Return whether it is timm's FastCollateMixup, which mixes uint8 images."""
    return name_in(collate_fn, "timm.data.mixup") == "FastCollateMixup"


def collates_bytes(collate_fn: Any) -> bool:
    """Return whether it is timm's fast_collate, which makes tensors of uint8 images and labels."""
    return _is_function(collate_fn, "fast_collate")


def only_seeds(worker_init_fn: Any) -> bool:
    """Return whether it is create_loader's function, which only seeds a worker's generators."""
    return (
        isinstance(worker_init_fn, partial)
        and _is_function(worker_init_fn.func, "_worker_init")
        and not callable(worker_init_fn.keywords.get("worker_seeding"))
    )


def _is_function(function: Any, name: str) -> bool:
    """Return whether it is timm's function of this name, unchanged."""
    module = sys.modules.get("timm.data.loader")
    return module is not None and function is vars(module).get(name) and not changed(module)


# --- geometry --------------------------------------------------------------------------------


def _filters(transform: Any) -> tuple[str, ...]:
    return tuple(mode.value for mode in as_values(transform.interpolation))


def _resized_crop(transform: Any) -> Step:
    scale, ratio = tuple(transform.scale), tuple(transform.ratio)
    return RandomResizedCrop(transform.size, scale, ratio, _filters(transform), in_double=True)


def _keep_ratio(transform: Any) -> Step:
    return ResizeKeepRatio(
        transform.size,
        transform.longest,
        _filters(transform),
        transform.random_scale_prob,
        tuple(transform.random_scale_range),
        transform.random_scale_area,
        transform.random_aspect_prob,
        tuple(transform.random_aspect_range),
    )


def _to_sequence(transform: Any) -> Step | Declined:
    if not transform.divisible_by_patch:
        return Declined("it leaves parts of patches", "leave divisible_by_patch=False out")
    return ResizeToSequence(
        transform.patch_size,
        transform.max_seq_len,
        max_ratio=transform.max_ratio,
        interpolation=_filters(transform),
    )


def _center_crop(transform: Any) -> Step:
    return CenterCrop(transform.size, fill=transform.fill, padding_mode=transform.padding_mode)


def _random_crop(transform: Any) -> Step:
    # It places the image at random in a larger crop, as RandomCrop does.
    return RandomCrop(
        transform.size, pad_if_needed=True, fill=transform.fill, padding_mode=transform.padding_mode
    )


# --- conversions, erasing --------------------------------------------------------------------


def _pil_to_tensor(transform: Any, kind: str, dtype: str) -> Translation:
    return Conversion() if kind in TENSORS else Conversion("tensor")


def _to_numpy(transform: Any, kind: str, dtype: str) -> Translation:
    if dtype != "uint8" or kind in TENSORS:
        return Declined("it makes arrays of PIL images, and has a tensor here")
    return Conversion("array")


def _erasing(transform: Any, kind: str, dtype: str) -> Translation:
    if kind == "pil":
        return Declined("it works on tensors, and has a PIL image here")
    value = "random" if transform.per_pixel else "color" if transform.rand_color else 0
    low, high = transform.log_aspect_ratio
    return RandomErasing(
        transform.probability,
        (transform.min_area, transform.max_area),
        (math.exp(low), math.exp(high)),
        value,
        count=(transform.min_count, transform.max_count),
        in_double=True,
    )


# --- policies --------------------------------------------------------------------------------


class _Strength:
    """Strength of an AugmentOp, from 0 to its bound, as values of operations."""

    def __init__(self, op: Any) -> None:
        self.middle, self.deviation = float(op.magnitude), float(op.magnitude_std)
        self.bound = float(op.magnitude_max or 10)

    @property
    def is_drawn(self) -> bool:
        return self.deviation > 0

    def times(
        self, factor: float, most: float = math.inf, signed: bool = False, **options: float
    ) -> DrawnNumber:
        """Return the strength times a factor; ``most`` bounds its absolute value."""
        ends = (0.0, math.copysign(min(abs(self.bound * factor), most), factor))
        least, greatest = min(ends), max(ends)
        kind, a, b = "constant", self.middle * factor, 0.0
        if self.deviation == math.inf:
            kind, a, b = "uniform_double", 0.0, self.middle * factor
        elif self.is_drawn:
            kind, b = "normal", self.deviation * abs(factor)
        bounds = {"least": least, "greatest": greatest}
        return DrawnNumber(kind, a, b, signed, tuple({**bounds, **options}.items()))


_WARPS = {0: 0.0, 2: 1.0, 3: 2.0}  # Pillow's numbers of interpolations in the core's


def _warp(op: Any) -> dict[str, float | DrawnNumber]:
    """Return the interpolation and fill of an operation that warps."""
    numbers = tuple(_WARPS[int(mode)] for mode in as_values(op.kwargs["resample"]))
    red, green, blue = (float(value) for value in op.kwargs["fillcolor"])
    one = numbers[0] if len(numbers) == 1 else DrawnNumber("table", entries=numbers)
    return {"interpolation": one, "red": red, "green": green, "blue": blue}


def _by_matrix(
    place: str, factor_of: Callable[[Any], float], **options: float
) -> Callable[[Any, _Strength], Step]:
    """Transform by a matrix; in a place, "a" to "f", it has the strength times a factor."""

    def make(op: Any, strength: _Strength) -> Step:
        matrix: dict[str, float | DrawnNumber]
        matrix = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 1.0, "f": 0.0}
        matrix[place] = strength.times(factor_of(op), signed=True, **options)
        return operation("transform", **matrix, **_warp(op))

    return make


def _shear(op: Any) -> float:
    return 0.03


def _part(op: Any) -> float:
    return float(op.hparams.get("translate_pct", 0.45)) / 10


def _pixels(op: Any) -> float:
    return float(op.hparams["translate_const"]) / 10


def _enhanced_more(name: str) -> Callable[[Any, _Strength], Step]:
    def make(op: Any, strength: _Strength) -> Step:
        # Half of the time less, which ends at 0.1, half of the time more.
        less = strength.times(-0.09, 0.9, plus=1.0)
        return ChosenStep(
            (operation(name, factor=less), operation(name, factor=strength.times(0.09, plus=1.0)))
        )

    return make


def _done(name: str, value: str, factor: float, **options: Any) -> Callable[..., Step]:
    """Make an operation whose ``value`` is the strength times a factor, within bounds."""
    return lambda op, strength: operation(name, **{value: strength.times(factor, **options)})


def _plain(name: str) -> Callable[[Any, _Strength], Step]:
    return lambda op, strength: Operation(name)


def _solarised_below(op: Any, strength: _Strength) -> Step:
    added = strength.times(11.0, most=128, rounding=TO_ZERO)
    return operation("solarize_add", added=added, threshold=128)


def _rotated(op: Any, strength: _Strength) -> Step:
    still: dict[str, Any] = {"expand": False, "on_tensors": False, **NO_CENTER}
    return operation("rotate", angle=strength.times(3.0, signed=True), **_warp(op), **still)


def _blurred_by_chance(op: Any, strength: _Strength) -> Step:
    if strength.is_drawn:
        raise ValueError("the greatest radius of GaussianBlurRand is random")
    factor = min(max(strength.middle / 10, 0.0), 1.0)
    return operation("box_blur", sigma=DrawnNumber("uniform_double", 0.1, 2.0 * factor))


_OPERATIONS: dict[str, Callable[[Any, _Strength], Step]] = {
    "AutoContrast": _plain("autocontrast"),
    "Brightness": _done("brightness", "factor", 0.18, plus=0.1),
    "BrightnessIncreasing": _enhanced_more("brightness"),
    "Color": _done("saturation", "factor", 0.18, plus=0.1),
    "ColorIncreasing": _enhanced_more("saturation"),
    "Contrast": _done("contrast", "factor", 0.18, plus=0.1),
    "ContrastIncreasing": _enhanced_more("contrast"),
    "Desaturate": _done("saturation", "factor", -0.05, most=0.5, plus=0.5),
    "Equalize": _plain("equalize"),
    "GaussianBlur": _done("box_blur", "sigma", 0.19, most=1.9, plus=0.1),
    "GaussianBlurRand": _blurred_by_chance,
    "Invert": _plain("invert"),
    "Posterize": _done("posterize", "bits", 0.4, most=8, rounding=TO_ZERO),
    "PosterizeIncreasing": _done("posterize", "bits", -0.4, most=4, plus=4, rounding=UP),
    "PosterizeOriginal": _done("posterize", "bits", 0.4, most=4, plus=4, rounding=TO_ZERO),
    "Rotate": _rotated,
    "Sharpness": _done("sharpness", "factor", 0.18, plus=0.1),
    "SharpnessIncreasing": _enhanced_more("sharpness"),
    "ShearX": _by_matrix("b", _shear),
    "ShearY": _by_matrix("d", _shear),
    "Solarize": _done("solarize", "threshold", 25.6, most=256, rounding=TO_ZERO),
    "SolarizeAdd": _solarised_below,
    "SolarizeIncreasing": _done("solarize", "threshold", -25.6, most=256, plus=256, rounding=UP),
    "TranslateX": _by_matrix("c", _pixels),
    "TranslateXRel": _by_matrix("c", _part, unit=WIDTH),
    "TranslateY": _by_matrix("f", _pixels),
    "TranslateYRel": _by_matrix("f", _part, unit=HEIGHT),
}


def _augmentation(op: Any) -> Step:
    """Translate an AugmentOp."""
    module = sys.modules["timm.data.auto_augment"]
    if name_in(op, module.__name__) != "AugmentOp":
        raise ValueError(override(op) or f"{op!r} is not an AugmentOp")
    for name, table in (("aug_fn", module.NAME_TO_OP), ("level_fn", module.LEVEL_TO_ARG)):
        if getattr(op, name) is not table[op.name]:
            raise ValueError(f"the {name} of its {op.name} was replaced")
    made = _OPERATIONS[op.name](op, _Strength(op))
    return made if op.prob >= 1 else Apply((made,), op.prob)


def _augmentations(ops: Sequence[Any]) -> tuple[Step, ...]:
    return tuple(map(_augmentation, ops))


def _one(transform: Any) -> Step:
    return Policy((_augmentation(transform),), f"timm's {transform.name}")


def _rand_augment(transform: Any) -> Step:
    ops, layers = _augmentations(transform.ops), int(transform.num_layers)
    words = f"timm's RandAugment ({layers} of {len(ops)})"
    if transform.choice_weights is None:
        return Policy((ChosenStep(ops),) * layers, words)
    weights = tuple(float(weight) for weight in transform.choice_weights)
    if layers > sum(weight > 0 for weight in weights):
        raise ValueError(f"{layers} layers are more than the operations")
    return Policy((SampledSteps(ops, layers, weights),), words)


def _auto_augment(transform: Any) -> Step:
    policies = tuple(Chain(_augmentations(ops)) for ops in transform.policy)
    return Policy((ChosenStep(policies),), f"timm's AutoAugment (one of {len(policies)})")


def _aug_mix(transform: Any) -> Step:
    width, depth, alpha = int(transform.width), int(transform.depth), float(transform.alpha)
    if not (1 <= width <= 100 and depth <= 100 and 1e-6 <= alpha <= 1e6):
        raise ValueError(f"{width} chains of depth {depth} with alpha {alpha}")
    one = ChosenStep(_augmentations(transform.ops))
    depths = (depth,) if depth > 0 else (1, 2, 3)
    chain = ChosenStep(tuple(Chain((one,) * count) for count in depths))
    mixed = MixedSteps((chain,) * width, alpha, BLENDS if transform.blended else BLENDED_SUM)
    return Policy((mixed,), f"timm's AugMix ({width} chains of {len(transform.ops)} operations)")


_PATCHES = Declined("it makes sequences of patches, of another length for each image")

TABLE = Translators(
    (
        "timm.data.transforms",
        "timm.data.auto_augment",
        "timm.data.random_erasing",
        "timm.data.naflex_transforms",
        "timm.data.tf_preprocessing",
    ),
    {
        "AugMixAugment": on_pil(_aug_mix),
        "AugmentOp": on_pil(_one),
        "AutoAugment": on_pil(_auto_augment),
        "CenterCropOrPad": on_pil(_center_crop),
        "CenterCropToSequence": _PATCHES,
        "MaybePILToTensor": _pil_to_tensor,
        "MaybeToTensor": to_tensor,
        "Patchify": Declined(
            "it makes patches of an image",
            "leave it out, and give the loader collate_fn=fastdata.collate.collate_patches(…)",
        ),
        "RandAugment": on_pil(_rand_augment),
        "RandomCropOrPad": on_pil(_random_crop),
        "RandomCropToSequence": _PATCHES,
        "RandomErasing": _erasing,
        "RandomPad": Declined("it makes images of different sizes", "use RandomCropOrPad"),
        "RandomResizedCropAndInterpolation": on_pil(_resized_crop),
        "RandomResizedCropToSequence": _PATCHES,
        "ResizeKeepRatio": on_pil(_keep_ratio),
        "ResizeKeepRatioToSequence": _PATCHES,
        "ResizeToSequence": on_pil(_to_sequence),
        "TfPreprocessTransform": Declined("it is TensorFlow's", "leave out tf_preprocessing"),
        "ToNumpy": _to_numpy,
        "ToTensor": Declined("it makes floats from 0 to 255", "use MaybeToTensor"),
        "TrimBorder": Declined("it trims a border of the image", "leave out crop_border_pixels"),
    },
)
