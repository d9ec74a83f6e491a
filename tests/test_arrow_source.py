"""The Arrow source: what Hugging Face's ``datasets`` and pyarrow write, in place."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from fastdata.converters import ArrowImages, Encoding, ImageSource, pack
from fastdata.converters.arrow import arrow_splits
from fastdata.converters.rows import close_rows
from fastdata.converters.tasks import encode, reader
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import Expected, SourceConformance, bytes_of, convert, jpeg, require_said

from fastdata import ImageDataset
from fastdata.errors import SampleError, SourceError, UsageError

IMAGES = [jpeg(seed) for seed in range(12)]
FEATURES = datasets.Features(
    {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["cat", "dog"]),
        "caption": datasets.Value("string"),
        "mask": datasets.Image(),
    }
)


def made(count: int = 12) -> datasets.Dataset:
    columns = {
        "image": [{"bytes": image, "path": f"{n}.jpg"} for n, image in enumerate(IMAGES[:count])],
        "label": [n % 2 for n in range(count)],
        "caption": [None if n == 3 else f"number {n}" for n in range(count)],
        "mask": [None if n == 2 else {"bytes": IMAGES[-1 - n], "path": None} for n in range(count)],
    }
    return datasets.Dataset.from_dict(columns, features=FEATURES)


def decoded(dataset: datasets.Dataset) -> list[dict[str, Any]]:
    rows = dataset.cast_column("image", datasets.Image(decode=False))
    return list(rows.cast_column("mask", datasets.Image(decode=False)))


def write(
    path: Path, table: pa.Table, *, file: bool = False, rows: int = 5, **options: Any
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = pa.ipc.new_file if file else pa.ipc.new_stream
    with (
        pa.OSFile(str(path), "wb") as sink,
        new(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer,
    ):
        writer.write_table(table, rows)
    return path


class TestSaved(SourceConformance):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        made().save_to_disk(tmp_path / "saved", num_shards=2)
        return tmp_path / "saved"

    @pytest.fixture
    def sources(self, path: Path) -> list[ImageSource]:
        return [ArrowImages(path) for _ in range(2)]

    @pytest.fixture
    def expected(self, path: Path) -> Expected:
        rows = decoded(datasets.load_from_disk(str(path)))
        names = [f"data-0000{n // 6}-of-00002/{n % 6:08d}" for n in range(12)]
        samples = [
            (name, ["cat", "dog"][row["label"]], row["image"]["bytes"])
            for name, row in zip(names, rows, strict=True)
        ]
        fields = {
            "caption": [row["caption"] for row in rows],
            "mask": [row["mask"] and row["mask"]["bytes"] for row in rows],
        }
        return Expected(["cat", "dog"], samples, fields)


def test_splits_of_save_to_disk(tmp_path: Path) -> None:
    both = datasets.DatasetDict({"train": made(8), "test": made(3)})
    both.save_to_disk(tmp_path / "saved")
    assert arrow_splits(tmp_path / "saved") == ["train", "test"]
    with pytest.raises(UsageError, match="has the splits train, test"):
        ArrowImages(tmp_path / "saved")
    with pytest.raises(UsageError, match="has no split 'val'"):
        ArrowImages(tmp_path / "saved", split="val")
    result = convert("arrow", "--root", tmp_path / "saved", "--out", tmp_path / "{split}")
    assert result.exit_code == 0, result.output
    assert "images from image.bytes, labels from label" in " ".join(result.stderr.split())
    for name, rows in both.items():
        dataset = ImageDataset(tmp_path / name, fields=("image", "label", "caption"))
        assert dataset.classes == ["cat", "dog"]
        assert list(dataset.read(range(len(dataset)))) == [
            row["image"]["bytes"] for row in decoded(rows)
        ]
        assert [dataset[n]["caption"] for n in range(len(dataset))] == rows["caption"]


def test_the_cache_of_datasets(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            place = tmp_path / "tree" / split / name / "x.jpg"
            place.parent.mkdir(parents=True)
            place.write_bytes(IMAGES[number + 2 * (split == "test")])
    loaded = datasets.load_dataset(
        "imagefolder", data_dir=str(tmp_path / "tree"), cache_dir=str(tmp_path / "cache")
    )
    loaded["train"].map(lambda row: {"more": 1})
    (file,) = loaded["train"].cache_files
    folder = Path(file["filename"]).parent
    assert list(folder.glob("cache-*.arrow"))
    assert sorted(arrow_splits(folder)) == ["test", "train"]
    source = ArrowImages(folder, split="train")
    assert source.classes == ["cat", "dog"]
    assert [bytes_of(one) for one in source.records()] == IMAGES[:2]
    assert source.archives is None and source.tables is None
    pack(source, tmp_path / "out", workers=1)
    assert list(ImageDataset(tmp_path / "out").read([0, 1])) == IMAGES[:2]
    (tmp_path / "tree/train/dog/x.jpg").unlink()
    pack(source, tmp_path / "some", workers=1, skip_bad=True)
    assert len(ImageDataset(tmp_path / "some")) == 1
    assert "cannot be opened" in (tmp_path / "some/_bad-samples.jsonl").read_text()


def test_chosen_rows_that_save_to_disk_writes(tmp_path: Path) -> None:
    order = [11, 0, 7, 7, 3, 5]
    made().select(order).save_to_disk(tmp_path / "saved", num_shards=3)
    found = list(ArrowImages(tmp_path / "saved").records())
    rows = decoded(made().select(order))
    assert [bytes_of(one) for one in found] == [row["image"]["bytes"] for row in rows]
    assert [one.label for one in found] == [row["label"] for row in rows]
    # Versions of datasets before 2 chose rows by files of indices.
    state = json.loads((tmp_path / "saved/state.json").read_text())
    state["_indices_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "saved/state.json").write_text(json.dumps(state))
    with pytest.raises(SourceError, match="has indices"):
        ArrowImages(tmp_path / "saved")


@settings(max_examples=30)
@given(
    sizes=st.lists(st.one_of(st.none(), st.integers(0, 300)), min_size=1, max_size=40),
    kind=st.sampled_from([pa.binary(), pa.large_binary()]),
    nested=st.booleans(),
    file=st.booleans(),
    rows=st.integers(1, 41),
    compression=st.sampled_from([None, None, "zstd", "lz4"]),
)
def test_every_value_is_found(
    sizes: Sequence[int | None], kind: pa.DataType, nested: bool, file: bool, rows: int,
    compression: str | None, tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    blobs = [None if size is None else IMAGES[n % 12] + bytes(size) for n, size in enumerate(sizes)]
    column = pa.array(blobs, kind)
    if nested:
        structs = [None if n % 5 == 4 else {"bytes": one} for n, one in enumerate(blobs)]
        blobs = [one and one["bytes"] for one in structs]
        column = pa.array(structs, pa.struct([("bytes", kind)]))
    table = pa.table({"n": range(len(blobs)), "image": column})
    path = tmp_path_factory.mktemp("any") / "x.arrow"
    write(path, table, file=file, rows=rows, compression=compression)
    name = "image.bytes" if nested else "image"
    source = ArrowImages(path, image_column=name)
    records = list(source.records())
    assert [one.fields for one in records] == [(n,) for n in range(len(blobs))]
    if compression is None:
        assert source.archives is not None
    read = reader(records, {})
    for record, blob in zip([*records, *records[::-1]], [*blobs, *blobs[::-1]], strict=True):
        if blob is None:
            assert "is null" in str(record.problem)
        else:
            assert read(record) == blob
            if compression is None:
                assert bytes_of(record) == blob
    close_rows()


def test_compressed_batches_are_rows(tmp_path: Path) -> None:
    table = pa.table({"image": [image + bytes(1000) for image in IMAGES], "label": [0] * 12})
    path = write(tmp_path / "in/a.arrow", table, compression="zstd")
    write(tmp_path / "in/b.arrow", table)
    source = ArrowImages(tmp_path / "in")
    assert source.archives is None and source.tables is not None
    pack(source, tmp_path / "out", workers=1)
    read = list(ImageDataset(tmp_path / "out").read(range(24)))
    assert read == table["image"].to_pylist() * 2
    record = list(source.records())[3]
    close_rows()
    os.utime(path, ns=(0, 0))
    with pytest.raises(SampleError, match="has changed since it was listed"):
        encode(record, Encoding("original"), reader([record], {}))
    close_rows()


def test_files_of_other_columns_and_damaged_ones(tmp_path: Path) -> None:
    table = pa.table({"image": IMAGES, "label": [0] * 12})
    write(tmp_path / "in/a.arrow", table)
    second = write(tmp_path / "in/b.arrow", table.drop_columns("label"))
    with pytest.raises(SourceError, match=r"b.arrow: has no column label, unlike"):
        ArrowImages(tmp_path / "in")
    whole = write(second, table).read_bytes()
    for cut in (0, 9, len(whole) // 2):
        second.write_bytes(whole[:cut])
        result = convert("arrow", "--root", tmp_path / "in", "--out", tmp_path / "out")
        require_said(result, 1, f"{second}: cannot be read as Arrow IPC", "written completely")
    second.write_bytes(b"no Arrow at all" * 100)
    require_said(
        convert("arrow", "--root", second, "--out", tmp_path / "out"), 1, f"{second}: cannot be"
    )
