"""Image transforms that the native core can do: crops, a resize, flips, normalisation.

They are descriptions, not code: `fastdata.transforms.compile` makes of them programs that the core
runs for `fastdata.DataLoader`. Names, arguments and the arithmetic of sizes and boxes are
torchvision's (``torchvision.transforms``, version 0.28), so what is known of those holds here::

    train = Compose([RandomResizedCrop(224), RandomHorizontalFlip(), Normalize(MEAN, STD)])
    val = Compose([Resize(256), CenterCrop(224), Normalize(MEAN, STD)])

Each may also be called with one PIL image, in any dataset's ``transform`` on torch's own path. That
always gives a tensor, (3, height, width): uint8 from 0 to 255, or floats after :class:`Normalize`;
after :class:`Views` a list of them, or a dict of lists. What is random then comes from torch's
global generator, of which a call that has anything random takes one number of 64 bits (a view):
``torch.manual_seed`` governs it. Only calling them needs torch.
"""

from __future__ import annotations

import enum
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from fastdata.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

#: An int, or (height, width), as torchvision has it.
Size: TypeAlias = "int | Sequence[int]"

INTERPOLATIONS = ("bilinear", "nearest", "bicubic", "lanczos")

#: torchvision's InterpolationMode, Pillow's number of one, or its name.
Interpolation: TypeAlias = "str | int | enum.Enum"

# Pillow's numbers of the filters above.
_NUMBERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}

#: Views by their numbers, in lists, tuples, dicts and `Stack`.
Form: TypeAlias = "int | list[Form] | tuple[Form, ...] | dict[Any, Form] | Stack"

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")

#: What normalised values may be.
FLOATS = ("float32", "float16", "bfloat16")


class Transform:
    """Base of all transforms here. Deriving others from it does not make them known to the core."""

    #: Does a transform to a PIL image; the package's ``__init__`` puts `fastdata.transforms.pillow`
    #: here, so that descriptions import nothing that reads them.
    _call: ClassVar[Callable[[Transform, Any], Any]]

    def __call__(self, image: Image.Image) -> Any:
        """Transform one image.

        Args:
            image: A PIL image; modes other than RGB are converted to it.

        Returns:
            A tensor, (3, height, width), contiguous: uint8 from 0 to 255, or floats if normalised.

        Raises:
            UsageError: not a PIL image; one too small for a crop that may not pad; transforms
                that cannot be composed.
        """
        return Transform._call(self, image)


