"""Fields in every container, as other libraries read them and as fastdata does, row by row."""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import field_data
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from containers import load_manifest, pack_tree, png
from fastdata.converters.packed import PackedDataset
from fastdata.converters.parquet import ParquetImages
from fastdata.converters.table import TableImages
from fastdata.converters.webdataset import WebDataset
from hostile import refit
from PIL import Image
from sources import run, tar_bytes
from tiers import slow
from web_server import WebServer

from fastdata import DataLoader, ImageDataset, verify
from fastdata._native import crc32c
from fastdata.errors import CorruptionError, UsageError
from fastdata.storage.arrow import as_arrow
from fastdata.storage.records import Row, rows_to_batch, write_index
from fastdata.transforms import CenterCrop

#: Columns whose text for other tools is neither their string nor their value as JSON.
TEXTS = ("text", "maybe-text", "large", "category", "empty")
BLOBS = ("second", "raw")
#: Formats of columns.
FORMATS = {"boxes": "xywh", "maybe-boxes": "relative cxcywh"}


class Written(NamedTuple):
    path: Path
    table: pa.Table
    blobs: Mapping[str, Mapping[str, bytes | None]]

    def values(self, name: str) -> list[Any]:
        found: list[Any] = self.table.column(name).to_pylist()
        return found

    @property
    def columns(self) -> list[str]:
        taken = ("key", "label", "image", "path", *BLOBS)
        return [name for name in self.table.column_names if name not in taken]


def as_parquet(folder: Path) -> pa.Table:
    folder.mkdir()
    table = field_data.table()
    pq.write_table(table.slice(0, 25), folder / "a.parquet", row_group_size=7)
    pq.write_table(table.slice(25), folder / "b.parquet")
    return pq.read_table(folder)


def as_files(folder: Path) -> pa.Table:
    folder.mkdir()
    found = {"path": [], "second": [], "raw": []}
    extra = field_data.blobs()
    for at in range(field_data.ROWS):
        (folder / f"{at}.jpg").write_bytes(field_data.image_file(at))
        found["path"].append(f"{at}.jpg")
        for name, suffix in (("second", "png"), ("raw", "bin")):
            data = extra[name][at]
            found[name].append(None if data is None else f"{at}.{suffix}")
            if data is not None:
                (folder / f"{at}.{suffix}").write_bytes(data)
    table = field_data.table().drop_columns(["image", *BLOBS])
    for name, paths in found.items():
        table = table.append_column(name, pa.array(paths))
    return table


def as_tars(folder: Path) -> None:
    folder.mkdir()
    extra, texts = field_data.blobs(), field_data.columns()["maybe-text"].to_pylist()
    for shard in range(2):
        found: list[tuple[str, bytes]] = []
        for at in range(shard, field_data.ROWS, 2):
            text = texts[at]
            members = {"jpg": field_data.image_file(at), "cls": b"%d" % (at % 3)}
            members |= {"txt": None if text is None else text.encode(), "id": b"%d" % at}
            members |= {"seg.png": extra["second"][at], "flac": extra["raw"][at]}
            members["json"] = json.dumps({"url": text, "n": at}).encode()
            found += [(f"a/{at:03d}.{e}", data) for e, data in members.items() if data is not None]
        (folder / f"{shard}.tar").write_bytes(tar_bytes(found))


def written_of(path: Path, table: pa.Table) -> Written:
    keys = keys_of(path)
    places = {key: at for at, key in enumerate(table.column("key").to_pylist())}
    table = table.take([places[key] for key in keys])
    extra = field_data.blobs()
    return Written(
        path, table, {n: {f"a/{i:03d}": b for i, b in enumerate(extra[n])} for n in extra}
    )


def keys_of(path: Path) -> list[str]:
    dataset = ImageDataset(path)
    return [dataset.row(at).key for at in range(len(dataset))]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    as_parquet(folder / "parquet")
    as_tars(folder / "tars")
    return folder


@pytest.fixture(scope="module", params=["parquet", "shards", "lmdb"])
def packed(request: pytest.FixtureRequest, sources: Path) -> Written:
    out = sources / f"from-parquet-{request.param}"
    source = ParquetImages(sources / "parquet", formats=FORMATS)
    shuffle = request.param != "lmdb"
    pack_tree(source, out, request.param, unit_size=30_000, shuffle=shuffle)
    return written_of(out, pq.read_table(sources / "parquet"))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        one = one.tolist()
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and (one is None) == (other is None)


