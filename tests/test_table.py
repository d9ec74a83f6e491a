"""Images that a table lists: types, nulls, keys, labels, paths, and damage of every kind."""

from __future__ import annotations

import csv
import datetime
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from annotated import bad_of, packed_fields, packed_without_bad, write_images, write_mask
from click.testing import Result
from fastdata.converters import TableImages
from fastdata.converters.table_files import read_table
from sources import convert, make_tree, require_said, run
from tiers import first_of
from web_server import WebServer

from fastdata import ImageDataset
from fastdata.errors import FastdataError, SourceError, UsageError
from fastdata.maintenance.seek_points import add_seek_points
from fastdata.samplers import TokenBudgetBatches
from fastdata.storage.packed import PackedSource


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_images(tmp_path / "in", ["a.jpg", "b.jpg", "c.jpg"])
    return tmp_path / "in"


def opened(root: Path, columns: Mapping[str, Sequence[Any]], **options: Any) -> TableImages:
    paths = {} if "path" in columns else {"path": ["a.jpg", "b.jpg", "c.jpg"]}
    return TableImages(pa.table({**paths, **columns}), root, **options)


def written(root: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    path = root / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif name.endswith(("jsonl", "ndjson")):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            delimiter = "\t" if name.endswith(".tsv") else ","
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.JSONL", "t.ndjson", "t.parquet"])
def test_formats(root: Path, name: str, tmp_path: Path) -> None:
    captions = ['two\nlines, "quoted"', "NA" * (3 << 20), "漢字\té"]
    rows = [
        {"file_name": f"{key}.jpg", "txt": text, "n": number, "x": number / 4}
        for number, (key, text) in enumerate(zip("cab", captions, strict=True))
    ]
    if name.endswith("JSONL"):
        path = written(root, "t.jsonl", rows).rename(root / name)
    else:
        path = written(root, name, rows)
    source = TableImages(path)
    assert [record.key for record in source.records()] == ["c", "a", "b"]
    packed_without_bad(source, tmp_path / "out", shuffle=False)
    found = dict(packed_fields(tmp_path / "out"))
    assert found["txt"] == captions
    assert found["n"] == [0, 1, 2] and found["x"] == [0, 0.25, 0.5]
    assert PackedSource(tmp_path / "out").classes == []


def test_types(root: Path, tmp_path: Path) -> None:
    """Each type as it is, but without dictionaries and extensions."""
    when = datetime.datetime(2024, 5, 17, 12, 30, 1, 123456)
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "i8": (pa.int8(), [-128, None, 127]),
        "u64": (pa.uint64(), [0, 2**64 - 1, None]),
        "f16": (pa.float16(), [0.5, None, -2.0]),
        "f32": (pa.float32(), [0.25, float("inf"), None]),
        "flag": (pa.bool_(), [True, None, False]),
        "text": (pa.large_string(), ["", None, "漢"]),
        "raw": (pa.binary(), [b"\x00\xff", b"", None]),
        "day": (pa.date32(), [when.date(), None, when.date()]),
        "when": (pa.timestamp("us"), [when, None, when]),
        "vector": (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6]]),
        "ragged": (pa.list_(pa.list_(pa.int16())), [[[1], []], [], None]),
        "struct": (pa.struct([("a", pa.int8()), ("b", pa.string())]), [{"a": 1, "b": None}] * 3),
        "nothing": (pa.null(), [None] * 3),
        "empty": (pa.list_(pa.string()), [[], [], []]),
    }
    columns: dict[str, Any] = {name: pa.array(v, kind) for name, (kind, v) in values.items()}
    columns["word"] = pa.chunked_array([pa.array(one).dictionary_encode() for one in ("xy", "z")])
    columns["uuid"] = pa.ExtensionArray.from_storage(
        pa.uuid() if hasattr(pa, "uuid") else pa.bool8(), pa.array([b"0" * 16] * 3, pa.binary(16))
    )
    source = opened(root, columns)
    packed_without_bad(source, tmp_path / "out", shuffle=False)
    found = dict(packed_fields(tmp_path / "out"))
    types = {field.name: field.type for field in PackedSource(tmp_path / "out").fields}
    for name, (kind, expected) in values.items():
        assert found[name] == expected and types[name] == kind, name
    assert found["word"] == list("xyz") and types["word"] == pa.string()
    assert found["uuid"] == [b"0" * 16] * 3


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        (["b", "a", "b"], ["a", "b"], [1, 0, 1]),
        ([2, 0, 2], ["0", "1", "2"], [2, 0, 2]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["a", "b"], [1, 0, 1]),
        (pa.array([1, 0, 1], pa.uint8()), ["0", "1"], [1, 0, 1]),
        ([1.0, 0.0, 1.0], ["0", "1"], [1, 0, 1]),
        ([True, False, True], ["False", "True"], [1, 0, 1]),
    ],
)
def test_labels(root: Path, labels: Any, classes: list[str], expected: list[int]) -> None:
    source = opened(root, {"label": labels})
    assert source.classes == classes and source.fields == ()
    assert [record.label for record in source.records()] == expected
    in_memory = {"path": ["a.jpg", "b.jpg", "c.jpg"], "label": labels}
    dataset = ImageDataset.from_table(in_memory, root=root)
    assert (dataset.classes, dataset.targets) == (classes, expected)


