"""Verify finds each kind of damage, and nothing in a sound dataset."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from containers import (
    broken_jpeg,
    edit_index,
    edit_manifest,
    index_rows,
    jpeg,
    load_manifest,
    originals,
    pack_tree,
    png,
    row_of,
)
from fastdata.converters import Encoding
from fastdata.converters.table import TableImages
from web_server import WebServer

from fastdata import ImageDataset, verify
from fastdata.cli import cli
from fastdata.errors import CorruptionError, DatasetError, UsageError
from fastdata.maintenance import verify as verification
from fastdata.maintenance.verify import Verification
from fastdata.storage import columns
from fastdata.storage.checksum import crc32c_file
from fastdata.storage.index import Index
from fastdata.storage.manifest import FileEntry, Manifest
from fastdata.storage.records import (
    NO_GENERATION,
    ROWS_PER_BATCH,
    SCHEMA,
    Row,
    rows_to_batch,
    write_index,
)

FILES = {"lmdb": "data.mdb", "parquet": "part-000001.parquet", "shards": "shard-000001.tar"}
CONTAINERS = list(FILES)


@pytest.fixture(scope="module")
def sound(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in each container, by name; not to be changed."""
    folder = tmp_path_factory.mktemp("sound")
    for container in CONTAINERS:
        pack_tree(made_tree / "val", folder / container, container)
    return folder


