"""Comparisons of random transforms find what is drawn otherwise, and nothing else."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from recipe_draws import differences, native, originals
from torchvision_stub import import_torchvision

pytestmark = pytest.mark.filterwarnings("ignore")

MUTANTS: dict[str, dict[str, Any]] = {
    "smaller crops": {"scale": (0.08, 1.0)},
    "double jitter": {"jitter": 0.8},
    "more greys": {"grey": 0.4},
    "no flips": {"flipped": 0.0},
    "no solarisation": {"solarised": 0.0},
    "no blur": {"blurred": 0.0},
    "no erasing": {"erased": 0.0},
}


def view(
    scale: tuple[float, float] = (0.2, 1.0),
    jitter: float = 0.4,
    grey: float = 0.2,
    flipped: float = 0.5,
    solarised: float = 0.2,
    blurred: float = 0.5,
    erased: float = 0.25,
) -> Any:
    tv = import_torchvision().transforms
    return tv.Compose(
        [
            tv.RandomResizedCrop(56, scale),
            tv.RandomApply([tv.ColorJitter(jitter, jitter, jitter, 0.1)], p=0.8),
            tv.RandomGrayscale(grey),
            tv.RandomApply([tv.GaussianBlur(9, (0.1, 2.0))], p=blurred),
            tv.RandomSolarize(128, solarised),
            tv.RandomHorizontalFlip(flipped),
            tv.ToTensor(),
            tv.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            tv.RandomErasing(erased),
        ]
    )


@cache
def published() -> list[Any]:
    return originals(view())


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str) -> None:
    found = differences(native(view(**MUTANTS[mutant])), published())
    assert found, "no feature tells the mutant from the original"


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_the_same_transform_is_no_difference(seed: int) -> None:
    assert differences(native(view(), seed=seed), published()) == []


@pytest.mark.parametrize("tensors", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_augmix_is_distributed_as_torchvisions(tensors: bool) -> None:
    v2 = import_torchvision().transforms.v2
    transform = v2.Compose([*[v2.PILToTensor()] * tensors, v2.AugMix(alpha=0.5), v2.PILToTensor()])
    assert differences(native(transform), originals(transform)) == []