@pytest.mark.parametrize(
    "labels", [["b", None, "a"], ["b", "", "a"], [1, None, 0], [1.0, np.nan, 0.0]]
)
def test_labels_that_are_missing(root: Path, labels: list[Any], tmp_path: Path) -> None:
    source = opened(root, {"label": labels})
    assert bad_of(source) == {"b": "its label is null or empty"}
    assert len(source.classes) == 2
    packed_without_bad(source, tmp_path / "out", shuffle=False)
    assert ImageDataset(tmp_path / "out").targets == [1, 0]


@pytest.mark.parametrize(
    "labels", [[0.0, 1.0, 2.5], [-1, 0, 1], [np.inf, 0.0, 1.0], [[1], [2], [3]], [1 << 30, 0, 1]]
)
def test_labels_that_are_none(root: Path, labels: list[Any]) -> None:
    with pytest.raises(UsageError, match="its column label has labels that are neither names"):
        opened(root, {"label": labels})
    assert [f.name for f in opened(root, {"x": labels}).fields] == ["x"]


def test_keys(root: Path) -> None:
    table = written(root, "t.csv", [{"path": "a.jpg", "key": "007"}, {"path": "b.jpg", "key": "7"}])
    assert [record.key for record in TableImages(table).records()] == ["007", "7"]
    source = opened(root, {"n": [7, 8, None], "key": ["x/1", "", None]})
    assert [record.key for record in source.records()] == ["x/1", "_row-1", "_row-2"]
    assert bad_of(source)["_row-2"] == "its key is null or empty"
    source = opened(root, {"n": [7, 8, None]}, key="n")
    assert [record.key for record in source.records()] == ["7", "8", "_row-2"]
    bad = bad_of(opened(root, {"key": ["../x", "/y", "."]}))
    assert bad["_row-0"] == "its key '../x' is not a relative path without '..'"
    assert list(bad) == ["_row-0", "_row-1", "_row-2"]


@pytest.mark.parametrize("container", ["lmdb", "shards", "parquet", "folder"])
def test_rows_of_one_image_are_one_sample(root: Path, container: str, tmp_path: Path) -> None:
    """As pandas groups them; each image is stored once."""
    rows = {
        "image": ["b.jpg", "a.jpg", "./b.jpg", "c.jpg", "b.jpg"],
        "caption": ["one", "007", "", "12:30", "one"],
        "box": [[1, 2, 3, 4.5], [0, 0, 5, 6], [5, 6, 7, 8], [1, 1, 2, 2], [2, 2, 3, 3]],
        "width": [48] * 5,
        "label": ["y", "x", "y", "x", "y"],
    }
    table = pd.DataFrame(rows)
    table.to_parquet(root / "t.parquet")
    given = ("--root", root / "t.parquet", "--format", "box=xyxy", "--to", container)
    result = convert("table", *given, "--no-shuffle", "--out", tmp_path / "out")
    require_said(result, 0, "5 rows are 3 images, with lists of caption, box")
    table["image"] = table["image"].str.removeprefix("./")
    expected = table.groupby("image", sort=False).agg(list)
    dataset = ImageDataset(tmp_path / "out", fields=("image", "label", "caption", "box", "width"))
    found = [dataset[row] for row in range(len(dataset))]
    assert [one["caption"] for one in found] == expected["caption"].to_list()
    for one, boxes in zip(found, expected["box"], strict=True):
        np.testing.assert_array_equal(np.array(one["box"]), np.stack(boxes))
    assert [one["width"] for one in found] == [48] * 3
    assert [one["label"] for one in found] == [1, 0, 0]
    assert [dataset.row(row).key for row in range(3)] == ["b", "a", "c"]
    sizes = [len((root / f"{key}.jpg").read_bytes()) for key in "bac"]
    assert PackedSource(tmp_path / "out").manifest.blob_bytes == sum(sizes)


