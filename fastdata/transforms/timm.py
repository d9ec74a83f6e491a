"""timm's transforms (version 1.0), as its ``create_transform`` makes them, in our terms.

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

from fastdata.errors import UsageError
from fastdata.transforms.augmentations import RandomApply, RandomChoice, RandomErasing
from fastdata.transforms.conversion import Conversion, Found, name_in, override
from fastdata.transforms.descriptions import (
    FLOATS,
    CenterCrop,
    Compose,
    RandomCrop,
    RandomResizedCrop,
    ResizeKeepRatio,
    Transform,
)
from fastdata.transforms.originals import changed
from fastdata.transforms.pixels import (
    BLENDED_SUM,
    BLENDS,
    HEIGHT,
    TO_ZERO,
    UP,
    WIDTH,
    Mixture,
    Operation,
    Policy,
    Random,
    Sample,
)

_MODULES = (
    "timm.data.transforms",
    "timm.data.auto_augment",
    "timm.data.random_erasing",
    "timm.data.naflex_transforms",
    "timm.data.tf_preprocessing",
)

_SEQUENCES = "it makes sequences of patches, of another length for each image"

#: Why the core leaves some to timm.
_DECLINED = {
    "CenterCropToSequence": _SEQUENCES,
    "Patchify": "it makes patches of an image; do it to whole batches",
    "RandomCropToSequence": _SEQUENCES,
    "RandomPad": "it makes images of different sizes; use RandomCropOrPad",
    "RandomResizedCropToSequence": _SEQUENCES,
    "ResizeKeepRatioToSequence": _SEQUENCES,
    "ResizeToSequence": _SEQUENCES,
    "TfPreprocessTransform": "it is TensorFlow's; leave out tf_preprocessing",
    "ToTensor": "it makes floats from 0 to 255; use MaybeToTensor",
    "TrimBorder": "it trims a border of the image; leave out crop_border_pixels",
}


def translate(transform: Any, kind: str, dtype: str) -> Found | None:
    """One of timm's transforms; None for anything else.

    As `fastdata.transforms.libraries.translate`.
    """
    name = name_in(transform, *_MODULES)
    if name in _DECLINED:
        return _DECLINED[name]
    if name not in _TRANSLATORS:
        return None
    try:
        return _TRANSLATORS[name](transform, kind, dtype)
    except (AttributeError, KeyError, TypeError, UsageError, ValueError) as error:
        # Another version's, or arguments that make no sense: timm will say so when it is called.
        return f"its arguments are not known: {getattr(error, 'what', error)}"


def mixes_bytes(collate_fn: Any) -> bool:
    """Whether it is timm's FastCollateMixup: of uint8 images it makes mixed ones."""
    return name_in(collate_fn, "timm.data.mixup") == "FastCollateMixup"


def collates_bytes(collate_fn: Any) -> bool:
    """Whether it is timm's fast_collate: of uint8 images and labels it makes tensors."""
    return _is_function(collate_fn, "fast_collate")


def only_seeds(worker_init_fn: Any) -> bool:
    """Whether it is that of timm's create_loader, which only seeds a worker's generators."""
    return (
        isinstance(worker_init_fn, partial)
        and _is_function(worker_init_fn.func, "_worker_init")
        and not callable(worker_init_fn.keywords.get("worker_seeding"))
    )


def _is_function(given: Any, name: str) -> bool:
    """Whether it is timm's function of this name, which makes or seeds loaders."""
    module = sys.modules.get("timm.data.loader")
    return module is not None and given is vars(module).get(name) and not changed(module, name)


# --- geometry --------------------------------------------------------------------------------


def _filters(transform: Any) -> tuple[str, ...]:
    modes = transform.interpolation
    modes = modes if isinstance(modes, (list, tuple)) else (modes,)
    return tuple(mode.value for mode in modes)


