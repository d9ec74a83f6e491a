"""Small functions of scripts are recognised by their code, on every Python; look-alikes are not.

Bytecode differs between Pythons, so tests/core.sh runs this file on the oldest and the newest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from fastdata.transforms import Compose, Resize
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.recipe import Recipe

MODE = "RGB"


def _convert_image_to_rgb(picture: Any) -> Any:
    return picture.convert("RGB")


def pil_to_rgb(img: Any) -> Any:
    """As scripts have it, with words and types."""
    if img.mode != "RGB":
        img = img.convert("RGB")
    return img


def identity(x: Any) -> Any:
    return x


KNOWN: list[Callable[..., Any]] = [
    _convert_image_to_rgb,
    pil_to_rgb,
    identity,
    lambda im: im.convert("RGB"),
    lambda im: im.convert("RGB") if im.mode != "RGB" else im,
    lambda im: im,
]


def annotated(image: Any, mode: str = "RGB") -> Any:
    return image.convert("RGB")


def of_a_global(image: Any) -> Any:
    return image.convert(MODE)


def other(image: Any) -> Any:
    if image.mode == "RGB":
        image = image.convert("RGB")
    return image


def generator(image: Any) -> Any:
    yield image


async def awaited(image: Any) -> Any:
    return image


@wraps(identity)
def wrapped(image: Any) -> Any:
    return image.convert("1")


def of_a_closure(mode: str) -> Callable[[Any], Any]:
    return lambda image: image.convert(mode)


OTHERS: list[Callable[..., Any]] = [
    *(annotated, of_a_global, other, generator, awaited, wrapped, of_a_closure("RGB")),
    partial(_convert_image_to_rgb),
    lambda im: im.convert("L"),
    lambda im: im.convert("RGB").convert("L"),
    lambda im: im.convert(1),
    lambda im: im.draft("RGB"),
    lambda im: im.convert(mode="RGB"),
    lambda im: im.convert("RGB", None),
    lambda im: im.convert,
    lambda im: "RGB",
    lambda *im: im,
    lambda im, other=None: im,
    lambda *, im: im,
    lambda im, **rest: im,
]


def _unknown(function: Callable[..., Any]) -> list[str]:
    found = compile_recipe(Compose([Resize((8, 8)), function]))
    assert isinstance(found, Recipe)
    return [one.name for one in found.unknown]


@pytest.mark.parametrize("function", KNOWN)
def test_functions_that_scripts_have_are_known(function: Callable[..., Any]) -> None:
    assert not _unknown(function)


@pytest.mark.parametrize("function", OTHERS)
def test_functions_that_do_something_else_are_not(function: Callable[..., Any]) -> None:
    assert _unknown(function)


def test_a_function_that_has_state_of_its_own_is_not_known() -> None:
    def convert(image: Any) -> Any:
        return image.convert("RGB")

    assert not _unknown(convert)
    convert.__defaults__ = ("L",)
    assert _unknown(convert)