def test_keys_twice(root: Path, tmp_path: Path) -> None:
    rows = [{"path": f"{key}.jpg", "id": "x"} for key in "ab"]
    given = ("--root", written(root, "t.csv", rows), "--out", tmp_path / "out")
    require_said(convert("table", *given, "--key-column", "id"), 1, "two images have the key x")
    twice = {"path": ["a.jpg"] * 2, "label": [0, 1]}
    with pytest.raises(SourceError, match=r"a\.jpg, differ in label"):
        TableImages(pa.table(twice), root)
    rows = [{"path": "a.jpg", "txt": text, "id": f"0{text}"} for text in "12"]
    table = written(root, "ids.csv", rows)
    given = ("--root", table, "--key-column", "id", "--to", "shards", "--out", tmp_path / "out")
    require_said(convert("table", *given), 0)
    dataset = ImageDataset(tmp_path / "out")
    assert sorted(dataset.row(row).key for row in range(2)) == ["01", "02"]


def test_paths(root: Path, tmp_path: Path) -> None:
    (root / "deep").mkdir()
    os.mkfifo(root / "deep/pipe.jpg")
    (root / "out.jpg").symlink_to(root / "a.jpg")
    (tmp_path / "secret.jpg").write_bytes((root / "a.jpg").read_bytes())
    reasons = {
        "./a.jpg": None,
        f"{root}/b.jpg": None,
        "out.jpg": None,
        "none.jpg": "cannot be opened: No such file or directory",
        "../secret.jpg": "has the path ../secret.jpg, which is not inside",
        f"{tmp_path}/secret.jpg": "which is not inside",
        "deep/../../secret.jpg": "which is not inside",
        "https://example.com/x.jpg": "cannot be opened",
        "": "has no path: it is null or empty",
        None: "has no path: it is null or empty",
        "nul\0.jpg": "which is not inside",
        "x" * 300: "cannot be opened: File name too long",
        "a.jpg/b.jpg": "cannot be opened: Not a directory",
    }
    source = opened(root, {"path": list(reasons), "n": list(range(len(reasons)))})
    for record, reason in zip(source.records(), reasons.values(), strict=True):
        assert (record.problem is None) == (reason is None), record
        assert reason is None or reason in str(record.problem)
    unread = opened(root, {"path": ["a.jpg", "deep", "deep/pipe.jpg"]})
    assert packed_without_bad(unread, tmp_path / "unread").manifest.skipped == 2
    packed = packed_without_bad(source, tmp_path / "out", shuffle=False)
    assert packed.manifest.samples == 3
    assert dict(packed_fields(tmp_path / "out"))["n"] == [0, 1, 2]


def test_absolute_paths(root: Path, tmp_path: Path) -> None:
    """In folders that have nothing in common with the table's; below a root, or behind a link."""
    write_images(tmp_path / "more", ["d/e.jpg"])
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "lists").mkdir()
    rows = [{"path": f"{root}/a.jpg"}, {"path": f"{tmp_path}/more/d/e.jpg"}]
    table = written(tmp_path / "lists", "t.csv", rows)
    for options, above in (((), ""), (("--images", "/"), f"{str(tmp_path)[1:]}/")):
        given = ("--root", table, *options, "--force", "--out", tmp_path / "out")
        require_said(convert("table", *given), 0)
        keys = [f"{above}in/a", f"{above}more/d/e"]
        assert [ImageDataset(tmp_path / "out").row(row).key for row in range(2)] == keys
    mixed = written(root, "t.csv", [{"path": "b.jpg"}, *rows])
    assert [record.key for record in TableImages(mixed).records()] == ["in/b", "in/a", "more/d/e"]
    linked = pa.table({"path": [f"{tmp_path}/link/a.jpg", f"{root}/b.jpg", "c.jpg"]})
    assert [one.key for one in TableImages(linked, tmp_path / "link").records()] == ["a", "b", "c"]
    assert not bad_of(TableImages(linked, tmp_path / "link"))
    assert [one.key for one in TableImages(linked.slice(1, 1)).records()] == ["b"]


