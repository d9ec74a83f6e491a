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
from fastdata import transforms as ours
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
    """Raw pixels, as CIFAR's are."""
    out = folder() / "packed"
    pack_tree(tree(), out, "lmdb", encoding=Encoding("raw"))
    return out


@pytest.fixture(scope="module", params=["v1", "v2"])
def tv(request: pytest.FixtureRequest) -> Any:
    module = import_torchvision()
    return module.transforms if request.param == "v1" else module.transforms.v2


FIXED: dict[str, Callable[[Any], list[Any]]] = {
    "evaluation": lambda tv: [tv.ToTensor(), tv.Normalize(MEAN, STD)],
    "mirrored": lambda tv: [tv.RandomHorizontalFlip(1.0), tv.PILToTensor()],
    "upside down": lambda tv: [tv.RandomVerticalFlip(1.0), tv.RandomInvert(1.0), tv.ToTensor()],
    "padded": lambda tv: [tv.Pad((1, 2, 3, 4), fill=9), tv.PILToTensor()],
    "shorter side": lambda tv: [tv.Resize(12, interpolation=3), tv.PILToTensor()],
    "one upper left corner": lambda tv: [tv.FiveCrop(9), tv.Lambda(lambda crops: crops[0])],
}


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
@pytest.mark.parametrize("name", FIXED)
def test_images_of_one_size_need_no_crop(tv: Any, name: str) -> None:
    pipeline = tv.Compose(FIXED[name](tv))
    if name == "one upper left corner":
        if tv.__name__.endswith("v2"):
            pytest.skip("its Lambda is called with each crop")
        pipeline.transforms.append(tv.ToTensor())
    dataset = ImageDataset(packed(), pipeline)
    assert dataset.image_size == (WIDTH, HEIGHT)
    loader = DataLoader(dataset, 5, require_native="corner" not in name)
    got = torch.cat([batch for batch, _ in loader])
    want = torch.stack([pipeline(dataset.open_image(index)) for index in range(COUNT)])
    assert got.shape == want.shape and got.dtype == want.dtype
    assert torch.allclose(got, want, atol=1e-6)
    if "corner" not in name:
        assert loader.stats().by_pillow == 0


def test_a_transform_that_was_changed_in_place_is_compiled_for_that_size(tv: Any) -> None:
    pipeline = tv.Compose([tv.RandomHorizontalFlip(0.0), tv.PILToTensor()])
    loader = DataLoader(ImageDataset(packed(), pipeline), COUNT, require_native=True)
    ((plain, _),) = loader
    pipeline.transforms[0] = tv.RandomHorizontalFlip(1.0)
    ((mirrored, _),) = loader
    assert torch.equal(mirrored, plain.flip(3)) and not torch.equal(mirrored, plain)


def test_torchs_own_loader_decodes_them_natively_too() -> None:
    dataset = ImageDataset(packed(), ours.RandomHorizontalFlip(1.0))
    ((got, _),) = torch.utils.data.DataLoader(dataset, COUNT)
    want = [np.asarray(dataset.open_image(index))[:, ::-1] for index in range(COUNT)]
    assert np.array_equal(got.permute(0, 2, 3, 1).numpy(), np.stack(want))


def test_images_of_several_sizes_or_of_files_need_one(tv: Any) -> None:
    flip = tv.Compose([tv.RandomHorizontalFlip(), tv.ToTensor()])
    files = import_torchvision().datasets.ImageFolder(tree(), flip)
    assert images(flip).image_size is None and ImageDataset(files).image_size is None
    for dataset in (images(flip), files):
        with pytest.warns(SlowPathWarning, match="may have different sizes"):
            loader = DataLoader(dataset, 4)
        assert loader.explain().startswith("torch")
        with pytest.raises(UsageError, match=r"CenterCrop\(224\), which leaves images of that"):
            DataLoader(dataset, 4, require_native=True)
    crop = tv.Compose([tv.CenterCrop((HEIGHT, WIDTH)), *flip.transforms])
    files.transform = crop
    assert DataLoader(files, 4).explain().startswith("native")


def test_no_transform_is_not_one_that_makes_tensors() -> None:
    with pytest.raises(UsageError, match="There is no transform"):
        DataLoader(ImageDataset(packed()), 4)


@pytest.mark.parametrize("known", [False, True])
def test_crops_of_padded_images_are_the_cores(tv: Any, known: bool) -> None:
    """CIFAR's recipe: nearly every crop reaches outside the image."""
    first = [] if known else [tv.CenterCrop((HEIGHT, WIDTH))]
    crop = tv.RandomCrop((HEIGHT, WIDTH), padding=4)
    floats = [tv.ToTensor(), tv.Normalize(MEAN, STD)]
    dataset = ImageDataset(packed(), tv.Compose([*first, crop, tv.RandomHorizontalFlip(), *floats]))
    loader = DataLoader(dataset, COUNT, require_native=True, seed=1)
    seen = set()
    for _ in range(6):
        for index, image in enumerate(next(iter(loader))[0]):
            whole = floats[0](dataset.open_image(index))
            whole = floats[1](torch.nn.functional.pad(whole, [4] * 4))
            places = [
                (x, y, mirrored)
                for x in range(9)
                for y in range(9)
                for mirrored in (False, True)
                if torch.allclose(
                    image.flip(2) if mirrored else image,
                    whole[:, y : y + HEIGHT, x : x + WIDTH],
                    atol=1e-6,
                )
            ]
            assert len(places) == 1
            seen.add(places[0])
        assert loader.stats().by_pillow == 0
    assert len(seen) > 45
    assert {x for x, *_ in seen} == {y for _, y, _ in seen} == set(range(9))
