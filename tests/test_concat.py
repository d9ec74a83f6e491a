"""Loaders over torch's ConcatDataset: compared with what the ConcatDataset itself gives."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from containers import pack_tree
from jpegs import encode, picture
from loader_data import CONTAINERS, SAMPLES, WITH_INDEX, dataset, folder, images, same, tree
from torch.utils.data import ConcatDataset, Subset
from torchvision_stub import import_torchvision
from web_server import WebServer

from fastdata import DataLoader, ImageDataset
from fastdata.decode import Limits
from fastdata.errors import MixingWarning, SampleError, SlowPathWarning, UsageError
from fastdata.samplers import QuasiRandom
from fastdata.transforms import RandomResizedCrop, Resize

SMALL = Resize((16, 16))

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")


def image_folder(root: Path | None = None, transform: Any = SMALL, **options: Any) -> Any:
    folders = import_torchvision().datasets
    return folders.ImageFolder(tree() if root is None else root, transform, **options)


def shifted(label: int) -> int:
    return label + 100


PARTS: dict[str, Callable[[], Any]] = {
    "a sum": lambda: images(SMALL) + images(SMALL),
    "every container": lambda: ConcatDataset([images(SMALL, one) for one in CONTAINERS]),
    "a folder of torchvision's": lambda: ConcatDataset([image_folder(), images(SMALL, "parquet")]),
    "an ImageDataset of one": lambda: ConcatDataset(
        [images(SMALL, "folder"), ImageDataset(image_folder())]
    ),
    "nested": lambda: ConcatDataset(
        [ConcatDataset([images(SMALL), image_folder()]), images(SMALL, "shards")]
    ),
    "subsets": lambda: ConcatDataset(
        [Subset(images(SMALL), [7, 3, -1]), Subset(image_folder(), range(0, 40, 5))]
    ),
    "a subset and a whole": lambda: ConcatDataset(
        [images(SMALL, "shards"), Subset(images(SMALL), [3, 3])]
    ),
    "a subset of it": lambda: Subset(
        ConcatDataset([images(SMALL), image_folder(), images(SMALL, "folder")]),
        [150, 0, 52, 53, 105, 106, -1, 20],
    ),
    "a subset of subsets": lambda: Subset(
        ConcatDataset([Subset(images(SMALL), [5, 9]), Subset(images(SMALL, "shards"), [2, 8])]),
        [3, 0],
    ),
    "labels of each part's own": lambda: ConcatDataset(
        [
            ImageDataset(dataset(), SMALL),
            ImageDataset(dataset("shards"), SMALL, shifted),
            image_folder(target_transform=shifted),
        ]
    ),
}


def assert_are(found: Any, images: Any, labels: Any, numbers: Any) -> None:
    for image, label, number in zip(images, labels, numbers, strict=True):
        wanted, wanted_label = found[number]
        assert label == wanted_label
        assert np.abs(image.numpy().astype(int) - wanted.numpy().astype(int)).max() <= 1


@pytest.mark.parametrize(("name", "threads"), [(one, n % 2 * 2) for n, one in enumerate(PARTS)])
def test_samples_are_those_of_the_concatdataset(name: str, threads: int) -> None:
    data = PARTS[name]()
    loader = DataLoader(
        data, 10, shuffle=True, num_workers=threads, require_native=True, **WITH_INDEX
    )
    assert "a ConcatDataset of" in loader.explain()
    for _ in range(2):  # what is learnt of files in the first pass is used in the second
        seen: list[int] = []
        for pixels, labels, numbers in loader:
            assert_are(data, pixels, labels.tolist(), numbers.tolist())
            seen += numbers.tolist()
        assert sorted(seen) == list(range(len(data)))


@pytest.mark.parametrize("workers", [0, 1])
def test_where_workers_run_they_decode_natively_too(workers: int) -> None:
    data = ConcatDataset([images(SMALL), Subset(image_folder(target_transform=shifted), [4, 2])])
    with pytest.warns(SlowPathWarning):
        loader = DataLoader(
            data, 11, num_workers=workers, collate_fn=list, worker_init_fn=lambda worker: None
        )
    assert loader.explain().startswith("workers")
    samples = [sample for batch in loader for sample in batch]
    pixels, labels = zip(*samples, strict=True)
    assert_are(data, pixels, labels, range(len(data)))


def broken(root: Path) -> tuple[Path, Path]:
    parts = []
    for name in ("good", "bad"):
        (root / name / "a").mkdir(parents=True)
        for number in range(4):
            data = encode(picture(40, 30, number), "4:2:0")
            (root / name / "a" / f"{number}.jpg").write_bytes(data)
        pack_tree(root / name, root / f"{name}-packed", "folder")
        parts.append(root / f"{name}-packed")
    (root / "bad" / "a" / "2.jpg").write_bytes(encode(picture(40, 30), "4:2:0")[:300])
    return parts[0], parts[1]


@pytest.mark.parametrize("packed", [True, False])
def test_a_bad_sample_is_named_with_the_path_of_its_part(tmp_path: Path, packed: bool) -> None:
    good, bad = broken(tmp_path)
    if packed:
        data = ConcatDataset([ImageDataset(good, SMALL), ImageDataset(bad, SMALL)])
    else:
        data = ConcatDataset([image_folder(tmp_path / one) for one in ("good", "bad")])
    named = str(bad if packed else tmp_path / "bad" / "a" / "2.jpg")
    with pytest.raises((SampleError, Exception), match="sample 2") as caught:
        list(DataLoader(data, 4))
    assert named in str(caught.value)
    loader = DataLoader(data, 4, on_error="drop", **WITH_INDEX)
    with pytest.warns(UserWarning, match=r"1 sample could not be decoded"):
        numbers = [number for batch in loader for number in batch[2].tolist()]
    assert numbers == [0, 1, 2, 3, 4, 5, 7]


def test_random_crops_are_drawn_for_each_part_by_its_own_numbers() -> None:
    """One dataset twice is not the same crops twice."""
    twice = DataLoader(images() + images(), SAMPLES, seed=1)
    one, other = (pixels for pixels, _ in twice)
    assert not torch.equal(one, other)
    again = DataLoader(ConcatDataset([images(), images(container="shards")]), SAMPLES, seed=1)
    assert same([one, other], [pixels for pixels, _ in again])


class Own(ConcatDataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


class Transposed(ImageDataset):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (lambda: [images(SMALL), images(SMALL), images(RandomResizedCrop(17))], "parts 0 and 2"),
        (lambda: [images(SMALL), ImageDataset(dataset(), SMALL, limits=Limits(999))], "limits"),
        (lambda: [images(SMALL), Transposed(dataset(), SMALL)], "part 1 .*Transposed"),
        (lambda: Own([images(SMALL)]), "Own has its own __getitem__"),
    ],
)
def test_what_cannot_be_native_says_why(parts: Callable[[], Any], named: str) -> None:
    data = parts()
    data = ConcatDataset(data) if isinstance(data, list) else data
    with pytest.warns(SlowPathWarning, match=named):
        DataLoader(data, 4)
    with pytest.raises(UsageError, match="require_native"):
        DataLoader(data, 4, require_native=True)


def test_images_of_one_size_that_is_not_every_parts_are_refused() -> None:
    """A part whose images all have one size needs no crop; beside another size it does."""
    parts = []
    for size in (20, 24):
        root = folder()
        for number in range(3):
            (root / "tree" / "a").mkdir(parents=True, exist_ok=True)
            file = root / "tree" / "a" / f"{number}.jpg"
            file.write_bytes(encode(picture(size, size, number), "4:2:0"))
        pack_tree(root / "tree", root / "packed", "lmdb")
        parts.append(root / "packed")
    nothing = import_torchvision().transforms.ToTensor()
    data = ConcatDataset([ImageDataset(parts[0], nothing), ImageDataset(parts[0], nothing)])
    assert next(iter(DataLoader(data, 6, require_native=True)))[0].shape == (6, 3, 20, 20)
    different = ConcatDataset([ImageDataset(one, nothing) for one in parts])
    with pytest.raises(UsageError, match="different sizes"):
        DataLoader(different, 6, require_native=True)


def test_parts_behind_urls_are_fetched_beside_local_ones(tmp_path: Path) -> None:
    for name in ("shards", "parquet"):
        shutil.copytree(dataset(name), tmp_path / name)
    with WebServer(tmp_path) as server:
        remote = [
            ImageDataset(f"{server.url}/{name}", RandomResizedCrop(16))
            for name in ("shards", "parquet")
        ]
        data = ConcatDataset(
            [remote[0], images(RandomResizedCrop(16)), Subset(remote[1], range(9))]
        )
        local = ConcatDataset(
            [
                images(RandomResizedCrop(16), "shards"),
                data.datasets[1],
                images(RandomResizedCrop(16)),
            ]
        )
        options = {"shuffle": True, "order": "random", "num_workers": 2, "seed": 5}
        loader = DataLoader(data, 10, require_native=True, **options, **WITH_INDEX)
        pixels = {}
        for batch in loader:
            for image, _, number in zip(*batch, strict=True):
                pixels[int(number)] = image
        # Whatever the order, crops are drawn by numbers: those of local copies are the same.
        for batch in DataLoader(local, 10, **options, **WITH_INDEX):
            for image, _, number in zip(*batch, strict=True):
                if int(number) in pixels:
                    assert torch.equal(image, pixels[int(number)])
        assert sorted(pixels) == list(range(2 * SAMPLES + 9))
        about = loader.stats().remote
        assert about is not None
        assert about.bytes_needed > 0
        alone = DataLoader(ConcatDataset([remote[0]]), 4, require_native=True)
        assert next(iter(alone))


def test_parts_whose_neighbours_are_alike_are_told_of() -> None:
    root = folder() / "tree"
    for number in range(2000):
        (root / f"{number // 500}").mkdir(parents=True, exist_ok=True)
        (root / f"{number // 500}" / f"{number}.ppm").write_bytes(b"P6 1 1 255\n\0\0\0")
    files = image_folder(root)
    with pytest.warns(MixingWarning, match="have the same label"):
        DataLoader(ConcatDataset([files, files]), 4, order=QuasiRandom(window=4))
