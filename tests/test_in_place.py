"""Datasets whose images stay in the tars of others: ``fastdata index``, and tars on first use."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import warnings
from pathlib import Path
from typing import Any

import archives
import numpy as np
import pytest
from click.testing import CliRunner, Result
from containers import load_manifest
from fastdata.converters import index, pack
from fastdata.converters.indexing import source_of
from object_stores import send_tree
from PIL import Image
from sources import jpeg, make_tree, require_said
from tiers import first_of

from fastdata import DataLoader, ImageDataset, verify
from fastdata.cli.commands import cli
from fastdata.errors import (
    DatasetError,
    FastdataError,
    SourceError,
    UsageError,
)
from fastdata.remote import RemoteOptions
from fastdata.storage.manifest import WORK_NAME
from fastdata.transforms import RandomResizedCrop

SHARDS, EACH = 3, 20
PATTERN = f"part-{{0..{SHARDS - 1}}}.tar"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def write_tars(folder: Path) -> dict[str, tuple[bytes, int, str, bytes | None]]:
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
        found = masks[n]["seg.png"]
        assert (found is None) == (mask is None)
        if mask is not None:
            assert np.array_equal(found.convert("L"), Image.open(io.BytesIO(mask)))


def _options(dataset: ImageDataset) -> dict[str, Any]:
    options = dataset._place.storage_options
    return {} if options is None else {"storage_options": options}


@pytest.mark.parametrize("place", first_of(["", PATTERN, "part-{0,1}.tar::{root}/part-2.tar"]))
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


def test_an_index_is_packed_again_and_gains_seek_points(tars: Any, tmp_path: Path) -> None:
    root, expected = tars
    index(root, tmp_path / "out")
    require_said(run("seek-points", tmp_path / "out"), 0)
    _assert_all(ImageDataset(tmp_path / "out"), expected)
    packing = ("convert", "dataset", "--root", tmp_path / "out", "--to", "parquet")
    require_said(run(*packing, "--no-shuffle", "--out", tmp_path / "again"), 0)
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
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(root / "part-1.tar"))
    with pytest.raises(DatasetError, match=r"cannot be made: Not a directory\n.*--out FOLDER"):
        ImageDataset(root / PATTERN)
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    with tarfile.open(root / "part.tar.gz", "w:gz"), pytest.raises(DatasetError, match="gunzip"):
        ImageDataset(root / "part.tar.gz")
    (root / "part-0.tar").write_bytes(b"no tar")
    with pytest.warns(UserWarning, match="1 file is"), pytest.raises(SourceError, match="part-0"):
        ImageDataset(root / "part-0.tar")


def test_the_first_use_after_one_that_was_killed(
    tars: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, expected = tars
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    program = f"import fastdata; fastdata.ImageDataset({str(root / PATTERN)!r})"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as killed:
        while killed.poll() is None and not [*tmp_path.glob(f"cache/indexed/*/{WORK_NAME}")]:
            time.sleep(0.01)
        killed.kill()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _assert_all_of(ImageDataset(root / PATTERN), expected)


@pytest.mark.slow
def test_globs_and_folders_are_indexed_on_first_use(
    tars: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hugging_face: Any
) -> None:
    root, expected = tars
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    (root / "part-2.tar").rename(root / "part-2.TAR")
    images = [image for image, *_ in expected.values()]
    flat = make_tree(tmp_path / "flat", [f"{n}.jpg" for n in range(3)])
    (flat / "notes.txt").touch()
    (flat / "lost.txt").symlink_to("nowhere")
    features = {"image": hugging_face.Image(), "label": hugging_face.ClassLabel(names=["a", "b"])}
    rows = {"image": [{"bytes": one, "path": None} for one in images[:4]], "label": [0, 1, 1, 0]}
    saved = hugging_face.Dataset.from_dict(rows, hugging_face.Features(features))
    saved.save_to_disk(tmp_path / "saved")
    hugging_face.DatasetDict({"train": saved}).save_to_disk(tmp_path / "both")
    places = {
        root: images,
        f"{root}/part-?.tar": images[: 2 * EACH],
        root / "part-2.TAR": images[2 * EACH :],
        flat: [path.read_bytes() for path in sorted(flat.glob("*.jpg"))],
        f"{tmp_path}/saved/": images[:4],
        tmp_path / "both" / "train": images[:4],
    }
    for place, found in places.items():
        with pytest.warns(UserWarning, match="indexed now"):
            dataset = ImageDataset(place, RandomResizedCrop(8))
        assert dataset.read(range(len(dataset))) == found
        assert DataLoader(dataset, 2, require_native=True)
    assert ImageDataset(tmp_path / "saved").targets == rows["label"]
    for place, error in {
        tmp_path / "both": UsageError,
        f"{root}/*.zip": SourceError,
        f"{flat}/*.jpg": SourceError,
        f"{tmp_path}/*": SourceError,
    }.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(error):
                ImageDataset(place)
    # An unfinished or incomplete dataset of our own is none of others' folders.
    (root / "_index.rows").touch()
    with pytest.raises(DatasetError, match=r"_dataset\.json is missing"):
        ImageDataset(root)
    (root / "_index.rows").unlink()
    monkeypatch.chdir(tmp_path)
    for place, name in {"tars/*.tar": "tars", "tars/part-0.tar": "part-0", "flat": "flat"}.items():
        require_said(run("index", place), 0)
        assert len(ImageDataset(f"{name}-index")) in (2 * EACH, EACH, 3)


@pytest.mark.slow
def test_more_tars_than_a_part_has_on_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    image = jpeg()
    for number in range(1001):
        with tarfile.open(tmp_path / f"{number:04}.tar", "w") as tar:
            info = tarfile.TarInfo(f"{number:04}.jpg")
            info.size = len(image) if number % 500 != 1 else 0
            tar.addfile(info, io.BytesIO(image))
    with (
        pytest.warns(UserWarning, match="1,001 files are indexed now"),
        pytest.warns(UserWarning, match=r"2 samples .*part-\*/_bad-samples"),
    ):
        dataset = ImageDataset(tmp_path / "{0000..1000}.tar", transform=RandomResizedCrop(8))
    keys = [dataset.row(number).key for number in (0, 1, 500, 998)]
    assert keys == ["0000", "0002", "0502", "1000"]
    assert sum(len(images) for (images,) in DataLoader(dataset, 100, num_workers=1)) == 999
    (listed,) = tmp_path.glob("cache/indexed/*/part-*/_bad-samples.jsonl")
    assert len(listed.read_text().splitlines()) == 2


def _assert_all_of(dataset: ImageDataset, expected: dict[str, Any]) -> None:
    assert dataset.read(range(len(dataset))) == [image for image, *_ in expected.values()]


@pytest.mark.parametrize("kind", ["imagefolder", *archives.KINDS])
def test_every_option_for_every_kind_of_source(kind: str, tmp_path: Path) -> None:
    """Each works, or is refused by name: no option is ignored, and none ends in a traceback."""
    images = [archives.Made(jpeg(seed), seed % 2, "x", jpeg(9)) for seed in range(4)]
    if kind == "imagefolder":
        root = make_tree(tmp_path / "in", ["a/0.jpg", "b/1.jpg"])
    else:
        root = archives.write(kind, tmp_path / "in", images)
    tabular = kind in ("arrow", "parquet")
    for number, (option, value, works) in enumerate([
        ("--fields", "txt", tabular or kind == "webdataset"), ("--fields", "no", False),
        ("--image-column", "image", tabular), ("--image-column", "no", False),
        ("--image-column", "jpg", kind == "webdataset"),
        ("--part-files", "5", kind == "webdataset"), ("--part-files", "0", False),
        ("--append", None, kind == "webdataset"), ("--seek-points", None, True),
        ("--address", "x:1", False), ("--local", tmp_path, False), ("--workers", "0", False),
        ("--storage-option", "a=b", False), ("--skip-bad", None, True),
    ]):  # fmt: skip
        words = [option] if value is None else [option, value]
        for named in ([], ["--kind", kind]):
            out = tmp_path / f"{number}-{len(named)}"
            result = run("index", root, "--out", out, *named, "--workers", 1, *words)
            assert result.exit_code in ([0] if works else [1, 2]), (words, result.output)
            named_in_it = option in result.stderr or value == "no" or option == "--append"
            assert works or named_in_it, result.output
            require_said(result, result.exit_code)


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
    shutil.copy(root / "part-0.tar", tmp_path / "part-0.tar")
    (tmp_path / "part-1.parquet").touch()
    several = run("index", tmp_path, "--out", tmp_path.with_name("out"))
    require_said(several, 1, "*.tar and *.parquet", "--kind webdataset or --kind parquet")
    (tmp_path / "gz").mkdir()
    require_said(run("index", tmp_path / "gz", "--out", out), 1, "holds nothing", "*.tar")
    (tmp_path / "gz" / "part-0.tar.gz").touch()
    require_said(run("index", tmp_path / "gz", "--out", out), 1, "holds nothing", "gunzip")
    shutil.copy(root / "part-0.tar", tmp_path / "gz" / "a.tar")
    shutil.copy(root / "part-0.tar", tmp_path / "gz" / "b.tar")
    twice = run("index", tmp_path / "gz", "--out", out)
    require_said(twice, 1, "two images have the key 00000", "webdataset --shard-keys")
    with pytest.warns(UserWarning, match="now"), pytest.raises(SourceError, match="two images"):
        ImageDataset(f"{tmp_path}/gz/*.tar")
    prefixed = ("--root", tmp_path / "gz", "--to", "archives", "--shard-keys", "--out", out)
    require_said(run("convert", "webdataset", *prefixed), 0)
    assert ImageDataset(out).row(EACH).key == "b/00000"
    with tarfile.open(tmp_path / "words.tar", "w") as tar:
        for name in ("a.jpg", "a.cls"):
            tar.addfile(tarfile.TarInfo(name))
    shutil.copy(root / "part-0.tar", tmp_path / "gz" / "._a.tar")  # hidden
    (tmp_path / "gz" / "b.tar").unlink()
    require_said(run("index", tmp_path / "gz", "--out", out, "--force"), 0)
    assert len(ImageDataset(out)) == EACH
    words = run("index", tmp_path / "words.tar", "--out", out, "--force")
    require_said(words, 1, "--no-labels", "fastdata convert webdataset has", "--to archives")
    index(root, out, force=True)
    with pytest.raises(UsageError, match="storage_options"):
        ImageDataset(out, storage_options={"token": "anon"})


def _replace_by_others(paths: list[Path], others: list[Path]) -> None:
    for path, other in zip(paths, others, strict=True):
        shutil.copy(other, path)


def _swap(paths: list[Path], _: list[Path]) -> None:
    contents = [path.read_bytes() for path in paths]
    for path, data in zip(paths, reversed(contents), strict=True):
        path.write_bytes(data)


def _cut(paths: list[Path], _: list[Path]) -> None:
    os.truncate(paths[-1], paths[-1].stat().st_size - 1)


def _append(paths: list[Path], _: list[Path]) -> None:
    paths[-1].write_bytes(paths[-1].read_bytes() + bytes(512))


def _clear(paths: list[Path], _: list[Path]) -> None:
    paths[0].write_bytes(bytes(paths[0].stat().st_size))


def _remove(paths: list[Path], _: list[Path]) -> None:
    paths[0].unlink()


_CHANGES = [_replace_by_others, _cut, _append, _clear, _remove, _swap]


def _two_of_one_layout(kind: str, folder: Path) -> tuple[list[bytes], Path, Path]:
    """Write archives twice, with other images in the same places; return the first ones' images."""
    images = [jpeg(number).ljust(4_000, b"\0") for number in range(12)]
    places = []
    for name, in_order in (("root", images), ("other", images[::-1])):
        samples = [
            archives.Made(image, n % 3, f"number {n:02}", images[n])
            for n, image in enumerate(in_order)
        ]
        places.append(archives.write(kind, folder / name, samples))
    return images, *places