def assert_same(found: Any, expected: list[Any], name: str = "") -> None:
    found = list(found)
    assert len(found) == len(expected)
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert same(one, other), (name, at, one, other)


class TestPacked:
    def test_every_row_is_what_was_written(self, packed: Written) -> None:
        names = ("key", "index", "label", *packed.columns, *BLOBS)
        dataset = ImageDataset(packed.path, fields=names)
        rows, rows_at_once = list(dataset), dataset.__getitems__([5, 1])
        assert [row["index"] for row in rows_at_once] == [5, 1]
        for name in ("key", "label", *packed.columns):
            assert_same([row[name] for row in rows], packed.values(name), name)
            assert_same([row[name] for row in rows_at_once],
                        [packed.values(name)[at] for at in (5, 1)], name)  # fmt: skip
        for row in rows:
            assert row["raw"] == packed.blobs["raw"][row["key"]]
            second = packed.blobs["second"][row["key"]]
            if second is None:
                assert row["second"] is None
                continue
            with Image.open(io.BytesIO(second)) as image:
                assert row["second"].tobytes() == image.convert("RGB").tobytes()
        for at in range(len(dataset)):
            assert dataset.read([at])[0] == field_data.image_file(int(rows[at]["id"]))
        assert verify(packed.path, workers=1).problems == []

    def test_pyarrow_and_pandas_read_the_files_of_columns(self, packed: Written) -> None:
        pandas = pytest.importorskip("pandas")
        for name in packed.columns:
            path = packed.path / f"_field-{name}.arrow"
            with pa.ipc.open_file(path) as file:
                assert_same(file.read_all().column(name).to_pylist(), packed.values(name), name)
            if name == "text":
                assert pandas.read_feather(path)[name].tolist() == packed.values(name)

    def test_converting_keeps_all(self, packed: Written, tmp_path: Path) -> None:
        out = tmp_path / "again"
        to = {"parquet": "shards", "shards": "lmdb", "lmdb": "parquet"}
        container = to[load_manifest(packed.path)["container"]]
        pack_tree(PackedDataset(packed.path), out, container, unit_size=30_000)
        one, other = load_manifest(packed.path), load_manifest(out)
        for field in (*one["fields"], *other["fields"]):
            field.pop("rows", None)
        assert one["fields"] == other["fields"]
        formats = {field["name"]: field["format"] for field in one["fields"] if "format" in field}
        assert formats == FORMATS
        dataset, again = ImageDataset(packed.path), ImageDataset(out)
        assert keys_of(out) == keys_of(packed.path)
        for name in packed.columns:
            found, expected = as_arrow(again.column(name)), as_arrow(dataset.column(name))
            assert found.equals(expected), name
        fields = ("key", *BLOBS)
        both = (ImageDataset(path, fields=fields) for path in (packed.path, out))
        for row, copy in zip(*both, strict=True):
            for one in (row, copy):
                one["second"] = one["second"] and one["second"].tobytes()
            assert row == copy

    def test_info_lists_fields(self, packed: Written) -> None:
        done = run("info", "--json", str(packed.path))
        listed = {field.pop("name"): field for field in json.loads(done.stdout)["fields"]}
        assert list(listed) == ["image", "label", *source_order(packed)]
        formats = {name: field.pop("format") for name, field in listed.items()}
        assert {name: one for name, one in formats.items() if one is not None} == FORMATS
        assert listed["second"] == {"kind": "image", "type": None, "nullable": True}
        assert listed["raw"] == {"kind": "blob", "type": None, "nullable": True}
        for name in packed.columns:
            column = packed.table.column(name).combine_chunks()
            kind = getattr(column.type, "value_type", column.type)
            kind = kind if pa.types.is_dictionary(column.type) else column.type
            assert listed[name]["type"] == str(kind).replace("item:", "element:")
            lacks = any(map(has_null, column.to_pylist()))
            assert (listed[name]["kind"], listed[name]["nullable"]) == ("column", lacks)
        shown = run("info", str(packed.path)).stdout
        lines = {line.removeprefix(" fields").strip() for line in shown.splitlines()}
        assert {"image: images", "raw: files, may be missing", "id: int64"} <= lines
        assert any(re.fullmatch("boxes: list<.*, xywh", line) for line in lines)


def source_order(written: Written) -> list[str]:
    return [name for name in written.table.column_names if name not in ("key", "label", "image")]


def has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(has_null, value.values()))
    return value is None or (isinstance(value, list) and any(map(has_null, value)))


