"""Datasets whose images all have one size, as CIFAR's: what needs no crop to make a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from containers import pack_tree
from fastdata.converters import Encoding
from jpegs import picture
from loader_data import as_file, folder, images
from torchvision_stub import import_torchvision

from fastdata import DataLoader, ImageDataset
from fastdata.errors import SlowPathWarning, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")

COUNT, WIDTH, HEIGHT = 12, 32, 24
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


@cache
def tree() -> Path:
    root = folder() / "tree"
    (root / "a").mkdir(parents=True)
    for number in range(COUNT):
        data = as_file(picture(WIDTH, HEIGHT, number, 25), "PNG")
        (root / "a" / f"{number:02}.png").write_bytes(data)
    return root


@cache
def packed() -> Path:
    out = folder() / "packed"
    pack_tree(tree(), out, "lmdb", encoding=Encoding("raw"))
    return out


FIXED: dict[str, Callable[[Any], list[Any]]] = {
    "evaluation": lambda tv: [tv.ToTensor(), tv.Normalize(MEAN, STD)],
    "mirrored": lambda tv: [tv.RandomHorizontalFlip(1.0), tv.PILToTensor()],
    "upside down": lambda tv: [tv.RandomVerticalFlip(1.0), tv.RandomInvert(1.0), tv.ToTensor()],
    "padded": lambda tv: [tv.Pad((1, 2, 3, 4), fill=9), tv.PILToTensor()],
    "shorter side": lambda tv: [tv.Resize(12, interpolation=3), tv.PILToTensor()],
}


@pytest.mark.parametrize("name", FIXED)
def test_images_of_one_size_need_no_crop(tv: Any, name: str) -> None:
    pipeline = tv.Compose(FIXED[name](tv))
    dataset = ImageDataset(packed(), pipeline)
    assert dataset.image_size == (WIDTH, HEIGHT)
    loader = DataLoader(dataset, 5, require_native=True)
    got = torch.cat([batch for batch, _ in loader])
    want = torch.stack([pipeline(dataset.open_image(index)) for index in range(COUNT)])
    assert got.shape == want.shape and got.dtype == want.dtype
    assert torch.allclose(got, want, atol=1e-6)
    assert loader.stats().by_pillow == 0


def test_images_of_several_sizes_or_of_files_need_one(tv: Any) -> None:
    flip = tv.Compose([tv.RandomHorizontalFlip(), tv.ToTensor()])
    files = import_torchvision().datasets.ImageFolder(tree(), flip)
    assert images(flip).image_size is None and ImageDataset(files).image_size is None
    for dataset in (images(flip), files):
        with pytest.warns(SlowPathWarning, match="have different sizes"):
            loader = DataLoader(dataset, 4)
        assert loader.explain().startswith("torch")
        with pytest.raises(UsageError, match="have different sizes"):
            DataLoader(dataset, 4, require_native=True)
    crop = tv.Compose([tv.CenterCrop((HEIGHT, WIDTH)), *flip.transforms])
    files.transform = crop
    assert DataLoader(files, 4).explain().startswith("native")


def test_of_images_of_one_size_no_crop_is_asked(tv: Any) -> None:
    first = tv.Lambda(lambda image: image.rotate(3))
    with pytest.warns(SlowPathWarning, match="does not do Lambda") as caught:
        DataLoader(ImageDataset(packed(), tv.Compose([first, tv.ToTensor()])), 4)
    assert "Crop" not in str(caught[0].message)


@pytest.mark.parametrize("known", [False, True])
def test_crops_of_padded_images_are_the_cores(tv: Any, known: bool) -> None:
    """CIFAR's recipe: nearly every crop reaches outside the image."""
    first = [] if known else [tv.CenterCrop((HEIGHT, WIDTH))]
    crop = tv.RandomCrop((HEIGHT, WIDTH), padding=4)
    steps = [*first, crop, tv.RandomHorizontalFlip(), tv.PILToTensor()]
    dataset = ImageDataset(packed(), tv.Compose(steps))
    loader = DataLoader(dataset, COUNT, require_native=True, seed=1)
    seen = set()
    wholes = [
        np.pad(np.asarray(dataset.open_image(index)), ((4, 4), (4, 4), (0, 0)))
        for index in range(COUNT)
    ]
    for _ in range(6):
        for image, whole in zip(next(iter(loader))[0].permute(0, 2, 3, 1), wholes, strict=True):
            windows = np.lib.stride_tricks.sliding_window_view(whole, (HEIGHT, WIDTH), (0, 1))
            windows = windows.transpose(0, 1, 3, 4, 2)
            places = [
                (x, y, mirrored)
                for mirrored in (False, True)
                for y, x in np.argwhere(
                    (windows == image.numpy()[:, :: -1 if mirrored else 1]).all((2, 3, 4))
                ).tolist()
            ]
            assert len(places) == 1
            seen.add(places[0])
        assert loader.stats().by_pillow == 0
    assert len(seen) > 45
    assert {x for x, *_ in seen} == {y for _, y, _ in seen} == set(range(9))
