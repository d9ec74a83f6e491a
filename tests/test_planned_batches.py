"""`AspectRatioBatches` and `TokenBudgetBatches`: in fastdata's loader, and in torch's."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from containers import pack_tree
from loader_data import CROPS, SAMPLES, images, same, tree
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchLoader
from torchvision_stub import import_torchvision

from fastdata import DataLoader, ImageDataset
from fastdata.errors import UsageError
from fastdata.samplers import AspectRatioBatches, TokenBudgetBatches
from fastdata.transforms import (
    BySize,
    CenterCrop,
    Compose,
    RandomCrop,
    RandomHorizontalFlip,
    ResizeKeepRatio,
    Views,
)

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")

#: (width, height) of the batches.
SIZES = [(32, 32), (40, 24), (24, 40)]


def cover(size: tuple[int, int]) -> Any:
    resize = ResizeKeepRatio(size, interpolation="bicubic")
    return Compose([resize, RandomCrop(size), RandomHorizontalFlip()])


def sized(container: str = "lmdb") -> ImageDataset:
    return images(BySize(cover), container)


def loader(dataset: Any = None, options: Any = None, **loading: Any) -> DataLoader[Any]:
    dataset = sized() if dataset is None else dataset
    batches = AspectRatioBatches(dataset, 4, SIZES, **options or {})
    about: dict[str, Any] = {"fields": ("image", "index"), "require_native": True}
    return DataLoader(dataset, batch_sampler=batches, **{**about, **loading})


def nearest_of(width: int, height: int) -> tuple[int, int]:
    """The size whose ratio is nearest, by brute force."""
    return min(SIZES, key=lambda size: abs(math.log(width / height * size[1] / size[0])))


def shape(batch: Any) -> tuple[int, int]:
    height, width = batch["image"].shape[2:]
    return width, height


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["index"].tolist()]


# Sizes.


@pytest.mark.parametrize(("container", "threads"), [("lmdb", 0), ("folder", 2)])
def test_every_image_is_in_a_batch_of_its_ratio(container: str, threads: int) -> None:
    batches = loader(sized(container), num_workers=threads)
    found = list(batches)
    assert len(found) == len(batches)
    assert sorted(numbers(found)) == list(range(SAMPLES))
    plain = images(None, container)
    for batch in found:
        for number in batch["index"].tolist():
            assert shape(batch) == nearest_of(*plain.open_image(number).size)
    assert {shape(batch) for batch in found} == set(SIZES)
    assert "sizes: 3" in batches.explain()


def joint(sizes: Any = SIZES) -> DataLoader[Any]:
    path = images(None).path
    fields = ("image", "geometry", "label")
    dataset = ImageDataset(path, transforms=BySize(cover), fields=fields)
    batches = AspectRatioBatches(dataset, 4, sizes)
    about = ("image", "geometry", "index")
    return DataLoader(dataset, batch_sampler=batches, fields=about, num_workers=2)


def test_pixels_and_crops_are_pillows() -> None:
    """Resized to cover the size, cropped where ``geometry`` says, mirrored: SDXL's conditions."""
    plain = images(None)
    mirrored = 0
    for batch in joint():
        geometry, (width, height) = batch["geometry"], shape(batch)
        for slot, number in enumerate(batch["index"].tolist()):
            image = plain.open_image(number)
            assert geometry.source_size[slot].tolist() == list(image.size)
            assert geometry.size[slot].tolist() == [width, height]
            ratio = min(image.width / width, image.height / height)
            resized = image.resize(
                tuple(round(side / ratio) for side in image.size), Image.Resampling.BICUBIC
            )
            top, left = geometry.crop[slot].tolist()
            assert 0 <= top <= resized.height - height and 0 <= left <= resized.width - width
            expected = resized.crop((left, top, left + width, top + height))
            if geometry.matrix[slot, 0, 0] < 0:
                expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
                mirrored += 1
            pixels = batch["image"][slot].permute(1, 2, 0).numpy()
            assert np.array_equal(pixels, np.asarray(expected)), number
    assert 10 < mirrored < SAMPLES - 10