@pytest.mark.parametrize("packed", ["parquet"], indirect=True)
class TestParquet:
    def test_pyarrow_and_pandas(self, packed: Written) -> None:
        pandas = pytest.importorskip("pandas")
        table = pq.read_table(packed.path)
        frame = pandas.read_parquet(packed.path, dtype_backend="pyarrow")
        for name in packed.columns:
            assert_same(table.column(name).to_pylist(), packed.values(name), name)
            if name != "nothing":
                column = pa.array(frame[name])
                assert_same(column.to_pylist(), packed.values(name), name)
        keys = table.column("key").to_pylist()
        assert table.column("raw").to_pylist() == [packed.blobs["raw"][key] for key in keys]
        seconds = [one and one["bytes"] for one in table.column("second").to_pylist()]
        assert seconds == [packed.blobs["second"][key] for key in keys]

    def test_hugging_face(self, packed: Written, hugging_face: Any) -> None:
        found = hugging_face.load_dataset(str(packed.path), split="train")
        assert isinstance(found.features["second"], hugging_face.Image)
        assert isinstance(found.features["image"], hugging_face.Image)
        assert found.features["label"].names == ["0", "1", "2"]
        for row in found:
            second = packed.blobs["second"][row["key"]]
            assert (row["second"] is None) == (second is None)
            if second is not None:
                with Image.open(io.BytesIO(second)) as image:
                    assert row["second"].tobytes() == image.tobytes()
        plain = found.remove_columns(["image", "second"])
        for name in packed.columns:
            assert_same(plain[name], packed.values(name), name)
        assert plain["raw"] == [packed.blobs["raw"][key] for key in plain["key"]]