@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """Crop a random part of the image and resize it, as Inception was trained.

    Boxes are drawn as ``torchvision.transforms.RandomResizedCrop.get_params`` draws them: up to
    ten attempts at an area and a ratio, then a central crop.

    Attributes:
        size: Of the result: an int for a square, or (height, width).
        scale: Least and greatest part of the image's area that a crop has.
        ratio: Least and greatest width / height of a crop.
        interpolation: ``bilinear``, ``nearest``, ``bicubic`` or ``lanczos``, torchvision's
            ``InterpolationMode`` of that name or Pillow's number. Several of them: each image gets
            one, each as likely.
        antialias: Has no effect, as on torchvision's PIL images: all filters but nearest antialias.
        in_double: Draw in double precision, as timm does; torchvision draws in single.
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation | Sequence[Interpolation] = "bilinear"
    antialias: bool | None = field(default=True, compare=False)
    in_double: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair("RandomResizedCrop", self.size))
        for name in ("scale", "ratio"):
            least, greatest = values = _floats("RandomResizedCrop", name, getattr(self, name), 2)
            if not 0 < least <= greatest:
                raise UsageError(
                    f"RandomResizedCrop: {name} {values} is not (least, greatest) above 0.",
                    f"Give for example {name}={(0.08, 1.0) if name == 'scale' else (0.75, 1.33)}.",
                )
            object.__setattr__(self, name, values)
        object.__setattr__(self, "interpolation", _filters("RandomResizedCrop", self.interpolation))
        check_switch("RandomResizedCrop", "antialias", self.antialias, none=True)


@dataclass(frozen=True)
class Resize(Transform):
    """Resize the image, with the sizes that ``torchvision.transforms.functional.resize`` computes.

    Attributes:
        size: An int for the shorter side, keeping the ratio; or (height, width).
        interpolation: As :class:`RandomResizedCrop` has it.
        max_size: With an int: where the longer side would exceed this, it becomes this, and
            the shorter side less than ``size``.
        antialias: As :class:`RandomResizedCrop` has it.
    """

    size: Size
    interpolation: Interpolation = "bilinear"
    max_size: int | None = None
    antialias: bool | None = field(default=True, compare=False)

    def __post_init__(self) -> None:
        check_switch("Resize", "antialias", self.antialias, none=True)
        if isinstance(self.size, Sequence) and len(self.size) == 1:
            object.__setattr__(self, "size", self.size[0])
        pair = _pair("Resize", self.size)
        object.__setattr__(self, "size", pair[0] if not isinstance(self.size, Sequence) else pair)
        filtered = interpolation_name("Resize", self.interpolation, INTERPOLATIONS)
        object.__setattr__(self, "interpolation", filtered)
        if self.max_size is None:
            return
        object.__setattr__(self, "max_size", _whole("Resize", "max_size", self.max_size))
        if isinstance(self.size, tuple):
            raise UsageError(
                f"Resize: max_size {self.max_size} is for a size that is the shorter side.",
                "Leave it out, or give an int as size.",
            )
        if self.max_size <= self.size:  # type: ignore[operator]
            raise UsageError(
                f"Resize: max_size {self.max_size} is not greater than size {self.size}.",
                "It bounds the longer side; size is the shorter one.",
            )


@dataclass(frozen=True)
class ResizeKeepRatio(Transform):
    """Resize the image to a target's size, keeping its ratio but for what is random.

    Names, arguments and arithmetic are timm's (``timm.data.transforms``, version 1.0).

    Attributes:
        size: Of the target: an int for a square, or (height, width).
        longest: 0: the image covers the target; 1: it lies within it; or something in between.
        interpolation: As :class:`RandomResizedCrop` has it.
        random_scale_prob: How probable it is that the image is scaled, 0 to 1.
        random_scale_range: By a factor that is uniform in (from, to), above 0.
        random_scale_area: Scale by one over the factor's square root instead.
        random_aspect_prob: How probable it is that the image's ratio is changed, 0 to 1.
        random_aspect_range: Height by width changes by one over a factor whose logarithm is
            uniform between those of (from, to), above 0.
    """

    size: Size
    longest: float = 0.0
    interpolation: Interpolation | Sequence[Interpolation] = "bilinear"
    random_scale_prob: float = 0.0
    random_scale_range: tuple[float, float] = (0.85, 1.05)
    random_scale_area: bool = False
    random_aspect_prob: float = 0.0
    random_aspect_range: tuple[float, float] = (0.9, 1.11)

    def __post_init__(self) -> None:
        who = "ResizeKeepRatio"
        object.__setattr__(self, "size", _pair(who, self.size))
        object.__setattr__(self, "longest", _floats(who, "longest", (self.longest,), 1)[0])
        object.__setattr__(self, "interpolation", _filters(who, self.interpolation))
        check_probability(who, self.random_scale_prob)
        check_probability(who, self.random_aspect_prob)
        for name in ("random_scale_range", "random_aspect_range"):
            values = _floats(who, name, getattr(self, name), 2)
            if not min(values) > 0:
                raise UsageError(
                    f"{who}: {name} {values} is not above 0.", "Give for example (0.9, 1.1)."
                )
            object.__setattr__(self, name, values)


@dataclass(frozen=True)
class CenterCrop(Transform):
    """Crop the middle; what is smaller is padded, with zeros as torchvision does it.

    Attributes:
        size: An int for a square, or (height, width).
        fill: Of what is padded: a value of 0 to 255, or one a channel.
        padding_mode: As :class:`fastdata.transforms.Pad` has it.
    """

    size: Size
    fill: float | Sequence[float] | None = field(default=0, kw_only=True)
    padding_mode: str = field(default="constant", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair("CenterCrop", self.size))
        object.__setattr__(self, "fill", pixel_fill("CenterCrop", self.fill))
        check_padding_mode("CenterCrop", self.padding_mode)


@dataclass(frozen=True)
class FlooredCenterCrop(CenterCrop):
    """A CenterCrop that lies half a pixel up or left where torchvision's is rounded to even."""