@pytest.fixture
def dataset(sound: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies a sound dataset, to be damaged."""
    return lambda container: shutil.copytree(sound / container, tmp_path / container)


def flip(path: Path, offset: int) -> None:
    """Changes one bit, and nothing else."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def found(path: Path | str, **options: Any) -> str:
    """All problems as a text."""
    result: Verification = verify(path, workers=1, **options)
    return "\n".join(f"{problem.where}: {problem.what}" for problem in result.problems)


def write_rows(path: Path, rows: list[dict[str, Any]], *, honest: bool = True) -> None:
    """Replaces the index; where ``honest``, its entry in the manifest too."""
    edit_index(path, lambda table: pa.Table.from_pylist(rows, schema=SCHEMA), honest=honest)


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_sound_dataset_has_no_problems(sound: Path, container: str) -> None:
    seen: list[tuple[int, int]] = []
    result = verify(
        sound / container, workers=2, progress=lambda done, total: seen.append((done, total))
    )
    assert result.problems == []
    assert result.samples == 50
    listed = [path for path in (sound / container).iterdir() if path.name[0] != "."]
    assert result.files == len(listed) - 1
    assert seen[-1] == (50, 50)


def test_a_web_server_that_lists_nothing(dataset: Callable[[str], Path]) -> None:
    pytest.importorskip("aiohttp")
    copy = dataset("shards")
    with WebServer(copy) as server:
        assert found(server.url) == ""
        next(copy.glob("*.tar")).unlink()
        assert "No such file" in found(server.url)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_flipped_bit_of_a_blob(
    dataset: Callable[[str], Path], container: str, workers: int
) -> None:
    path = dataset(container)
    row = ImageDataset(path).row(30)
    manifest = load_manifest(path)
    flip(path / manifest["files"][row.file]["name"], row.offset + row.length // 2)
    problems = verify(path, workers=workers).problems
    assert any(row.key in problem.where and "changed" in problem.what for problem in problems)
    assert any("CRC-32C" in problem.what for problem in problems)
    assert len(problems) == 2
    assert found(path, fast=True) == ""


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_flipped_bit_of_the_structure(dataset: Callable[[str], Path], container: str) -> None:
    # An LMDB page's own number; Parquet's footer; the checksum of a tar header.
    offset = {"lmdb": 2 * 4096 + 12, "parquet": -20, "shards": 150}[container]
    path = dataset(container)
    file = path / FILES[container]
    flip(file, offset % file.stat().st_size)
    assert f"{file}: has CRC-32C" in found(path)
    assert found(path, fast=True) == ""


@pytest.mark.parametrize("container", ["parquet", "shards"])
def test_a_structure_that_the_manifest_vouches_for(
    dataset: Callable[[str], Path], container: str
) -> None:
    """A container that was broken before it was checksummed, as by a faulty writer."""
    path = dataset(container)
    file = path / FILES[container]
    flip(file, {"parquet": file.stat().st_size - 1, "shards": 150}[container])

    def vouch(manifest: dict[str, Any]) -> None:
        manifest["files"][1]["crc32c"] = f"{crc32c_file(file):08x}"

    edit_manifest(path, vouch)
    text = found(path)
    assert str(file) in text
    assert "CRC-32C" not in text


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_flipped_bit_of_the_index(dataset: Callable[[str], Path], part: float) -> None:
    path = dataset("shards")
    index = path / "_index.rows"
    flip(index, int(part * index.stat().st_size))
    try:
        text = found(path)
    except DatasetError as error:
        text = str(error)
    assert str(index) in text


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("fast", [False, True])
def test_a_file_cut_short(dataset: Callable[[str], Path], container: str, fast: bool) -> None:
    path = dataset(container)
    file = path / FILES[container]
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(size - 1)
    assert f"{file}: has {size - 1} bytes, the manifest says {size}" in found(path, fast=fast)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("fast", [False, True])
def test_a_missing_file(dataset: Callable[[str], Path], container: str, fast: bool) -> None:
    path = dataset(container)
    (path / FILES[container]).unlink()
    assert f"{path / FILES[container]}: No such file" in found(path, fast=fast)


@pytest.mark.parametrize("fast", [False, True])
def test_an_index_cut_short_or_missing(dataset: Callable[[str], Path], fast: bool) -> None:
    path = dataset("lmdb")
    index = path / "_index.rows"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(DatasetError, match="cut short"):
        verify(path, fast=fast)
    index.unlink()
    with pytest.raises(DatasetError, match=r"_index\.rows: .*No such file"):
        verify(path, fast=fast)


@pytest.mark.parametrize("container", CONTAINERS)
def test_swapped_index_rows(dataset: Callable[[str], Path], container: str) -> None:
    path = dataset(container)
    rows = index_rows(path)
    rows[3], rows[4] = rows[4], rows[3]
    write_rows(path, rows, honest=False)
    assert "_index.rows" in found_or_raised(path)
    # And where the manifest agrees with the index, but the container does not.
    write_rows(path, rows)
    assert "they differ from its sample 3 on" in found(path)


def test_an_index_of_sound_records_that_is_another_one_is_named(
    dataset: Callable[[str], Path],
) -> None:
    path = dataset("lmdb")
    rows = index_rows(path)
    labels = [row["label"] for row in rows]
    for row, label in zip(rows, reversed(labels), strict=True):
        row["label"] = label  # the records' own checksums fit
    write_rows(path, rows, honest=False)
    assert "_index.rows" in found(path)


def found_or_raised(path: Path) -> str:
    try:
        return found(path)
    except DatasetError as error:
        return str(error)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"label": 4}, "label 4"),
        ({"label": -1}, "label -1"),
        ({"file": 99}, "file 99"),
        ({"file": -1}, "file -1"),
        ({"offset": -1}, "offset -1"),
        ({"length": -1}, "length -1"),
        ({"offset": 1 << 62, "length": 1 << 62}, "offset 4611686018427387904"),
        ({"offset": 1 << 40}, "offset 1099511627776"),
    ],
    ids=str,
)
@pytest.mark.parametrize("fast", [False, True])
def test_impossible_index_rows(
    dataset: Callable[[str], Path], changes: dict[str, int], problem: str, fast: bool
) -> None:
    path = dataset("shards")
    rows = index_rows(path)
    rows[7].update(changes)
    write_rows(path, rows)
    text = found(path, fast=fast)
    assert f"sample 7 ({rows[7]['key']}): its index row is impossible" in text
    assert problem in text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"width": 1}, "the index says 1 x"),
        ({"crc32c": 1}, "have changed since it was packed"),
        ({"encoding": "png"}, "is jpeg of 3 channels, the index says png of 3"),
        ({"encoding": "jpeg-progressive"}, "the index says jpeg-progressive of 3"),
        ({"encoding": "raw"}, "too many or too few for"),
        ({"channels": 4}, "is jpeg of 3 channels, the index says jpeg of 4"),
    ],
    ids=str,
)
def test_index_rows_that_the_blob_belies(
    dataset: Callable[[str], Path], changes: dict[str, int], problem: str
) -> None:
    path = dataset("lmdb")
    rows = index_rows(path)
    rows[7].update(changes)
    write_rows(path, rows)
    text = found(path)
    assert f"sample 7 ({rows[7]['key']})" in text
    assert problem in text
    assert text.count("\n") == 0
    assert found(path, fast=True) == ""


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"encoding": "jpeg"}, "cannot be decoded"),
        ({"channels": 1}, "is raw, the index says 1 channels"),
        ({"width": 63}, "too many or too few for 63 x"),
    ],
    ids=str,
)
def test_raw_pixels_that_the_index_belies(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    (tmp_path / "tree" / "a").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "tree" / "a" / f"{number}.jpg").write_bytes(jpeg(64, 48))
    path = tmp_path / "out"
    pack_tree(tmp_path / "tree", path, "shards", encoding=Encoding("raw", 64))
    assert found(path) == ""
    rows = index_rows(path)
    rows[1].update(changes)
    write_rows(path, rows)
    text = found(path)
    assert "sample 1 (a/1)" in text
    assert problem in text or "not an image" in text