@pytest.mark.parametrize("kind", first_of(archives.KINDS))
def test_archives_that_changed_are_named(kind: str, tmp_path: Path) -> None:
    images, root, other = _two_of_one_layout(kind, tmp_path)
    out = tmp_path / "out"
    index(root, out, workers=1)
    paths = [root / one["name"] for one in load_manifest(out)["files"] if one["name"][0] != "_"]
    others = [other / path.name for path in paths]
    assert [path.stat().st_size for path in paths] == [path.stat().st_size for path in others]
    names = "|".join(re.escape(path.name) for path in paths)
    expected = ImageDataset(out).read(range(12))
    assert sorted(expected) == sorted(images)
    os.utime(paths[0], (1, 1))
    assert ImageDataset(out).read(range(12)) == expected
    assert verify(out, workers=1).problems == []
    for change in _CHANGES if len(paths) > 1 else _CHANGES[:-1]:
        before = {path: path.read_bytes() for path in paths}
        change(paths, others)
        dataset, damaged = ImageDataset(out), 0
        for number in range(12):
            try:
                assert dataset.read([number]) == [expected[number]]
            except DatasetError as error:
                assert re.search(names, error.what)
                assert "--force" in (error.hint or "")
                damaged += 1
        assert damaged, change
        with pytest.raises(DatasetError, match=names):
            list(DataLoader(ImageDataset(out, transform=RandomResizedCrop(8)), 12))
        assert verify(out, workers=1).problems
        for path, data in before.items():
            path.write_bytes(data)
        assert ImageDataset(out).read(range(12)) == expected, change
    _replace_by_others(paths, others)
    with pytest.raises(UsageError, match="packed from other data"):
        index(root, out, workers=1)
    index(root, out, workers=1, force=True)
    assert sorted(ImageDataset(out).read(range(12))) == sorted(images)
    assert verify(out, workers=1).problems == []