def test_a_failed_attempt_is_not_in_the_way(root: Path, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    rows = [{"path": "a.jpg", "kind": "x"}, {"path": "b.jpg", "kind": "y"}]
    given = ("--root", written(tmp_path / "lists", "t.csv", rows), "--out", tmp_path / "out")
    require_said(convert("table", *given), 1, "another folder with --images")
    given = (*given, "--images", root)
    some = ("--label-column", "kind", "--classes", "x")
    require_said(convert("table", *given, *some), 1, "its kind 'y' is not among the classes")
    require_said(convert("table", *given, "--encoding", "jpeg"), 0)


def pandas_csv(root: Path, **options: Any) -> Path:
    rows = {"path": ["a.jpg", "b.jpg"], "when": ["12:30", "2020-01-01"], "code": ["007", "010"]}
    rows |= {"id": [str(2**63), "12345678901234567890"], "long": ["12345678901234567890123", "1"]}
    more = {"n": [1, 2], "x": [0.5, None], "yes": [True, False], "no": [None, None]}
    pd.DataFrame(rows | more).to_csv(root / "t.csv", **options)
    return root / "t.csv"


@pytest.mark.parametrize("sep", [",", ";", "\t", "|", ", "])
def test_csv_of_pandas(root: Path, sep: str, tmp_path: Path) -> None:
    """Its index is left out; text stays text; numbers keep all digits."""
    table = pandas_csv(root, sep=sep[0])
    if sep == ", ":
        table.write_text(table.read_text().replace(",", ", ") + '1, c.jpg, "a, b", 7,7,7,7,7,,\n')
    pd.read_csv(table, sep=sep, engine="python").to_csv(root / "again.csv")
    result = convert("table", "--root", table, "--out", tmp_path / "out")
    require_said(result, 0, "left out: the column without a name")
    twice = TableImages(root / "again.csv")
    assert "left out: the column without a name, Unnamed: 0" in twice.columns_taken
    source = TableImages(table)
    kinds = {field.name: field.type for field in source.fields}
    text = pa.string()
    assert kinds == {"when": text, "code": text, "id": pa.uint64(), "long": text, "n": pa.int64(),
                     "x": pa.float64(), "yes": pa.bool_(), "no": pa.null()}  # fmt: skip
    first, second, *others = (record.fields for record in source.records())
    assert first == ("12:30", "007", 2**63, "12345678901234567890123", 1, 0.5, True, None)
    assert second == ("2020-01-01", "010", 12345678901234567890, "1", 2, None, False, None)
    assert [one[0] for one in others] == ["a, b"] * len(others)
    pd.DataFrame({"path": ["a.jpg", "b.jpg"]}, index=[5, 7]).to_parquet(root / "t.parquet")
    assert not TableImages(root / "t.parquet").fields
    long = "x" * 200_000
    (root / "t.csv").write_text(f'path{sep}"a, b; c; d"\na.jpg{sep}"{long}"\n')
    assert next(TableImages(root / "t.csv").records()).fields == (long,)


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("latin-1", "Latin-1"),
        ("cp1252", "Windows-1252"),
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16"),
    ],
)
def test_other_encodings_are_named(root: Path, encoding: str, name: str) -> None:
    """With the line, and a command that converts it."""
    (root / "t.csv").write_bytes("path,txt\na.jpg,x\nb.jpg,Müße\n".encode(encoding))
    with pytest.raises(SourceError, match=name) as caught:
        TableImages(root / "t.csv")
    assert ("line 3" in str(caught.value)) == ("16" not in name)
    command = caught.value.hint.removeprefix("Convert it: ")
    subprocess.run(command, shell=True, check=True, cwd=root)
    records = list(TableImages(root / "t-utf8.csv").records())
    assert [one.fields for one in records] == [("x",), ("Müße",)]