def _on_pil(make: Callable[[Any], Transform]) -> Callable[[Any, str, str], Found]:
    """Of a transform whose arithmetic is known for PIL images only."""

    def translator(transform: Any, kind: str, dtype: str) -> Found:
        if kind in ("tensor", "image", "array"):
            return "it works on PIL images, and has a tensor here"
        return make(transform)

    return translator


def _resized_crop(transform: Any) -> Transform:
    scale, ratio = tuple(transform.scale), tuple(transform.ratio)
    return RandomResizedCrop(transform.size, scale, ratio, _filters(transform), in_double=True)


def _keep_ratio(transform: Any) -> Transform:
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


def _center_crop(transform: Any) -> Transform:
    return CenterCrop(transform.size, fill=transform.fill, padding_mode=transform.padding_mode)


def _random_crop(transform: Any) -> Transform:
    # The image lies anywhere in what is larger, as it does in RandomCrop.
    return RandomCrop(
        transform.size, pad_if_needed=True, fill=transform.fill, padding_mode=transform.padding_mode
    )


# --- conversions, erasing --------------------------------------------------------------------


def to_tensor(kind: str) -> Conversion | str:
    """A ToTensor that leaves tensors alone."""
    if kind in ("tensor", "image"):
        return Conversion()
    import torch  # which timm has imported

    name = str(torch.get_default_dtype()).removeprefix("torch.")
    return Conversion("tensor", name) if name in FLOATS else f"it makes {name}"


def _pil_to_tensor(transform: Any, kind: str, dtype: str) -> Found:
    return Conversion() if kind in ("tensor", "image") else Conversion("tensor")


def _to_numpy(transform: Any, kind: str, dtype: str) -> Found:
    if dtype != "uint8" or kind in ("tensor", "image"):
        return "it makes arrays of PIL images, and has a tensor here"
    return Conversion("array")


def _erasing(transform: Any, kind: str, dtype: str) -> Found:
    if kind == "pil":
        return "it works on tensors, and has a PIL image here"
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
    """What an operation makes of its strength: an AugmentOp's, from 0 to its bound."""

    def __init__(self, op: Any) -> None:
        self.middle, self.deviation = float(op.magnitude), float(op.magnitude_std)
        self.bound = float(op.magnitude_max or 10)

    @property
    def is_drawn(self) -> bool:
        return self.deviation > 0

    def times(
        self, factor: float, most: float = math.inf, signed: bool = False, **options: float
    ) -> Random:
        """The strength times a factor: at most so much, or if the factor is below 0 at least."""
        ends = (0.0, math.copysign(min(abs(self.bound * factor), most), factor))
        least, greatest = min(ends), max(ends)
        kind, a, b = "constant", self.middle * factor, 0.0
        if self.deviation == math.inf:
            kind, a, b = "uniform_double", 0.0, self.middle * factor
        elif self.is_drawn:
            kind, b = "normal", self.deviation * abs(factor)
        given = {"least": least, "greatest": greatest, **options}
        return Random(kind, a, b, signed, tuple(given.items()))


_WARPS = {0: 0.0, 2: 1.0, 3: 2.0}  # Pillow's numbers of interpolations in the core's


def _warp(op: Any) -> tuple[float | Random, ...]:
    """Interpolation and fill of an operation that warps."""
    given = op.kwargs["resample"]
    numbers = tuple(_WARPS[int(mode)] for mode in (given if isinstance(given, tuple) else (given,)))
    fill = tuple(float(value) for value in op.kwargs["fillcolor"])
    return (numbers[0] if len(numbers) == 1 else Random("table", entries=numbers), *fill)


def _matrix(op: Any, place: int, number: Random) -> Transform:
    values: list[float | Random] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    values[place] = number
    return Operation("transform", (*values, *_warp(op)))


def _enhanced(name: str) -> Callable[[Any, _Strength], Transform]:
    return lambda op, strength: Operation(name, (strength.times(0.18, plus=0.1),))