def test_the_largest_size_that_does_not_enlarge() -> None:
    sizes = [(32, 32), (64, 64), (96, 96), (400, 100)]
    given = [(32, 32), (63, 64), (64, 64), (95, 100), (96, 97), (4000, 1000), (500, 500), (1, 1)]
    expected = [0, 0, 1, 1, 2, 3, 2, 0]
    batches = AspectRatioBatches(range(8), 1, sizes, image_sizes=given, shuffle=False)
    found = {row: sizes.index(batch.size[::-1]) for batch in batches for row in batch}  # type: ignore[attr-defined]
    assert [found[row] for row in range(8)] == expected


def test_batches_of_as_many_pixels() -> None:
    dataset = sized()
    sizes = [(32, 32), (16, 16), (48, 16)]
    batches = AspectRatioBatches(dataset, sizes=sizes, pixels=4096)
    full = {(32, 32): 4, (16, 16): 16, (48, 16): 5}
    largest: dict[Any, int] = {}
    for batch in DataLoader(dataset, batch_sampler=batches):
        size = tuple(batch[0].shape[2:])
        largest[size] = max(largest.get(size, 0), len(batch[0]))
    assert all(most <= full[size] for size, most in largest.items())
    assert largest[32, 32] == 4


def test_sizes_of_an_area() -> None:
    dataset = sized()
    plan = AspectRatioBatches(dataset, 4, 512).plan
    assert (512, 512) in plan.sizes and (704, 320) not in plan.sizes
    assert all(w % 64 == h % 64 == 0 and w * h <= 512 * 512 for w, h in plan.sizes)
    assert all(0.5 <= w / h <= 2 for w, h in plan.sizes)


def test_ratios_leave_images_as_they_are() -> None:
    """torchvision's groups: create_aspect_ratio_groups(dataset, k) of its detection reference."""
    k = 2
    edges = [2 ** (-1 + at / k) for at in range(2 * k + 1)]
    centres = [2 ** (-1 + (at - 0.5) / k) for at in range(2 * k + 2)]
    plain = images(None)
    ratios = [plain.open_image(row).width / plain.open_image(row).height for row in range(SAMPLES)]
    groups = [sum(edge <= ratio for edge in edges) for ratio in ratios]
    dataset = images(CenterCrop(8))
    batches = AspectRatioBatches(dataset, 3, ratios=centres)
    found = list(batches)
    assert sorted(row for batch in found for row in batch) == list(range(SAMPLES))
    assert all(len({groups[row] for row in batch}) == 1 for batch in found)
    assert all(type(batch) is list for batch in found)
    assert sum(len(batch) for batch in DataLoader(dataset, batch_sampler=batches)) == 2 * len(found)


# Where sizes come from.


