"""Functions of users, traced: what is followed and what is refused, on every Python.

Bytecode differs between Pythons, so tests/core.sh runs this file on the oldest and the newest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps

from fastdata.transforms.tracing import trace

COUNT = [0]


def to_rgb(image: Any) -> Any:
    return image.convert("RGB")


def to_rgb_where_it_is_not(image: Any) -> Any:
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image


def an_instance(image: Any) -> Any:
    return image.convert("RGB") if isinstance(image, Image.Image) else image


def a_default(image: Any, fill: Any = None) -> Any:
    return image if fill is None else image.convert("L")


def keywords(image: Any, *names: str, mode: str = "RGB") -> Any:
    return image.convert(*names, mode)


def loops(image: Any) -> Any:
    values = [each * 2 for each in range(3) if each]
    for value in values:
        if value == 2:
            continue
        values = values[1:]
    else:
        image = (lambda one: one.convert("RGB"))(image)
    return image


def a_long_loop(image: Any) -> Any:
    """Jumps that are too far for one byte."""
    for a in range(2):
        b = (a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a)
        b = (b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b)
        b = (b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b)
        b = (b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b)
        b = (b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b)
        b = (b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b)
        b = (b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b)
        b = (b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b)
        b = (b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b)
        del b
    return image.convert("RGB")


class Blur:
    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        if random.random() > self.p:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


class Several:
    def __init__(self, transform: Callable[[Any], Any], count: int) -> None:
        self.transforms = [transform] * count

    def __call__(self, image: Any) -> Any:
        return list(map(lambda one: one(image), self.transforms))  # noqa: C417 - as users write it


def choices(image: Any) -> Any:
    if random.random() < 0.3:
        return ImageOps.solarize(image)
    radius = 1 if random.random() < 0.5 else 2
    return image.filter(ImageFilter.GaussianBlur(radius))


def in_a_dict(image: Any) -> Any:
    return {"one": image, "two": image}


@pytest.mark.parametrize(
    ("function", "courses"),
    [
        (to_rgb, 1),
        (lambda image: image.convert("RGB"), 1),
        (to_rgb_where_it_is_not, 1),
        (an_instance, 1),
        (a_default, 1),
        (keywords, 1),
        (loops, 1),
        (a_long_loop, 1),
        (Blur(), 2),
        (Several(to_rgb, 3), 1),
        (choices, 3),
        (in_a_dict, 1),
    ],
)
def test_followed(function: Any, courses: int) -> None:
    found = trace(function)
    assert not isinstance(found, str), found
    assert len(found) == courses


def an_identity(image: Any) -> Any:
    other = image
    return image.convert("L") if other is image else image


def a_while(image: Any) -> Any:
    count = 0
    while count < 3:
        count += 1
    return image


def an_exception(image: Any) -> Any:
    try:
        return image.convert("RGB")
    except ValueError:
        return image


def a_context(image: Any) -> Any:
    with open("image"):
        return image


def a_generator(image: Any) -> Iterator[Any]:
    yield image


def a_global(image: Any) -> Any:
    global COUNT
    COUNT = [1]
    return image


def an_attribute(image: Any) -> Any:
    image.seen = True
    return image


def a_hidden_name(image: Any) -> Any:
    return image.__class__(image)


def of_an_outer_function() -> Any:
    count = 0

    def inner(image: Any) -> Any:
        nonlocal count
        count += 1
        return image

    return inner


def an_import(image: Any) -> Any:
    import os

    return image if os.sep else None


def a_mask(image: Any) -> Any:
    return image, np.random.rand(4, 4) > 0.5


def dithers(image: Any) -> Any:
    return image.convert("RGB", dither=0)


def an_error(image: Any) -> Any:
    raise ValueError("no such image")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (an_identity, "asks whether two things are one"),
        (a_while, "has a loop that is not for"),
        (an_exception, "handles exceptions"),
        (a_context, "handles exceptions"),
        (a_generator, "is a generator"),
        (a_global, "sets a global"),
        (an_attribute, "sets an attribute"),
        (a_hidden_name, "uses '__class__'"),
        (of_an_outer_function(), "sets 'count' of an outer function"),
        (an_import, "imports a module"),
        (a_mask, "calls np.random.rand with arguments that are not known"),
        (dithers, "calls convert with arguments that are not known"),
        (an_error, "raises ValueError: no such image"),
    ],
)
def test_refused_with_the_line(function: Any, words: str) -> None:
    found = trace(function)
    assert isinstance(found, str)
    assert words in found and "of test_tracing.py" in found
