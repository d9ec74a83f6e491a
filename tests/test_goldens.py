"""Batches of thirteen recipes are those of tests/goldens.json, from every container and rank.

After a wanted change: ``python tests/test_goldens.py > tests/goldens.json`` and a changelog line.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import target_data
import torch
from loader_data import folder, images, tree
from tiers import first_of, slow
from torchvision_stub import import_torchvision

from fastdata import DataLoader, ImageDataset, _native
from fastdata import transforms as ours

tv = import_torchvision().transforms
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = ours.RandomResizedCrop(32)
GOLDENS = Path(__file__).with_name("goldens.json")


def _floats(*steps: Any) -> Any:
    return tv.Compose([*steps, tv.PILToTensor(), tv.ConvertImageDtype(torch.float32)])


def _v2() -> Any:
    v2 = tv.v2
    floats = v2.ToDtype(torch.float32, scale=True)
    crop = v2.RandomResizedCrop(32, antialias=True)
    return v2.Compose([v2.ToImage(), crop, v2.RandomHorizontalFlip(), floats])


#: Recipes of images, by name.
IMAGES: dict[str, Callable[[], Any]] = {
    "crops": lambda: ours.Compose([CROP, ours.RandomHorizontalFlip()]),
    "evaluation": lambda: ours.Compose(
        [ours.Resize(40), ours.CenterCrop(32), ours.Normalize(MEAN, STD, dtype="float16")]
    ),
    "resizes": lambda: ours.Views(
        ours.Compose([ours.Resize((32, 40)), ours.RandomHorizontalFlip()]),
        ours.Compose([ours.ResizeKeepRatio(40), ours.RandomCrop(32), ours.RandomVerticalFlip()]),
        ours.Compose([ours.ResizeToSequence(8, 40), ours.RandomCrop(32, pad_if_needed=True)]),
    ),
    "TrivialAugment": lambda: _floats(
        tv.RandomResizedCrop(32), tv.TrivialAugmentWide(), tv.RandomVerticalFlip()
    ),
    "RandAugment, erased": lambda: tv.Compose(
        [_floats(tv.RandomResizedCrop(32), tv.RandAugment()), tv.RandomErasing(0.5)]
    ),
    "AutoAugment": lambda: _floats(tv.RandomResizedCrop(32), tv.AutoAugment()),
    "AugMix": lambda: _floats(tv.Resize((40, 40)), tv.AugMix(), tv.RandomCrop(32, padding=2)),
    "colours": lambda: ours.Compose(
        [CROP, ours.ColorJitter(0.4, 0.4, 0.4, 0.1), ours.RandomGrayscale(0.2), ours.PillowBlur()]
    ),
    "warps": lambda: ours.Compose(
        [CROP, ours.RandomRotation(20), ours.RandomPerspective(), ours.RandomAffine(5)]
    ),
    "tensors": _v2,
    "views": lambda: ours.Views(CROP, ours.Compose([CROP, ours.RandomSolarize(128)]), (CROP, 2)),
}
RECIPES = (*IMAGES, "targets", "targets, one by one")


@cache
def _tar() -> Path:
    path = folder() / "photos.tar"
    with tarfile.open(path, "w") as tar:
        for number, file in enumerate(sorted(tree().glob("*/*"))):
            members = {file.suffix: file.read_bytes(), ".cls": file.parent.name[-1].encode()}
            for suffix, data in members.items():
                member = tarfile.TarInfo(f"{number:03}{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def _dataset(recipe: str, container: str) -> ImageDataset:
    if recipe in IMAGES:
        transform = IMAGES[recipe]()
        return (
            ImageDataset(_tar(), transform) if container == "tar" else images(transform, container)
        )
    return target_data.images(target_data.training(tv.v2), container)


def batches(recipe: str, container: str, rank: int, stop: int, threads: int) -> Iterator[Any]:
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "shard": (rank, 2)}
    options["num_workers"] = threads
    if recipe in IMAGES:
        options["fields"] = ("image", "label", "index")
    elif recipe != "targets":
        options["collate_fn"] = list

    def opened() -> Any:
        return DataLoader(_dataset(recipe, container), 5, require_native=True, **options)

    loader = opened()
    yield from itertools.islice(loader, stop)
    again = opened()
    again.load_state_dict(loader.state_dict())
    for _ in range(2):
        yield from again


def digest(recipe: str, container: str = "lmdb", stop: int = 1, threads: int = 2) -> str:
    found = hashlib.sha256()
    for rank in range(2):
        for batch in batches(recipe, container, rank, stop, threads):
            found.update(repr(target_data.plain(batch)).encode())
    return found.hexdigest()


@pytest.mark.filterwarnings("ignore:.* is indexed now:UserWarning")
@pytest.mark.parametrize(
    ("recipe", "container"),
    [
        (recipe, container)
        if (recipe, container)
        in (("crops", "lmdb"), ("evaluation", "tar"), ("resizes", "lmdb"), ("targets", "shards"))
        else slow(recipe, container)
        for recipe in RECIPES
        for container in ("lmdb", "parquet", "shards", "tar")
        if recipe in IMAGES or container != "tar"
    ],
)
def test_batches_are_those_of_before(recipe: str, container: str) -> None:
    golden = json.loads(GOLDENS.read_text())[recipe]
    assert digest(recipe, container, 2 if container in ("parquet", "tar") else 1) == golden


@pytest.mark.parametrize("recipe", first_of(["colours", "targets", "targets, one by one"]))
def test_threads_and_instruction_sets_change_nothing(recipe: str) -> None:
    golden, before = json.loads(GOLDENS.read_text())[recipe], _native.simd()
    levels = _native.simd_levels()
    try:
        for threads, level in [(n, levels[0]) for n in (0, 1, 4)] + [(2, one) for one in levels]:
            _native.set_simd(level)
            assert digest(recipe, "shards", 2, threads) == golden, (threads, level)
    finally:
        _native.set_simd(before)


if __name__ == "__main__":
    print(json.dumps({recipe: digest(recipe) for recipe in RECIPES}, indent=1))
