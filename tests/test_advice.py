"""The advice of a loader for what is not native: the line, and code that does what it says."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from loader_data import images
from torchvision_stub import import_torchvision

from fastdata import DataLoader
from fastdata.errors import SlowPathWarning

tv = import_torchvision().transforms

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")


class Cutout:
    def __call__(self, img: Any) -> Any:
        mask = torch.ones(img.size(1), img.size(2))
        mask[4:9, 2:7] = 0
        return img * mask


class ProbeCrop(tv.RandomResizedCrop):  # type: ignore[misc]
    @staticmethod
    def get_params(img: Any, scale: Any, ratio: Any) -> Any:
        width, height = img.size
        return 0, 0, min(height, 20), min(width, 20)


CROP = tv.CenterCrop((30, 40))


def explained(*steps: Any) -> str:
    with pytest.warns(SlowPathWarning) as told:
        DataLoader(images(tv.Compose(list(steps))), 4)
    (warning,) = (one for one in told if one.category is SlowPathWarning)
    return str(warning.message)


@pytest.mark.parametrize("more", [[], [tv.Normalize((0.5,) * 3, (0.2,) * 3)]])
def test_a_function_of_tensors_goes_to_whole_batches(more: list[Any]) -> None:
    text = explained(CROP, tv.ToTensor(), Cutout(), *more)
    assert "test_advice.Cutout" in text
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


def test_a_derived_class_is_named_with_what_it_overrides() -> None:
    text = explained(ProbeCrop(24), tv.ToTensor())
    assert all(
        word in text for word in ("test_advice.ProbeCrop", "RandomResizedCrop", "get_params")
    )


def test_without_antialiasing_says_what_to_write() -> None:
    text = explained(tv.PILToTensor(), tv.Resize((20, 30), antialias=False))
    assert text.endswith("on tensors it does not antialias; write antialias=True.")
