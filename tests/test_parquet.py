"""The Parquet container: conformance, and the readers that people have."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from containers import FileContainerConformance, Made, blobs_of, images, png, row_of
from fastdata.converters import Encoding, ImageFolder, pack
from hangs import HANG
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from fastdata import ImageDataset, verify
from fastdata.errors import CorruptionError
from fastdata.storage.formats import Sample, parquet

_REPOSITORY = Path(__file__).resolve().parent.parent


def expected_rows(made: Made) -> list[tuple[Any, ...]]:
    classes = sorted(folder.name for folder in made.tree.iterdir())
    return [
        (image.key, image.label, classes[image.label], image.path.read_bytes())
        for image in made.images
    ]


def part_files(made: Made) -> list[str]:
    return sorted(map(str, made.path.glob("part-*.parquet")))


class TestParquet(FileContainerConformance):
    container = "parquet"

    @pytest.mark.parametrize("given", ["files", "folder"])
    def test_pyarrow_reads_it(self, made: Made, given: str) -> None:
        files = part_files(made)
        assert len(files) > 1
        table = pq.read_table(files if given == "files" else made.path)
        assert table.schema.names == ["key", "label", "class", "width", "height", "image"]
        columns = [table[name].to_pylist() for name in ("key", "label", "class")]
        columns.append(table["image"].combine_chunks().field("bytes").to_pylist())
        assert list(zip(*columns, strict=True)) == expected_rows(made)

    @pytest.mark.parametrize("given", ["files", "folder"])
    def test_pandas_reads_it(self, made: Made, given: str) -> None:
        pandas = pytest.importorskip("pandas")
        frame = pandas.read_parquet(part_files(made) if given == "files" else made.path)
        columns = [frame[name].tolist() for name in ("key", "label", "class")]
        columns.append([image["bytes"] for image in frame["image"]])
        assert list(zip(*columns, strict=True)) == expected_rows(made)

    @pytest.mark.parametrize("given", ["files", "folder"])
    def test_hugging_face_datasets_sees_images_and_classes(
        self, made: Made, hugging_face: Any, given: str
    ) -> None:
        where: dict[str, Any] = {"path": str(made.path)}
        if given == "files":
            where = {"path": "parquet", "data_files": part_files(made)}
        found = hugging_face.load_dataset(**where, split="train")
        rows = expected_rows(made)
        samples = list(found)
        assert [(row["key"], row["label"], row["class"]) for row in samples] == [
            row[:3] for row in rows
        ]
        assert found.features["label"].int2str([row["label"] for row in samples]) == [
            row[2] for row in rows
        ]
        for sample, (*_, blob) in zip(samples, rows, strict=True):
            original = ImageOps.exif_transpose(Image.open(io.BytesIO(blob)))
            assert sample["image"].tobytes() == original.tobytes()
        undecoded = found.cast_column("image", hugging_face.Image(decode=False))
        assert [row["image"]["bytes"] for row in undecoded] == [blob for *_, blob in rows]

    @pytest.mark.parametrize("options", [{"encoding": Encoding("raw")}, {"plain_images": True}])
    def test_a_plain_column_of_images(
        self, made: Made, hugging_face: Any, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        pack(ImageFolder(made.tree), tmp_path / "out", container="parquet", **options)
        verify(tmp_path / "out")
        files = sorted(map(str, (tmp_path / "out").glob("*.parquet")))
        found = hugging_face.load_dataset("parquet", data_files=files, split="train")
        assert found.features["image"] == hugging_face.Value("binary")
        assert isinstance(found.features["label"], hugging_face.ClassLabel)
        dataset = ImageDataset(tmp_path / "out")
        assert list(found["image"]) == dataset.read(range(len(dataset)))

    def test_the_code_of_the_formats_page_runs(
        self,
        made: Made,
        hugging_face: Any,  # which the code imports
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "imagenet-train-parquet").symlink_to(made.path)
        page = (_REPOSITORY / "docs" / "formats" / "parquet.md").read_text("utf-8")
        names: dict[str, Any] = {}
        exec(page.split("```python\n")[1].split("```")[0], names)
        assert len(names["ds"]["train"]) == len(made.images)

    def test_petastorm_reads_it(self, made: Made, tmp_path: Path) -> None:
        default = _REPOSITORY / ".venvs" / "petastorm" / "bin" / "python"
        python = Path(os.environ.get("FASTDATA_PETASTORM_PYTHON") or default)
        if not python.exists():
            pytest.skip(f"no petastorm at {python} (set FASTDATA_PETASTORM_PYTHON)")
        pack(ImageFolder(made.tree), tmp_path / "out", container="parquet", plain_images=True,
             order="source")  # fmt: skip
        files = sorted((tmp_path / "out").glob("part-*.parquet"))
        script = Path(__file__).with_name("petastorm_read.py")
        done = subprocess.run(
            [python, script, *files], capture_output=True, text=True, timeout=HANG
        )
        assert done.returncode == 0, done.stderr
        # petastorm prints a line of its own as well.
        lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
        rows = [json.loads(line) for line in lines]
        assert [(key, label, digest) for key, label, _, _, digest in rows] == [
            (key, label, hashlib.sha256(blob).hexdigest())
            for key, label, _, blob in expected_rows(made)
        ]

    def test_the_image_column_is_plain(self, made: Made) -> None:
        for path in part_files(made):
            metadata = pq.read_metadata(path)
            for group in range(metadata.num_row_groups):
                image = metadata.row_group(group).column(5)
                assert image.path_in_schema == "image.bytes"
                assert image.compression == "UNCOMPRESSED"
                assert "PLAIN" in image.encodings
                assert not image.has_dictionary_page
                assert image.statistics is None


def write(path: Path, blobs: list[bytes]) -> list[int]:
    with closing(parquet.ParquetWriter(path, ["class"])) as writer:
        for number, blob in enumerate(blobs):
            writer.add(Sample(row_of(number, blob), blob))
        return list(writer.finish()["image"])


def check(path: Path, blobs: list[bytes]) -> None:
    offsets = write(path, blobs)
    assert images("parquet", path) == [
        (offset, len(blob)) for offset, blob in zip(offsets, blobs, strict=True)
    ]
    with path.open("rb") as file:
        for offset, blob in zip(offsets, blobs, strict=True):
            file.seek(offset)
            assert file.read(len(blob)) == blob


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=40),
    group_bytes=st.integers(1, 6_000),
    group_rows=st.integers(1, 12),
)
def test_row_groups_of_any_size(
    sizes: list[int], group_bytes: int, group_rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    limits = {"ROW_GROUP_BYTES": group_bytes, "ROW_GROUP_ROWS": group_rows}
    with mock.patch.multiple(parquet, **limits):
        check(tmp_path_factory.mktemp("groups") / "part.parquet", blobs_of(sizes))


def test_blobs_larger_than_a_row_group(tmp_path: Path) -> None:
    size = parquet.ROW_GROUP_BYTES
    check(tmp_path / "part.parquet", blobs_of([10, size + 1, 20, size - 30, 30, 2 * size]))
    assert pq.read_metadata(tmp_path / "part.parquet").num_row_groups == 5


def test_more_rows_than_a_row_group_holds(tmp_path: Path) -> None:
    check(tmp_path / "part.parquet", [png()] * (2 * parquet.ROW_GROUP_ROWS + 1))
    metadata = pq.read_metadata(tmp_path / "part.parquet")
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert rows == [parquet.ROW_GROUP_ROWS, parquet.ROW_GROUP_ROWS, 1]


def test_a_file_without_rows(tmp_path: Path) -> None:
    assert write(tmp_path / "part.parquet", []) == []
    assert pq.read_table(tmp_path / "part.parquet").num_rows == 0


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"compression": "none", "use_dictionary": ["image.bytes"]},
        {"compression": "none", "use_dictionary": False, "data_page_size": 1_000},
    ],
    ids=["compressed", "dictionary", "several-pages"],
)
def test_another_layout_of_the_image_column_is_corrupt(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    write(tmp_path / "part.parquet", blobs_of([500] * 40))
    table = pq.read_table(tmp_path / "part.parquet")
    other = tmp_path / "other.parquet"
    pq.write_table(table, other, write_batch_size=1, **options)
    with pytest.raises(CorruptionError, match="not one plain data page"):
        list(parquet.extents(other))


def test_other_columns_are_corrupt(tmp_path: Path) -> None:
    write(tmp_path / "part.parquet", blobs_of([5]))
    table = pq.read_table(tmp_path / "part.parquet")
    pq.write_table(table.drop_columns("image"), tmp_path / "other.parquet")
    with pytest.raises(CorruptionError, match="it has no column image"):
        list(parquet.extents(tmp_path / "other.parquet"))