@dataclass(frozen=True)
class RandomCrop(Transform):
    """Crop anywhere, each position as likely as another.

    Attributes:
        size: An int for a square, or (height, width).
        padding: Pixels around every image before it is cropped: an int; (left and right, top and
            bottom); or (left, top, right, bottom). None: none.
        pad_if_needed: Pad smaller images, on both sides by what is missing, so that they lie
            anywhere in the crop. Otherwise they are an error.
        fill: Value of those pixels, 0 to 255, or one a channel.
        padding_mode: As :class:`fastdata.transforms.Pad` has it.
    """

    size: Size
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: float | Sequence[float] | None = 0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair("RandomCrop", self.size))
        check_switch("RandomCrop", "pad_if_needed", self.pad_if_needed)
        padding = 0 if self.padding is None else self.padding
        object.__setattr__(self, "padding", paddings("RandomCrop", padding))
        object.__setattr__(self, "fill", pixel_fill("RandomCrop", self.fill))
        check_padding_mode("RandomCrop", self.padding_mode)


@dataclass(frozen=True)
class RandomHorizontalFlip(Transform):
    """Mirror left to right.

    Attributes:
        p: How probable that is, 0 to 1.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability("RandomHorizontalFlip", self.p)


@dataclass(frozen=True)
class RandomVerticalFlip(Transform):
    """Mirror top to bottom.

    Attributes:
        p: How probable that is, 0 to 1.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability("RandomVerticalFlip", self.p)


@dataclass(frozen=True)
class Normalize(Transform):
    """``(value / 255 - mean) / std`` for each channel, in floats.

    Attributes:
        mean: A value for each channel, or one for all, in units of 0 to 1.
        std: Likewise, above 0.
        inplace: Has no effect: the image is a PIL image, which is never changed.
        dtype: Of the result: "float32", "float16" or "bfloat16", or torch's of that name. Rounding
            comes last.
    """

    mean: Sequence[float]
    std: Sequence[float]
    inplace: bool = field(default=False, compare=False)
    dtype: str = field(default="float32", kw_only=True)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given: Any = getattr(self, name)
            try:
                values = tuple(given)
            except TypeError:
                values = (given,)
            count = 1 if len(values) == 1 else 3
            object.__setattr__(self, name, _floats("Normalize", name, values, count))
        check_switch("Normalize", "inplace", self.inplace)
        if not all(value > 1e-6 for value in self.std):
            raise UsageError(
                f"Normalize: std {self.std} has a value that is not above 0.",
                "Give the channels' standard deviations in units of 0 to 1.",
            )
        dtype = str(self.dtype).removeprefix("torch.")
        if dtype not in FLOATS:
            raise UsageError(
                f"Normalize: dtype {self.dtype!r} is not one that the result can have.",
                f"Give one of {', '.join(FLOATS)}.",
            )
        object.__setattr__(self, "dtype", dtype)