def test_further_files(root: Path, tmp_path: Path) -> None:
    mask = write_mask(root / "m/a.png")
    (root / "a.txt").write_text("hello", "utf-8")
    columns = {
        "mask": ["m/a.png", None, "m/none.png"],
        "file": ["a.txt", "a.txt", None],
        "n": [1, 2, 3],
    }
    source = opened(root, columns, path="path", files=["mask", "file"])
    assert [(f.name, f.kind) for f in source.fields] == [
        ("mask", "image"), ("file", "blob"), ("n", "column"),
    ]  # fmt: skip
    assert "its mask m/none.png cannot be opened" in bad_of(source)["c"]
    packed_without_bad(source, tmp_path / "out", shuffle=False)
    found = dict(packed_fields(tmp_path / "out"))
    assert found["mask"] == [mask, None] and found["file"] == [b"hello"] * 2
    again = opened(root, columns, path="path", files=["mask", "file"], fields=["n"])
    assert [field.name for field in again.fields] == ["n", "mask", "file"]
    escaping = opened(root, {"mask": ["../x.png", "/etc/passwd", ""]}, files=["mask"])
    reasons = list(bad_of(escaping).values())
    assert len(reasons) == 3 and all(reason.startswith("its mask has ") for reason in reasons)


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        ({"path": [1, 2]}, {}, "its column path is int64, not paths"),
        ({"path": ["a"], "n": [1]}, {"label": "x"}, "has no column x (it has: path, n)"),
        ({"path": ["a"], "n": [1]}, {"fields": ["x"]}, "has no other column x (it has: n)"),
        ({"path": ["a"], "n": [1]}, {"files": ["n"]}, "its column n is int64, not paths"),
        ({"x": ["a"], "n": [1]}, {}, "no column has a usual name of paths"),
    ],
)
def test_columns_that_are_not_there(
    root: Path, columns: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(FastdataError) as caught:
        TableImages(pa.table(columns), root, **options)
    assert reason in str(caught.value)


def test_tables_of_no_use(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a table in memory has no folder"):
        TableImages(pa.table({"path": ["a"]}))
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array([1])], ["path", "path"])
    with pytest.raises(SourceError, match="two columns have the same name"):
        TableImages(twice, root)
    with pytest.raises(SourceError, match="nothing: "):
        TableImages(pa.table({"path": ["a"]}), root / "nothing")
    for name, data in {"t.csv": b"path,n\n", "t.parquet": None}.items():
        path = root / name
        if data is None:
            pq.write_table(pa.table({"path": pa.array([], pa.string())}), path)
        else:
            path.write_bytes(data)
        result = convert("table", "--root", path, "--out", tmp_path / "out")
        require_said(result, 1, "no images found")
    result = convert("table", "--root", written(root, "n.csv", [{"path": "a.jpg", "1/x": 1}]))
    require_said(result, 2, "'1/x' cannot be a field's name", "leave it out")


def test_batches_by_the_lengths_of_a_column(root: Path, tmp_path: Path) -> None:
    rows = {"path": ["a.jpg", "b.jpg"], "age": [34.5, 1.0], "gap": [2.0, None], "name": ["x", "y"]}
    pd.DataFrame(rows).to_csv(root / "t.csv", index=False)
    require_said(convert("table", "--root", root / "t.csv", "--out", tmp_path / "out"), 0)
    dataset = ImageDataset(tmp_path / "out")
    assert len(TokenBudgetBatches(dataset, "age", 40)) == 1
    with pytest.raises(UsageError, match="sample 1 has a length of nan"):
        TokenBudgetBatches(dataset, "gap", 40)
    with pytest.raises(UsageError, match="which has no lengths"):
        TokenBudgetBatches(dataset, "name", 40)


NAMES = {
    "a b": "x",
    "_id": 7,
    "123": 0.5,
    "キャプション": "猫",
    "%20?#[*]": "w",
    ".d": 1,
    "_1": 2,
    "~": 3,
}


