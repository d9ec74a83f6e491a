"""Seek points that a dataset gains in its first epoch, and keeps."""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from fastdata.converters import ImageFolder, index, pack
from fastdata.converters.options import PackOptions
from jpegs import encode, picture
from object_stores import Bucket
from PIL import Image
from sources import require_said
from torchvision_stub import import_torchvision

from fastdata import Cache, DataLoader, ImageDataset, verify
from fastdata.cli.commands import cli
from fastdata.errors import CorruptionError
from fastdata.remote.filesystem import upload
from fastdata.storage.learnt import Learnt
from fastdata.storage.source import Stamped
from fastdata.transforms import CenterCrop

COUNT, SIDE = 8, 24
NAME = "_learnt.points"


def write_tar(path: Path, seed: int = 0) -> list[bytes]:
    images = [encode(picture(300 + 8 * n, 260, seed + n)) for n in range(COUNT)]
    images.append(encode(picture(300, 260, seed + COUNT), progressive=True))
    with tarfile.open(path, "w") as tar:
        for number, data in enumerate(images):
            for name, content in (("jpg", data), ("cls", b"%d" % (number % 2))):
                info = tarfile.TarInfo(f"{number:05}.{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return images


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    root = tmp_path_factory.mktemp("learnt")
    (root / "tars").mkdir()
    return root, write_tar(root / "tars" / "a.tar")


@pytest.fixture
def place(original: tuple[Path, list[bytes]], tmp_path: Path) -> Path:
    shutil.copytree(original[0] / "tars", tmp_path / "tars")
    index(tmp_path / "tars", tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def images(original: tuple[Path, list[bytes]]) -> list[bytes]:
    return original[1]


def loader_of(path: Any, **options: Any) -> DataLoader[Any]:
    dataset = options.pop("dataset", {})
    options = {"num_workers": 2, "require_native": True} | options
    return DataLoader(ImageDataset(path, CenterCrop(SIDE), **dataset), 4, **options)


def require_epoch(loader: DataLoader[Any], images: list[bytes], had: int, built: int) -> None:
    found = torch.cat([batch for batch, _ in loader]).numpy()
    for got, data in zip(found, images, strict=True):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        left, top = (round((side - SIDE) / 2) for side in image.size)
        cut = np.asarray(image)[top : top + SIDE, left : left + SIDE]
        assert np.array_equal(got.transpose(1, 2, 0), cut)
    stats = loader.stats()
    assert (stats.with_seek_points, stats.seek_points_built) == (had, built)
    assert stats.bad_seek_points == 0


def test_tiny_images_are_not_worth_it(tmp_path: Path) -> None:
    images = [encode(picture(32, 32, n)) for n in range(COUNT)]
    assert max(map(len, images)) < 2048
    for number, data in enumerate(images):
        (tmp_path / "tree" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / "a" / f"{number}.jpg").write_bytes(data)
    loader = loader_of(index(tmp_path / "tree", tmp_path / "index").path)
    require_epoch(loader, images, 0, 0)
    require_epoch(loader, images, 0, 0)
    assert not (tmp_path / "index" / NAME).exists()


@pytest.mark.parametrize("threads", [0, 2])
def test_learnt_in_the_first_epoch_and_kept(place: Path, images: list[bytes], threads: int) -> None:
    loader = loader_of(place, num_workers=threads)
    assert not (place / NAME).exists()
    require_epoch(loader, images, 0, COUNT)
    require_epoch(loader, images, COUNT, 0)
    require_epoch(loader_of(place, num_workers=threads), images, COUNT, 0)
    assert sorted(os.listdir(place)) == ["_dataset.json", "_index.rows", NAME]
    assert verify(place).problems == []


@pytest.mark.parametrize("container", ["lmdb", "shards", "parquet", "folder"])
def test_of_packed_datasets(
    tmp_path: Path, tree: Path, images: list[bytes], container: str
) -> None:
    source = ImageFolder(tree)
    options = PackOptions(seek_points=False, shuffle=False)
    pack(source, tmp_path / "out", container=container, options=options)
    require_epoch(loader_of(tmp_path / "out"), images, 0, COUNT)
    require_epoch(loader_of(tmp_path / "out"), images, COUNT, 0)
    # Packed again with seek points, it has no more to learn.
    pack(
        source,
        tmp_path / "out",
        container=container,
        options=PackOptions(shuffle=False),
        force=True,
    )
    assert not (tmp_path / "out" / NAME).exists()
    require_epoch(loader_of(tmp_path / "out"), images, COUNT, 0)


@pytest.fixture
def tree(tmp_path: Path, images: list[bytes]) -> Path:
    (tmp_path / "tree" / "a").mkdir(parents=True)
    for number, data in enumerate(images):
        (tmp_path / "tree" / "a" / f"{number}.jpg").write_bytes(data)
    return tmp_path / "tree"


def folder(root: Any) -> Any:
    return import_torchvision().datasets.ImageFolder(root)


@pytest.mark.parametrize("threads", [0, 2])
def test_of_a_folder(tree: Path, images: list[bytes], tmp_path: Path, threads: int) -> None:
    nothing = loader_of(folder(tree), num_workers=threads, dataset={"cache": Cache(bytes=0)})
    for _ in range(2):
        require_epoch(nothing, images, 0, 0)
    loader = loader_of(folder(tree), num_workers=threads)
    require_epoch(loader, images, 0, COUNT)
    require_epoch(loader, images, COUNT, 0)
    require_epoch(loader_of(folder(tree), num_workers=threads), images, COUNT, 0)
    assert len(list((tmp_path / "cache").rglob(NAME))) == 1
    small = loader_of(folder(tree), dataset={"cache": Cache(tmp_path / "small", 700)})
    require_epoch(small, images, 0, COUNT)
    require_epoch(small, images, 0, 0)


@pytest.mark.parametrize("root", ["tree//", "./tree", "link"])
def test_of_a_folder_by_another_name(
    tree: Path, images: list[bytes], monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    require_epoch(loader_of(folder(tree)), images, 0, COUNT)
    monkeypatch.chdir(tree.parent)
    os.symlink(tree, "link")
    require_epoch(loader_of(folder(root)), images, COUNT, 0)


@pytest.mark.parametrize("same_length", [False, True])
def test_a_changed_file_of_a_folder(tree: Path, images: list[bytes], same_length: bool) -> None:
    loader = loader_of(folder(tree))
    require_epoch(loader, images, 0, COUNT)
    # Another image with the same header; of the same length by padding after its end.
    data = encode(picture(300, 260, 99, noise=20))
    assert len(data) < len(images[0])
    other = data.ljust(len(images[0]) if same_length else 0, b"\0")
    (tree / "a" / "0.jpg").write_bytes(other)
    require_epoch(loader, [other, *images[1:]], COUNT, 1)
    require_epoch(loader_of(folder(tree)), [other, *images[1:]], COUNT, 0)


def test_seek_points_of_another_image(tree: Path, images: list[bytes], tmp_path: Path) -> None:
    require_epoch(loader_of(folder(tree)), images, 0, COUNT)
    (file,) = (tmp_path / "cache").rglob(NAME)
    learnt = Learnt(file, file.read_bytes()[16:24].hex(), len(images), os.geteuid())
    about = (tree / "a" / "0.jpg").stat()
    lie = Stamped(learnt.table(1) or b"", about.st_size, about.st_mtime_ns)
    learnt.drop(0)
    learnt.put([(0, lie)])
    learnt.flush()
    loader = loader_of(folder(tree))
    list(loader)
    stats = loader.stats()
    assert (stats.bad_seek_points, stats.by_pillow, stats.seek_points_built) == (1, 0, 0)
    require_epoch(loader, images, COUNT - 1, 1)
    require_epoch(loader, images, COUNT, 0)


@pytest.mark.parametrize("where", ["here", "there"])
def test_behind_a_url(
    place: Path, images: list[bytes], tmp_path: Path, gcs: Bucket, where: str
) -> None:
    options: dict[str, Any] = {"storage_options": gcs.storage_options}
    there = f"{gcs.url}/tars/a.tar"
    upload(tmp_path / "tars" / "a.tar", there, storage_options=gcs.storage_options)
    out = tmp_path / "far" if where == "here" else f"{gcs.url}/index"
    index(f"{gcs.url}/tars", out, **options)
    require_epoch(loader_of(out, dataset=options), images, 0, COUNT)
    require_epoch(loader_of(out, dataset=options), images, COUNT, 0)
    found = [path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob(NAME)]
    assert found == ["far" if where == "here" else "cache"]
    nothing = {**options, "cache": Cache(bytes=0)}
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    if where == "there":
        require_epoch(loader_of(out, dataset=nothing), images, 0, 0)
        return
    said = CliRunner().invoke(cli, ["seek-points", str(out), *gcs.arguments])
    require_said(said, 0)
    assert f"{COUNT} of {COUNT + 1} samples" in said.stdout
    require_epoch(loader_of(out, dataset=options), images, COUNT, 0)


def test_another_folder_and_none(place: Path, images: list[bytes], tmp_path: Path) -> None:
    for _ in range(2):
        require_epoch(loader_of(place, dataset={"cache": Cache(bytes=0)}), images, 0, 0)
    chosen = {"cache": tmp_path / "chosen"}
    require_epoch(loader_of(place, dataset=chosen), images, 0, COUNT)
    require_epoch(loader_of(place, dataset=chosen), images, COUNT, 0)
    assert len(list((tmp_path / "chosen").rglob(NAME))) == 1
    assert not (place / NAME).exists()


def test_where_others_can_write_it_is_the_cache(
    place: Path, images: list[bytes], tmp_path: Path
) -> None:
    place.chmod(0o777)
    require_epoch(loader_of(place), images, 0, COUNT)
    require_epoch(loader_of(place), images, COUNT, 0)
    assert not (place / NAME).exists()
    assert len(list((tmp_path / "cache").rglob(NAME))) == 1


def test_a_limit_and_a_place_that_cannot_be_written(
    place: Path, images: list[bytes], tmp_path: Path
) -> None:
    small = {"cache": Cache(tmp_path / "small", 700)}
    loader = loader_of(place, dataset=small)
    require_epoch(loader, images, 0, COUNT)
    require_epoch(loader, images, 0, 0)
    (tmp_path / "file").write_bytes(b"")
    loader = loader_of(place, dataset={"cache": tmp_path / "file"})
    with pytest.warns(UserWarning, match="file: seek points cannot be kept here"):
        require_epoch(loader, images, 0, 0)
    (place / NAME).mkdir()
    loader = loader_of(place)
    with pytest.warns(UserWarning, match=f"{NAME}: seek points cannot be kept"):
        require_epoch(loader, images, 0, COUNT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_epoch(loader, images, 0, 0)


def test_an_index_that_changed_has_none(place: Path, tmp_path: Path, images: list[bytes]) -> None:
    require_epoch(loader_of(place), images, 0, COUNT)
    learnt = (place / NAME).read_bytes()
    others = write_tar(tmp_path / "tars" / "a.tar", seed=100)
    index(tmp_path / "tars", place, force=True)
    (place / NAME).write_bytes(learnt)  # as a copy of the folder could have it
    require_epoch(loader_of(place), others, 0, COUNT)
    require_epoch(loader_of(place), others, COUNT, 0)


def test_damaged_ones_are_learnt_again(place: Path, images: list[bytes]) -> None:
    require_epoch(loader_of(place), images, 0, COUNT)
    good = (place / NAME).read_bytes()
    for at in range(0, len(good), 61):
        bad = good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :]
        (place / NAME).write_bytes(bad if at % 2 else bad[: at + 1])
        loader = loader_of(place)
        for _ in range(2):
            assert sum(len(batch) for batch, _ in loader) == len(images)
            assert loader.stats().by_pillow == loader.stats().bad_seek_points == 0
        require_epoch(loader, images, COUNT, 0)


def _learn_half(place: Path, half: int, barrier: Any) -> None:
    dataset: Any = ImageDataset(place, CenterCrop(SIDE))
    chosen: Any = torch.utils.data.Subset(dataset, range(half, COUNT, 2))
    barrier.wait()
    for _ in DataLoader(chosen, 1, num_workers=1):
        pass


def test_two_processes_learn_at_once(place: Path, images: list[bytes]) -> None:
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(2)
    processes = [
        context.Process(target=_learn_half, args=(place, half, barrier)) for half in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    require_epoch(loader_of(place), images, COUNT, 0)
    assert sorted(os.listdir(place)) == ["_dataset.json", "_index.rows", NAME]


def test_the_command_takes_them(
    place: Path, images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    require_epoch(loader_of(place), images, 0, COUNT)
    tar = place.parent / "tars" / "a.tar"
    tar.rename(tar.with_suffix(".away"))  # no image of which they are known is read
    require_said(CliRunner().invoke(cli, ["seek-points", str(place)]), 0)
    tar.with_suffix(".away").rename(tar)
    assert NAME not in os.listdir(place)
    require_epoch(loader_of(place), images, COUNT, 0)


def test_a_concatenation_learns(place: Path, images: list[bytes]) -> None:
    dataset: Any = ImageDataset(place, CenterCrop(SIDE))
    loader: DataLoader[Any] = DataLoader(dataset + dataset, 4, num_workers=2, require_native=True)
    require_epoch(loader, images * 2, 0, 2 * COUNT)
    require_epoch(loader, images * 2, 2 * COUNT, 0)


@pytest.mark.filterwarnings("ignore:1 sample could not be decoded")
def test_damaged_images_are_not_learnt_unchecked(place: Path, tmp_path: Path) -> None:
    """Checksums of parts of a JPEG are those of its seek points."""
    tar = tmp_path / "tars" / "a.tar"
    row = ImageDataset(place).row(2)
    data = bytearray(tar.read_bytes())
    data[row.offset + row.length // 2] ^= 1
    tar.write_bytes(data)
    loader = loader_of(place, on_error="zero")
    assert sum(len(batch) for batch, *_ in loader) == COUNT + 1
    assert loader.stats().seek_points_built <= COUNT - 1
    with pytest.raises(CorruptionError, match=r"00002.*a\.tar"):
        list(loader_of(place))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_file_of_another_user_is_not_believed(place: Path, images: list[bytes]) -> None:
    require_epoch(loader_of(place), images, 0, COUNT)
    for change in (lambda path: os.chown(path, 4243, 4243), lambda path: path.chmod(0o666)):
        change(place / NAME)
        require_epoch(loader_of(place), images, 0, COUNT)
        require_epoch(loader_of(place), images, COUNT, 0)
        assert (place / NAME).stat().st_uid == 0
    (place / NAME).rename(place / "another")
    (place / NAME).symlink_to("another")  # which that user could exchange at any time
    os.chown(place / NAME, 4243, 4243, follow_symlinks=False)
    with pytest.warns(UserWarning, match=f"{NAME}: seek points cannot be kept"):
        require_epoch(loader_of(place), images, 0, COUNT)