@dataclass(frozen=True, init=False)
class Views(Transform):
    """Several views of each image, of any sizes: a list of tensors, or a dict of lists.

    ::

        Views(first, second, (local, 8))
        Views(global_crops=[first, second], local_crops=(local, 8))

    A batch has the same form, of one tensor a view: (N, 3, height, width). On the native path an
    image is read once, and what its views share is decoded once. A random step that all views would
    share has no place before it: steps before Views only prepare the image.

    Args:
        transforms: The views, each a transform or a pipeline of them, or (transform, so many).
        count: So many views of one transform, which differ by what is random in it.
        groups: Views by name, in place of ``transforms``: a list of them, or one.

    Attributes:
        transforms: One for each view.
        form: The views' numbers, in a list or a dict of lists.
    """

    transforms: tuple[Callable[[Any], Any], ...]
    form: Form

    def __init__(self, *transforms: Any, count: int | None = None, **groups: Any) -> None:
        if count is not None:
            if len(transforms) != 1:
                raise UsageError(
                    f"Views: count={count!r} is for one transform, and there are "
                    f"{len(transforms)}.",
                    "Leave it out, or give one transform.",
                )
            transforms *= _whole("Views", "count", count)
        if transforms and groups:
            raise UsageError(
                f"Views: there are transforms without a name beside {', '.join(groups)}.",
                "Give names to all of them, or to none.",
            )
        views, named = _repeated(transforms), {}
        for name, group in groups.items():
            several = isinstance(group, (list, tuple)) and not _has_count(group)
            first = len(views)
            views += _repeated(group if several else [group])
            named[name] = list(range(first, len(views)))
        if len(views) < (1 if named else 2):
            raise UsageError(
                f"Views makes {len(views)}, which needs no list.",
                "Give at least two transforms, or one and count=2.",
            )
        _check_callable("Views", views)
        object.__setattr__(self, "transforms", tuple(views))
        object.__setattr__(self, "form", named or list(range(len(views))))

    @classmethod
    def arranged(cls, pipelines: Sequence[Any], form: Form) -> Views:
        """Views in any form, each a pipeline for the compiler; never called."""
        views = cls.__new__(cls)
        object.__setattr__(views, "transforms", tuple(pipelines))
        object.__setattr__(views, "form", form)
        return views

    def __call__(self, image: Image.Image) -> list[Any] | dict[str, list[Any]]:
        """Each view of one image; as :meth:`Transform.__call__`."""
        views = [transform(image) for transform in self.transforms]
        return in_form(views, self.form)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Stack:
    """Several views made one tensor of, the views being its first dimension.

    Attributes:
        images: Their numbers.
    """

    images: tuple[Form, ...]


def in_form(views: Sequence[Any], form: Form, batched: bool = False) -> Any:
    """Views in a form.

    Args:
        views: Of a sample, or of a batch.
        form: Of their numbers.
        batched: Whether they are of a batch: then tuples are lists, as torch collates them.
    """
    if isinstance(form, int):
        return views[form]
    if isinstance(form, Stack):
        import torch

        return torch.stack([in_form(views, one) for one in form.images], int(batched))
    if isinstance(form, dict):
        return {name: in_form(views, one, batched) for name, one in form.items()}
    found = [in_form(views, one, batched) for one in form]
    return found if batched or isinstance(form, list) else tuple(found)


def _has_count(view: Any) -> bool:
    return isinstance(view, tuple) and len(view) == 2 and isinstance(view[1], numbers.Integral)


def _repeated(given: Iterable[Any]) -> list[Any]:
    """One transform for each view, of transforms and (transform, so many)."""
    views: list[Any] = []
    for view in given:
        views += [view[0]] * _whole("Views", "count", view[1]) if _has_count(view) else [view]
    return views


class Schedule:
    """The transform of each epoch: a size, a strength, or the whole recipe as its function.

    It is all of a dataset's ``transform``, and stands in no other one. `fastdata.DataLoader` names
    the epoch when a pass begins: it counts up by itself, ``set_epoch`` sets it, and with a state
    that was loaded it goes on. Passes under way keep the transform that they began with; threads
    stay, and memory where it is large enough. With torch's own loader, call :meth:`set_epoch`.

    Args:
        make: Called with an epoch's number, from 0; returns what is to be its transform, of any
            kind that a dataset takes.

    Attributes:
        epoch: The epoch named last; 0 before.

    Example:
        ::

            def train(epoch):
                return Compose([RandomResizedCrop(160 if epoch < 12 else 192), Normalize(...)])

            loader = DataLoader(ImageDataset(path, transform=Schedule(train)), 256, shuffle=True)
    """

    def __init__(self, make: Callable[[int], Callable[[Any], Any]]) -> None:
        _check_callable("Schedule", (make,), classes=True)
        self._make = make
        self._made: tuple[int, Callable[[Any], Any]] | None = None
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch whose transform it is from now on."""
        self.epoch = epoch

    @property
    def current(self) -> Callable[[Any], Any]:
        """The epoch's transform; made once.

        Raises:
            UsageError: What was made for it cannot be called.
        """
        if self._made is None or self._made[0] != self.epoch:
            made = self._make(self.epoch)
            _check_callable(f"Schedule, in epoch {self.epoch}", (made,))
            self._made = self.epoch, made
        return self._made[1]

    def __call__(self, image: Any) -> Any:
        """What the epoch's transform makes of an image."""
        return self.current(image)

    def __repr__(self) -> str:
        return f"Schedule({self._make!r}), in epoch {self.epoch}"