@pytest.mark.parametrize("kind", first_of(archives.KINDS))
@pytest.mark.parametrize("place", first_of(["web", "gcs", "s3"]))
def test_archives_behind_a_url(
    kind: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    images, root, other = _two_of_one_layout(kind, tmp_path)
    found = request.getfixturevalue(place)
    options: dict[str, Any] = {}
    if place == "web":
        url = f"{found}/data/"
        shutil.copytree(root, tmp_path / "web/data")
    else:
        url, options = send_tree(found, root, "data"), {"storage_options": found.storage_options}
    out = tmp_path / "out"
    if kind == "arrow":
        with pytest.raises(SourceError, match=r"data/?: Arrow files are read on this machine"):
            index(url, out, workers=1, **options)
        return
    index(url, out, workers=1, **options)
    index(root, tmp_path / "local", workers=1)
    of = {"transform": RandomResizedCrop(16)}
    if kind != "lmdb":
        of["fields"] = ("image", "label", "png", "txt")
        of["transform"] = dict.fromkeys(("image", "png"), RandomResizedCrop(16))
    few = RemoteOptions(tries=2)
    remote = ImageDataset(out, **of, **options, remote=few)
    local = ImageDataset(tmp_path / "local", **of)
    assert sorted(remote.read(range(12))) == sorted(images)
    settings = {"shuffle": True, "seed": 4, "num_workers": 2, "require_native": True}
    for batch, expected in zip(*(DataLoader(one, 5, **settings) for one in (remote, local)),
                               strict=True):  # fmt: skip
        assert str(batch) == str(expected)
    source = source_of(url, **options)
    if place == "web":
        shutil.copytree(other, tmp_path / "web/data", dirs_exist_ok=True)
    else:
        send_tree(found, other, "data")
    if place == "s3":  # by its ETag; the emulator of Google's sends no generation with bytes
        with pytest.raises(FastdataError, match=r"has changed (since it was listed|meanwhile)"):
            pack(source, tmp_path / "late", container="archives", workers=1, **options)
    for dataset in (remote, ImageDataset(out, **of, **options, remote=few)):
        # Each image has another's bytes now, in the same place.
        for number in (0, 11):
            with pytest.raises(DatasetError, match=r"part-|data\.mdb"):
                dataset.read([number])
        with pytest.raises(DatasetError, match=r"part-|data\.mdb"):
            list(DataLoader(dataset, 5, num_workers=2))
    if place != "web":
        with pytest.raises(UsageError, match="packed from other data"):
            index(url, out, workers=1, **options)