@pytest.mark.parametrize("container", first_of(["shards", "lmdb", "parquet"]))
def test_names_of_fields(root: Path, container: str, tmp_path: Path) -> None:
    """From CSV and Parquet, on the disk, behind a URL, and for other tools."""
    rows = [{"path": f"{stem}.jpg", **NAMES} for stem in "abc"]
    fields = ("image", *NAMES)
    for name in ("t.csv", "t.parquet"):
        arguments = ("--root", written(root, name, rows), "--out", tmp_path / name)
        require_said(convert("table", *arguments, "--to", container), 0)
        assert add_seek_points(tmp_path / name, workers=1).samples == 3
    with WebServer(tmp_path) as server:
        for place in (tmp_path / "t.csv", tmp_path / "t.parquet", f"{server.url}/t.csv"):
            assert ImageDataset(place, fields=fields)[1].items() >= NAMES.items()
    require_said(run("verify", tmp_path / "t.csv"), 0)
    if container == "parquet":
        table = pq.read_table(tmp_path / "t.csv").select([*NAMES])
        assert table.to_pylist() == [NAMES] * 3
        require_said(convert("parquet", "--root", tmp_path / "t.csv", "--out", tmp_path / "o"), 0)
        assert ImageDataset(tmp_path / "o", fields=fields)[1].items() >= NAMES.items()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.csv", b""),
        ("t.csv", b"path,n\na.jpg,1\nb.jpg\n"),
        ("t.csv", b'path,n\na.jpg,"1\nb.jpg,2\n'),
        ("t.csv", b'path, n\na.jpg, "1\nb.jpg, 2\n'),
        ("t.csv", b'"path,n\na.jpg,1\n'),
        ("t.tsv", b'path\tn\n"a.jpg\t1\n'),
        ("t.jsonl", b'{"path": "a.jpg"}\n{"path": '),
        ("t.jsonl", b'{"path": "a.jpg"}\n{"path": 1}\n'),
        ("t.jsonl", b'{"path": "a.jpg", "path": "b.jpg"}\n'),
        ("t.jsonl", b'{"path": "\xff"}\n'),
        ("t.jsonl", b'{"path": "a.jpg", "\xe2": 1}\n'),
        ("t.jsonl", b"[" * 100_000),
        ("t.parquet", b"PAR1" + b"\xff" * 100 + b"PAR1"),
    ],
)
def test_damaged_tables(root: Path, name: str, data: bytes) -> None:
    (root / name).write_bytes(data)
    with pytest.raises(FastdataError) as caught:
        list(TableImages(root / name).records())
    assert str(root / name) in str(caught.value)


