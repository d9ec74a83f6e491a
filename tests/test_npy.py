"""Arrays of numbers are .npy files in tars and LMDBs, as webdataset writes and reads them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
import torch
import webdataset
from fastdata.converters import PackedDataset, TableImages, WebDataset, pack
from fastdata.converters.options import PackOptions
from field_data import image_file
from tiers import first_of

from fastdata import DataLoader, ImageDataset
from fastdata.errors import BadSamplesError
from fastdata.storage.arrow import array
from fastdata.storage.formats.npy import read_array, write_array
from fastdata.transforms import CenterCrop, Compose, Normalize

ROWS = 30
TYPES = ("float16", "float32", "float64", "int8", "int64", "uint8", "uint16", "uint64", "bool")
SHAPES = ((5,), (3, 4), (4, 2, 3), (1, 1))


def saved(values: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values, **options)
    return file.getvalue()


def arrays(kind: str, shape: tuple[int, ...], count: int = ROWS) -> list[np.ndarray]:
    draws = np.random.default_rng(len(shape))
    return [(draws.normal(size=shape) * 3).astype(kind) for _ in range(count)]


def fixed(kind: str, shape: tuple[int, ...]) -> pa.DataType:
    found = pa.from_numpy_dtype(np.dtype(kind))
    for size in reversed(shape):
        found = pa.list_(found, size)
    return found


def same(one: Any, other: np.ndarray) -> bool:
    one = np.asarray(one)
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()


def write_tar(path: Path, members: dict[str, list[Any]]) -> Path:
    with webdataset.TarWriter(str(path)) as sink:
        for at in range(len(next(iter(members.values())))):
            values = {name: column[at] for name, column in members.items()}
            present = {name: value for name, value in values.items() if value is not None}
            sink.write({"__key__": f"{at:03d}", "jpg": image_file(at), **present})
    return path


def table(folder: Path, columns: dict[str, pa.Array]) -> TableImages:
    rows = len(next(iter(columns.values())))
    for at in range(rows):
        (folder / f"{at:03d}.jpg").write_bytes(image_file(at))
    return TableImages(
        pa.table({"path": [f"{at:03d}.jpg" for at in range(rows)], **columns}), folder
    )


class TestFiles:
    @pytest.mark.parametrize("shape", [*SHAPES, (), (0,), (2, 0)])
    @pytest.mark.parametrize("kind", TYPES)
    def test_as_numpy_writes_and_reads(self, kind: str, shape: tuple[int, ...]) -> None:
        (values,) = arrays(kind, shape, 1)
        values = np.asarray(values)
        assert write_array(values) == saved(values)
        assert same(read_array(saved(values)), values)
        assert same(read_array(saved(values.copy(order="F"))), values)
        swapped = values.astype(values.dtype.newbyteorder(">"))
        assert same(read_array(saved(swapped)), values)
        file = io.BytesIO()
        np.lib.format.write_array(file, values, version=(2, 0))
        assert same(read_array(file.getvalue()), values)

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (saved(np.array([{}], object), allow_pickle=True), "pickled"),
            (saved(np.zeros((3, 4)))[:-1], "223 bytes for shape"),
            (saved(np.zeros((3, 4))) + b"\0", "225 bytes for shape"),
            (saved(np.zeros((3, 4))).replace(b"(3, 4)", b"(3,-4)"), "shape"),
            (saved(np.zeros((3, 4))).replace(b"(3, 4)", b"(9**9)"), "damaged header"),
            (saved(np.zeros((3, 4))).replace(b"'<f8'", b"'<f9'"), "damaged header"),
            (saved(np.zeros((3, 4)))[:40], "header of"),
            (b"\x93NUMPY\7\0" + bytes(200), "version 7"),
            (b"\x93NUMPY", "not a .npy|version"),
            (b"", "not a .npy"),
            (b"[1, 2]", "not a .npy"),
        ],
    )
    def test_damaged(self, data: bytes, problem: str) -> None:
        with pytest.raises(ValueError, match=problem):
            read_array(data)


@pytest.mark.filterwarnings("ignore:Exception ignored in.*FileIO")  # webdataset closes no file
@pytest.mark.parametrize("kind", first_of(TYPES[::3]))
def test_from_webdatasets_tars_and_back(tmp_path: Path, kind: str) -> None:
    members = {f"x{len(shape)}.npy": arrays(kind, shape) for shape in SHAPES[:3]}
    (tmp_path / "in").mkdir()
    write_tar(tmp_path / "in" / "a.tar", members)
    for container in ("shards", "lmdb", "parquet"):
        pack(WebDataset(tmp_path / "in"), tmp_path / container, container=container, workers=1)
    pack(PackedDataset(tmp_path / "parquet"), tmp_path / "again", container="shards", workers=1)
    for container in ("shards", "lmdb", "parquet", "again"):
        data = ImageDataset(tmp_path / container, fields=("key", *members))
        for row in data:
            assert list(row) == ["key", *members]
            for name in members:
                assert same(row[name], members[name][int(row["key"])]), (container, name)
    for folder in ("shards", "again"):
        read = webdataset.WebDataset(
            str(tmp_path / folder / "shard-000000.tar"), shardshuffle=False
        )
        found = list(read.decode())
        assert len(found) == ROWS
        for sample in found:
            for name, column in members.items():
                assert same(sample[name], column[int(sample["__key__"])])
    with lmdb.open(str(tmp_path / "lmdb"), readonly=True, lock=False) as file, file.begin() as txn:
        for at in range(ROWS):
            for name, column in members.items():
                data = txn.get(at.to_bytes(8, "big") + b"." + name.encode())
                assert same(np.load(io.BytesIO(data)), column[at])


@pytest.mark.parametrize("container", first_of(["shards", "lmdb", "parquet"]))
def test_batches_have_tensors(tmp_path: Path, container: str) -> None:
    latents = arrays("float16", (4, 3, 2))
    column = array(latents, fixed("float16", (4, 3, 2)))
    (tmp_path / "in").mkdir()
    out = tmp_path / "out"
    pack(table(tmp_path / "in", {"latent": column}), out, container=container, workers=1)
    loader = DataLoader(
        ImageDataset(out, Compose([CenterCrop(16), Normalize([0.5], [0.5])])),
        batch_size=7,
        shuffle=True,
        fields=("key", "latent"),
    )
    seen = 0
    for batch in loader:
        expected = torch.from_numpy(np.stack([latents[int(key)] for key in batch["key"]]))
        assert batch["latent"].dtype == expected.dtype
        assert torch.equal(batch["latent"], expected)
        seen += len(expected)
    assert seen == ROWS


def test_nulls(tmp_path: Path) -> None:
    values = [[1.5, 2.5], None, [None, 4.0], [5.0, 6.0]]
    (tmp_path / "in").mkdir()
    source = table(tmp_path / "in", {"pair": pa.array(values, pa.list_(pa.float32(), 2))})
    pack(
        source, tmp_path / "out", container="shards", workers=1, options=PackOptions(shuffle=False)
    )
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as archive:
        names = [one.name for one in archive if "pair" in one.name]
    assert names == ["000.pair.npy", "002.pair.json", "003.pair.npy"]
    assert ImageDataset(tmp_path / "out").column("pair").to_pylist() == values


@pytest.mark.parametrize(
    "odd",
    [
        np.zeros((3, 5), np.float32),
        np.zeros((3, 4), np.float64),
        np.zeros((3, 4), np.complex64),
        np.zeros(3, [("a", "f4")]),
        np.array(["text"]),
    ],
)
def test_arrays_of_several_types_are_blobs(tmp_path: Path, odd: np.ndarray) -> None:
    members = {"x.npy": [saved(one) for one in (*arrays("float32", (3, 4), 3), odd)]}
    (tmp_path / "in").mkdir()
    write_tar(tmp_path / "in" / "a.tar", members)
    source = WebDataset(tmp_path / "in")
    assert [(field.name, field.kind) for field in source.fields] == [("x.npy", "blob")]
    pack(source, tmp_path / "out", workers=1)
    rows = ImageDataset(tmp_path / "out", fields=("x.npy",))
    assert [row["x.npy"] for row in rows] == members["x.npy"]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (saved(np.array([{}], object), allow_pickle=True), "its .x.npy has pickled Python objects"),
        (saved(np.zeros((3, 4), np.float32))[:-4], "its .x.npy has 172 bytes for shape"),
        (b"no array", "its .x.npy is not a .npy file"),
    ],
)
def test_damaged_arrays_are_bad_samples(tmp_path: Path, bad: bytes, problem: str) -> None:
    members = {"x.npy": [*map(saved, arrays("float32", (3, 4), 3)), bad]}
    (tmp_path / "in").mkdir()
    write_tar(tmp_path / "in" / "a.tar", members)
    with pytest.raises(BadSamplesError, match=problem):
        pack(WebDataset(tmp_path / "in"), tmp_path / "out", workers=1)
    packed = pack(WebDataset(tmp_path / "in"), tmp_path / "out", workers=1, skip_bad=True)
    assert (packed.manifest.samples, packed.manifest.skipped) == (3, 1)
