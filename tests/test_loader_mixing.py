"""MixUp and CutMix as ``batch_transform``: torchvision's own objects, draws of the loader's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loader_data import images, same
from torchvision_stub import import_torchvision

from fastdata import DataLoader, DeviceLoader
from fastdata.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop

FLOATS = Compose(
    [RandomResizedCrop(24), RandomHorizontalFlip(), Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))]
)
CLASSES = 3

PLACES: list[dict[str, Any]] = [{}, {"device": "cpu"}, {"around": "cpu"}]


@pytest.fixture(scope="module")
def v2() -> Any:
    return import_torchvision().transforms.v2


MIXES: dict[str, Callable[[Any], Any]] = {
    "MixUp": lambda v2: v2.MixUp(num_classes=CLASSES),
    "CutMix": lambda v2: v2.CutMix(alpha=0.4, num_classes=CLASSES),
    "either": lambda v2: v2.RandomChoice(
        [v2.MixUp(alpha=0.2, num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)]
    ),
}


def mixed(transform: Any, around: str = "", **options: Any) -> Any:
    """A loader with a ``batch_transform``; with ``around``, a DeviceLoader has it."""
    options = {"shuffle": True, "seed": 3, "require_native": True, **options}
    if not around:
        return DataLoader(images(FLOATS), 10, batch_transform=transform, **options)
    loader: Any = DataLoader(images(FLOATS), 10, **options)
    return DeviceLoader(loader, around, channels_last=False, batch_transform=transform)


def every_generator(batch: Any) -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.mark.parametrize("place", PLACES, ids=["host", "device", "around"])
@pytest.mark.parametrize("name", MIXES)
def test_torchvisions_mix_the_loaders_batches(
    v2: Any, name: str, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[dict[str, Any]] = []
    for kind in (v2.MixUp, v2.CutMix):
        make = kind.make_params

        def note(self: Any, inputs: Any, make: Any = make) -> Any:
            drawn.append(make(self, inputs))
            return drawn[-1]

        monkeypatch.setattr(kind, "make_params", note)
    got = list(mixed(MIXES[name](v2), **place))
    plain = list(mixed(None, **place))
    assert len(got) == len(plain) == len(drawn)
    for (pixels, soft), (before, labels), params in zip(got, plain, drawn, strict=True):
        other = before.roll(1, 0)
        if "box" in params:
            left, top, right, bottom = params["box"]
            want, part = before.clone(), params["lam_adjusted"]
            want[..., top:bottom, left:right] = other[..., top:bottom, left:right]
        else:
            part = params["lam"]
            want = before * part + other * (1 - part)
        torch.testing.assert_close(pixels, want)
        hard = torch.eye(CLASSES)[labels]
        torch.testing.assert_close(soft, hard * part + hard.roll(1, 0) * (1 - part))
    if name == "either":
        assert {"box" in params for params in drawn} == {True, False}


@pytest.mark.parametrize("place", PLACES, ids=["host", "device", "around"])
def test_the_same_batch_is_mixed_the_same_way(v2: Any, place: Any) -> None:
    """In every run, with any threads, and after a resume."""
    transform = MIXES["either"](v2)
    whole = list(mixed(transform, **place))
    torch.manual_seed(7)
    np.random.seed(7)
    assert same(whole, list(mixed(transform, num_workers=2, **place)))
    loader = mixed(transform, num_workers=1, **place)
    batches = iter(loader)
    taken = [next(batches) for _ in range(2)]
    resumed = mixed(transform, **place)
    resumed.load_state_dict(loader.state_dict())
    assert same(whole, taken + list(resumed))


@pytest.mark.parametrize("place", PLACES, ids=["host", "device", "around"])
def test_each_batch_rank_and_epoch_draws_anew(place: Any) -> None:
    loaders = [mixed(every_generator, shard=(rank, 2), **place) for rank in range(2)]
    found = [draws for _ in range(3) for loader in loaders for draws in loader]
    assert len(found) == 3 * 2 * 3
    for numbers in zip(*found, strict=True):
        assert len(set(numbers)) == len(found)
    again = mixed(every_generator, shard=(1, 2), **place)
    again.set_epoch(2)
    assert list(again) == found[-3:]


def test_a_second_transform_draws_numbers_of_its_own() -> None:
    def noted(batch: Any) -> Any:
        first.append(every_generator(batch))
        return batch

    first: list[Any] = []
    inner = mixed(noted)
    second = list(DeviceLoader(inner, "cpu", batch_transform=every_generator))
    assert len(set(first + second)) == 2 * len(second) == 12
    assert second == list(DeviceLoader(mixed(noted), "cpu", batch_transform=every_generator))
    assert first[:6] == list(mixed(every_generator))


@pytest.mark.parametrize("place", PLACES, ids=["host", "device", "around"])
def test_the_generators_go_on_as_if_nothing_had_been_drawn(place: Any) -> None:
    def fails(batch: Any) -> Any:
        every_generator(batch)
        raise ValueError("mine")

    for transform in (every_generator, fails):
        batches = iter(mixed(transform, **place))
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        try:
            next(batches)
        except ValueError as error:
            assert str(error) == "mine"
        here = every_generator(None)
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        assert here == every_generator(None)