def text_of(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def members_agree(written: Written, at: int, found: Mapping[str, Any]) -> None:
    for name in written.columns:
        value = written.values(name)[at]
        if value is None:
            assert name not in found, name
        elif name in TEXTS:
            assert found[name] == value, name
        elif name.startswith(("time", "maybe-time", "clock", "lasts")):
            assert found[name] == written.table.column(name)[at].cast(pa.string()).as_py(), name
        else:
            assert found[name] == text_of(value), name


class TestShards:
    @pytest.mark.parametrize("packed", ["shards"], indirect=True)
    def test_webdataset(self, packed: Written) -> None:
        webdataset = pytest.importorskip("webdataset")
        files = sorted(map(str, packed.path.glob("*.tar")))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it leaves shards open
            samples = list(webdataset.WebDataset(files, shardshuffle=False).decode("pilrgb"))
        keys = keys_of(packed.path)
        assert [sample["json"]["key"] for sample in samples] == keys
        for at, sample in enumerate(samples):
            found = {re.sub("[.](json|npy)$", "", name): one for name, one in sample.items()}
            found |= {n: one.tolist() for n, one in found.items() if isinstance(one, np.ndarray)}
            found |= {n: found[n].decode() for n in TEXTS if isinstance(found.get(n), bytes)}
            members_agree(packed, at, found)
            assert found.get("raw") == packed.blobs["raw"][keys[at]]
            assert found.get("second") == packed.blobs["second"][keys[at]]
            assert found["cls"] == packed.values("label")[at]

    def test_hugging_face(self, sources: Path, hugging_face: Any, tmp_path: Path) -> None:
        names = ["id", "text", "boxes", "vector"]
        source = ParquetImages(sources / "parquet", fields=names)
        pack_tree(source, tmp_path / "out", "shards", unit_size=30_000)  # in order
        found = hugging_face.load_dataset(str(tmp_path / "out"), split="train")
        table = pq.read_table(sources / "parquet")
        assert found["text"] == table.column("text").to_pylist()
        for name in ("id.json", "boxes.json", "vector.npy"):
            expected = table.column(name[:-5] if name.endswith("json") else name[:-4]).to_pylist()
            assert_same(found[name], expected, name)


def decoded(value: bytes) -> Any:
    if value.startswith(b"\x93NUMPY"):
        return np.load(io.BytesIO(value)).tolist()
    return json.loads(value)


class TestLmdb:
    @pytest.mark.parametrize("packed", ["lmdb"], indirect=True)
    def test_py_lmdb(self, packed: Written) -> None:
        keys = keys_of(packed.path)
        found: list[dict[str, Any]] = [{} for _ in keys]
        with (
            lmdb.open(str(packed.path / "data.mdb"), subdir=False, readonly=True, lock=False) as e,
            e.begin() as transaction,
        ):
            for key, value in transaction.cursor():
                number, name = int.from_bytes(key[:8], "big"), key[9:].decode()
                if name in TEXTS:
                    value = value.decode()
                found[number][name] = value
        for at, sample in enumerate(found):
            assert sample.pop("") == field_data.image_file(packed.values("id")[at])
            for name in BLOBS:
                assert sample.pop(name, None) == packed.blobs[name][keys[at]]
            others = {name: v if name in TEXTS else decoded(v) for name, v in sample.items()}
            members_agree(packed, at, others)


@pytest.mark.parametrize("container", ["shards", slow("parquet"), slow("lmdb")])
def test_members_of_tars(sources: Path, tmp_path: Path, container: str) -> None:
    webdataset = pytest.importorskip("webdataset")
    pack_tree(WebDataset(sources / "tars"), tmp_path / "out", container, unit_size=20_000)
    files = sorted(map(str, (sources / "tars").glob("*.tar")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        samples = {one["__key__"]: one for one in webdataset.WebDataset(files, shardshuffle=False)}
    names = ("key", "label", "txt", "id", "seg.png", "flac", "json")
    dataset = ImageDataset(tmp_path / "out", fields=names)
    assert len(dataset) == len(samples)
    for row in dataset:
        key, label, txt, number, seg, flac, about = row.values()
        sample = samples[key]
        assert (label, number) == (int(sample["cls"]), int(sample["id"]))
        assert flac == sample.get("flac") and about == sample["json"].decode()
        assert txt == (sample["txt"].decode() if "txt" in sample else None)
        assert (seg is None) == ("seg.png" not in sample)
        if seg is not None:
            with Image.open(io.BytesIO(sample["seg.png"])) as image:
                assert seg.tobytes() == image.tobytes()
    assert verify(tmp_path / "out", workers=1).problems == []


def odd_columns(rows: int) -> dict[str, pa.Array]:
    """Columns of types that other types stand for: views, dictionaries and extensions inside."""
    texts = [f"text {at}" * (at % 3) for at in range(rows)]
    category = pa.array(texts).dictionary_encode()
    ends = pa.array(range(rows + 1), pa.int32())
    uuids = pa.array([bytes([at]) * 16 for at in range(rows)], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), uuids)
    found = {"views": pa.array(texts, pa.string_view())}
    found["bytes"] = pa.array([text.encode() for text in texts], pa.binary_view())
    found["lists"] = pa.array([[[text]] for text in texts], pa.list_view(pa.list_(pa.string())))
    found["categories"] = pa.ListArray.from_arrays(ends, category)
    found["about"] = pa.StructArray.from_arrays([category, uuids], ["text", "uuid"])
    found["uuids"] = pa.ListArray.from_arrays(ends, uuids)
    moments = pa.array(range(rows), pa.int64()).cast(pa.timestamp("ns"))
    found["moments"] = pa.MapArray.from_arrays(ends, category, moments)
    days = pa.array([at * 10**6 for at in range(rows)], pa.int32()).cast(pa.date32())
    return found | {"days": days}  # beyond the years of Python's


def test_types_that_stand_for_others(tmp_path: Path) -> None:
    rows = 9
    table = as_files(tmp_path / "files").slice(0, rows)
    columns = odd_columns(rows)
    table = pa.table({"path": table["path"], **columns})
    pack_tree(TableImages(table, tmp_path / "files"), tmp_path / "out", "shards", shuffle=False)
    dataset, text = ImageDataset(tmp_path / "out"), pa.string()
    stored = {"views": text, "bytes": pa.binary(), "lists": pa.list_(pa.list_(text))}
    stored |= {"categories": pa.list_(text), "uuids": pa.list_(pa.binary(16))}
    stored["about"] = pa.struct([("text", text), ("uuid", pa.binary(16))])
    stored["moments"] = pa.map_(text, pa.timestamp("ns"))
    for name, values in columns.items():
        plain = values if name == "days" else pa.array(values.to_pylist(), stored[name])
        assert dataset.column(name).equals(plain), name
    for fields in (("image", "days"), ("days",)):
        dataset.fields = fields
        with pytest.raises(UsageError, match="the field days has a value of date32"):
            dataset[rows - 1]
    assert verify(tmp_path / "out", workers=1).problems == []


@pytest.mark.parametrize(
    "values",
    [
        pa.RunEndEncodedArray.from_arrays([1, 2], ["a", "b"]),
        pa.array([{}, {}], pa.struct([])),
        pa.array([[[]], [[]]], pa.list_(pa.list_(pa.int8(), 0))),
        pa.array([pa.MonthDayNano([1, 2, 3])] * 2),
        pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]),
    ],
    ids=lambda values: str(values.type)[:12],
)
def test_types_that_cannot_be_stored(tmp_path: Path, values: pa.Array) -> None:
    table = pa.table({"path": ["a.png", "b.png"], "odd": values})
    with pytest.raises(UsageError, match=r"the field odd is .*which datasets cannot store"):
        pack_tree(TableImages(table, tmp_path), tmp_path / "out", "shards")


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
@pytest.mark.parametrize("container", ["lmdb", "shards", "parquet", "archives", "tables"])
def test_an_empty_value_is_a_value(tmp_path: Path, container: str) -> None:
    """And a null is none: for single samples and loaders, here and behind a URL, and repacked."""
    values = [b"", b"xy", None, b""]
    table = pa.table({"image": field_data.table(4)["image"], "raw": values})
    compression = "snappy" if container == "tables" else "none"
    pq.write_table(table, tmp_path / "a.parquet", compression=compression, use_dictionary=False)
    source = ParquetImages(tmp_path / "a.parquet")
    pack_tree(source, tmp_path / "out", container, shuffle=False)
    pack_tree(PackedDataset(tmp_path / "out"), tmp_path / "again", "lmdb")
    with WebServer(tmp_path) as server:
        for place in (tmp_path / "out", tmp_path / "again", f"{server.url}/again"):
            dataset = ImageDataset(place, CenterCrop(8), fields=("image", "raw"))
            assert [dataset[row]["raw"] for row in range(4)] == values
            (batch,) = DataLoader(dataset, 4, order="sequential")
            assert batch["raw"] == values
    assert not verify(tmp_path / "out", workers=1).problems


