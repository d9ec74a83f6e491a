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

from fastdata import DataLoader, ImageDataset, QuasiRandom, _native
from fastdata.decode import Limits
from fastdata.errors import MixingWarning, SampleError, SlowPathWarning, UsageError
from fastdata.transforms import RandomResizedCrop, Resize, Schedule

SMALL = Resize((16, 16))

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")


def image_folder(root: Path | None = None, transform: Any = SMALL, **options: Any) -> Any:
    folders = import_torchvision().datasets
    return folders.ImageFolder(tree() if root is None else root, transform, **options)


def shifted(label: int) -> int:
    return label + 100


PARTS: dict[str, Callable[[], Any]] = {
    "two containers": lambda: ConcatDataset([images(SMALL), images(SMALL, "shards")]),
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
    "one part": lambda: ConcatDataset([images(SMALL)]),
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


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("name", PARTS)
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


def test_files_of_a_part_gain_seek_points_once() -> None:
    loader = DataLoader(ConcatDataset([image_folder(), images(SMALL)]), 20, num_workers=1)
    list(loader)
    assert loader.stats().seek_points_built > 0
    with_points = loader.stats().with_seek_points
    list(loader)
    assert loader.stats().seek_points_built == 0
    assert loader.stats().with_seek_points > with_points


def test_two_subsets_of_one_folder_share_what_is_learnt() -> None:
    files = image_folder()
    halves = ConcatDataset([Subset(files, range(10)), Subset(files, range(10))])
    list(DataLoader(halves, 10))
    alone = DataLoader(Subset(files, range(10)), 10)
    list(alone)
    assert alone.stats().with_seek_points > alone.stats().seek_points_built == 0


def broken(root: Path) -> tuple[Path, Path]:
    """A good and a bad dataset of files; sample 2 of the bad one is no image."""
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
    loader = DataLoader(data, 4, on_error="skip", **WITH_INDEX)
    with pytest.warns(UserWarning, match=r"1 sample could not be decoded"):
        numbers = [number for batch in loader for number in batch[2].tolist()]
    assert set(numbers) == {0, 1, 2, 3, 4, 5, 7}


def test_an_epoch_is_resumed_and_shared_among_ranks() -> None:
    def loader(rank: int = 0, world_size: int = 1) -> Any:
        data = ConcatDataset([images(), Subset(images(container="shards"), range(20))])
        return DataLoader(
            data, 5, shuffle=True, seed=3, shard=(rank, world_size), num_workers=2, **WITH_INDEX
        )

    first = loader()
    batches = iter(first)
    for _ in range(4):
        next(batches)
    state = first.state_dict()
    rest = list(batches)
    second = loader()
    second.load_state_dict(state)
    assert same(list(second), rest)
    ranks = [[n for batch in loader(rank, 3) for n in batch[2].tolist()] for rank in range(3)]
    assert set().union(*ranks) == set(range(SAMPLES + 20))


def test_random_crops_are_drawn_for_each_part_by_its_own_numbers() -> None:
    """One dataset twice is not the same crops twice."""
    twice = DataLoader(images() + images(), SAMPLES, seed=1)
    one, other = (pixels for pixels, _ in twice)
    assert not torch.equal(one, other)
    again = DataLoader(ConcatDataset([images(), images(container="shards")]), SAMPLES, seed=1)
    assert same([one, other], [pixels for pixels, _ in again])


def test_a_schedule_reaches_every_part() -> None:
    def sized(epoch: int) -> Any:
        return Resize((8 + 8 * epoch, 8))

    data = ConcatDataset([images(Schedule(sized)), images(Schedule(sized), "shards")])
    loader = DataLoader(data, 100, require_native=True)
    assert [next(iter(loader))[0].shape[2] for _ in range(3)] == [8, 16, 24]
    assert "epoch 2" in loader.explain()


def test_a_transform_that_is_changed_takes_effect() -> None:
    data = ConcatDataset([images(SMALL), images(SMALL, "shards")])
    loader = DataLoader(data, 100)
    assert next(iter(loader))[0].shape[-1] == 16
    for part in data.datasets:
        part.transform = Resize((12, 12))
    assert next(iter(loader))[0].shape[-1] == 12


class Own(ConcatDataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


class Transposed(ImageDataset):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


OTHERS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "transforms": (
        lambda: ConcatDataset([images(SMALL), images(SMALL), images(RandomResizedCrop(17))]),
        "parts 0 and 2 of the ConcatDataset have different transforms",
        "Give all parts the same",
    ),
    "options": (
        lambda: ConcatDataset([images(SMALL), ImageDataset(dataset(), SMALL, limits=Limits(1000))]),
        "parts 0 and 1 of the ConcatDataset have different limits",
        "Give all parts the same",
    ),
    "a part that is not known": (
        lambda: ConcatDataset([images(SMALL), Transposed(dataset(), SMALL)]),
        "part 1 of the ConcatDataset: test_concat.Transposed has its own __getitem__",
        "Move its code to transform=",
    ),
    "a subclass": (
        lambda: Own([images(SMALL)]),
        "test_concat.Own has its own __getitem__",
        "Move its code to transform=",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_be_native_says_why(name: str) -> None:
    make, cause, mend = OTHERS[name]
    with pytest.warns(SlowPathWarning) as told:
        DataLoader(make(), 4)
    assert cause in str(told[0].message)
    assert mend in str(told[0].message)
    with pytest.raises(UsageError, match="require_native"):
        DataLoader(make(), 4, require_native=True)


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


def test_a_part_whose_list_of_files_changes_is_noticed() -> None:
    files = image_folder()
    data = ConcatDataset([images(SMALL), files])
    loader = DataLoader(data, 10)
    files.samples.pop()
    with pytest.warns(SlowPathWarning, match="another number of samples than when that was made"):
        iter(loader)


@pytest.mark.parametrize("threads", [0, 2])
def test_parts_behind_urls_are_fetched_beside_local_ones(tmp_path: Path, threads: int) -> None:
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
        options = {"shuffle": True, "order": "random", "num_workers": threads, "seed": 5}
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


def test_local_parts_are_checked_beside_remote_ones(tmp_path: Path) -> None:
    shutil.copytree(dataset("shards"), tmp_path / "remote")
    shutil.copytree(dataset("shards"), tmp_path / "local")
    (archive,) = (tmp_path / "local").glob("shard-000000.tar")
    with WebServer(tmp_path) as server:
        data = ConcatDataset(
            [ImageDataset(f"{server.url}/remote", SMALL), ImageDataset(tmp_path / "local", SMALL)]
        )
        content = bytearray(archive.read_bytes())
        at = content.find(b"\xff\xda") + 40  # within a JPEG's scan
        content[at] ^= 0xFF
        archive.write_bytes(content)
        loader = DataLoader(data, 10, on_error="skip", **WITH_INDEX)
        with pytest.warns(UserWarning, match=f"could not be decoded.*\n.*{tmp_path}/local"):
            numbers = [number for batch in loader for number in batch[2].tolist()]
        assert len(set(range(2 * SAMPLES)) - set(numbers)) == 1


def test_parts_whose_neighbours_are_alike_are_told_of() -> None:
    root = folder() / "tree"
    for number in range(2000):
        (root / f"{number // 500}").mkdir(parents=True, exist_ok=True)
        (root / f"{number // 500}" / f"{number}.ppm").write_bytes(b"P6 1 1 255\n\0\0\0")
    files = image_folder(root)
    with pytest.warns(MixingWarning, match="have the same label"):
        DataLoader(ConcatDataset([files, files]), 4, order=QuasiRandom(window=4))


def test_extents_are_joined_whole_or_not_at_all() -> None:
    one, two = _native.Extents(["a", "b"]), _native.Extents(["c"])
    joined = _native.Extents.join(3, [one, two], [np.array([2, 0]), np.array([1])])
    assert [joined.path(number) for number in range(3)] == ["b", "c", "a"]
    for count, slots in ((3, [[0, 1]]), (3, [[0, 1], [2, 2]]), (4, [[0, 1], [2]])):
        with pytest.raises(ValueError, match="there must be"):
            _native.Extents.join(count, [one, two], [np.array(s, np.int64) for s in slots])
    with pytest.raises(IndexError, match="sample 3 of"):
        _native.Extents.join(3, [one, two], [np.array([0, 1]), np.array([3])])
