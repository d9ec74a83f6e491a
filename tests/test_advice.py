"""The advice of a loader for what is not native: the line, and code that does what it says."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from loader_data import images, tree
from PIL import Image
from torchvision_stub import import_torchvision

import fastdata
from fastdata import DataLoader
from fastdata.errors import SlowPathWarning, UsageError

torchvision = import_torchvision()
tv, v2 = torchvision.transforms, torchvision.transforms.v2

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


def test_a_derived_class_is_named_with_its_base() -> None:
    text = explained(ProbeCrop(24), tv.ToTensor())
    assert "test_advice.ProbeCrop" in text and "it derives from RandomResizedCrop" in text


def test_without_antialiasing_says_what_to_write() -> None:
    text = explained(tv.PILToTensor(), tv.Resize((20, 30), antialias=False))
    assert text.endswith("on tensors it does not antialias; write antialias=True.")


@pytest.mark.parametrize("kinds", [tv, v2], ids=["v1", "v2"])
def test_a_class_without_its_parentheses(kinds: Any) -> None:
    nested = kinds.Compose([kinds.RandomApply([kinds.ColorJitter]), CROP])
    steps = kinds.CenterCrop, fastdata.transforms.CenterCrop
    for transform in (*steps, *(kinds.Compose([CROP, one]) for one in steps), nested):
        whole = torchvision.datasets.ImageFolder(tree(), transform)
        for load in (lambda: images(transform), lambda: DataLoader(whole)):
            with pytest.raises(UsageError, match="the class C") as caught:
                load()
            assert "(…)" in caught.value.hint
    # The objects of this class are images.
    images(kinds.Compose([CROP, kinds.PILToTensor(), torchvision.tv_tensors.Image]))


@pytest.mark.parametrize("kinds", [tv, v2], ids=["v1", "v2"])
def test_steps_of_ours_in_torchvisions_compose(kinds: Any) -> None:
    crop, flip = fastdata.transforms.CenterCrop(30), fastdata.transforms.RandomHorizontalFlip(1.0)
    theirs = kinds.CenterCrop(30), kinds.RandomHorizontalFlip(1.0)
    want, _ = next(iter(DataLoader(images(kinds.Compose([*theirs, kinds.PILToTensor()])), 4)))
    for steps in ([crop, theirs[1]], [theirs[0], flip]):
        loader = DataLoader(images(kinds.Compose(steps)), 4, require_native=True)
        assert torch.equal(next(iter(loader))[0], want)
    both = kinds.Compose([crop, flip])
    for call in (lambda: DataLoader(images(both), 4), lambda: both(Image.new("RGB", (40, 40)))):
        with pytest.raises(UsageError, match=r"fastdata\.transforms\.Compose"):
            call()
    ours = DataLoader(images(fastdata.transforms.Compose([crop, flip])), 4)
    assert torch.equal(next(iter(ours))[0], want)
