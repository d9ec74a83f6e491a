"""Draws of pixel programs: functions of the key, distributed as torchvision's."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from core_pixels import whole_recipe
from PIL import Image
from torchvision_calls import Call, recording
from torchvision_stub import import_torchvision

from fastdata import _native
from fastdata.plan import draws
from fastdata.transforms import (
    Compose,
    RandomApply,
    RandomChoice,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomOrder,
    RandomResizedCrop,
    RandomRotation,
    TrivialAugmentWide,
)
from fastdata.transforms.tree import Builder, native_program

#: Draws of torchvision's, and of ours; FASTDATA_DRAWS=100000 for a sharper look, of ten minutes.
COUNT = int(os.environ.get("FASTDATA_DRAWS", 3_000))

#: (width, height): as different as translations by parts of them should show.
SIZE = (224, 180)


def program_of(transform: Any) -> _native.StepProgram:
    return native_program(whole_recipe(transform).programs[0].pixels)


def keys_of(count: int) -> list[int]:
    return draws.sample_keys(draws.epoch_key(0, 0), np.arange(count)).tolist()


# --- numbers ---------------------------------------------------------------------------------


# --- distributions ---------------------------------------------------------------------------


def canonical(calls: list[Call]) -> tuple[Call, ...]:
    """Calls without what does nothing, and without crops: only what is tested was drawn."""
    found = []
    for name, values in calls:
        if name in ("crop", "pad"):
            continue
        values = tuple(values)
        if name in ("affine", "tensor_affine"):
            values = values[:6]
            if np.allclose(values, (1, 0, 0, 0, 1, 0), atol=1e-12):
                continue
        if name == "perspective":
            values = values[:8]
        found.append((name, values))
    return tuple(found)


def theirs(transform: Any, count: int, image: Any = None) -> list[tuple[Call, ...]]:
    torch.manual_seed(1)
    random.seed(1)
    image = Image.new("RGB", SIZE) if image is None else image
    found = []
    with recording() as calls, pytest.MonkeyPatch.context() as patch:
        for name in ("AutoAugment", "RandAugment", "TrivialAugmentWide"):
            if type(transform).__name__ == name:  # 14 tensors made anew for each image
                space = lru_cache(transform._augmentation_space)
                patch.setattr(transform, "_augmentation_space", space)
        for _ in range(count):
            transform(image)
            found.append(canonical(calls))
            calls.clear()
    return found


def ours(transform: Any, count: int) -> list[tuple[Call, ...]]:
    program = program_of(transform)
    found = []
    for key in keys_of(count):
        calls, erased, _, _ = program.draw(key, *SIZE)
        found.append(canonical([*calls, *(("erase", values) for values in erased)]))
    return found


def assert_same_distribution(one: list[tuple[Call, ...]], other: list[tuple[Call, ...]]) -> None:
    counts = [
        Counter(tuple(name for name, _ in calls) for calls in calls) for calls in (one, other)
    ]
    for names in counts[0].keys() | counts[1].keys():
        a, b = (counter[names] / len(one) for counter in counts)
        spread = np.sqrt((a * (1 - a) + b * (1 - b)) / len(one)) + 1 / len(one)
        assert abs(a - b) <= 4.5 * spread, (names, a, b)
    values: list[dict[Any, list[float]]] = [defaultdict(list), defaultdict(list)]
    for found, sequence in zip(values, (one, other), strict=True):
        for calls in sequence:
            for name, numbers in calls:
                for place, number in enumerate(numbers):
                    found[name, place].append(number)
    assert values[0].keys() == values[1].keys()
    for which, numbers in values[0].items():
        distance, bound = kolmogorov_smirnov(numbers, values[1][which])
        assert distance <= bound, which


def kolmogorov_smirnov(one: list[float], other: list[float]) -> tuple[float, float]:
    """The greatest distance of two samples' distributions; and what one in 10,000 exceeds."""
    # torch draws floats of 32 bits, and what is computed from them is as far off.
    a, b = np.sort(np.float32(one)), np.sort(np.float32(other))
    at = np.concatenate([a, b])
    at = at + np.abs(at) * 1e-6 + 1e-9
    distance = np.abs(
        np.searchsorted(a, at, "right") / len(a) - np.searchsorted(b, at, "right") / len(b)
    )
    return float(distance.max()), float(2.2253 * np.sqrt(1 / len(a) + 1 / len(b)))


