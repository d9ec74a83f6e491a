"""Functions of libraries that `fastdata.transforms.tracing` knows, and their effects on symbols.

They are known by identity, and only while their library defines them: a function whose globals are
those of its module, or a C function that has the module's name for it.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from PIL import ImageEnhance, ImageFilter, ImageOps

from fastdata.transforms.originals import changed
from fastdata.transforms.symbols import (
    Call,
    Held,
    Image,
    SingleNumber,
    Stacked,
    Symbol,
    Unknown,
    held_by,
    plain,
)

_CHOICES = 32  # of one draw, at most

# --- draws -----------------------------------------------------------------------------------


def _unit(run: Any) -> Any:
    return run.uniform(0.0, 1.0)


def _torch_rand(run: Any, size: Any = None) -> Any:
    if size not in (1, (1,), [1], (), []):
        raise Unknown("draws several numbers of torch's")
    return run.uniform(0.0, 1.0, SingleNumber)


def _chosen(run: Any, several: Any) -> Any:
    if isinstance(several, Symbol) or not 0 < len(several) <= _CHOICES:
        raise Unknown("chooses of what is not known, or of many")
    count = len(several)
    return several[run.choose((1 / count,) * count) if count > 1 else 0]


def _numpy_whole(run: Any, low: Any, high: Any = None) -> Any:
    return _chosen(run, range(plain(low)) if high is None else range(plain(low), plain(high)))


# --- Pillow ----------------------------------------------------------------------------------


class _Blur(Held):
    """A filter of Pillow's: a Gaussian blur."""

    def __init__(self, run: Any, radius: Any = 2) -> None:
        super().__init__(run, "a filter")
        self.radius = _number(radius, 0, 1000)


class _Enhancer(Held):
    """One of Pillow's ImageEnhance."""

    def __init__(self, run: Any, operation: str, image: Any) -> None:
        super().__init__(run, "an enhancer")
        self.operation = operation
        self.image = image

    def attribute(self, name: str) -> Any:
        if name != "enhance":
            return super().attribute(name)
        return lambda factor: _on_pil(self.image, self.operation, _number(factor, 0, 1e6))


def _number(value: Any, least: float, greatest: float) -> Any:
    """Return a value of an operation: a constant, or a random number, within bounds."""
    if isinstance(value, Symbol):
        held = held_by(value)
        if not hasattr(held, "scaled") or isinstance(held, SingleNumber):
            held.refuse("hands over {}")
        ends = held.ends()
    else:
        held = value = float(value)
        ends = value, value
    if not least <= ends[0] <= ends[1] <= greatest:
        raise Unknown(f"takes a number from {ends[0]:g} to {ends[1]:g}")
    return held


def _image(value: Any) -> Any:
    """Return the image behind a symbol, which is a PIL image."""
    held = held_by(value) if isinstance(value, Symbol) else None
    if not isinstance(held, Image):
        raise Unknown("gives what is no image to a function of Pillow's")
    held.on_pil()
    return held


def _on_pil(image: Any, operation: str, *values: Any) -> Any:
    return image.then(Call(operation, values), image.node.mode)


def _operation(name: str, run: Any, image: Any) -> Any:
    return _on_pil(_image(image), name)


def _solarize(run: Any, image: Any, threshold: Any = 128) -> Any:
    return _on_pil(_image(image), "solarize", _number(threshold, 0, 256))


def _posterize(run: Any, image: Any, bits: Any) -> Any:
    return _on_pil(_image(image), "posterize", _number(int(plain(bits)), 0, 8))


def _enhancer(operation: str, run: Any, image: Any) -> Any:
    return Symbol(_Enhancer(run, operation, _image(image)))


def _convert(image: Image, mode: Any = None) -> Any:
    if mode == image.node.mode:
        return Symbol(image)
    if mode == "RGB":  # of mode L: three bands of it
        return image.then(Call("grayscale", (3.0,)), "RGB")
    if mode == "L":
        return image.then(Call("grayscale", (3.0,)), "L")
    raise Unknown(f"converts the image to mode {mode!r}")


def _filter(image: Image, given: Any) -> Any:
    held = held_by(given) if isinstance(given, Symbol) else None
    if not isinstance(held, _Blur):
        raise Unknown("filters the image by what is not known")
    return _on_pil(image, "box_blur", held.radius)


def _transpose(image: Image, method: Any) -> Any:
    flips = {0: "flip_horizontal", 1: "flip_vertical"}
    if not isinstance(method, int) or int(method) not in flips:
        raise Unknown("transposes the image by other than a flip")
    return _on_pil(image, flips[int(method)])


#: Methods of Pillow's images.
METHODS: dict[str, Callable[..., Any]] = {
    "convert": _convert,
    "copy": lambda image: Symbol(image),
    "filter": _filter,
    "transpose": _transpose,
}


