"""Formats of columns: what boxes, key points and outlines mean, from a source to a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from annotated import write_images
from containers import edit_manifest, load_manifest
from fastdata.converters import pack
from fastdata.converters.table import TableImages

from fastdata import ImageDataset
from fastdata.errors import CorruptionError
from fastdata.storage.fields import FORMATS, can_have

NUMBER = pa.float32()


def lists(depth: int, *size: int, item: pa.DataType = NUMBER) -> pa.DataType:
    """Lists in lists; those inside have the size, if there is one."""
    kind = pa.list_(item, *size)
    for _ in range(depth - 1):
        kind = pa.list_(kind)
    return kind


def rle(size: pa.DataType, counts: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct([("size", size), ("counts", counts)]))


#: Types that can have each format, and types that cannot.
TYPES: dict[str, tuple[list[pa.DataType], list[pa.DataType]]] = {
    "xyxy": (
        [lists(2, 4), lists(2), lists(2, 4, item=pa.int64()), pa.large_list(lists(1, 4)),
         pa.list_(lists(1, 4), 3), lists(2, 4, item=pa.float16())],
        [lists(2, 3), lists(1), lists(1, 4), lists(3, 4), NUMBER, pa.string(), pa.list_(pa.null()),
         lists(2, 4, item=pa.string()), lists(2, 4, item=pa.bool_())],
    ),
    "xy": ([lists(2, 34), lists(2), lists(3, 2), lists(3)], [lists(2, 3), lists(3, 4), lists(4)]),
    "xyv": ([lists(2, 51), lists(2), lists(3, 3)], [lists(2, 4), lists(3, 6), lists(1)]),
    "polygons": ([lists(3), lists(3, 8)], [lists(2), lists(3, 5), lists(4)]),
    "rle": (
        [rle(lists(1, 2, item=pa.int32()), lists(1, item=pa.uint32())),
         rle(lists(1, item=pa.int64()), lists(1, item=pa.int64()))],
        [rle(lists(1, 3, item=pa.int32()), lists(1, item=pa.uint32())),
         rle(lists(1, 2, item=pa.int32()), pa.string()), lists(2), pa.list_(pa.struct([])),
         pa.list_(pa.struct([("size", pa.list_(pa.int32(), 2))])),
         rle(lists(1, 2), lists(1))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("meaning", FORMATS)
def test_types_of_formats(meaning: str) -> None:
    plain = meaning.removeprefix("relative ")
    fitting, others = TYPES["xyxy" if plain in ("xywh", "cxcywh") else plain]
    assert [kind for kind in fitting if not can_have(kind, meaning)] == []
    assert [kind for kind in others if can_have(kind, meaning)] == []


BOXES = [[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], []]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A dataset whose manifest has no formats."""
    return packed_from(tmp_path, "packed")


def packed_from(root: Path, name: str, **options: Any) -> Path:
    write_images(root / "images", ["a.jpg", "b.jpg"])
    columns: dict[str, Any] = {"path": ["a.jpg", "b.jpg"], "boxes": BOXES, "n": [1, 2]}
    pack(TableImages(pa.table(columns), root / "images", **options), root / name, workers=1)
    return root / name


class TestManifest:
    def test_a_format_that_its_type_cannot_have(self, packed: Path) -> None:
        (boxes,) = (one for one in load_manifest(packed)["fields"] if one["name"] == "boxes")
        given = {"name": "boxes"}

        def change(manifest: dict[str, Any]) -> None:
            manifest["fields"] = [
                boxes | given if one["name"] == "boxes" else one for one in manifest["fields"]
            ]

        for meaning, reason in (
            ("xyxy", None),
            ("polygons", "boxes is list<.*cannot be polygons"),
            ("yx", "the format of field boxes is 'yx'"),
        ):
            given["format"] = meaning
            edit_manifest(packed, change)
            if reason is None:
                found = {one.name: one for one in ImageDataset(packed).source.fields}
                assert found["boxes"].format == meaning
                continue
            with pytest.raises(CorruptionError, match=reason):
                ImageDataset(packed)