def test_names_with_dots_and_names_that_meet(tmp_path: Path) -> None:
    pictures = field_data.table(4)["image"]
    columns = {"a": [1, 2, 3, 4], "seg.png": pictures, "b.c.bin": [b"1", b"2", b"3", b"4"]}
    columns["s.t"] = [{"bytes": at} for at in range(4)]
    pq.write_table(pa.table({"image": pictures, **columns}), tmp_path / "a.parquet")
    source = ParquetImages(tmp_path / "a.parquet")
    assert source.columns_taken.endswith("fields a, seg.png, b.c.bin, s.t")
    pack_tree(source, tmp_path / "out", "shards", shuffle=False)
    row = ImageDataset(tmp_path / "out", fields=("image", *columns))[2]
    _, number, image, data, struct = row.values()
    assert (number, data, struct) == (3, b"3", {"bytes": 2})
    with Image.open(io.BytesIO(pictures[2].as_py()["bytes"])) as expected:
        assert image.tobytes() == expected.convert("RGB").tobytes()
    (tmp_path / "p.png").write_bytes(png())
    for other, container, why in (
        ({"text": [1], "Text": ["a"]}, "lmdb", "text and Text have the same name"),
        ({"x": [1], "x.json": ["a"]}, "shards", "x.json and the field x would be one member"),
        ({"PNG": ["a"]}, "shards", "and the field PNG would be one member, .png"),
    ):
        table = pa.table({"path": ["p.png"], **other})
        with pytest.raises(UsageError, match=why):
            pack_tree(TableImages(table, tmp_path), tmp_path / container, container)


def test_a_compressed_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(png())
    table = pa.table({"path": ["p.png"], "ids": [[1]]})
    out = tmp_path / "out"
    pack_tree(TableImages(table, tmp_path), out, "lmdb")
    sink, schema = pa.BufferOutputStream(), pa.schema([("ids", pa.list_(pa.int64()))])
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_pydict({"ids": [[7] * 9999]}, schema))
    _, message = pa.ipc.MessageReader.open_stream(sink.getvalue())
    data = message.serialize().to_pybytes()
    (out / "_field-ids.arrow").write_bytes(data)
    row = Row("", 0, 1, None, 0, len(data), 1, 1, 1, "other", crc32c(data))
    rows = [rows_to_batch([row])]
    write_index(out / "_index-ids.rows", rows, 1, load_manifest(out)["generation"])
    for name in ("_index-ids.rows", "_field-ids.arrow"):
        refit(out, name)
    with pytest.raises(CorruptionError, match="cannot be read: it is compressed"):
        next(iter(DataLoader(ImageDataset(out, CenterCrop(1), fields=("image", "ids")), 1)))
