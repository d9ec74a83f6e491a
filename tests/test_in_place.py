"""Datasets whose images stay in the tars of others: ``fastdata index``, and tars on first use."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from fastdata.converters import ImageFolder, index, pack
from object_stores import Bucket
from PIL import Image
from sources import jpeg, make_tree, require_said

from fastdata import DataLoader, ImageDataset, verify
from fastdata.cli import cli
from fastdata.errors import CorruptionError, DatasetError, SourceError, UsageError
from fastdata.remote.filesystem import upload
from fastdata.transforms import RandomResizedCrop

SHARDS, EACH = 3, 20
PATTERN = f"part-{{0..{SHARDS - 1}}}.tar"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def write_tars(folder: Path) -> dict[str, tuple[bytes, int, str, bytes | None]]:
    """Write shards by tarfile; return (image, label, text, mask) by key."""
    folder.mkdir()
    found = {}
    for shard in range(SHARDS):
        with tarfile.open(folder / f"part-{shard}.tar", "w") as tar:
            for n in range(EACH):
                number = shard * EACH + n
                data, text = jpeg(number), f"text {number} é"
                mask = None if n % 5 == 0 else _png(number)
                members = {"jpg": data, "cls": str(number % 7).encode(), "txt": text.encode()}
                members |= {} if mask is None else {"seg.png": mask}
                for extension, content in members.items():
                    info = tarfile.TarInfo(f"{number:05}.{extension}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
                found[f"{number:05}"] = data, number % 7, text, mask
    return found


def _png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((24, 32), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def tars(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    return tmp_path / "tars", write_tars(tmp_path / "tars")


def _assert_all(dataset: ImageDataset, expected: dict[str, Any]) -> None:
    assert [dataset.row(n).key for n in range(len(dataset))] == list(expected)
    assert dataset.read(range(len(dataset))) == [image for image, *_ in expected.values()]
    assert dataset.targets == [label for _, label, *_ in expected.values()]
    assert dataset.column("txt").to_pylist() == [text for _, _, text, _ in expected.values()]
    masks = ImageDataset(dataset.path, fields=("seg.png",), **_options(dataset))
    for n, (*_, mask) in enumerate(expected.values()):
        (found,) = masks[n]
        assert (found is None) == (mask is None)
        if mask is not None:
            assert np.array_equal(found.convert("L"), Image.open(io.BytesIO(mask)))


def _options(dataset: ImageDataset) -> dict[str, Any]:
    options = dataset._storage_options
    return {} if options is None else {"storage_options": options}


@pytest.mark.parametrize("place", ["", PATTERN, "part-{0,1}.tar::{root}/part-2.tar"])
def test_tars_are_indexed_where_they_are(tars: Any, tmp_path: Path, place: str) -> None:
    root, expected = tars
    before = {path.name: path.read_bytes() for path in root.iterdir()}
    out = tmp_path / "out"
    said = run("index", f"{root}/{place}".replace("{root}", str(root)), "--out", out)
    require_said(said, 0)
    assert "archives; indexed 60" in said.output
    assert {path.name: path.read_bytes() for path in root.iterdir()} == before
    assert sum(path.stat().st_size for path in out.iterdir()) < sum(map(len, before.values())) / 2
    _assert_all(ImageDataset(out), expected)
    assert verify(out).problems == []
    require_said(run("index", f"{root}/{place}".replace("{root}", str(root)), "--out", out), 0)


def test_batches_are_those_of_a_packed_dataset(tars: Any, tmp_path: Path) -> None:
    root, _ = tars
    index(root, tmp_path / "in-place", seek_points=True)
    require_said(
        run("convert", "webdataset", "--root", root, "--to", "lmdb", "--out", tmp_path / "p"), 0
    )
    loaders = [
        DataLoader(
            ImageDataset(tmp_path / name, transform=RandomResizedCrop(16), fields=("image", "txt")),
            8, shuffle=True, seed=3, num_workers=2, require_native=True,
        )
        for name in ("in-place", "p")
    ]  # fmt: skip
    for (images, texts), (others, more) in zip(*loaders, strict=True):
        assert torch.equal(images, others)
        assert texts == more


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the package leaves files open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_tars_of_the_webdataset_package(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        webdataset = pytest.importorskip("webdataset")
    root = tmp_path / "tars"
    tree = make_tree(tmp_path / "tree", [f"{name}/{n}.jpg" for name in "ab" for n in range(9)])
    pack(ImageFolder(tree), root, container="shards", shard_size=1 << 14)
    for name in os.listdir(root):
        if not name.endswith(".tar"):
            (root / name).unlink()
    index(root, tmp_path / "out")
    dataset = ImageDataset(tmp_path / "out")
    urls = [str(path) for path in sorted(root.glob("*.tar"))]
    expected = {
        sample["__key__"]: (next(sample[e] for e in ("jpg", "png") if e in sample), sample["cls"])
        for sample in webdataset.WebDataset(urls, shardshuffle=False)
    }
    assert len(expected) == len(dataset)
    for n in range(len(dataset)):
        row = dataset.row(n)
        data, label = expected[row.key]
        assert dataset.read([n]) == [data]
        assert row.label == int(label)


def test_a_tar_that_changed_is_named(tars: Any, tmp_path: Path) -> None:
    root, expected = tars
    index(root, tmp_path / "out")
    path = root / "part-1.tar"
    data = bytearray(path.read_bytes())
    dataset = ImageDataset(tmp_path / "out")
    at = dataset.row(EACH + 2).offset + 30
    data[at] ^= 1
    path.write_bytes(data)
    loader = DataLoader(ImageDataset(tmp_path / "out", transform=RandomResizedCrop(8)), 60)
    with pytest.raises(CorruptionError, match=r"00022.*part-1\.tar"):
        list(loader)
    assert [problem.where for problem in verify(tmp_path / "out").problems] == ["sample 22 (00022)"]
    path.write_bytes(data + bytes(512))
    with pytest.raises(CorruptionError, match=r"part-1\.tar"):
        ImageDataset(tmp_path / "out").read([EACH])
    path.unlink()
    with pytest.raises(DatasetError, match=r"part-1\.tar"):
        ImageDataset(tmp_path / "out").read([EACH])
    assert ImageDataset(tmp_path / "out").read([0]) == [expected["00000"][0]]


def test_an_index_is_packed_again_and_gains_seek_points(tars: Any, tmp_path: Path) -> None:
    root, expected = tars
    index(root, tmp_path / "out")
    require_said(run("seek-points", tmp_path / "out"), 0)
    _assert_all(ImageDataset(tmp_path / "out"), expected)
    packing = ("convert", "dataset", "--root", tmp_path / "out", "--to", "parquet")
    require_said(run(*packing, "--order", "source", "--out", tmp_path / "again"), 0)
    _assert_all(ImageDataset(tmp_path / "again"), expected)
    require_said(run("stage", tmp_path / "out", "--to", tmp_path / "fast"), 2, "convert dataset")


def test_tars_are_indexed_on_first_use(
    tars: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, expected = tars
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.warns(UserWarning, match="3 files are indexed now"):
        _assert_all_of(ImageDataset(root / PATTERN), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _assert_all_of(ImageDataset(root / PATTERN), expected)
    os.utime(root / "part-2.tar")
    with pytest.warns(UserWarning, match="3 files are indexed now"):
        ImageDataset(root / PATTERN)
    with pytest.raises(SourceError, match=r"part-3\.tar"):
        ImageDataset(root / "part-{0..3}.tar")
    (root / "part-0.tar").write_bytes(b"no tar")
    with pytest.warns(UserWarning, match="1 file is"), pytest.raises(SourceError, match="part-0"):
        ImageDataset(root / "part-0.tar")


def _assert_all_of(dataset: ImageDataset, expected: dict[str, Any]) -> None:
    assert dataset.read(range(len(dataset))) == [image for image, *_ in expected.values()]


def test_tars_in_a_bucket(tars: Any, tmp_path: Path, gcs: Bucket) -> None:
    root, expected = tars
    for path in root.iterdir():
        upload(path, f"{gcs.url}/tars/{path.name}", storage_options=gcs.storage_options)
    options = {"storage_options": gcs.storage_options}
    for place in ("tars", f"tars/{PATTERN}"):
        for out in (tmp_path / f"here-{len(place)}", f"{gcs.url}/index-{len(place)}"):
            require_said(run("index", f"{gcs.url}/{place}", "--out", out, *gcs.arguments), 0)
            dataset = ImageDataset(out, transform=RandomResizedCrop(16), **options)
            assert dataset.is_remote
            _assert_all(dataset, expected)
            with_texts = ImageDataset(
                out, transform=RandomResizedCrop(16), fields=("label", "txt", "image"), **options
            )
            loader = DataLoader(with_texts, 16, shuffle=True, num_workers=2, require_native=True)
            texts = [one for _, several, _ in loader for one in several]
            assert sorted(texts) == sorted(text for _, _, text, _ in expected.values())
            require_said(run("verify", "--workers", 1, out, *gcs.arguments), 0)
    require_said(run("verify", tmp_path / "here-4"), 1)  # without options: another server
    shutil.rmtree(tmp_path / "here-4")


def test_what_cannot_be_indexed(tars: Any, tmp_path: Path) -> None:
    root, _ = tars
    out = tmp_path / "out"
    require_said(run("index", tmp_path / "nothing", "--out", out), 1, "no such")
    archives = ("convert", "webdataset", "--root", root, "--out", out, "--to")
    require_said(run(*archives, "folder"), 2, "--to archives")
    require_said(run(*archives, "archives", "--encoding", "jpeg"), 2, "--encoding")
    tree = make_tree(tmp_path / "tree", [f"{name}/{n}.jpg" for name in "ab" for n in range(9)])
    folder = ("convert", "imagefolder", "--root", tree, "--out", out, "--to", "archives")
    require_said(run(*folder), 2, "--to folder")
    index(root, out)
    with pytest.raises(UsageError, match="storage_options"):
        ImageDataset(out, storage_options={"token": "anon"})
