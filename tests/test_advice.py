"""The advice of a loader for what is not native: the line, and code that does what it says."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loader_data import images
from torchvision_stub import import_torchvision

from fastdata import DataLoader
from fastdata.errors import SlowPathWarning

tv = import_torchvision().transforms

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")


class Cutout:
    """A square of zeros."""

    def __call__(self, img: Any) -> Any:
        mask = torch.ones(img.size(1), img.size(2))
        mask[4:9, 2:7] = 0
        return img * mask


class ProbeCrop(tv.RandomResizedCrop):  # type: ignore[misc]
    @staticmethod
    def get_params(img: Any, scale: Any, ratio: Any) -> Any:
        width, height = img.size
        return 0, 0, min(height, 20), min(width, 20)


class Parts:
    """Two pictures of one, as BEiT makes them: what it holds are no views."""

    def __init__(self, common: Any, patch: Any) -> None:
        self.common_transform, self.patch_transform = common, patch

    def __call__(self, image: Any) -> Any:
        return self.patch_transform(np.asarray(self.common_transform(image))[::-1].copy())


def some_of(img: Any) -> Any:
    """Call what Python's library draws with."""
    return random.choices([img, img], k=1)[0]


CROP = tv.CenterCrop((30, 40))


def explained(*steps: Any) -> str:
    """The warning of a loader."""
    with pytest.warns(SlowPathWarning) as told:
        DataLoader(images(tv.Compose(list(steps))), 4)
    (warning,) = (one for one in told if one.category is SlowPathWarning)
    return str(warning.message)


def line_of(words: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"line {1 + next(n for n, line in enumerate(lines) if words in line)} of test_advice.py"


@pytest.mark.parametrize("more", [[], [tv.Normalize((0.5,) * 3, (0.2,) * 3)]])
def test_a_function_of_tensors_goes_to_whole_batches(more: list[Any]) -> None:
    text = explained(CROP, tv.ToTensor(), Cutout(), *more)
    assert line_of("mask = torch.ones(") in text
    code = re.search(r"batch_transform=(lambda .*\)), where last is (.*)\.", text)
    assert code is not None, text
    assert code[2] == ("a Compose of the 2 steps from your Cutout on" if more else "your Cutout")
    last = tv.Compose([Cutout(), *more])
    transform = eval(code[1], {"torch": torch, "last": last})
    dataset = images(tv.Compose([CROP, tv.ToTensor()]))
    loader = DataLoader(dataset, 4, batch_transform=transform, require_native=True)
    batch, _ = next(iter(loader))
    for index, image in enumerate(batch):
        want = last(tv.ToTensor()(CROP(dataset.open_image(index).convert("RGB"))))
        assert torch.allclose(image, want, atol=1e-6)


def test_a_crop_of_the_users_has_torchvisions_beside_it() -> None:
    crop = ProbeCrop(24, scale=(0.3, 1.0), interpolation=tv.InterpolationMode.BICUBIC)
    text = explained(crop, tv.ToTensor())
    assert line_of("width, height = img.size") in text
    code = re.search(r"write (RandomResizedCrop\(.*\))\.", text)
    assert code is not None, text
    written = eval(code[1], vars(tv))
    assert repr(written) == repr(
        tv.RandomResizedCrop(24, (0.3, 1.0), interpolation=tv.InterpolationMode.BICUBIC)
    )
    DataLoader(images(tv.Compose([written, tv.ToTensor()])), 4, require_native=True)


def test_parts_of_views_are_not_called_views() -> None:
    text = explained(Parts(tv.Compose([tv.RandomHorizontalFlip()]), tv.Compose([tv.ToTensor()])))
    assert line_of("return self.patch_transform(") in text and "Views" not in text
    assert text.endswith("make the others of whole batches, with the loader's batch_transform.")


def test_the_line_is_of_the_script() -> None:
    text = explained(CROP, some_of, tv.ToTensor())
    assert f"{line_of('return random.choices(')} calls choices, which is not known" in text


def test_without_antialiasing_says_what_to_write() -> None:
    text = explained(tv.PILToTensor(), tv.Resize((20, 30), antialias=False))
    assert text.endswith("on tensors it does not antialias; write antialias=True.")
