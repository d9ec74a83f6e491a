"""The Parquet container: conformance, and the readers that people have."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from containers import FileContainerConformance, Made, blobs_of, images, row_of
from fastdata.converters import Encoding, ImageFolder, pack
from fastdata.converters.options import PackOptions
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from fastdata import ImageDataset
from fastdata.errors import CorruptionError
from fastdata.storage.formats import NewSample, parquet

_REPOSITORY = Path(__file__).resolve().parent.parent


class TestParquet(FileContainerConformance):
    container = "parquet"

    @pytest.fixture
    def expected(self, made: Made) -> list[tuple[Any, ...]]:
        classes = sorted(folder.name for folder in made.tree.iterdir())
        return [
            (image.key, image.label, classes[image.label], image.path.read_bytes())
            for image in made.images
        ]

    def test_pyarrow_and_pandas_read_it(self, made: Made, expected: Any) -> None:
        pandas = pytest.importorskip("pandas")
        files = sorted(made.path.glob("part-*.parquet"))
        assert len(files) > 1
        for where in (list(map(str, files)), made.path):
            table = pq.read_table(where)
            assert table.schema.names == ["key", "label", "class", "width", "height", "image"]
            for found in (table.to_pandas(), pandas.read_parquet(where)):
                columns = [found[name].tolist() for name in ("key", "label", "class")]
                columns.append([image["bytes"] for image in found["image"]])
                assert list(zip(*columns, strict=True)) == expected
        filtered = ds.dataset(made.path).to_table(["key"], filter=ds.field("label") == 1)
        assert filtered["key"].to_pylist() == [key for key, label, *_ in expected if label == 1]

    def test_hugging_face_datasets_reads_it(
        self, made: Made, expected: Any, hugging_face: Any
    ) -> None:
        found = hugging_face.load_dataset(str(made.path), split="train")
        for sample, (key, label, name, blob) in zip(found, expected, strict=True):
            assert (sample["key"], sample["label"], sample["class"]) == (key, label, name)
            assert found.features["label"].int2str(label) == name
            original = ImageOps.exif_transpose(Image.open(io.BytesIO(blob)))
            assert sample["image"].tobytes() == original.tobytes()

    @pytest.mark.parametrize(
        "options", [PackOptions(Encoding("raw")), PackOptions(plain_images=True)]
    )
    def test_a_plain_column_of_images(
        self, made: Made, hugging_face: Any, tmp_path: Path, options: PackOptions
    ) -> None:
        pack(ImageFolder(made.tree), tmp_path / "out", container="parquet", options=options)
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


def write(path: Path, blobs: list[bytes]) -> list[int]:
    with closing(parquet.ParquetWriter(path, ["class"])) as writer:
        for number, blob in enumerate(blobs):
            writer.add(NewSample(row_of(number, blob), blob))
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
def test_another_layout_of_images_is_corrupt(tmp_path: Path, options: dict[str, Any]) -> None:
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