def test_a_blob_that_does_not_decode(made_tree: Path, tmp_path: Path) -> None:
    """Packing does not decode JPEGs: one that is whole but wrong gets in, and verify tells."""
    shutil.copytree(made_tree / "val", tmp_path / "tree")
    image = originals(tmp_path / "tree")[13].path
    image.write_bytes(broken_jpeg())
    pack_tree(tmp_path / "tree", tmp_path / "out", "shards")
    text = found(tmp_path / "out")
    assert image.stem in text
    assert text.count("\n") == 0
    assert "cannot be decoded" in text


def test_images_of_a_folder(made_tree: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(made_tree / "val", tree)
    pack_tree(tree, tmp_path / "index", "folder")
    assert found(tmp_path / "index") == ""
    images = sorted(path for path in tree.rglob("*") if path.is_file())
    flip(images[2], images[2].stat().st_size // 2)
    assert found(tmp_path / "index", fast=True) == ""
    text = found(tmp_path / "index")
    assert images[2].stem in text
    assert "have changed" in text
    images[0].unlink()
    images[1].write_bytes(images[1].read_bytes() + b"more")
    for fast in (False, True):
        text = found(tmp_path / "index", fast=fast)
        assert images[0].stem in text
        assert f"{images[1]}: has" in text


def test_what_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such folder"):
        verify(tmp_path / "missing")
    with pytest.raises(DatasetError, match="no dataset here"):
        verify(tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("size", [1000, 4096, 1 << 30])
def test_files_are_checksummed_in_ranges(
    dataset: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, size: int, workers: int
) -> None:
    monkeypatch.setattr(verification, "_RANGE", size)
    path = dataset("lmdb")
    assert verify(path, workers=workers).problems == []
    data = path / "data.mdb"
    flip(data, data.stat().st_size - 1)
    (problem,) = (p for p in verify(path, workers=workers).problems if p.where == str(data))
    manifest = load_manifest(path)
    assert problem.what == (
        f"has CRC-32C {crc32c_file(data):08x}, the manifest says {manifest['files'][0]['crc32c']}"
    )


def test_no_task_holds_more_than_a_range(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So none keeps the others waiting, and all of them are made as they are wanted."""
    monkeypatch.setattr(verification, "_RANGE", 10_000)
    manifest = Manifest.load(sound / "shards")
    numbers = range(-1, len(manifest.files))
    tasks = verification._Checksums(verification.PackedSource(sound / "shards"), numbers).tasks()
    assert iter(tasks) is tasks
    ranges = [task for _, task in tasks]
    assert max(task.args[-1] for task in ranges) == 10_000
    sizes = [entry.size for entry in (manifest.index, *manifest.files)]
    assert sum(task.args[-1] for task in ranges) == sum(sizes)


@pytest.mark.parametrize("container", ["lmdb", "shards"])
@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_a_damaged_file_is_one_problem(
    dataset: Callable[[str], Path], container: str, damage: str
) -> None:
    path = dataset(container)
    file = path / FILES[container]
    names = [entry.name for entry in Manifest.load(path).files]
    inside = [row for row in index_rows(path) if names[row["file"]] == file.name]
    if damage == "cut":
        os.truncate(file, file.stat().st_size - 1)
    else:
        file.unlink()
    for workers in (1, 2):
        (problem,) = verify(path, workers=workers).problems
        assert problem.where == str(file)
        assert problem.what.endswith(f"; {len(inside)} samples in it not checked")
    (problem,) = verify(path, fast=True).problems
    assert problem.where == str(file)


def test_other_files_are_checked_all_the_same(dataset: Callable[[str], Path]) -> None:
    path = dataset("shards")
    (path / "shard-000001.tar").unlink()
    row = ImageDataset(path).row(0)
    flip(path / "shard-000000.tar", row.offset + row.length // 2)
    problems = verify(path, workers=1).problems
    assert {Path(problem.where).name for problem in problems} == {
        "shard-000001.tar",
        "shard-000000.tar",
        f"sample 0 ({row.key})".rpartition("/")[2],
    }


#: What is needed is imported by using it first: another user may not reach root's Python.
AS_NOBODY = """
import os, sys
from pathlib import Path
from fastdata import verify
for container in ("shards", "folder"):
    verify(Path(sys.argv[1]) / container, workers=1)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for path in sys.argv[2:]:
    for fast in (False, True):
        for problem in verify(path, workers=1, fast=fast).problems:
            print(fast, *problem, sep="|")
"""


def test_an_unreadable_file_is_one_problem(made_tree: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # other users do not reach tmp_path
        folder = Path(name).resolve()
        folder.chmod(0o755)
        shutil.copytree(made_tree / "val", folder / "tree")
        for container in ("shards", "folder"):
            pack_tree(folder / "tree", folder / container, container)
            shutil.copytree(folder / container, folder / f"closed-{container}")
        shard = folder / "closed-shards" / "shard-000001.tar"
        inside = [row for row in index_rows(folder / "shards") if row["file"] == 1]
        shard.chmod(0)
        image = originals(folder / "tree")[5].path
        image.chmod(0)
        closed = [folder / f"closed-{container}" for container in ("shards", "folder")]
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, *map(str, (folder, *closed))],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines() == [
            f"False|{shard}|Permission denied; {len(inside)} samples in it not checked",
            f"True|{shard}|Permission denied",
            f"False|{image}|Permission denied",
        ]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("fast", [False, True])
def test_a_folder_is_checked_in_tasks_that_report(
    made_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool, workers: int
) -> None:
    shutil.copytree(made_tree / "val", tmp_path / "tree")
    pack_tree(tmp_path / "tree", tmp_path / "index", "folder")
    images = originals(tmp_path / "tree")
    images[7].path.unlink()
    images[30].path.write_bytes(b"short")
    monkeypatch.setattr(verification, "_LOOSE_ROWS", 10)
    seen: list[tuple[int, int]] = []
    problems = verify(
        tmp_path / "index",
        fast=fast,
        workers=workers,
        progress=lambda done, total: seen.append((done, total)),
    ).problems
    assert [problem.where for problem in problems] == [str(images[n].path) for n in (7, 30)]
    assert problems[1].what == (
        f"has 5 bytes, the index says {made_tree_size(made_tree, images[30].path)}"
    )
    assert seen[-1] == (50, 50)


def made_tree_size(made_tree: Path, image: Path) -> int:
    return (made_tree / "val" / image.parent.name / image.name).stat().st_size


@pytest.mark.parametrize("workers", [0, -3])
def test_workers_that_are_none(
    sound: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=f"--workers {workers}: no work would be done"):
        verify(sound / "lmdb", workers=workers)
    # Not by CliRunner, which keeps stderr apart in other ways before click 8.2.
    with pytest.raises(SystemExit) as info:
        cli(["verify", str(sound / "lmdb"), "--workers", str(workers)])
    assert info.value.code == 2
    said = capsys.readouterr()
    assert f"--workers {workers}: no work would be done" in said.err
    assert not said.out


def test_rows_of_a_file_are_found_without_reading_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [0] * 3 + [1] * 9 + [3] * 20 + [4] * 2 + [7] * 62
    rows = [row_of(0, b"", file=file) for file in files]
    write_index(tmp_path / "index", [rows_to_batch(rows)], len(rows))
    index = Index(tmp_path / "index", len(rows))
    read: list[int] = []
    real = Index._read
    monkeypatch.setattr(
        Index, "_read", lambda self, at, size: read.append(size) or real(self, at, size)
    )
    for file in range(-1, 9):
        read.clear()
        expected = next((at for at, f in enumerate(files) if f >= file), len(rows))
        assert index.find_file(file) == expected
        assert len(read) <= 7 and sum(read) <= 7 * 64  # of 96 rows


_USS = """
import contextlib, io, json, sys, threading, time
from pathlib import Path
import psutil
from fastdata import verify
from fastdata.storage.packed import PackedSource
from fastdata.cli.info import describe

process = psutil.Process()
verify(Path(sys.argv[1]) / "small", fast=True)
describe(PackedSource(Path(sys.argv[1]) / "small"), None)
before, peak, stop = process.memory_full_info().uss, 0, threading.Event()

def watch():
    global peak
    while not stop.is_set():
        peak = max(peak, process.memory_full_info().uss)
        time.sleep(0.002)

watcher = threading.Thread(target=watch)
watcher.start()
large = Path(sys.argv[1]) / "large"
source = PackedSource(large)
result = verify(large, fast=True) if sys.argv[2] == "verify" else describe(source, None)
stop.set()
watcher.join()
print(peak - before)
"""


def make_index(path: Path, rows: int) -> None:
    """Writes an index of so many rows; its batches repeat, which opening cannot tell."""
    batch = rows_to_batch(
        [
            Row(f"n01440764/n01440764_{n:05d}", n % 1000, 0, None, n * 110_000, 110_000, 500, 375,
                3, "jpeg", n)
            for n in range(min(rows, ROWS_PER_BATCH))
        ]
    )  # fmt: skip
    whole, rest = divmod(rows, ROWS_PER_BATCH)
    batches: list[pa.RecordBatch] = [batch] * whole + ([batch.slice(0, rest)] if rest else [])
    write_index(path, batches, rows)


def make_dataset(folder: Path, rows: int) -> None:
    """A dataset of an index and a file with nothing in it."""
    folder.mkdir()
    make_index(folder / "_index.rows", rows)
    size = 20_000 * 110_000
    with (folder / "data.mdb").open("wb") as file:
        file.truncate(size)
    index = FileEntry("_index.rows", (folder / "_index.rows").stat().st_size, "00000000")
    manifest = Manifest(
        container="lmdb",
        samples=rows,
        skipped=0,
        classes=[str(label) for label in range(1000)],
        blob_bytes=0,
        index=index,
        files=[FileEntry("data.mdb", size, "00000000")],
        options={},
        source={},
        tool="0",
        generation=NO_GENERATION,
    )
    (folder / "_dataset.json").write_text(manifest.to_json(), "utf-8")


@pytest.mark.parametrize("command", ["verify", "info"])
def test_a_pass_over_a_large_index_takes_little_memory(tmp_path: Path, command: str) -> None:
    pytest.importorskip("psutil")
    make_dataset(tmp_path / "small", 1000)
    make_dataset(tmp_path / "large", 2_000_000)
    assert (tmp_path / "large" / "_index.rows").stat().st_size > 120e6
    done = subprocess.run(
        [sys.executable, "-c", _USS, str(tmp_path), command],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 60e6


class TestFields:
    """Damage to the files of fields, and manifests that lie about them."""

    ROWS = 12

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A dataset with fields in each container; columns are cut into pieces of four rows."""
        folder = tmp_path_factory.mktemp("fields")
        rows = []
        for number in range(cls.ROWS):
            row = {"path": f"{number}.jpg", "id": number, "text": f"caption {number}"}
            row |= {"maybe": None if number % 5 == 2 else f"{number}"}
            row |= {"mask": f"{number}.png" if number % 4 else None, "note": f"{number}.bin"}
            (folder / "tree").mkdir(exist_ok=True)
            (folder / "tree" / row["path"]).write_bytes(jpeg(32, 24, (number, 0, 0)))
            (folder / "tree" / f"{number}.png").write_bytes(png(5, 4, (number, 1, 1)))
            (folder / "tree" / row["note"]).write_bytes(bytes([number + 1]) * 90)
            rows.append(row)
        source = TableImages(pa.Table.from_pylist(rows), folder / "tree", files=["mask", "note"])
        with mock.patch.object(columns, "_PIECE_ROWS", 4):
            for container in (*CONTAINERS, "folder"):
                pack_tree(source, folder / container, container, unit_size=1500)
                assert found(folder / container) == ""
        return folder

    @pytest.fixture
    def copy(self, whole: Path, tmp_path: Path) -> Callable[[str], Path]:
        def copied(container: str) -> Path:
            path = Path(shutil.copytree(whole / container, tmp_path / container))
            if container == "folder":
                shutil.copytree(whole / "tree", tmp_path / "tree")
                edit_manifest(path, lambda manifest: manifest.update(root="../tree"))
            return path

        return copied

    @pytest.mark.parametrize("name", ["_field-text.arrow", "_index-text.rows", "_index-mask.rows"])
    @pytest.mark.parametrize("fast", [False, True])
    def test_a_file_that_is_not_whole_is_one_problem(
        self, copy: Callable[[str], Path], name: str, fast: bool
    ) -> None:
        path = copy("shards")
        data = (path / name).read_bytes()
        for change in (b"", data[:-1], data + b"more", None):
            if change is None:
                (path / name).unlink()
            else:
                (path / name).write_bytes(change)
            (problem,) = verify(path, workers=1, fast=fast).problems
            assert problem.where == str(path / name)
            assert ("No such file" if change is None else f"{len(change)} bytes") in problem.what

    def test_a_flipped_bit_of_a_column_names_its_samples(self, copy: Callable[[str], Path]) -> None:
        path = copy("lmdb")
        file = path / "_field-text.arrow"
        sound = file.read_bytes()
        places = {"samples 0 to 3": b"caption 2", "samples 8 to 11": b"caption 11"}
        for samples, text in places.items():
            flip(file, sound.index(text))
            for workers in (1, 2):
                problems = verify(path, workers=workers).problems
                assert {problem.where for problem in problems} == {str(file)}
                (one,) = (problem.what for problem in problems if "CRC-32C" not in problem.what)
                assert f"the text of {samples}: its bytes in {file} have changed" in one
            with pytest.raises(CorruptionError, match=f"the text of {samples}: its bytes"):
                ImageDataset(path).column("text")
            file.write_bytes(sound)
        for offset in (0, 20, len(sound) - 30, len(sound) - 1):  # magic, schema, footer, magic
            flip(file, offset)
            assert found(path).startswith(f"{file}: has CRC-32C")
            file.write_bytes(sound)

    @pytest.mark.parametrize("name", ["_index-text.rows", "_index-mask.rows", "_index-note.rows"])
    def test_a_flipped_bit_of_an_index(self, copy: Callable[[str], Path], name: str) -> None:
        path = copy("parquet")
        row = 0 if "text" in name else 2
        for offset, what in ((3, "cannot be read"), (40, "its header"), (64 * (row + 1) + 9, "")):
            flip(path / name, offset)
            assert f"{path / name}: the index " in found(path, fast=True)
            text = found(path)
            assert text.count("\n") == 1 and text.count(f"{path / name}: ") == 2
            assert (what or f"is damaged at row {row}") in text and "has CRC-32C" in text
            flip(path / name, offset)

    @pytest.mark.parametrize("container", [*CONTAINERS, "folder"])
    @pytest.mark.parametrize("field", ["mask", "note"])
    def test_a_flipped_bit_of_a_further_blob(
        self, copy: Callable[[str], Path], container: str, field: str
    ) -> None:
        path = copy(container)
        row = ImageDataset(path).source.record(6, field)
        file = ImageDataset(path).source.file(row, 6)
        flip(file, row.offset + row.length // 2)
        text = found(path)
        assert f"sample 6 (6): its {field}: " in text and "have changed" in text
        assert text.count("\n") == (container != "folder")

    @pytest.mark.parametrize("fast", [False, True])
    def test_single_files_of_further_blobs(self, copy: Callable[[str], Path], fast: bool) -> None:
        path = copy("folder")
        tree = path / "../tree"
        (tree / "5.png").unlink()
        (tree / "7.bin").write_bytes(b"short")
        assert found(path, fast=fast).splitlines() == [
            f"{tree / '5.png'}: No such file or directory",
            f"{tree / '7.bin'}: has 5 bytes, the index says 90",
        ]

    def test_files_of_two_fields_that_are_exchanged(self, copy: Callable[[str], Path]) -> None:
        path = copy("shards")
        for one, other in (("text", "maybe"), ("mask", "note")):
            for name in ("_field-{}.arrow", "_index-{}.rows"):
                first, second = path / name.format(one), path / name.format(other)
                if first.exists():
                    first.rename(path / "held")
                    second.rename(first)
                    (path / "held").rename(second)
        text = found(path)
        assert f"{path / '_field-text.arrow'}: has " in text
        assert f"{path / '_field-maybe.arrow'}: has " in text
        assert "sample 1 (1): its index row of note is impossible" in text

    @pytest.mark.parametrize(
        ("lie", "said"),
        [
            ({"id": {"schema": "double"}}, "holds id int64, the manifest says id double"),
            ({"text": {"schema": "binary"}}, "holds text string, the manifest says text binary"),
            ({"id": {"rows": 3}}, "_index-id.rows: the index holds 3 rows"),
            ({"id": {"rows": 5}}, "_index-id.rows: its row 0 is impossible for 5 rows"),
            (
                {"maybe": {"nullable": False}},
                "the maybe of samples 0 to 3 cannot be read: it has a null",
            ),
            ({"mask": {"nullable": False}}, "sample 4 (4): its index row of mask is impossible"),
            ({"mask": {"kind": "blob"}}, "sample 1 (1): its index row of mask is impossible"),
            ({"note": {"kind": "image"}}, "sample 1 (1): its note: not an image"),
            ({"text": {"name": "other"}}, "holds text string, the manifest says other string"),
            ({"note": {"name": "other"}}, "the index names"),
            (
                {"text": {"file": "_field-id.arrow"}, "id": {"file": "_field-text.arrow"}},
                "_index-text.rows: its row 0 is impossible for 4 rows in _field-id.arrow",
            ),
            (
                {
                    "text": {"file": "_field-maybe.arrow", "index": "_index-maybe.rows"},
                    "maybe": {"file": "_field-text.arrow", "index": "_index-text.rows"},
                },
                "_field-maybe.arrow: holds maybe string, the manifest says text string",
            ),
            ({"text": {"file": "_field-id.arrow"}}, "two of its fields have one file"),
            ({"text": {"index": "_field-text.arrow"}}, "two of its fields have one file"),
            ({"mask": {"index": "shard-000000.tar"}}, "shard-000000.tar: the index cannot be"),
        ],
        ids=str,
    )
    def test_a_manifest_that_lies(
        self, copy: Callable[[str], Path], lie: dict[str, Any], said: str
    ) -> None:
        path = copy("shards")

        def change(manifest: dict[str, Any]) -> None:
            for entry in manifest["fields"]:
                entry |= lie.get(entry["name"], {})
                if "schema" in lie.get(entry["name"], {}):
                    kind = pa.type_for_alias(entry["schema"])
                    schema = pa.schema([(entry["name"], kind)]).serialize()
                    entry["schema"] = base64.b64encode(schema).decode()

        edit_manifest(path, change)
        assert said in found_or_raised(path)

    def test_classes_without_labels(self, dataset: Callable[[str], Path]) -> None:
        path = dataset("shards")
        edit_manifest(path, lambda manifest: manifest["fields"].pop(1))
        assert "there are classes, but no field label" in found_or_raised(path)
        edit_manifest(path, lambda manifest: manifest.update(classes=[]))
        assert "its index row is impossible: label 1" in found(path, fast=True)

    def test_behind_a_url(self, whole: Path, tmp_path: Path, web: str) -> None:
        path, url = tmp_path / "web" / "lmdb", f"{web}/lmdb"
        shutil.copytree(whole / "lmdb", path)
        assert found(url) == ""
        names = ["_field-text.arrow", "_index-text.rows", "_index-mask.rows"]
        sound = {name: (path / name).read_bytes() for name in names}
        for name in names:
            flip(path / name, 40)
        text = found(url)
        for name in names:
            assert f"{url}/{name}: has CRC-32C" in text
            (path / name).write_bytes(sound[name][:-1])
        assert str(tempfile.gettempdir()) not in text
        fast = found(url, fast=True)
        assert fast.count("\n") == 2 and f"{url}/{names[0]}: has {len(sound[names[0]]) - 1}" in fast

    @pytest.mark.parametrize("fast", [False, True])
    def test_a_folder_behind_a_url(self, whole: Path, tmp_path: Path, web: str, fast: bool) -> None:
        path = tmp_path / "web" / "folder"
        for name in ("tree", "folder"):
            shutil.copytree(whole / name, tmp_path / "web" / name)
        edit_manifest(path, lambda manifest: manifest.update(root="../tree"))
        (tmp_path / "web" / "tree" / "5.png").unlink()
        text = found(f"{web}/folder", fast=fast)
        assert text.count("\n") == 0 and "5.png: No such file" in text