def _enhanced_more(name: str) -> Callable[[Any, _Strength], Transform]:
    def make(op: Any, strength: _Strength) -> Transform:
        # Half of the time less, which ends at 0.1, half of the time more.
        less = strength.times(-0.09, 0.9, plus=1.0)
        return RandomChoice(
            (Operation(name, (less,)), Operation(name, (strength.times(0.09, plus=1.0),)))
        )

    return make


def _sheared(place: int) -> Callable[[Any, _Strength], Transform]:
    return lambda op, strength: _matrix(op, place, strength.times(0.03, signed=True))


def _moved(place: int, unit: int) -> Callable[[Any, _Strength], Transform]:
    """By a part of the width or height."""

    def make(op: Any, strength: _Strength) -> Transform:
        part = op.hparams.get("translate_pct", 0.45) / 10
        return _matrix(op, place, strength.times(part, signed=True, unit=unit))

    return make


def _moved_by_pixels(place: int) -> Callable[[Any, _Strength], Transform]:
    def make(op: Any, strength: _Strength) -> Transform:
        pixels = float(op.hparams["translate_const"]) / 10
        return _matrix(op, place, strength.times(pixels, signed=True))

    return make


def _plain(name: str) -> Callable[[Any, _Strength], Transform]:
    return lambda op, strength: Operation(name)


def _rotated(op: Any, strength: _Strength) -> Transform:
    return Operation("rotate", (strength.times(3.0, signed=True), *_warp(op), 0, 0, 0, 0, 0))


def _posterized(op: Any, strength: _Strength) -> Transform:
    return Operation("posterize", (strength.times(0.4, 8, rounding=TO_ZERO),))


def _posterized_more(op: Any, strength: _Strength) -> Transform:
    return Operation("posterize", (strength.times(-0.4, 4, plus=4, rounding=UP),))


def _posterized_less(op: Any, strength: _Strength) -> Transform:
    return Operation("posterize", (strength.times(0.4, 4, plus=4, rounding=TO_ZERO),))


def _solarized(op: Any, strength: _Strength) -> Transform:
    return Operation("solarize", (strength.times(25.6, 256, rounding=TO_ZERO),))


def _solarized_more(op: Any, strength: _Strength) -> Transform:
    return Operation("solarize", (strength.times(-25.6, 256, plus=256, rounding=UP),))


def _solarize_added(op: Any, strength: _Strength) -> Transform:
    return Operation("solarize_add", (strength.times(11.0, 128, rounding=TO_ZERO), 128))


def _desaturated(op: Any, strength: _Strength) -> Transform:
    return Operation("saturation", (strength.times(-0.05, 0.5, plus=0.5),))


def _blurred(op: Any, strength: _Strength) -> Transform:
    return Operation("box_blur", (strength.times(0.19, 1.9, plus=0.1),))


def _blurred_by_chance(op: Any, strength: _Strength) -> Transform:
    if strength.is_drawn:
        raise ValueError("the greatest radius of GaussianBlurRand is random")
    factor = min(max(strength.middle / 10, 0.0), 1.0)
    return Operation("box_blur", (Random("uniform_double", 0.1, 2.0 * factor),))


_OPERATIONS: dict[str, Callable[[Any, _Strength], Transform]] = {
    "AutoContrast": _plain("autocontrast"),
    "Brightness": _enhanced("brightness"),
    "BrightnessIncreasing": _enhanced_more("brightness"),
    "Color": _enhanced("saturation"),
    "ColorIncreasing": _enhanced_more("saturation"),
    "Contrast": _enhanced("contrast"),
    "ContrastIncreasing": _enhanced_more("contrast"),
    "Desaturate": _desaturated,
    "Equalize": _plain("equalize"),
    "GaussianBlur": _blurred,
    "GaussianBlurRand": _blurred_by_chance,
    "Invert": _plain("invert"),
    "Posterize": _posterized,
    "PosterizeIncreasing": _posterized_more,
    "PosterizeOriginal": _posterized_less,
    "Rotate": _rotated,
    "Sharpness": _enhanced("sharpness"),
    "SharpnessIncreasing": _enhanced_more("sharpness"),
    "ShearX": _sheared(1),
    "ShearY": _sheared(3),
    "Solarize": _solarized,
    "SolarizeAdd": _solarize_added,
    "SolarizeIncreasing": _solarized_more,
    "TranslateX": _moved_by_pixels(2),
    "TranslateXRel": _moved(2, WIDTH),
    "TranslateY": _moved_by_pixels(5),
    "TranslateYRel": _moved(5, HEIGHT),
}


