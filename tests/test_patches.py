"""Images as sequences of patches: `ResizeToSequence` and `collate_patches`, as NaFlex has them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from loader_data import SAMPLES, images
from PIL import Image
from recipe_packages import need
from torch.utils.data import DataLoader as TorchLoader
from torchvision_stub import import_torchvision

from fastdata import DataLoader, Ragged
from fastdata.collate import collate_patches
from fastdata.errors import UsageError
from fastdata.samplers import TokenBudgetBatches
from fastdata.transforms import Compose, Normalize, ResizeToSequence

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")


@pytest.fixture(scope="module")
def naflex() -> Any:
    need("timm")
    import_torchvision()
    from timm.data import naflex_dataset, naflex_transforms

    naflex_transforms.NaFlexCollator = naflex_dataset.NaFlexCollator
    return naflex_transforms


def by_hand(image: Image.Image, grid: tuple[int, int], side: int) -> Any:
    rows, columns = grid
    resized = image.convert("RGB").resize((columns * side, rows * side), Image.Resampling.BICUBIC)
    places = [(y, x) for y in range(rows) for x in range(columns)]
    boxes = [(x * side, y * side, (x + 1) * side, (y + 1) * side) for y, x in places]
    patches = [np.asarray(resized.crop(box)).reshape(-1) for box in boxes]
    return torch.from_numpy(np.stack(patches)), torch.tensor(places)


@pytest.mark.parametrize(
    ("size", "side", "most", "ratio", "patches"),
    [
        ((500, 375), 16, 256, None, 14 * 18),
        ((640, 480), 14, 729, None, 23 * 31),
        ((100, 60), 16, 256, 1.0, 4 * 7),
        ((2000, 30), 16, 64, None, 64),
        ((1, 1), 16, 1024, None, 7 * 7),
    ],
)
def test_some_sizes(size: Any, side: int, most: int, ratio: Any, patches: int) -> None:
    """Those that timm makes, in an environment without it."""
    assert ResizeToSequence(side, most, max_ratio=ratio).patches(*size).tolist() == [patches]


def test_sizes_are_timms(naflex: Any) -> None:
    rng = np.random.default_rng(0)
    for number in range(300):
        side, most = int(rng.integers(1, 40)), int(rng.integers(1, 2000))
        ratio = (None, 1.0, float(rng.uniform(0.01, 3)))[number % 3]
        sizes = np.exp(rng.uniform(0, 9, (10, 2))).astype(int)
        found = ResizeToSequence(side, most, max_ratio=ratio).patches(*sizes.T)
        for (width, height), patches in zip(sizes.tolist(), found.tolist(), strict=True):
            about = (height, width), side, most
            _, (down, across) = naflex.get_image_size_for_seq(*about, max_ratio=ratio)
            assert down * across == patches * side * side, (width, height, side, most, ratio)


@pytest.mark.parametrize("transform", ["ours", "timm's"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_timms(naflex: Any, workers: int, transform: str) -> None:
    """The same tensors as timm's transforms and collator make of Pillow's images."""
    tv = import_torchvision().transforms
    resize: Any = naflex.ResizeToSequence(8, 40)
    theirs = tv.Compose([resize, tv.PILToTensor(), naflex.Patchify(8)])
    if transform == "ours":
        resize = ResizeToSequence(8, 40)
    dataset = images(tv.Compose([resize, *[tv.PILToTensor()] * (transform == "timm's")]))
    loader = DataLoader(
        dataset, 10, num_workers=workers, collate_fn=collate_patches(8, 40), require_native=True
    )
    plain = images(None)
    samples = [
        (theirs(plain.open_image(number).convert("RGB")), int(plain.labels[number]))
        for number in range(SAMPLES)
    ]
    expected = TorchLoader(samples, 10, collate_fn=naflex.NaFlexCollator(40))
    for (found, labels), (patches, classes) in zip(loader, expected, strict=True):
        assert torch.equal(labels, classes)
        assert found["patches"].dtype == torch.uint8
        for name in ("patches", "patch_coord", "patch_valid"):
            assert torch.equal(found[name].to(patches[name].dtype), patches[name]), name


@pytest.mark.parametrize("workers", [0, 2])
def test_a_budget_packs_patches(workers: int) -> None:
    """Batches of at most so many patches, without padding; floats as Normalize makes them."""
    resize = ResizeToSequence(8, 60, max_ratio=1.0)
    dataset = images(Compose([resize, Normalize((0.5,) * 3, (0.25,) * 3)]))
    batches = TokenBudgetBatches(
        dataset, lambda columns: resize.patches(columns["width"], columns["height"]), 100, 16
    )
    loader = DataLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=collate_patches(8, packed=True),
        num_workers=workers,
        require_native=True,
    )
    plain, seen = images(None), 0
    for (found, labels), rows in zip(loader, batches, strict=True):
        patches, coord = found["patches"], found["patch_coord"]
        assert isinstance(patches, Ragged) and isinstance(coord, Ragged)
        assert len(patches.values) <= 100
        assert labels.tolist() == [int(plain.labels[row]) for row in rows]
        for row, own, places in zip(rows, patches.list(), coord.list(), strict=True):
            rows_columns = places[-1] + 1
            expected, wanted = by_hand(plain.open_image(row), tuple(rows_columns.tolist()), 8)
            assert torch.equal(places, wanted)
            assert len(own) == resize.patches(*plain.open_image(row).size)[0]
            torch.testing.assert_close(own, (expected / 255 - 0.5) / 0.25)
        seen += len(rows)
    assert seen == SAMPLES


def test_padding_is_zeros_and_marked() -> None:
    one, other = torch.rand(3, 4, 6), torch.rand(3, 2, 2)
    collate = pickle.loads(pickle.dumps(collate_patches(2, 7)))
    found, names = collate([(one, "a"), (other, "b")])
    assert names == ["a", "b"]
    assert found["patches"].shape == (2, 7, 12)
    assert found["patch_valid"].tolist() == [[True] * 6 + [False], [True] + [False] * 6]
    assert not found["patches"][~found["patch_valid"]].any()
    assert not found["patch_coord"][~found["patch_valid"]].any()
    halves = [one.bfloat16(), other.bfloat16()]
    assert torch.equal(collate(halves)["patches"], found["patches"].bfloat16())
    boxes = {"boxes": torch.ones(3, 4)}, {"boxes": torch.ones(0, 4)}
    packed, targets = collate_patches(2, packed=True)([(one, boxes[0]), (other, boxes[1])])
    assert targets == boxes
    longest = collate_patches(2)([one, other])
    assert torch.equal(packed["patches"].padded(), longest["patches"])
    assert torch.equal(packed["patch_coord"].padded(), longest["patch_coord"])
    assert torch.equal(longest["patches"], found["patches"][:, :6])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: collate_patches(0), "patch_size=0"),
        (lambda: collate_patches(16, 2.5), r"length=2\.5"),  # type: ignore[arg-type]
        (lambda: collate_patches(16, 9, packed=True), "packed=True and length="),
        (lambda: collate_patches(4)([(torch.rand(3, 8, 9), 0)]), r"got \(3, 8, 9\)"),
        (lambda: collate_patches(4)(["image"]), "got str"),
        (lambda: collate_patches(4, 3)([torch.rand(3, 8, 8)]), "length=3, and an image has 4"),
    ],
)
def test_mistakes_are_named(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()