@dataclass(frozen=True)
class CornerCrop(Transform):
    """Crop one corner of an image, which must be no smaller.

    Attributes:
        size: An int for a square, or (height, width).
        right: The right corner, else the left one.
        bottom: The lower corner, else the upper one.
    """

    size: Size
    right: bool = False
    bottom: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair("CornerCrop", self.size))


@dataclass(frozen=True)
class FiveCrop(Transform):
    """Views of each image's corners and middle: upper left, upper right, lower left, lower right.

    As :class:`Views`, it makes a list.

    Attributes:
        size: An int for a square, or (height, width); of images that are no smaller.
    """

    size: Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair("FiveCrop", self.size))

    @property
    def views(self) -> tuple[tuple[Transform, ...], ...]:
        """The steps of each view."""
        corners = [(False, False), (True, False), (False, True), (True, True)]
        return (
            *((CornerCrop(self.size, *corner),) for corner in corners),
            (CenterCrop(self.size),),
        )


@dataclass(frozen=True)
class TenCrop(Transform):
    """The views of :class:`FiveCrop`, and those of the mirrored image.

    Attributes:
        size: As FiveCrop has it.
        vertical_flip: Mirror top to bottom, rather than left to right.
    """

    size: Size
    vertical_flip: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair("TenCrop", self.size))

    @property
    def views(self) -> tuple[tuple[Transform, ...], ...]:
        """The steps of each view."""
        flip = RandomVerticalFlip(1.0) if self.vertical_flip else RandomHorizontalFlip(1.0)
        five = FiveCrop(self.size).views
        return (*five, *((flip, *steps) for steps in five))


@dataclass(frozen=True)
class Compose(Transform):
    """Several transforms, one after the other.

    Attributes:
        transforms: Those of this module, or any callables. What comes after a callable that the
            core cannot do is called with what that returned, one sample at a time; the first such
            gets a tensor, (3, height, width), uint8 or floats, or the list that Views make.
    """

    transforms: tuple[Callable[[Any], Any], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.transforms, Iterable):
            raise UsageError(
                f"Compose: {self.transforms!r} is not a list of transforms.",
                "Give for example Compose([RandomResizedCrop(224), RandomHorizontalFlip()]).",
            )
        object.__setattr__(self, "transforms", tuple(self.transforms))
        if not self.transforms:
            raise UsageError("Compose: no transforms.", "Give at least one.")
        _check_callable("Compose", self.transforms)


def _check_callable(who: str, transforms: Sequence[Any], *, classes: bool = False) -> None:
    for number, transform in enumerate(transforms):
        if isinstance(transform, type) and not classes:
            name = transform.__name__
            raise UsageError(
                f"{who}: transform {number} is the class {name}, not a transform.",
                f"Write {name}(…), with its arguments.",
            )
        if not callable(transform):
            raise UsageError(
                f"{who}: transform {number}, {transform!r}, cannot be called.",
                "Give transforms, not their results or names.",
            )