PILLOW: dict[str, Callable[[Any], Any]] = {
    "ColorJitter": lambda tv: tv.ColorJitter(0.4, (0.2, 3.0), 0.3, 0.1),
    "by chance": lambda tv: tv.Compose(
        [
            tv.RandomGrayscale(0.3),
            tv.RandomInvert(0.7),
            tv.RandomPosterize(3, 0.1),
            tv.RandomSolarize(100.5, 0.2),
            tv.RandomAdjustSharpness(1.5, 0.6),
            tv.RandomAutocontrast(0.25),
            tv.RandomEqualize(),
            tv.RandomVerticalFlip(0.4),
        ]
    ),
    "RandomRotation": lambda tv: tv.RandomRotation((-20, 70)),
    "RandomRotation expanding": lambda tv: tv.RandomRotation(50, expand=True),
    "RandomAffine": lambda tv: tv.RandomAffine(30, (0.2, 0.1), (0.5, 1.5), (-10, 5, 0, 20)),
    "RandomAffine that moves": lambda tv: tv.RandomAffine(0, (0.2, 0.1)),
    "RandomAffine about a point": lambda tv: tv.RandomAffine(0, shear=9, center=(3, 50)),
    "RandomChoice": lambda tv: tv.RandomChoice(
        [tv.RandomInvert(1.0), tv.RandomEqualize(0.5), tv.ColorJitter(0.1)], [1, 0.5, 2]
    ),
    "RandomChoice of several": lambda tv: tv.RandomChoice(
        [tv.RandAugment(3), tv.RandomInvert(1.0)], [1, 0.2]
    ),
    "RandomOrder of several": lambda tv: tv.RandomOrder(
        [tv.RandAugment(1), tv.Compose([tv.RandomInvert(1.0), tv.RandomPosterize(2, 1.0)])]
    ),
    "RandomOrder": lambda tv: tv.RandomOrder(
        [tv.RandomInvert(1.0), tv.RandomEqualize(0.5), tv.RandomPosterize(2, 1.0)]
    ),
    "TrivialAugmentWide": lambda tv: tv.TrivialAugmentWide(),
    "TrivialAugmentWide of few strengths": lambda tv: tv.TrivialAugmentWide(5),
    "RandAugment": lambda tv: tv.RandAugment(),
    "AutoAugment imagenet": lambda tv: tv.AutoAugment(),
    "AutoAugment cifar10": lambda tv: tv.AutoAugment(tv.AutoAugmentPolicy.CIFAR10),
    "AutoAugment svhn": lambda tv: tv.AutoAugment(tv.AutoAugmentPolicy.SVHN),
    "SimCLR": lambda tv: tv.Compose(
        [
            tv.RandomApply([tv.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            tv.RandomGrayscale(0.2),
            tv.RandomApply([tv.GaussianBlur(23)], 0.5),
        ]
    ),
}


@pytest.mark.parametrize("name", PILLOW)
def test_draws_are_distributed_as_torchvisions(v1: Any, name: str) -> None:
    transform = PILLOW[name](v1)
    pipeline = v1.Compose([v1.Resize(SIZE[::-1]), transform, v1.CenterCrop(300)])
    assert_same_distribution(ours(pipeline, COUNT), theirs(transform, COUNT))


@pytest.mark.parametrize("name", ["RandomPhotometricDistort", "RandomChannelPermutation"])
def test_draws_of_v2s_own_are_distributed_as_torchvisions(name: str) -> None:
    v2 = import_torchvision().transforms.v2
    transform = getattr(v2, name)()
    pipeline = v2.Compose([v2.Resize(SIZE[::-1]), transform])
    assert_same_distribution(ours(pipeline, COUNT), theirs(transform, COUNT))


@pytest.mark.parametrize(
    "options",
    [{}, {"p": 1.0, "scale": (0.2, 0.9), "ratio": (0.2, 5.0), "value": "random"}],
    ids=["default", "large"],
)
def test_erasing_is_distributed_as_torchvisions(v1: Any, options: Any) -> None:
    transform = v1.RandomErasing(**options)
    pipeline = v1.Compose([v1.Resize(SIZE[::-1]), v1.ToTensor(), transform])
    image = torch.zeros(1, *SIZE[::-1])
    assert_same_distribution(ours(pipeline, COUNT), theirs(transform, COUNT, image))


def test_perspective_is_distributed_as_torchvisions(v1: Any) -> None:
    """Corners, not coefficients, which take torchvision a least-squares problem an image."""
    transform = v1.RandomPerspective(0.3, p=1.0)
    torch.manual_seed(1)
    corners = [transform.get_params(*SIZE, 0.3) for _ in range(20_000)]
    program = program_of(v1.Compose([v1.Resize(SIZE[::-1]), transform]))
    drawn = np.array([program.draw(key, *SIZE)[0][0][1] for key in keys_of(COUNT)])
    # Where the upper left corner of the image goes: what the inverse takes to (0, 0).
    found = np.linalg.solve(drawn[:, [[0, 1], [3, 4]]], -drawn[:, [2, 5], None])[..., 0]
    for place in range(2):
        wanted = [float(end[0][place]) for _, end in corners]
        distance, bound = kolmogorov_smirnov(np.rint(found[:, place]).tolist(), wanted)
        assert distance <= bound
    # And for given corners the coefficients are torchvision's.
    functional = v1.functional
    start = [[0, 0], [SIZE[0] - 1, 0], [SIZE[0] - 1, SIZE[1] - 1], [0, SIZE[1] - 1]]
    for key in keys_of(50):
        ((_, values),) = program.draw(key, *SIZE)[0]
        m = np.array([*values[:8], 1.0]).reshape(3, 3)
        ends = []
        for x, y in start:
            point = np.linalg.solve(m, [x, y, 1.0])
            ends.append([int(v) for v in np.rint(point[:2] / point[2])])
        wanted = functional._get_perspective_coeffs(start, ends)
        assert np.allclose(values[:8], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [
        ((500, 375), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((640, 120), (0.08, 1.0), (3 / 4, 4 / 3)),  # attempts often fail
        ((2000, 100), (0.5, 1.0), (3 / 4, 4 / 3)),  # they always fail: too wide
        ((100, 1100), (0.5, 1.0), (3 / 4, 4 / 3)),  # too high
        ((64, 64), (0.9, 1.1), (0.5, 2.0)),
    ],
)
def test_boxes_are_distributed_as_torchvisions(
    v1: Any, size: tuple[int, int], scale: list[float], ratio: list[float]
) -> None:
    torch.manual_seed(1)
    image = torch.empty((1, 1, 1)).expand(3, size[1], size[0])
    made = [v1.RandomResizedCrop.get_params(image, scale, ratio) for _ in range(COUNT)]
    top, left, height, width = np.array(made).T
    recipe = whole_recipe(RandomResizedCrop(8, scale, ratio))
    sides, keys = ([side] * COUNT for side in size), np.array(keys_of(COUNT), np.uint64)
    x, y, right, lower = recipe.programs[0].draw(*sides, keys)["box"].T
    wide, high = right - x, lower - y
    for one, other in (
        *((x, left), (y, top), (wide, width), (high, height)),
        *((wide * high, width * height), (wide / high, width / height)),
        *((2 * x + wide, 2 * left + width), (7 * x + 3 * y - wide, 7 * left + 3 * top - width)),
    ):
        distance, bound = kolmogorov_smirnov(one.tolist(), other.tolist())
        assert distance <= bound


def test_ours_are_drawn_as_torchvisions_that_they_are_named_after(v1: Any) -> None:
    for mine, other in (
        (TrivialAugmentWide(), v1.TrivialAugmentWide()),
        (RandomRotation(30), v1.RandomRotation(30)),
        (RandomApply([RandomInvert()], 0.2), v1.RandomApply([v1.RandomInvert()], 0.2)),
        (RandomOrder([RandomInvert()]), v1.RandomOrder([v1.RandomInvert()])),
        (
            RandomChoice([RandomInvert(), RandomGrayscale()]),
            v1.RandomChoice([v1.RandomInvert(), v1.RandomGrayscale()]),
        ),
    ):
        crop = RandomResizedCrop(32)
        assert ours([crop, mine], 200) == ours([v1.RandomResizedCrop(32), other], 200)
    erased = ours(Compose([RandomResizedCrop(32), RandomErasing()]), 200)
    pipeline = v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor(), v1.RandomErasing()])
    assert erased == ours(pipeline, 200)


def test_parameters_are_checked_by_name() -> None:
    with pytest.raises(TypeError, match=r"resize takes \(width, height, filter\), not \(width\)"):
        Builder().add("resize", width=8)
    builder = Builder()
    with builder.node("sequence"):
        builder.add("posterize", bits=(1, 2))
    with pytest.raises(ValueError, match="entries: bits of posterize"):
        builder.program()


def test_only_leading_steps_of_geometry_are_folded() -> None:
    with pytest.raises(ValueError, match="cannot be folded: invert"):
        native_program((), leading=(RandomInvert(1.0),))
    crop = RandomResizedCrop(32)
    assert native_program((crop,)).changes_pixels
    assert not native_program((), leading=(crop,)).changes_pixels
