"""The Parquet source: what others write, in their layouts, with their columns."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from containers import digests
from fastdata.converters import ImageSource, ParquetImages, pack
from fastdata.converters.options import PackOptions
from fastdata.converters.parquet import parquet_splits
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import bytes_of, convert, jpeg, require_said
from tiers import slow

from fastdata import ImageDataset
from fastdata.errors import SlowPathWarning, SourceError, UsageError


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


def rows(dataset: Path) -> list[tuple[str, str, bytes]]:
    found = ImageDataset(dataset)
    return [
        (found.row(i).key, found.classes[found.row(i).label], found.read([i])[0])
        for i in range(len(found))
    ]


def packed(tmp_path: Path, source: ImageSource, **options: Any) -> list[tuple[str, str, bytes]]:
    options = {"container": "shards", "workers": 1, **options}
    pack(source, tmp_path / "packed", options=PackOptions(shuffle=False), **options)
    return rows(tmp_path / "packed")


IMAGES = [jpeg(seed) for seed in range(12)]
GOOD = {"image": IMAGES[:1], "label": [0]}


@pytest.mark.parametrize("compression", ["snappy", slow("none")])
def test_two_files_of_several_row_groups(tmp_path: Path, compression: str) -> None:
    for number in range(2):
        part = IMAGES[6 * number :][:6]
        columns = {"label": pa.array([0, 2] * 3, pa.int64()), "jpeg": part}
        write(tmp_path / f"in/part-{number}.parquet", columns, row_group_size=4,
              compression=compression)  # fmt: skip
    (tmp_path / "in/_SUCCESS").touch()
    (tmp_path / "in/_temporary").mkdir()
    write(tmp_path / "in/_temporary/x.parquet", {"other": [1]})
    for workers in (1, 2):
        pack(
            ParquetImages(tmp_path / "in"),
            tmp_path / str(workers),
            options=PackOptions(shuffle=False),
            container="shards",
            workers=workers,
        )
    assert digests(tmp_path / "1") == digests(tmp_path / "2")
    assert ImageDataset(tmp_path / "1").classes == ["0", "1", "2"]
    assert rows(tmp_path / "1") == [
        (f"part-{i // 6}/{i % 6:08d}", "02"[i % 2], image) for i, image in enumerate(IMAGES)
    ]


def test_nullable_columns(tmp_path: Path) -> None:
    columns = {
        "image": [IMAGES[0], None, IMAGES[2], IMAGES[3], IMAGES[4]],
        "label": pa.array([1, 0, None, -1, 0]),
        "key": ["a", "b", "c", "d", "e"],
    }
    path = write(tmp_path / "in.parquet", columns)
    result = convert("parquet", "--root", path, "--to", "shards", "--out", tmp_path / "out")
    require_said(result, 1, "3 of 5 images cannot be packed", "--skip-bad")
    assert packed(tmp_path, ParquetImages(path), skip_bad=True) == [
        ("a", "1", IMAGES[0]),
        ("e", "0", IMAGES[4]),
    ]
    bad = (tmp_path / "packed/_bad-samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in bad] == [
        "the image of row 1 is null", "its label is null", "its label is -1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_class_names_as_labels(tmp_path: Path, kind: pa.DataType) -> None:
    labels = pa.array(["dog", "cat", "dog"]).cast(kind)
    path = write(tmp_path / "in.parquet", {"picture": IMAGES[:3], "noun": labels})
    source = ParquetImages(path, label_column="noun")
    assert source.classes == ["cat", "dog"]
    assert [(name, image) for _, name, image in packed(tmp_path, source)] == [
        ("dog", IMAGES[0]), ("cat", IMAGES[1]), ("dog", IMAGES[2]),
    ]  # fmt: skip


@pytest.mark.parametrize("label", [[1.0, 0.0, np.nan], [True, False, None]])
def test_labels_of_pandas(tmp_path: Path, label: list[Any]) -> None:
    """Beside a file without rows, which Spark writes first, and an index, which is left out."""
    table = pd.DataFrame({"y": label, "jpg": IMAGES[:3]}, index=[5, 6, 7])
    schema = pa.Schema.from_pandas(table)
    schema.empty_table().to_pandas().to_parquet(tmp_path / "in-0.parquet", schema=schema)
    table.to_parquet(tmp_path / "in-1.parquet")
    source = ParquetImages(str(tmp_path / "in-{0..1}.parquet"))
    assert source.fields == () and "labels from y" in source.columns_taken
    records = list(source.records())
    assert [one.problem for one in records] == [None, None, "its label is null"]
    assert [one.label for one in records][:2] == [1, 0]
    weights = pd.DataFrame({"y": [0.5, 1.0, 2.0], "jpg": IMAGES[:3]})
    weights.to_parquet(tmp_path / "weights.parquet")
    regression = ParquetImages(tmp_path / "weights.parquet")
    assert regression.classes == [] and [one.name for one in regression.fields] == ["y"]


def test_labels_in_the_names_of_folders(tmp_path: Path) -> None:
    for number, name in enumerate(["b%20c", "a", "__HIVE_DEFAULT_PARTITION__"]):
        write(tmp_path / f"in/label={name}/part-0.parquet", {"image": [IMAGES[number]]})
    found = packed(tmp_path, ParquetImages(tmp_path / "in"), skip_bad=True)
    assert found == [
        ("label=a/part-0/00000000", "a", IMAGES[1]),
        ("label=b%20c/part-0/00000000", "b c", IMAGES[0]),
    ]


def test_keys_of_hive_are_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "in"
    for number, name in enumerate(
        ["split=train/year=7", "split=train/year=8", "split=b%20c/year=7"]
    ):
        columns = {"image": [IMAGES[number]], "path": [f"{number}.jpg"]}
        write(root / name / "0.parquet", columns)
        (tmp_path / f"{number}.jpg").write_bytes(IMAGES[number])
    expected = pq.read_table(root).select(["split", "year"]).to_pydict()
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    out = tmp_path / "out"
    assert convert("parquet", "--root", root, "--out", out).exit_code == 0
    table = ("--root", root, "--images", tmp_path, "--path-column", "path", "--fields")
    done = convert("table", *table, "split,year", "--out", tmp_path / "table")
    assert done.exit_code == 0, done.stderr
    with pytest.warns(UserWarning, match="indexed now"), pytest.warns(SlowPathWarning):
        opened = ImageDataset(root)
    for dataset in (ImageDataset(out), ImageDataset(tmp_path / "table"), opened):
        splits, years = map(dataset.column, ("split", "year"))
        assert splits.to_pylist() == expected["split"]
        assert years.tolist() == expected["year"]
    for name in ("split=train", "split=b%20c"):  # of two links, each walk has two ways on
        (root / name / "up").symlink_to(root)
    assert len(ImageDataset(root)) == 3


def test_splits_of_hugging_face_are_datasets_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001-0a1b")
    for number, name in enumerate(names):
        write(tmp_path / f"hf/data/{name}.parquet", {"image": IMAGES[number : number + 1]})
    assert parquet_splits(tmp_path / "hf") == ["test", "train"]
    command = ["parquet", "--root", tmp_path / "hf"]
    monkeypatch.chdir(tmp_path)
    done = convert(*command, "--out", "all")
    assert done.exit_code == 2 and "the splits test and train" in done.stderr
    assert convert(*command).exit_code == 0
    assert list(ImageDataset("hf-train-lmdb").read([0, 1])) == IMAGES[:2]
    assert list(ImageDataset("hf-test-lmdb").read([0])) == IMAGES[2:3]
    done = convert(*command, "--split", "test", "--out", "one")
    assert done.exit_code == 0 and len(ImageDataset("one")) == 1
    done = convert(*command, "--split", "dev")
    assert done.exit_code == 2 and "It has test, train." in done.stderr
    write(tmp_path / "hf/more.parquet", {"image": IMAGES[3:4]})
    assert parquet_splits(tmp_path / "hf") == []


@pytest.mark.parametrize("split", [(), ("--split", "test")])
def test_a_class_has_one_number_in_all_splits(tmp_path: Path, split: tuple[str, ...]) -> None:
    for name, labels in {"train": ["cat", "dog"], "test": ["dog", "owl"]}.items():
        columns = {"image": IMAGES[:2], "label": labels}
        write(tmp_path / f"hf/{name}-00000-of-00001.parquet", columns)
    out = tmp_path / "out-{split}"
    require_said(convert("parquet", "--root", tmp_path / "hf", *split, "--out", out), 0)
    found = ImageDataset(tmp_path / "out-test")
    assert found.classes == ["cat", "dog", "owl"]
    assert [found.row(i).label for i in range(2)] == [1, 2]


def test_splits_that_disagree_on_classes(tmp_path: Path) -> None:
    names = {"train": ["cat", "dog"], "test": ["dog", "cat"]}
    for split, listed in names.items():
        columns = {"image": IMAGES[:2], "label": [0, 1], "class": listed}
        write(tmp_path / f"hf/{split}-00000-of-00001.parquet", columns)
    given = ("--root", tmp_path / "hf", "--out", tmp_path / "out-{split}")
    require_said(convert("parquet", *given), 2, "the label 0 would be")
    assert [path.name for path in tmp_path.glob("out-*")] == ["out-test"]
    columns = {"image": IMAGES[:2], "label": [0, 3], "class": ["cat", "owl"]}
    write(tmp_path / "hf/test-00000-of-00001.parquet", columns)
    require_said(convert("parquet", *given, "--force"), 0)


def test_names_of_further_classes_are_kept(tmp_path: Path) -> None:
    feature = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    features = {
        "label": feature, "fine": {**feature, "names": ["a", "b"]},
        "many": {"feature": feature, "_type": "List"}, "boxes": {"feature": [1]},
    }  # fmt: skip
    table = pa.table(
        {"image": IMAGES[:1], "label": [1], "fine": [0], "many": [[1]], "boxes": [[1]]}
    )
    about = json.dumps({"info": {"features": features}})
    pq.write_table(table.replace_schema_metadata({"huggingface": about}), tmp_path / "in.parquet")
    source = ParquetImages(tmp_path / "in.parquet")
    assert source.classes == ["cat", "dog"]
    assert source.origin["names"] == {"fine": ["a", "b"], "many": ["cat", "dog"]}


def test_columns_are_found_by_what_they_hold(tmp_path: Path) -> None:
    columns = {
        "features": [b"\0" * 90] * 3,
        "thumb": [None, *IMAGES[:2]],
        "note": ["x", "y", "z"],
        "digit": [0, 1, 2],
    }
    path = write(tmp_path / "in.parquet", columns)
    assert ParquetImages(path).origin["columns"] == ["thumb", "digit", None]
    assert ParquetImages(path, label_column="note").classes == ["x", "y", "z"]
    chosen = ParquetImages(path, key_column="note")
    assert [record.key for record in chosen.records()] == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("columns", "options", "error", "text"),
    [
        ({"a": IMAGES[:1], "b": IMAGES[:1], "label": [0]}, {}, SourceError, "several columns hold"),
        ({"a": [b"text"], "label": [0]}, {}, SourceError, "no column holds image files"),
        (GOOD, {"image_column": "x"}, UsageError, "no column x of b"),
        (GOOD, {"label_column": "x"}, UsageError, "no column x of s"),
        (GOOD, {"key_column": "image"}, UsageError, "no column image"),
        ({"image": IMAGES[:1], "label": [1 << 40]}, {}, SourceError, "classes at most"),
        ({"image": IMAGES[:1], "label": pa.nulls(1, pa.int64())}, {}, SourceError, "no labels"),
        (
            {"image": IMAGES[:2], "label": [0, 0], "class": ["a", "b"]}, {}, SourceError,
            "label 0 and class",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_told(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, str], error: Any, text: str
) -> None:
    path = write(tmp_path / "in.parquet", columns)
    with pytest.raises(error, match=f"(?s){text}"):
        ParquetImages(path, **options)


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"p": [0, 1, 2], "q": [1, 1, 1]},
        {"caption": ["a cat", None, "é"]},
        {"labels": [[0, 3], [], None], "caption": ["a", "b", "c"]},
    ],
)
def test_without_labels_all_columns_are_fields(tmp_path: Path, columns: dict[str, Any]) -> None:
    path = write(tmp_path / "in.parquet", {"image": IMAGES[:3], **columns})
    pack(ParquetImages(path), tmp_path / "out", workers=1, options=PackOptions(shuffle=False))
    opened = ImageDataset(tmp_path / "out", fields=("image", *columns))
    assert ImageDataset(tmp_path / "out").fields == ("image",)
    assert opened.classes == []
    for row in range(3):
        found = opened[row]
        del found["image"]
        assert found == {name: values[row] for name, values in columns.items()}


def structs(images: list[bytes]) -> pa.Array:
    return pa.array([{"bytes": image, "path": None} for image in images])


def with_classes(table: pa.Table, *columns: str) -> pa.Table:
    feature = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    about = json.dumps({"info": {"features": dict.fromkeys(columns, feature)}})
    return table.replace_schema_metadata({"huggingface": about})


def test_what_is_taken_and_left_out_is_said(tmp_path: Path) -> None:
    table = pa.table(
        {
            "img": structs(IMAGES[:3]),
            "mask": structs(IMAGES[3:6]),
            "fine_label": [1, 0, 1],
            "coarse_label": [0, 0, 0],
        }
    )
    path = tmp_path / "in.parquet"
    pq.write_table(with_classes(table, "fine_label", "coarse_label"), path)
    for options in ((), ("--image-column", "img"), ("--json",)):
        result = convert(
            "parquet", "--root", path, "--to", "lmdb", "--out", tmp_path / "out", *options
        )
        assert result.exit_code == 0, result.output
        assert (
            f"{path}: images from img.bytes, labels from fine_label, keys from file and row "
            "number, fields mask, coarse_label"
        ) in " ".join(result.stderr.split())
    assert [image for _, _, image in rows(tmp_path / "out")] == IMAGES[:3]


def test_files_that_are_not_there_or_not_parquet(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such folder"):
        ParquetImages(tmp_path / "none")
    (tmp_path / "in").mkdir()
    with pytest.raises(SourceError, match=r"holds no \*.parquet"):
        ParquetImages(tmp_path / "in")
    (tmp_path / "in/a.parquet").write_bytes(b"PAR1 is what it begins with")
    with pytest.raises(SourceError, match=r"a.parquet: cannot be read as Parquet"):
        ParquetImages(tmp_path / "in")
    write(tmp_path / "in/a.parquet", {"image": IMAGES[:1], "label": [0]})
    write(tmp_path / "in/b.parquet", {"image": IMAGES[:1]})
    with pytest.raises(SourceError, match=r"b.parquet: has no column label"):
        ParquetImages(tmp_path / "in")


def test_a_damaged_page_is_a_bad_sample(tmp_path: Path) -> None:
    columns = {"image": IMAGES, "label": [0] * len(IMAGES)}
    path = write(tmp_path / "in.parquet", columns, row_group_size=6, compression="snappy")
    chunk = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    at = chunk.data_page_offset
    data[at : at + 4] = b"\xff" * 4
    path.write_bytes(data)
    found = packed(tmp_path, ParquetImages(path), skip_bad=True)
    assert [image for _, _, image in found] == IMAGES[:6]


def test_what_petastorm_pickled_is_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    path = write(tmp_path / "in/part-0.parquet", {"image": IMAGES[:2], "label": [0, 1]})
    about = {"dataset-toolkit.unischema.v1": pickle.dumps(Trap())}
    schema = pq.read_schema(path).with_metadata(about)
    pq.write_metadata(schema, tmp_path / "in/_common_metadata")
    out = tmp_path / "o"
    require_said(convert("parquet", "--root", tmp_path / "in", "--to", "shards", "--out", out), 0)
    assert [image for _, _, image in rows(out)] == IMAGES[:2]
    assert not (tmp_path / "sprung").exists()


@settings(max_examples=50)
@given(
    sizes=st.lists(st.one_of(st.none(), st.integers(0, 300)), min_size=1, max_size=60),
    shape=st.sampled_from(["required", "nullable", "struct", "deep", "large"]),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([100, 2_000, 1 << 20]),
    rows=st.integers(1, 61),
    checksum=st.booleans(),
)
def test_plain_uncompressed_columns_are_extents(
    sizes: list[int | None], shape: str, version: str, page: int, rows: int, checksum: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    blobs = [None if size is None else IMAGES[n % 12] + bytes(size) for n, size in enumerate(sizes)]
    name = "image"
    if shape == "required":
        blobs = [one or b"-" for one in blobs]
        column, nullable = pa.array(blobs, pa.binary()), False
    else:
        column, nullable = pa.array(blobs, pa.large_binary()), True
        if shape == "nullable":
            column = column.cast(pa.binary())
    if shape in ("struct", "deep"):
        structs = [
            None if n % 4 == 3 else {"bytes": one, "path": None} for n, one in enumerate(blobs)
        ]
        blobs = [one and one["bytes"] for one in structs]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        column, name = pa.array(structs, kind), "image.bytes"
        if shape == "deep":
            kind = pa.struct([("in", kind)])
            column, name = pa.array([{"in": one} for one in structs], kind), "image.in.bytes"
    schema = pa.schema([pa.field("image", column.type, nullable=nullable), ("n", pa.int64())])
    table = pa.table({"image": column, "n": range(len(blobs))}, schema)
    path = tmp_path_factory.mktemp("plain") / "x.parquet"
    pq.write_table(
        table, path, row_group_size=rows, compression={name: "none", "n": "snappy"},
        use_dictionary=False, data_page_version=version, data_page_size=page, write_batch_size=2,
        write_page_checksum=checksum,
    )  # fmt: skip
    source = ParquetImages(path, image_column=name)
    assert [file.location for file in source.archives or ()] == [str(path)]
    for record, blob in zip(source.records(), blobs, strict=True):
        if blob is None:
            assert record.problem == f"the {name} of row {int(record.key[-8:])} is null"
        else:
            assert record.column is None and bytes_of(record) == blob


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "snappy"},
        {"compression": "zstd"},
        {"compression": "none", "use_dictionary": True},
        {"compression": "none", "column_encoding": {"image.bytes": "DELTA_LENGTH_BYTE_ARRAY"}},
    ],
)
def test_other_columns_are_read_through_pyarrow(tmp_path: Path, options: dict[str, Any]) -> None:
    table = pa.table({"image": structs(IMAGES), "label": [0] * 12})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")
    pq.write_table(table, tmp_path / "b.parquet", **{"use_dictionary": False, **options})
    source = ParquetImages(tmp_path)
    assert source.archives is None and source.tables is not None
    found = packed(tmp_path, source)
    assert [image for _, _, image in found] == IMAGES * 2


def test_plain_pages_that_are_damaged(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", {"image": IMAGES, "label": [0] * 12}, row_group_size=6,
                 compression="none", use_dictionary=False)  # fmt: skip
    whole = path.read_bytes()
    record = list(ParquetImages(path).records())[8]
    for at, data in ((record.offset - 4, b"\xff\xff\xff\x7f"), (record.offset - 4, b"\1\0\0\0")):
        path.write_bytes(whole[:at] + data + whole[at + len(data) :])
        result = convert("parquet", "--root", path, "--out", tmp_path / "out")
        require_said(result, 1, path, "image of row group 1 has a")
    at = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    path.write_bytes(whole[:at] + b"\xff" * 8 + whole[at + 8 :])
    found = packed(tmp_path, ParquetImages(path), skip_bad=True)
    assert [image for _, _, image in found] == IMAGES[:6]
