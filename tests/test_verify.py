"""Verify finds each kind of damage, and nothing in a sound dataset."""

from __future__ import annotations

import base64
import errno
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from containers import (
    as_nobody,
    edit_index,
    edit_manifest,
    index_rows,
    jpeg,
    load_manifest,
    originals,
    pack_tree,
    png,
)
from fastdata.converters import Encoding
from fastdata.converters.table import TableImages
from tiers import first_of, slow
from web_server import WebServer

from fastdata import ImageDataset, verify
from fastdata.errors import CorruptionError, DatasetError, UsageError
from fastdata.maintenance.verify import Verification
from fastdata.storage import columns
from fastdata.storage.files import crc32c_file
from fastdata.storage.records import (
    SCHEMA,
)

FILES = {"lmdb": "data.mdb", "parquet": "part-000001.parquet", "shards": "shard-000001.tar"}
CONTAINERS = list(FILES)
#: Copies a dataset of this container, to be damaged.
Copies = Callable[[str], Path]


@pytest.fixture(scope="module")
def sound(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in each container, by name; not to be changed."""
    folder = tmp_path_factory.mktemp("sound")
    for container in CONTAINERS:
        pack_tree(made_tree / "val", folder / container, container)
    return folder


@pytest.fixture
def dataset(sound: Path, tmp_path: Path) -> Copies:
    return lambda container: shutil.copytree(sound / container, tmp_path / container)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def found(path: Path | str, **options: Any) -> str:
    result: Verification = verify(path, workers=1, **options)
    return "\n".join(f"{problem.where}: {problem.what}" for problem in result.problems)


def write_rows(path: Path, rows: list[dict[str, Any]], *, honest: bool = True) -> None:
    """Replaces the index; where ``honest``, its entry in the manifest too."""
    edit_index(path, lambda table: pa.Table.from_pylist(rows, schema=SCHEMA), honest=honest)


@pytest.mark.parametrize("container", first_of(CONTAINERS))
@pytest.mark.parametrize("workers", [1, slow(2)])
def test_a_flipped_bit_of_a_blob(dataset: Copies, container: str, workers: int) -> None:
    path = dataset(container)
    seen: list[tuple[int, int]] = []
    result = verify(path, workers=workers, progress=lambda done, total: seen.append((done, total)))
    assert (result.problems, result.samples, seen[-1]) == ([], 50, (50, 50))
    assert result.files == len([one for one in path.iterdir() if one.name[0] != "."]) - 1
    row = ImageDataset(path).row(30)
    manifest = load_manifest(path)
    flip(path / manifest["files"][row.file]["name"], row.offset + row.length // 2)
    problems = verify(path, workers=workers).problems
    assert any(row.key in problem.where and "changed" in problem.what for problem in problems)
    assert any("CRC-32C" in problem.what for problem in problems)
    assert len(problems) == 2
    assert found(path, fast=True) == ""


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_flipped_bit_of_the_structure(dataset: Copies, container: str) -> None:
    path = dataset(container)
    file = path / FILES[container]
    # An LMDB page's own number; Parquet's footer; the checksum of a tar header.
    offsets = {"lmdb": 2 * 4096 + 12, "parquet": file.stat().st_size - 1, "shards": 150}
    flip(file, offsets[container])
    assert f"{file}: has CRC-32C" in found(path)
    assert found(path, fast=True) == ""
    if container == "lmdb":
        return

    def vouch(manifest: dict[str, Any]) -> None:
        manifest["files"][1]["crc32c"] = f"{crc32c_file(file):08x}"

    edit_manifest(path, vouch)  # as if the writer had been faulty
    text = found(path)
    assert str(file) in text and "CRC-32C" not in text


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_a_damaged_file_is_one_problem(dataset: Copies, container: str, damage: str) -> None:
    path = dataset(container)
    file = path / FILES[container]
    size = file.stat().st_size
    names = [entry["name"] for entry in load_manifest(path)["files"]]
    inside = [row for row in index_rows(path) if names[row["file"]] == file.name]
    if damage == "cut":
        os.truncate(file, size - 1)
    else:
        file.unlink()
    said = f"has {size - 1} bytes, the manifest says {size}" if damage == "cut" else "No such file"
    (problem,) = verify(path, workers=1).problems
    assert problem.where == str(file) and problem.what.startswith(said)
    assert problem.what.endswith(f"; {len(inside)} samples in it not checked")
    (problem,) = verify(path, fast=True).problems
    assert problem.where == str(file) and problem.what.startswith(said)
    if container == "shards":  # others are checked all the same
        row = ImageDataset(path).row(0)
        flip(path / names[0], row.offset + row.length // 2)
        places = {Path(one.where).name for one in verify(path, workers=1).problems}
        assert places == {file.name, names[0], f"{row.key.rpartition('/')[2]})"}


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_flipped_bit_of_the_index(dataset: Copies, part: float) -> None:
    path = dataset("shards")
    index = path / "_index.rows"
    flip(index, int(part * index.stat().st_size))
    try:
        text = found(path)
    except DatasetError as error:
        text = str(error)
    assert str(index) in text


def test_an_index_cut_short_or_missing(dataset: Copies) -> None:
    path = dataset("lmdb")
    index = path / "_index.rows"
    index.write_bytes(index.read_bytes()[:-1])
    for fast in (False, True):
        with pytest.raises(DatasetError, match="cut short"):
            verify(path, fast=fast)
    index.unlink()
    for fast in (False, True):
        with pytest.raises(DatasetError, match=r"_index\.rows: .*No such file"):
            verify(path, fast=fast)


@pytest.mark.parametrize("container", first_of(CONTAINERS))
def test_swapped_index_rows(dataset: Copies, container: str) -> None:
    path = dataset(container)
    rows = index_rows(path)
    labels = [row["label"] for row in rows]
    for row, label in zip(rows, reversed(labels), strict=True):
        row["label"] = label  # the records' own checksums fit
    write_rows(path, rows, honest=False)
    assert "_index.rows" in found(path)
    # And where the manifest agrees with the index, but the container does not.
    rows[3], rows[4] = rows[4], rows[3]
    write_rows(path, rows)
    assert "they differ from its sample 3 on" in found(path)


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
def test_impossible_index_rows(dataset: Copies, changes: dict[str, int], problem: str) -> None:
    path = dataset("shards")
    rows = index_rows(path)
    rows[7].update(changes)
    write_rows(path, rows)
    for fast in (False, True):
        text = found(path, fast=fast)
        assert f"sample 7 ({rows[7]['key']}): its index row is impossible" in text
        assert problem in text


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images, as they are and as pixels; not to be changed."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "tree" / "a").mkdir(parents=True)
    for number in range(3):
        (folder / "tree" / "a" / f"{number}.jpg").write_bytes(jpeg(64, 48))
    for form in ("original", "raw"):
        pack_tree(folder / "tree", folder / form, "shards", encoding=Encoding(form))
        assert found(folder / form) == ""
    return folder


@pytest.mark.parametrize(
    ("form", "changes", "problem"),
    [
        ("original", {"width": 1}, "the index says 48 x 1 "),
        ("original", {"crc32c": 1}, "have changed since it was packed"),
        ("original", {"encoding": "png"}, "is jpeg of 3 channels, the index says png of 3"),
        ("original", {"encoding": "jpeg-progressive"}, "the index says jpeg-progressive of 3"),
        ("original", {"encoding": "raw"}, "too many or too few for"),
        ("original", {"channels": 4}, "is jpeg of 3 channels, the index says jpeg of 4"),
        ("raw", {"encoding": "jpeg"}, "not an image"),
        ("raw", {"channels": 1}, "is raw, the index says 1 channels"),
        ("raw", {"width": 63}, "too many or too few for 48 x 63"),
    ],
    ids=str,
)
def test_index_rows_that_the_blob_belies(
    small: Path, tmp_path: Path, form: str, changes: dict[str, Any], problem: str
) -> None:
    path = Path(shutil.copytree(small / form, tmp_path / "out"))
    rows = index_rows(path)
    rows[1].update(changes)
    write_rows(path, rows)
    text = found(path)
    assert "sample 1 (a/1)" in text and problem in text
    assert found(path, fast=True) == ""


def test_many_small_images_behind_a_url(tmp_path: Path) -> None:
    """They take few requests, the manifest one a process, and a damaged image is one of them."""
    pytest.importorskip("aiohttp")
    (tmp_path / "tree" / "a").mkdir(parents=True)
    for number in range(1500):
        (tmp_path / "tree" / "a" / f"{number:04}.jpg").write_bytes(jpeg(8, 8))
    path = tmp_path / "shards"
    pack_tree(tmp_path / "tree", path, "shards", unit_size=None)
    with WebServer(path) as server:
        row = ImageDataset(path).source.row(700)
        flip(next(path.glob("*.tar")), row.offset + row.length // 2)
        (problem,) = verify(server.url, workers=2).problems
        assert "sample 700 (a/0700)" in problem.where
        names = Counter(request.path.strip("/") for request in server.requests)
        assert names["_dataset.json"] <= 3  # this process and two workers
        assert sum(names.values()) < 50


def test_workers_that_are_none(sound: Path) -> None:
    for workers in (0, -3):
        with pytest.raises(UsageError, match=f"--workers {workers}: "):
            verify(sound / "lmdb", workers=workers)


def test_an_unreadable_file_is_one_problem(made_tree: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # other users do not reach tmp_path
        folder = Path(name).resolve()
        folder.chmod(0o755)
        shutil.copytree(made_tree / "val", folder / "tree")
        for container in ("shards", "folder"):
            pack_tree(folder / "tree", folder / container, container)
        inside = [row for row in index_rows(folder / "shards") if row["file"] == 1]
        closed = folder / "shards" / "shard-000001.tar", originals(folder / "tree")[5].path
        for path in closed:
            path.chmod(0)
        with as_nobody():
            (shard,) = verify(folder / "shards", workers=1).problems
            (fast,) = verify(folder / "shards", fast=True).problems
            (image,) = verify(folder / "folder", workers=1).problems
    denied = "Permission denied"
    assert shard == (str(closed[0]), f"{denied}; {len(inside)} samples in it not checked")
    assert fast == (str(closed[0]), denied)
    assert image == (str(closed[1]), denied)


def test_a_disk_that_fails_after_the_checksum_is_a_problem(sound: Path) -> None:
    file, read = sound / "parquet" / FILES["parquet"], os.pread

    def fail(descriptor: int, *where: int) -> bytes:
        if os.path.samestat(os.fstat(descriptor), file.stat()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, *where)

    with mock.patch.object(os, "pread", fail):
        problems = verify(sound / "parquet", workers=1).problems
    assert (str(file), os.strerror(errno.EIO)) in problems


class TestFields:
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
    def copy(self, whole: Path, tmp_path: Path) -> Copies:
        def copied(container: str) -> Path:
            path = Path(shutil.copytree(whole / container, tmp_path / container))
            if container == "folder":
                shutil.copytree(whole / "tree", tmp_path / "tree")
                edit_manifest(path, lambda manifest: manifest.update(root="../tree"))
            return path

        return copied

    @pytest.mark.parametrize("name", ["_field-text.arrow", "_index-text.rows", "_index-mask.rows"])
    def test_a_file_that_is_not_whole_is_one_problem(self, copy: Copies, name: str) -> None:
        path = copy("shards")
        data = (path / name).read_bytes()
        for change in (b"", data[:-1], data + b"more", None):
            if change is None:
                (path / name).unlink()
            else:
                (path / name).write_bytes(change)
            for fast in (False, True):
                (problem,) = verify(path, workers=1, fast=fast).problems
                assert problem.where == str(path / name)
                said = "No such file" if change is None else f"{len(change)} bytes"
                assert said in problem.what

    def test_a_flipped_bit_of_a_column_names_its_samples(self, copy: Copies) -> None:
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
    def test_a_flipped_bit_of_an_index(self, copy: Copies, name: str) -> None:
        path = copy("parquet")
        row = 0 if "text" in name else 2
        for offset, what in ((3, "cannot be read"), (40, "its header"), (64 * (row + 1) + 9, "")):
            flip(path / name, offset)
            assert f"{path / name}: the index " in found(path, fast=True)
            text = found(path)
            assert text.count("\n") == 1 and text.count(f"{path / name}: ") == 2
            assert (what or f"is damaged at row {row}") in text and "has CRC-32C" in text
            flip(path / name, offset)

    @pytest.mark.parametrize("container", ["folder", "shards", slow("lmdb"), slow("parquet")])
    @pytest.mark.parametrize("field", ["mask", "note"])
    def test_a_flipped_bit_of_a_further_blob(
        self, copy: Copies, container: str, field: str
    ) -> None:
        path = copy(container)
        row = ImageDataset(path).source.row(6, field)
        file = ImageDataset(path).source.file(row, 6)
        flip(file, row.offset + row.length // 2)
        text = found(path)
        assert f"sample 6 (6): its {field}: " in text and "have changed" in text
        assert text.count("\n") == (container != "folder")

    def test_images_and_fields_of_a_folder(self, copy: Copies) -> None:
        path = copy("folder")
        tree = path / "../tree"
        flip(tree / "3.jpg", 300)
        assert found(path, fast=True) == ""
        assert "sample 3 (3)" in found(path) and "have changed" in found(path)
        for name in ("0.jpg", "5.png"):
            (tree / name).unlink()
        for name in ("1.jpg", "7.bin"):
            (tree / name).write_bytes(b"short")
        for fast in (True, False):
            text = found(path, fast=fast)
            for name in ("0.jpg", "5.png"):
                assert f"{tree / name}: No such file or directory" in text
            assert f"{tree / '1.jpg'}: has 5 bytes, the index says" in text
            assert f"{tree / '7.bin'}: has 5 bytes, the index says 90" in text

    @pytest.mark.parametrize("container", ["shards", slow("folder")])
    def test_behind_a_url(self, copy: Copies, container: str) -> None:
        pytest.importorskip("aiohttp")
        path = copy(container)
        with WebServer(path.parent) as server:
            url = f"{server.url}/{container}"
            assert found(url) == ""
            ranges = [one for one in server.requests if one.range and "text.arrow" in one.path]
            assert len(ranges) == 1  # of three pieces
            image = path / "../tree/5.png" if container == "folder" else next(path.glob("*.tar"))
            image.unlink()
            assert f"{image.name}: No such file" in found(url, fast=True)
            column = path / "_field-text.arrow"
            row = ImageDataset(path).source.index_of("text")[0]
            flip(column, row.offset + row.length - 1)
            assert f"{url}/_field-text.arrow: the text of samples 0 to" in found(url)
            os.truncate(column, 100)
            assert f"{url}/{column.name}: has 100 bytes" in found(url, fast=True)

    @pytest.mark.parametrize(
        ("lie", "said"),
        [
            ({"text": {"schema": pa.binary()}}, "holds text string, the manifest says text binary"),
            (
                {"text": {"schema": pa.list_(pa.int32(), 0)}},
                "type of field text is fixed_size_list",
            ),
            (
                {"text": {"schema": pa.dictionary(pa.int8(), pa.string())}},
                "the type of field text is dictionary",
            ),
            ({"text": {"name": "ID"}}, "two of its fields have one name"),
            ({"id": {"rows": 3}}, "_index-id.rows: the index holds 3 rows"),
            (
                {"maybe": {"nullable": False}},
                "the maybe of samples 0 to 3 cannot be read: it has a null",
            ),
            ({"mask": {"nullable": False}}, "sample 4 (4): its index row of mask is impossible"),
            ({"mask": {"kind": "blob"}}, "sample 1 (1): its index row of mask is impossible"),
            ({"note": {"kind": "image"}}, "sample 1 (1): its note: not an image"),
            ({"note": {"name": "other"}}, "the index names"),
            (
                {
                    "text": {"file": "_field-maybe.arrow", "index": "_index-maybe.rows"},
                    "maybe": {"file": "_field-text.arrow", "index": "_index-text.rows"},
                },
                "_field-maybe.arrow: holds maybe string, the manifest says text string",
            ),
            ({"text": {"file": "_field-id.arrow"}}, "two of its fields have one file"),
            ({"mask": {"index": "shard-000000.tar"}}, "shard-000000.tar: the index cannot be"),
        ],
        ids=str,
    )
    def test_a_manifest_that_lies(self, copy: Copies, lie: dict[str, Any], said: str) -> None:
        path = copy("shards")

        def change(manifest: dict[str, Any]) -> None:
            for entry in manifest["fields"]:
                entry |= lie.get(entry["name"], {})
                if "schema" in lie.get(entry["name"], {}):
                    schema = pa.schema([(entry["name"], entry["schema"])]).serialize()
                    entry["schema"] = base64.b64encode(schema).decode()

        edit_manifest(path, change)
        assert said in found_or_raised(path)

    def test_classes_without_labels(self, dataset: Copies) -> None:
        path = dataset("shards")
        edit_manifest(path, lambda manifest: manifest["fields"].pop(1))
        assert "there are classes, but no field label" in found_or_raised(path)
        edit_manifest(path, lambda manifest: manifest.update(classes=[]))
        assert "its index row is impossible: label 1" in found(path, fast=True)
