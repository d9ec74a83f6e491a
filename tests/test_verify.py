"""What verify finds: each way that a dataset can be damaged, and nothing in a sound one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from containers import broken_jpeg, index_rows, originals, pack_tree

from fastdata import DatasetError, ImageDataset, verify
from fastdata.checksum import crc32c_file
from fastdata.verification import Verification

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


def found(path: Path, **options: Any) -> str:
    """All problems as a text."""
    verification: Verification = verify(path, workers=1, **options)
    return "\n".join(f"{problem.where}: {problem.what}" for problem in verification.problems)


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((path / "dataset.json").read_text("utf-8"))
    change(manifest)
    (path / "dataset.json").write_text(json.dumps(manifest), "utf-8")


def write_index(path: Path, rows: list[dict[str, Any]], *, honest: bool = True) -> None:
    """Replaces the index; where ``honest``, its entry in the manifest too."""
    index = path / "index.arrow"
    with pa.memory_map(str(index)) as source:
        schema = pa.ipc.open_file(source).schema
    table = pa.Table.from_pylist(rows, schema=schema)
    index.unlink()
    with pa.OSFile(str(index), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table)
    if honest:
        size, crc = index.stat().st_size, f"{crc32c_file(index):08x}"
        edit_manifest(path, lambda manifest: manifest["index"].update(size=size, crc32c=crc))


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_sound_dataset_has_no_problems(sound: Path, container: str) -> None:
    seen: list[tuple[int, int]] = []
    verification = verify(
        sound / container, workers=2, progress=lambda done, total: seen.append((done, total))
    )
    assert verification.problems == []
    assert verification.samples == 50
    assert verification.files == len(list((sound / container).iterdir())) - 1
    assert seen[-1] == (50, 50)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_flipped_bit_of_a_blob(
    dataset: Callable[[str], Path], container: str, workers: int
) -> None:
    path = dataset(container)
    row = ImageDataset(path).row(30)
    manifest = json.loads((path / "dataset.json").read_text("utf-8"))
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
    index = path / "index.arrow"
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
    index = path / "index.arrow"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(DatasetError, match="cut short"):
        verify(path, fast=fast)
    index.unlink()
    with pytest.raises(DatasetError, match=r"index\.arrow: No such file"):
        verify(path, fast=fast)


@pytest.mark.parametrize("container", CONTAINERS)
def test_swapped_index_rows(dataset: Callable[[str], Path], container: str) -> None:
    path = dataset(container)
    rows = index_rows(path)
    rows[3], rows[4] = rows[4], rows[3]
    write_index(path, rows, honest=False)
    assert "index.arrow" in found_or_raised(path)
    # And where the manifest agrees with the index, but the container does not.
    write_index(path, rows)
    assert "they differ from its blob 3 on" in found(path)


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
    write_index(path, rows)
    text = found(path, fast=fast)
    assert f"sample 7 ({rows[7]['key']}): its index row is impossible" in text
    assert problem in text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"width": 1}, "the index says 1 x"), ({"crc32c": 1}, "have changed since it was packed")],
    ids=str,
)
def test_index_rows_that_the_blob_belies(
    dataset: Callable[[str], Path], changes: dict[str, int], problem: str
) -> None:
    path = dataset("lmdb")
    rows = index_rows(path)
    rows[7].update(changes)
    write_index(path, rows)
    assert problem in found(path)
    assert found(path, fast=True) == ""


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