def _augmentation(op: Any) -> Transform:
    """An AugmentOp."""
    module = sys.modules["timm.data.auto_augment"]
    if name_in(op, module.__name__) != "AugmentOp":
        raise ValueError(override(op) or f"{op!r} is not an AugmentOp")
    for name, table in (("aug_fn", module.NAME_TO_OP), ("level_fn", module.LEVEL_TO_ARG)):
        if getattr(op, name) is not table[op.name]:
            raise ValueError(f"the {name} of its {op.name} was replaced")
    made = _OPERATIONS[op.name](op, _Strength(op))
    return made if op.prob >= 1 else RandomApply((made,), op.prob)


def _augmentations(ops: Sequence[Any]) -> tuple[Transform, ...]:
    return tuple(map(_augmentation, ops))


def _one(transform: Any) -> Transform:
    return Policy(f"timm's {transform.name}", (_augmentation(transform),))


def _rand_augment(transform: Any) -> Transform:
    ops, layers = _augmentations(transform.ops), int(transform.num_layers)
    words = f"timm's RandAugment ({layers} of {len(ops)})"
    if transform.choice_weights is None:
        return Policy(words, (RandomChoice(ops),) * layers)
    weights = tuple(float(weight) for weight in transform.choice_weights)
    if layers > sum(weight > 0 for weight in weights):
        raise ValueError(f"{layers} layers are more than the operations")
    return Policy(words, (Sample(ops, layers, weights),))


def _auto_augment(transform: Any) -> Transform:
    policies = tuple(Compose(_augmentations(ops)) for ops in transform.policy)
    return Policy(f"timm's AutoAugment (one of {len(policies)})", (RandomChoice(policies),))


def _aug_mix(transform: Any) -> Transform:
    width, depth, alpha = int(transform.width), int(transform.depth), float(transform.alpha)
    if not (1 <= width <= 100 and depth <= 100 and 1e-6 <= alpha <= 1e6):
        raise ValueError(f"{width} chains of depth {depth} with alpha {alpha}")
    one = RandomChoice(_augmentations(transform.ops))
    depths = (depth,) if depth > 0 else (1, 2, 3)
    chain = RandomChoice(tuple(Compose((one,) * count) for count in depths))
    mixed = Mixture((chain,) * width, alpha, BLENDS if transform.blended else BLENDED_SUM)
    return Policy(f"timm's AugMix ({width} chains of {len(transform.ops)} operations)", (mixed,))


_TRANSLATORS: dict[str, Callable[[Any, str, str], Found]] = {
    "AugMixAugment": _on_pil(_aug_mix),
    "AugmentOp": _on_pil(_one),
    "AutoAugment": _on_pil(_auto_augment),
    "CenterCropOrPad": _on_pil(_center_crop),
    "MaybePILToTensor": _pil_to_tensor,
    "MaybeToTensor": lambda transform, kind, dtype: to_tensor(kind),
    "RandAugment": _on_pil(_rand_augment),
    "RandomCropOrPad": _on_pil(_random_crop),
    "RandomErasing": _erasing,
    "RandomResizedCropAndInterpolation": _on_pil(_resized_crop),
    "ResizeKeepRatio": _on_pil(_keep_ratio),
    "ToNumpy": _to_numpy,
}