def _whole(who: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise UsageError(
            f"{who}: {name} {value!r} is not a whole number of at least 1.",
            f"Give for example {name}={2 if name == 'count' else 224}.",
        )
    return int(value)


def _pair(who: str, size: Any) -> tuple[int, int]:
    """(height, width)."""
    if not isinstance(size, Sequence) or isinstance(size, str):
        size = (size, size)
    elif len(size) == 1:
        size = (size[0], size[0])
    if len(size) != 2:
        raise UsageError(
            f"{who}: size {size!r} has {len(size)} values.", "Give an int or (height, width)."
        )
    return _whole(who, "size", size[0]), _whole(who, "size", size[1])


def check_probability(who: str, p: Any) -> None:
    """UsageError: it is no probability."""
    if isinstance(p, bool) or not isinstance(p, numbers.Real) or not 0 <= float(p) <= 1:
        raise UsageError(f"{who}: p {p!r} is not a number from 0 to 1.", "Give for example p=0.5.")


def pixel_fill(who: str, given: Any) -> tuple[int, int, int]:
    """Three values of 0 to 255, whole as Pillow takes them."""
    values = (0,) if given is None else given if isinstance(given, Sequence) else (given,)
    values = tuple(values) * 3 if len(values) == 1 else tuple(values)
    found = tuple(int(value) for value in _floats(who, "fill", values, 3))
    if not all(0 <= value <= 255 for value in found):
        raise UsageError(f"{who}: fill {given!r} is not from 0 to 255.", "Give for example fill=0.")
    return found[0], found[1], found[2]


def check_padding_mode(who: str, mode: Any) -> None:
    """UsageError: there is no such padding mode."""
    if mode not in PADDING_MODES:
        raise UsageError(
            f"{who}: padding_mode {mode!r} is not one.", f"Give one of {', '.join(PADDING_MODES)}."
        )


def check_switch(who: str, name: str, value: Any, *, none: bool = False) -> None:
    """UsageError: it is neither True nor False; nor None, where that is allowed."""
    if value not in (True, False) and not (none and value is None):
        raise UsageError(f"{who}: {name} {value!r} is not True or False.", f"Leave {name} out.")


def paddings(who: str, given: Any) -> tuple[int, ...]:
    """(left, top, right, bottom) of padding as torchvision takes it."""
    values = tuple(given) if isinstance(given, Sequence) else (given,)
    if len(values) not in (1, 2, 4) or not all(
        isinstance(value, numbers.Integral) and int(value) >= 0 for value in values
    ):
        raise UsageError(
            f"{who}: padding {given!r} is not 1, 2 or 4 ints of 0 or more.",
            "Give for example padding=4.",
        )
    return tuple(map(int, values)) * (4 // len(values))


def interpolation_name(who: str, given: Any, known: Sequence[str]) -> str:
    """The name of an interpolation that torchvision takes: InterpolationMode, number or name.

    Of PIL images, torchvision's two nearest ones are the same.

    Raises:
        UsageError: It is none of those that are known.
    """
    whole = isinstance(given, int) and not isinstance(given, (bool, enum.Enum))
    name = _NUMBERS.get(int(given)) if whole or isinstance(given, enum.IntEnum) else given
    name = getattr(name, "value", name)
    name = "nearest" if name == "nearest-exact" else name
    if name not in known:
        raise UsageError(
            f"{who}: interpolation {given!r} is not one that the core has.",
            f"Give one of {', '.join(known)}, or torchvision's InterpolationMode of that name.",
        )
    return str(name)


def _floats(who: str, name: str, values: Any, count: int) -> tuple[float, ...]:
    try:
        floats = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        floats = ()
    if len(floats) != count or not all(math.isfinite(value) for value in floats):
        raise UsageError(
            f"{who}: {name} {values!r} is not {count} finite numbers.",
            f"Give {count} numbers in a tuple.",
        )
    return floats


def _filters(who: str, given: Any) -> str | tuple[str, ...]:
    """One filter, or several."""
    several = given if isinstance(given, (list, tuple)) and given else (given,)
    names = tuple(interpolation_name(who, one, INTERPOLATIONS) for one in several)
    return names if len(names) > 1 else names[0]