def test_turned_images_have_turned_sizes(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (30, 60, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, options in (("a/0.jpg", {"exif": exif}), ("a/1.jpg", {})):
        (tmp_path / "tree/a").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "tree" / name, **options)
    pack_tree(tmp_path / "tree", tmp_path / "packed", "lmdb")
    for turn, expected in ((True, {(24, 40), (40, 24)}), (False, {(40, 24)})):
        dataset = ImageDataset(tmp_path / "packed", BySize(cover), exif_transpose=turn)
        assert {shape(batch) for batch in loader(dataset)} == expected


def test_unknown_sizes_are_read_from_headers(tmp_path: Path) -> None:
    """A folder of torchvision's has none; a damaged file is an error where it is decoded."""
    datasets = import_torchvision().datasets
    dataset = datasets.ImageFolder(tree(), BySize(cover))
    found = list(loader(dataset, num_workers=2))
    assert sorted(numbers(found)) == list(range(SAMPLES))
    for batch in found:
        for number in batch["index"].tolist():
            with Image.open(dataset.samples[number][0]) as image:
                assert shape(batch) == nearest_of(*image.size)
    bad = tmp_path / "bad" / "a"
    bad.mkdir(parents=True)
    Image.new("RGB", (50, 50)).save(bad / "0.jpg")
    (bad / "1.jpg").write_bytes(b"no image")
    broken = loader(datasets.ImageFolder(bad.parent, BySize(cover)), on_error="zero")
    with pytest.warns(UserWarning, match=r"1\.jpg"):
        (batch,) = broken
    assert batch["valid"].sum() == 1


def test_subsets_and_concatenations() -> None:
    dataset: Any = ConcatDataset([Subset(sized(), list(range(50, 4, -1))), sized("shards")])
    found = list(loader(dataset, num_workers=2))
    assert sorted(numbers(found)) == list(range(len(dataset)))
    plain = images(None)
    whole = [plain.open_image(row).size for row in range(SAMPLES)]
    rows = [*range(50, 4, -1), *range(SAMPLES)]
    for batch in found:
        assert all(shape(batch) == nearest_of(*whole[rows[n]]) for n in batch["index"].tolist())


# Order, shards, states.


def test_a_last_step_with_fewer_batches_than_ranks() -> None:
    dataset, lengths = images(), np.random.default_rng(3).integers(1, 30, SAMPLES)
    for samples in range(SAMPLES - 8, SAMPLES):
        part = Subset(dataset, range(samples))
        taken = []
        for rank in range(3):
            batches = TokenBudgetBatches(part, lengths[:samples], 60, 16, shard=(rank, 3))
            taken += numbers(DataLoader(part, batch_sampler=batches, fields=("image", "index")))
        assert set(taken) == set(range(samples))


@pytest.mark.parametrize("kind", ["aspect", "budget"])
def test_states_shards_and_epochs(kind: str) -> None:
    def made(**options: Any) -> DataLoader[Any]:
        if kind == "aspect":
            return loader(seed=5, num_workers=2, **options)
        dataset = images()
        batches = TokenBudgetBatches(dataset, np.arange(SAMPLES) % 9 + 1, 20, 16)
        about = {"fields": ("image", "index"), "seed": 5}
        return DataLoader(dataset, batch_sampler=batches, num_workers=2, **about, **options)

    whole = made()
    epochs = [list(whole) for _ in range(2)]
    assert numbers(epochs[0]) != numbers(epochs[1])
    for epoch in epochs:
        assert sorted(numbers(epoch)) == list(range(SAMPLES))
    again = made()
    again.set_epoch(1)
    assert len(again) == len(epochs[1])
    passing = iter(again)
    first = [next(passing) for _ in range(3)]
    state = json.loads(json.dumps(again.state_dict()))
    resumed = made()
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    assert same(first + list(resumed), epochs[1])
    assert same(list(resumed), list(made_epoch(made(), 2)))

    ranks = [made(shard=(rank, 3)) for rank in range(3)]
    for one in ranks:
        one.load_state_dict(state)
    shared = [list(one) for one in ranks]
    assert len({len(one) for one in shared}) == 1
    rest = [number for one in shared for number in numbers(one)]
    assert set(rest) | set(numbers(first)) == set(range(SAMPLES))
    if kind == "aspect":
        for step in zip(*shared, strict=True):
            assert len({batch["image"].shape for batch in step}) == 1
    # A sample has the same crop on any rank.
    crops = {n: pixels for b in epochs[1] for n, pixels in zip(b["index"].tolist(), b["image"])}  # noqa: B905
    seen: set[int] = set(numbers(first))
    for batch in (batch for one in shared for batch in one):
        for number, pixels in zip(batch["index"].tolist(), batch["image"], strict=True):
            if number not in seen and rest.count(number) == 1:
                assert torch.equal(pixels, crops[number])


def made_epoch(batches: DataLoader[Any], epoch: int) -> DataLoader[Any]:
    batches.set_epoch(epoch)
    return batches


# torch's own loader.


@pytest.mark.parametrize("workers", [0, 2])
def test_in_torchs_loader(workers: int) -> None:
    dataset = sized()
    batches = AspectRatioBatches(dataset, 4, SIZES)
    plain = images(None)
    expected = [list(map(nearest_of, *zip(*[plain.open_image(r).size for r in rows], strict=True)))
                for rows in batches]  # fmt: skip
    found = list(TorchLoader(dataset, batch_sampler=batches, num_workers=workers))
    assert len(found) == len(batches) == len(expected)
    for batch, sizes in zip(found, expected, strict=True):
        assert {tuple(batch[0].shape[:1:-1])} == set(sizes)
    batches.set_epoch(1)
    assert [*batches] != [*AspectRatioBatches(dataset, 4, SIZES)]
    copied = pickle.loads(pickle.dumps(next(iter(batches))))
    assert copied == next(iter(batches)) and copied.size in SIZES


# Lengths.


def test_lengths_of_fields_and_functions() -> None:
    dataset = images()

    def area(columns: Any) -> Any:
        assert {"width", "height", "label"} <= {*columns}
        return columns["width"] * columns["height"]

    plain = images(None)
    areas = [math.prod(plain.open_image(row).size) for row in range(SAMPLES)]
    seconds = np.linspace(0.2, 9.7, SAMPLES)
    rounded = TokenBudgetBatches(dataset, seconds, 10).plan
    assert rounded.lengths.tolist() == [*map(math.ceil, seconds)]  # type: ignore[attr-defined]
    found = TokenBudgetBatches(dataset, area, 40_000).plan
    assert found.lengths.tolist() == areas  # type: ignore[attr-defined]
    labels = TokenBudgetBatches(Subset(dataset, range(SAMPLES - 1, 20, -1)), "label", 9).plan
    assert labels.lengths.tolist() == [plain[r][1] for r in range(SAMPLES - 1, 20, -1)]  # type: ignore[attr-defined]


# Errors.


def test_what_cannot_be_done_is_an_error() -> None:
    dataset = sized()
    for wrong, message in [
        ({"batch_size": 4}, "either sizes= or ratios="),
        ({"sizes": SIZES}, "either batch_size= or pixels="),
        ({"sizes": SIZES, "batch_size": 0}, "batch_size=0"),
        ({"sizes": SIZES, "pixels": 1000}, "less than an image of 1024"),
        ({"ratios": [1.0], "pixels": 1000}, "leaves images as they are"),
        ({"ratios": [0.0], "batch_size": 1}, "ratios="),
        ({"sizes": [(0, 4)], "batch_size": 1}, "sizes has"),
        ({"sizes": 40, "batch_size": 1}, "no sides of 64 pixels"),
        ({"sizes": 512, "multiple": 0, "batch_size": 1}, "multiple=0"),
        (
            {"sizes": SIZES, "batch_size": 1, "image_sizes": np.full((SAMPLES, 2), 1 << 32)},
            r"image_sizes has the shape(.|\n)*2\*\*31",
        ),
    ]:
        with pytest.raises(UsageError, match=message):
            AspectRatioBatches(dataset, **wrong)
    with pytest.raises(UsageError, match=r"cannot read the dataset(.|\n)*image_sizes="):
        AspectRatioBatches(range(5), 1, SIZES)
    for length, message in [
        (np.zeros(SAMPLES, np.int64), "sample 0 has a length of 0"),
        (np.ones(3, np.int64), r"length has the shape \(3,\)"),
        (np.full(SAMPLES, np.nan), "sample 0 has a length of nan"),
        (["1"] * SAMPLES, "type <U1"),
        ("nothing", "no column field 'nothing'"),
    ]:
        with pytest.raises(UsageError, match=message):
            TokenBudgetBatches(images(), length, 100)
    batches = AspectRatioBatches(dataset, 4, SIZES)
    with pytest.raises(UsageError, match=r"no transform takes it(.|\n)*BySize"):
        DataLoader(images(CROPS), batch_sampler=batches)
    with pytest.raises(UsageError, match="of 53 samples, and the loader's dataset has 3"):
        DataLoader(Subset(dataset, range(3)), batch_sampler=batches)
    with pytest.raises(UsageError, match=r"no batch has one here(.|\n)*AspectRatioBatches"):
        DataLoader(dataset, 4)
    with pytest.raises(UsageError, match="no loader names its size"):
        loader(images(Views(BySize(cover), count=2)))
    with pytest.raises(UsageError, match="order="):
        loader(order="random")
    with pytest.raises(UsageError, match=r"BySize, for \(40, 24\)"):
        loader(images(BySize(lambda size: 3)))  # type: ignore[arg-type, return-value]
    budget = TokenBudgetBatches(dataset, np.ones(SAMPLES, np.int64), 4)
    with pytest.raises(UsageError, match="may exceed the budget"):
        DataLoader(images(), batch_sampler=budget, on_error="skip")
    one = loader()
    other = DataLoader(images(), batch_sampler=budget)
    with pytest.raises(UsageError, match="of another mixture, sampler or Subset"):
        one.load_state_dict(other.state_dict())