def test_files_that_are_no_tables(root: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.jpg: not a table"):
        TableImages(root / "a.jpg")
    with pytest.raises(SourceError, match=r"x\.csv: cannot be read as a table: .*No such file"):
        TableImages(root / "x.csv")
    (root / "y.csv").mkdir()
    with pytest.raises(SourceError, match=r"y\.csv: cannot be read as a table: .*Is a directory"):
        TableImages(root / "y.csv")


@pytest.mark.parametrize(
    "values",
    first_of(
        [
            [None, [None, [1, 2]], [[3]]],
            [None, [None, {"a": 1}], [{"b": "x"}, None]],
            [[], [[]], [[], [0.5, None]]],
            [{"a": None}, {"a": {"b": None}}, {"a": {"b": [None, [1]], "c": 2.5}}],
            [{}, None, {"a": []}],
            [1, 2.5, None],
            [2**53 + 1, -(2**63), 2**63 - 1],
            [2**64 - 1, 2**63],
            ["2020-01-01", "2020-01-01T00:00:00", None],
            [True, None, False],
        ],
        4,
    ),
)
def test_values_of_json_lines(tmp_path: Path, values: list[Any]) -> None:
    """As Python's json reads them, also where they first stand far down."""
    few = [{"x": value} if value is not None else {} for value in values]
    far_down = [{"path": "a"}] * 17_000 + few
    for rows in (few, far_down, [{"path": "a"}, *few[:1] * 17_000, *few[1:]]):
        found = read_table(written(tmp_path, "t.jsonl", rows)).column("x").to_pylist()
        expected = [row.get("x") for row in rows]
        assert list(map(filled, found)) == list(map(filled, expected))


def filled(value: Any) -> Any:
    """A value without nulls in structs: Arrow's have all names."""
    if isinstance(value, dict):
        return {k: filled(v) for k, v in value.items() if filled(v) is not None} or None
    return list(map(filled, value)) if isinstance(value, list) else value


@pytest.mark.parametrize(
    "values", [[0.5, True], [[0.5], [False]], [{"a": 1.5}, {"a": True}], [2**53 + 1, 0.5], [2**64]]
)
def test_json_lines_that_no_column_can_hold(tmp_path: Path, values: list[Any]) -> None:
    path = written(tmp_path, "t.jsonl", [{"x": value} for value in values])
    with pytest.raises(SourceError, match=r"t\.jsonl: .*lines 1 to \d: x: "):
        read_table(path)
    path.write_text("{}\n" * 20_000)
    with pytest.raises(SourceError, match=r"t\.jsonl: .*no columns"):
        read_table(path)


def test_command(root: Path, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    write_mask(root / "m.png")
    rows = [{"img_name": f"{key}.jpg", "kind": key, "m": "m.png", "n": 1} for key in "abc"]
    table = written(tmp_path / "lists", "t.csv", rows)
    given = ("--images", root, "--path-column", "img_name", "--label-column", "kind")
    more = ("--file-columns", "m", "--fields", "", "--out", tmp_path / "out")
    require_said(convert("table", "--root", table, *given, *more), 0)
    dataset = ImageDataset(tmp_path / "out")
    assert dataset.classes == ["a", "b", "c"]
    assert [name for name, _ in packed_fields(tmp_path / "out")] == ["image", "m"]
    require_said(convert("table", "--root", table), 1, "--path-column")


def test_splits_have_one_numbering(tmp_path: Path) -> None:
    make_tree(tmp_path / "in", ["0.jpg", "1.jpg", "2.jpg"])
    for split, names in {"train": ["cat", "dog"], "val": ["dog", "helmet"]}.items():
        rows = "".join(f"{number}.jpg,{name}\n" for number, name in enumerate(names))
        (tmp_path / f"in/{split}.csv").write_text("path,label\n" + rows, "utf-8")

    def packed(split: str, *options: str) -> Result:
        given = ("--root", tmp_path / f"in/{split}.csv", "--out", tmp_path / split)
        return convert("table", *given, *options)

    require_said(packed("train"), 0)
    require_said(packed("val"), 2, "the label 0 would be 'dog', but it is 'cat' in", "--classes")
    every = ("--classes", "cat,dog,helmet")
    require_said(packed("val", *every), 0)  # cat and dog have train's numbers
    assert ImageDataset(tmp_path / "val").classes == ["cat", "dog", "helmet"]
    assert [label for _, label in ImageDataset(tmp_path / "val")] == [1, 2]
    require_said(packed("val", "--classes", "cat,dog", "--force"), 1, "'helmet' is not among")
    require_said(packed("val", "--classes", "dog,dog", "--force"), 2, "'dog' is given 2 times")
    for split, labels in {"train": "1", "val": "x"}.items():  # numbers, then names
        text = f"path,label\n0.jpg,1\n1.jpg,{labels}\n"
        (tmp_path / f"in/{split}.csv").write_text(text, "utf-8")
    shutil.rmtree(tmp_path / "val")
    require_said(packed("train", "--force"), 0)
    require_said(packed("val"), 2, "the label 0 would be '1', but it is '0' in")
    # Another column of labels is no other split.
    (tmp_path / "in/eyes.csv").write_text("path,eyes\n0.jpg,dog\n1.jpg,eel\n", "utf-8")
    require_said(packed("eyes", "--label-column", "eyes"), 0)


def test_given_classes(root: Path) -> None:
    source = opened(root, {"label": [1, 2, None]}, classes=["a", "b"])
    assert source.classes == ["a", "b"]
    problems = [record.problem for record in source.records()]
    assert problems == [None, "its label 2 is not among the classes", "its label is null or empty"]
    with pytest.raises(UsageError, match="no column of labels"):
        opened(root, {"x": [1, 2, 3]}, classes=["a"])
