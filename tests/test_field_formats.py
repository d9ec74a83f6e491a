"""Formats of columns: what boxes, key points and outlines mean, from a source to a sample."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from annotated import (
    packed_without_bad,
    write_coco,
    write_images,
    write_masked,
    write_voc,
    write_yolo,
)
from containers import edit_manifest, load_manifest, png
from fastdata.converters import pack
from fastdata.converters.coco import CocoImages
from fastdata.converters.encode import Encoding
from fastdata.converters.masks import MaskedImages
from fastdata.converters.options import PackOptions
from fastdata.converters.packed import PackedDataset
from fastdata.converters.parquet import ParquetImages
from fastdata.converters.records import ImageSource
from fastdata.converters.table import TableImages
from fastdata.converters.voc import VocImages
from fastdata.converters.webdataset import WebDataset
from fastdata.converters.yolo import YoloImages
from PIL import Image
from sources import convert, jpeg, require_said, tar_bytes
from torch.utils.data import ConcatDataset

from fastdata import DataLoader, ImageDataset, verify
from fastdata.errors import BadSamplesError, CorruptionError, SlowPathWarning, UsageError
from fastdata.storage.fields import FORMATS, can_have
from fastdata.storage.packed import PackedSource
from fastdata.transforms import RandomInvert

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
    write_images(tmp_path / "images", ["a.jpg", "b.jpg"])
    columns: dict[str, Any] = {"path": ["a.jpg", "b.jpg"], "boxes": BOXES, "n": [1, 2]}
    source = TableImages(pa.table(columns), tmp_path / "images")
    pack(source, tmp_path / "packed", workers=1)
    return tmp_path / "packed"


class TestAtLoading:
    def test_says_what_a_column_means(self, packed: Path) -> None:
        dataset = ImageDataset(packed, fields=("image", "boxes"), formats={"boxes": "xywh"})
        for one in (dataset, pickle.loads(pickle.dumps(dataset))):
            fields = {field.name: field for field in one.source.fields}
            assert fields["boxes"].format == "xywh"
            assert fields["n"].format == fields["image"].format == ""
            assert [sample["boxes"] for sample in one] == BOXES
        ImageDataset(packed, formats={})
        assert all(not field.format for field in ImageDataset(packed).source.fields)

    @pytest.mark.parametrize(
        ("formats", "reason"),
        [
            ({"box": "xywh"}, "has no column 'box'.*Its columns are: label, boxes, n|boxes, n"),
            ({"image": "xywh"}, "has no column 'image'"),
            ({"boxes": "XYXY"}, "the format of boxes is 'XYXY'.*Give one of 'xyxy'"),
            ({"boxes": 3}, "the format of boxes is 3"),
            ({"boxes": "polygons"}, "boxes is list<.*cannot be polygons.*list of polygons"),
            ({"n": "relative xyxy"}, "n is int64, which cannot be relative xyxy.*four numbers"),
            (["boxes"], "formats="),
            ("boxes", "formats="),
        ],
    )
    def test_refuses_what_a_column_cannot_be(self, packed: Path, formats: Any, reason: str) -> None:
        with pytest.raises(UsageError, match=f"(?s){reason}"):
            ImageDataset(packed, formats=formats)

    def test_parts_of_other_formats_are_not_one_column(self, packed: Path) -> None:
        one, other, same = (
            ImageDataset(
                packed, RandomInvert(), fields=("image", "boxes"), formats={"boxes": meaning}
            )
            for meaning in ("xywh", "xyxy", "xywh")
        )
        with pytest.warns(SlowPathWarning, match="different formats of fields"):
            DataLoader(ConcatDataset([one, other]), batch_size=2, collate_fn=list)
        DataLoader(ConcatDataset([one, same]), batch_size=2, collate_fn=list, require_native=True)

    @pytest.mark.parametrize(
        ("meaning", "reason"),
        [("xyxy", None), ("polygons", "boxes is list<.*cannot be polygons"), ("yx", "is 'yx'")],
    )
    def test_formats_of_the_manifest(self, packed: Path, meaning: str, reason: str | None) -> None:
        def change(manifest: dict[str, Any]) -> None:
            (boxes,) = (one for one in manifest["fields"] if one["name"] == "boxes")
            boxes["format"] = meaning

        edit_manifest(packed, change)
        if reason is None:
            assert ImageDataset(packed).source.field("boxes").format == meaning
            return
        with pytest.raises(CorruptionError, match=reason):
            ImageDataset(packed)


def meanings_of(out: Path) -> dict[str, str]:
    return {
        field["name"]: field.get("format") or field["kind"]
        for field in load_manifest(out)["fields"]
        if "format" in field or field["kind"] == "mask"
    }


COCO = {"boxes": "xywh", "polygons": "polygons", "rle": "rle", "keypoints": "xyv"}
VOC = {"boxes": "xyxy", "segmentation_class": "mask", "segmentation_object": "mask"}


def coco(root: Path, **options: Any) -> CocoImages:
    files = sorted((write_coco(root) / "annotations").glob("*.json"))
    return CocoImages(root / "val2017", files, **options)


def masked(root: Path) -> MaskedImages:
    return MaskedImages(write_masked(root), "images/training", "annotations/training")


def yolo_points(numbers: int) -> Callable[[Path], ImageSource]:
    """A dataset with two key points of so many numbers each."""

    def source(root: Path) -> YoloImages:
        write_images(root / "images/train", ["a.jpg"])
        (root / "labels/train").mkdir(parents=True)
        points = " 0.5" * 2 * numbers
        (root / "labels/train/a.txt").write_text(f"0 .5 .5 .25 .5{points}\n")
        text = f"train: images/train\nnames: [a]\nkpt_shape: [2, {numbers}]\n"
        (root / "data.yaml").write_text(text)
        return YoloImages(root)

    return source


class TestConverters:
    @pytest.mark.parametrize(
        ("opened", "expected"),
        [
            (coco, COCO),
            (lambda root: coco(root, fields=["rle", "labels"]), {"rle": "rle"}),
            (lambda root: VocImages(write_voc(root)), VOC),
            (
                lambda root: YoloImages(write_yolo(root)),
                {"boxes": "relative cxcywh", "polygons": "relative polygons"},
            ),
            (yolo_points(2), {"keypoints": "relative xy"}),
            (yolo_points(3), {"keypoints": "relative xyv"}),
            (masked, {"mask": "mask"}),
        ],
    )
    def test_formats_of_others(
        self, opened: Callable[[Path], ImageSource], expected: dict[str, str], tmp_path: Path
    ) -> None:
        packed_without_bad(opened(tmp_path / "in"), tmp_path / "out")
        found = meanings_of(tmp_path / "out")
        assert expected.items() <= found.items()
        assert verify(tmp_path / "out", workers=1).problems == []
        pack(PackedDataset(tmp_path / "out"), tmp_path / "again", container="shards", workers=1)
        assert meanings_of(tmp_path / "again") == found


#: Values of a row by format: right ones, and wrong ones.
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "xywh": ([[], None, [[1, 2, 3, 4]], [[1, 2, 3, float("nan")]] * 3],
             [[[1, 2, 3]], [[1, 2, 3, 4], []], [None], [[1, 2, None, 4]], [[1, 2, 3, 4, 5]]]),
    "xy": ([[], None, [[]], [[1, 2], [3, 4, 5, 6]]], [[[1, 2, 3]], [None], [[1, None]]]),
    "relative xyv": ([[], [[1, 2, 0]], [[1, 2, 3] * 17]], [[[1, 2]], [[1, 2, 3, 4]]]),
    "polygons": ([[], None, [[]], [None], [[[1, 2, 3, 4, 5, 6]], []], [[[1, 2]]], [[[]]]],
                 [[[[1, 2, 3]]], [[None]], [[[1, None]]]]),
    "rle": ([[], None, [None], [{"size": [2, 3], "counts": [6]}],
             [{"size": [2, 3], "counts": [0, 5, 1]}, None], [{"size": [0, 3], "counts": []}]],
            [[{"size": [2, 3], "counts": [5]}], [{"size": [2], "counts": [2]}],
             [{"size": [2, 3], "counts": None}], [{"size": None, "counts": [6]}],
             [{"size": [-2, -3], "counts": [6]}], [{"size": [2, 3], "counts": [7, -1]}],
             [None, {"size": [2, 3], "counts": [6]}, {"size": [2, 3], "counts": [6, None]}]]),
}  # fmt: skip
VALUE_TYPES = {
    "xywh": lists(2, item=pa.float64()),
    "xy": lists(2, item=pa.float64()),
    "relative xyv": lists(2),
    "polygons": lists(3, item=pa.float64()),
    "rle": rle(lists(1, item=pa.int64()), lists(1, item=pa.int64())),
}


def table(root: Path, **columns: Any) -> pa.Table:
    names = [f"{at}.jpg" for at in range(len(next(iter(columns.values()))))]
    write_images(root, names)
    return pa.table({"path": names, **columns})


@pytest.mark.parametrize("meaning", VALUES)
def test_values_of_another_shape_are_bad_samples(meaning: str, tmp_path: Path) -> None:
    right, wrong = VALUES[meaning]
    rows = table(tmp_path / "in", x=pa.array(right + wrong + right, VALUE_TYPES[meaning]))
    places = range(len(right), len(right + wrong))
    source = TableImages(rows, tmp_path / "in", formats={"x": meaning})
    with pytest.raises(BadSamplesError):
        pack(source, tmp_path / "out", workers=1)
    listed = (tmp_path / "out/_bad-samples.jsonl").read_text("utf-8").splitlines()
    bad = {json.loads(line)["key"]: json.loads(line)["reason"] for line in listed}
    assert list(bad) == [str(at) for at in places]
    assert all(reason.startswith("its x is not a list of ") for reason in bad.values())
    packed_without_bad(source, tmp_path / "good")
    assert verify(tmp_path / "good", workers=1).problems == []
    assert len(ImageDataset(tmp_path / "good")) == 2 * len(right)
    # And where the manifest says so later.
    pack(
        TableImages(rows, tmp_path / "in"),
        tmp_path / "later",
        workers=1,
        options=PackOptions(shuffle=False),
    )
    edit_manifest(tmp_path / "later", lambda fields: fields["fields"][-1].update(format=meaning))
    found = verify(tmp_path / "later", workers=1).problems
    assert [problem.where for problem in found] == [f"sample {at} ({at})" for at in places]


class TestMasks:
    def test_masks_of_another_size_are_bad(self, tmp_path: Path) -> None:
        write_images(tmp_path / "in", ["a.jpg", "b.jpg", "c.jpg"])  # 48 x 36
        sizes = [(48, 36), (36, 48), None]
        masks = [None if size is None else f"{at}.png" for at, size in enumerate(sizes)]
        for name, size in zip(masks, sizes, strict=True):
            if name is not None and size is not None:
                (tmp_path / "in" / name).write_bytes(png(*size))
        rows = pa.table({"path": ["a.jpg", "b.jpg", "c.jpg"], "m": masks})
        source = TableImages(rows, tmp_path / "in", masks=["m"])
        packed_without_bad(source, tmp_path / "out", shuffle=False)
        text = (tmp_path / "out/_bad-samples.jsonl").read_text("utf-8")
        assert "its m is 48 x 36 (H x W), and the image 36 x 48 (H x W)" in text
        found = PackedSource(tmp_path / "out")
        assert [found.key(row) for row in range(len(found))] == ["a", "c"]
        assert found.field("m").kind == "mask"
        # As an image, it may have any size.
        pack(TableImages(rows, tmp_path / "in", files=["m"]), tmp_path / "images", workers=1)
        assert PackedSource(tmp_path / "images").field("m").kind == "image"

    def test_their_bytes_and_sizes_are_kept(self, tmp_path: Path) -> None:
        write_images(tmp_path / "in", ["a.jpg"])
        mask = Image.fromarray(np.arange(48 * 36, dtype=np.uint8).reshape(36, 48) % 7, "P")
        mask.putpalette([9, 8, 7] * 256)
        mask.save(tmp_path / "in/a.png", bits=4)
        data = (tmp_path / "in/a.png").read_bytes()
        rows = pa.table({"path": ["a.jpg"], "m": ["a.png"]})
        source: ImageSource = TableImages(rows, tmp_path / "in", masks=["m"])
        for container, encoding in (
            ("lmdb", Encoding("jpeg", quality=30)), ("parquet", Encoding("raw")),
            ("shards", Encoding()),
        ):  # fmt: skip
            out = tmp_path / container
            pack(
                source, out, container=container, options=PackOptions(encoding=encoding), workers=1
            )
            found = PackedSource(out)
            blob = found.encoded(0, "m")
            assert (blob.data, blob.width, blob.height) == (data, 48, 36)
            assert blob.encoding == "png"
            assert verify(out, workers=1).problems == []
            source = PackedDataset(out)


def test_smaller_images_are_refused_where_fields_have_pixels(tmp_path: Path) -> None:
    small = Encoding("jpeg", max_side=20)
    with pytest.raises(UsageError, match="but not their mask, which"):
        pack(
            masked(tmp_path / "in"),
            tmp_path / "out",
            options=PackOptions(encoding=small),
            workers=1,
        )
    for number, name in enumerate(("boxes", "areas", "polygons", "rle", "keypoints")):
        source = coco(tmp_path / f"coco-{number}", fields=["captions", name])
        with pytest.raises(UsageError, match=f"but not their {name}, which"):
            pack(source, tmp_path / "out", options=PackOptions(encoding=small), workers=1)
    pack(
        coco(tmp_path / "coco", fields=["labels"]),
        tmp_path / "coco-out",
        options=PackOptions(encoding=small),
    )
    assert max(ImageDataset(tmp_path / "coco-out", fields=("image",))[0]["image"].size) == 20
    rows = table(tmp_path / "table", boxes=[[[1.0, 2.0, 3.0, 4.0]]])
    for meaning in ("xyxy", "xywh", "cxcywh"):
        source = TableImages(rows, tmp_path / "table", formats={"boxes": f"relative {meaning}"})
        pack(source, tmp_path / meaning, options=PackOptions(encoding=small), workers=1)
        source = TableImages(rows, tmp_path / "table", formats={"boxes": meaning})
        with pytest.raises(UsageError, match="but not their boxes, which"):
            pack(source, tmp_path / "out", options=PackOptions(encoding=small), workers=1)


def hub_parquet(root: Path) -> Path:
    pictures = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    image, mask = jpeg(0), png(48, 36)
    rows = {
        "image": pa.array([{"bytes": image, "path": None}], pictures),
        "seg": pa.array([{"bytes": mask, "path": None}], pictures),
        "boxes": pa.array([[[1.0, 2.0, 3.0, 4.0]]], lists(2, 4)),
    }
    root.mkdir()
    pq.write_table(pa.table(rows), root / "train.parquet")
    return root


def tars(root: Path) -> Path:
    root.mkdir()
    boxes = io.BytesIO()
    np.save(boxes, np.float32([[1, 2, 3, 4]]))
    members = {"jpg": jpeg(0), "seg.png": png(48, 36), "boxes.npy": boxes.getvalue()}
    (root / "0.tar").write_bytes(tar_bytes((f"a.{name}", one) for name, one in members.items()))
    return root


def json_lines(root: Path) -> Path:
    write_images(root, ["a.jpg"])
    (root / "m.png").write_bytes(png(48, 36))
    row = {"path": "a.jpg", "seg": "m.png", "boxes": [[1, 2, 3, 4]]}
    (root / "t.jsonl").write_text(json.dumps(row) + "\n")
    return root / "t.jsonl"


#: A source of each kind, what its fields of boxes and masks are called, and its class.
SAID: dict[str, tuple[Callable[[Path], Path], str, str, Any]] = {
    "parquet": (hub_parquet, "boxes", "seg", ParquetImages),
    "webdataset": (tars, "boxes.npy", "seg.png", WebDataset),
    "table": (json_lines, "boxes", "seg", TableImages),
}


@pytest.mark.parametrize("kind", SAID)
def test_options_that_say_what_fields_mean(kind: str, tmp_path: Path) -> None:
    write, boxes, mask, opened = SAID[kind]
    root, out = write(tmp_path / "in"), tmp_path / "out"
    command = (kind, "--root", root, "--out", out)
    require_said(convert(*command, "--format", f"{boxes}=relative cxcywh", "--masks", mask), 0)
    assert meanings_of(out) == {boxes: "relative cxcywh", mask: "mask"}
    source = opened(root, formats={boxes: "xyxy"}, masks=[mask])
    pack(source, tmp_path / "python", workers=1)
    assert meanings_of(tmp_path / "python") == {boxes: "xyxy", mask: "mask"}
    again = ("dataset", "--root", out, "--out", tmp_path / "again")
    require_said(convert(*again, "--format", f"{boxes}=xywh"), 0)
    assert meanings_of(tmp_path / "again") == {boxes: "xywh", mask: "mask"}
    # Packed otherwise, it is another dataset.
    other = convert(*command, "--format", f"{boxes}=xywh", "--masks", mask)
    require_said(other, 2, "with other options")
    shutil.rmtree(out)
    for words, said in (
        (["--format", "boxes"], ["NAME=FORMAT"]),
        (["--format", "=xyxy"], ["NAME=FORMAT"]),
        (["--format", "a=xyxy", "--format", "a=xywh"], ["each name once"]),
        (["--format", "none=xyxy"], ["has no column 'none'"]),
        (["--format", f"{boxes}=yx"], ["the format of", "'yx'", "'xyxy', 'xywh'"]),
        (["--format", f"{boxes}=rle"], ["cannot be rle", "a struct of size"]),
        (["--masks", "none"], ["none"]),
    ):
        require_said(convert(*command, *words), 2, *said)
        assert not out.exists()
    with pytest.raises(UsageError, match=r"none|masks"):
        opened(root, masks=["none"])