# --- torch and torchvision -------------------------------------------------------------------


def _stack(run: Any, tensors: Any, dim: Any = 0) -> Any:
    several = tuple(tensors)
    images = (isinstance(one, Symbol) and isinstance(held_by(one), Image) for one in several)
    if plain(dim) != 0 or not several or not all(images):
        raise Unknown("stacks what are no images")
    return Symbol(Stacked(run, several))


def _as_transform(make: Callable[..., Any], run: Any, img: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a function of torchvision as the transform that does the same."""
    named = {name: plain(value) for name, value in kwargs.items()}
    transforms = sys.modules["torchvision.transforms"]
    real = make(transforms, *(plain(one) for one in args), **named)
    return run.transform(real, img)


def _gaussian_blur(t: Any, kernel_size: Any, sigma: Any) -> Any:
    # The function blurs by two sigmas across and down, the transform draws one between them.
    if isinstance(sigma, (list, tuple)) and len(set(sigma)) > 1:
        raise Unknown("blurs by other sigmas across and down")
    return t.GaussianBlur(kernel_size, sigma)


_FUNCTIONAL: dict[str, Callable[..., Any]] = {
    "center_crop": lambda t, output_size: t.CenterCrop(output_size),
    "equalize": lambda t: t.RandomEqualize(1.0),
    "autocontrast": lambda t: t.RandomAutocontrast(1.0),
    "gaussian_blur": _gaussian_blur,
    "hflip": lambda t: t.RandomHorizontalFlip(1.0),
    "invert": lambda t: t.RandomInvert(1.0),
    "normalize": lambda t, mean, std, inplace=False: t.Normalize(mean, std, inplace),
    "pil_to_tensor": lambda t: t.PILToTensor(),
    "posterize": lambda t, bits: t.RandomPosterize(bits, 1.0),
    "resize": lambda t, *args, **kwargs: t.Resize(*args, **kwargs),
    "rgb_to_grayscale": lambda t, num_output_channels=1: t.Grayscale(num_output_channels),
    "solarize": lambda t, threshold: t.RandomSolarize(threshold, 1.0),
    "to_grayscale": lambda t, num_output_channels=1: t.Grayscale(num_output_channels),
    "to_tensor": lambda t: t.ToTensor(),
    "vflip": lambda t: t.RandomVerticalFlip(1.0),
}

# --- by identity -----------------------------------------------------------------------------

_OPERATIONS = {
    "equalize": "equalize",
    "flip": "flip_vertical",
    "invert": "invert",
    "mirror": "flip_horizontal",
}
_ENHANCERS = {
    "Brightness": "brightness",
    "Color": "saturation",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
}

# As these modules were when fastdata was imported.
_ALWAYS: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (random.random, _unit),
    (random.uniform, lambda run, a, b: run.uniform(a, b)),
    (random.choice, _chosen),
    (random.randint, lambda run, a, b: _chosen(run, range(plain(a), plain(b) + 1))),
    (np.random.rand, _unit),
    (np.random.random, _unit),
    (np.random.random_sample, _unit),
    (np.random.uniform, lambda run, low=0.0, high=1.0: run.uniform(low, high)),
    (np.random.randint, _numpy_whole),
    (ImageFilter.GaussianBlur, lambda run, radius=2: Symbol(_Blur(run, radius))),
    (ImageOps.solarize, _solarize),
    (ImageOps.posterize, _posterize),
    (ImageOps.grayscale, lambda run, image: _convert(_image(image), "L")),
    *((getattr(ImageOps, name), partial(_operation, does)) for name, does in _OPERATIONS.items()),
    *(
        (getattr(ImageEnhance, name), partial(_enhancer, operation))
        for name, operation in _ENHANCERS.items()
    ),
)


def find(value: Any) -> Callable[..., Any] | None:
    """Return the known effect of a function; None: nothing is known."""
    if not callable(value):
        return None
    for known, does in _ALWAYS:
        # A bound method is made each time that it is looked up.
        if value is known or (isinstance(known, types.MethodType) and value == known):
            module = sys.modules.get(str(value.__module__))
            if module in (ImageEnhance, ImageFilter, ImageOps) and changed(module, value.__name__):
                return None
            return does
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, types.BuiltinFunctionType):
        if value is torch.rand and value.__name__ == "rand":
            return _torch_rand
        if value is torch.stack and value.__name__ == "stack":
            return _stack
    name = "torchvision.transforms.functional"
    functional = sys.modules.get(name)
    if functional is not None and isinstance(value, types.FunctionType):
        own = value.__globals__ is vars(functional) and value.__name__ in _FUNCTIONAL
        if own and getattr(functional, value.__name__) is value:
            return partial(_as_transform, _FUNCTIONAL[value.__name__])
    return None
