"""Sources of annotated images: conformance, each container, resuming, and URLs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from annotated import (
    NAMES,
    YOLO_LINES,
    open_coco,
    packed_fields,
    write_coco,
    write_masked,
    write_table,
    write_voc,
    write_yolo,
)
from containers import digests, pack_tree
from fastdata.converters import (
    CocoImages,
    ImageSource,
    MaskedImages,
    TableImages,
    VocImages,
    YoloImages,
    pack,
)
from fastdata.converters.options import PackOptions
from fastdata.converters.packing import PackingProgress
from sources import Expected, SourceConformance
from tiers import first_of
from torchvision_stub import import_torchvision

from fastdata import verify


def expect_coco(root: Path) -> Expected:
    files = {kind: root / f"annotations/{kind}_val2017.json" for kind in KINDS}
    opened = {kind: open_coco(path) for kind, path in files.items()}
    torchvision = import_torchvision()
    images = torchvision.datasets.CocoDetection(str(root / "val2017"), str(files["instances"]))
    coco = opened["instances"]
    labels = {number: label for label, number in enumerate(sorted(coco.getCatIds()))}
    samples, fields = [], {name: [] for name in COCO_FIELDS}
    for number in images.ids:
        path = root / "val2017" / coco.loadImgs(number)[0]["file_name"]
        key = str(path.relative_to(root / "val2017").with_suffix(""))
        samples.append((key, "", path.read_bytes()))
        objects = images._load_target(number)
        people = {one["id"]: one for one in opened["person_keypoints"].imgToAnns[number]}
        points = [people.get(one["id"], {}) for one in objects]
        masks = [one["segmentation"] for one in objects]
        row = {
            "image_id": number,
            "labels": [labels[one["category_id"]] for one in objects],
            "boxes": [np.float32(one["bbox"]).tolist() for one in objects],
            "areas": [one["area"] for one in objects],
            "iscrowd": [bool(one["iscrowd"]) for one in objects],
            "polygons": [one if isinstance(one, list) else [] for one in masks],
            "rle": [one if isinstance(one, dict) else None for one in masks],
            "category_ids": [one["category_id"] for one in objects],
            "annotation_ids": [one["id"] for one in objects],
            "keypoints": [one.get("keypoints", [0.0] * 6) for one in points],
            "num_keypoints": [one.get("num_keypoints", 0) for one in points],
            "captions": [one["caption"] for one in opened["captions"].imgToAnns[number]],
        }
        for name, value in row.items():
            fields[name].append(value)
    return Expected([], samples, fields)


KINDS = ("captions", "instances", "person_keypoints")
COCO_FIELDS = (
    "image_id", "labels", "boxes", "areas", "iscrowd", "polygons", "rle", "category_ids",
    "annotation_ids", "keypoints", "num_keypoints", "captions",
)  # fmt: skip


def open_coco_images(root: Any) -> ImageSource:
    files = [f"{root}/annotations/{kind}_val2017.json" for kind in KINDS]
    return CocoImages(f"{root}/val2017", files)


def write_voc_year(root: Path) -> Path:
    write_voc(root / "VOCdevkit/VOC2012")
    return root


def expect_voc(root: Path) -> Expected:
    datasets = import_torchvision().datasets
    detection = datasets.VOCDetection(str(root), "2012", "train")
    masks = datasets.VOCSegmentation(str(root), "2012", "train")
    mask_of = {Path(image).stem: Path(mask) for image, mask in zip(masks.images, masks.targets)}  # noqa: B905
    samples, fields = [], {name: [] for name in VOC_FIELDS}
    for at, path in enumerate(map(Path, detection.images)):
        samples.append((path.stem, "", path.read_bytes()))
        objects = detection[at][1]["annotation"].get("object", [])
        boxes = [
            [float(one["bndbox"][c]) for c in ("xmin", "ymin", "xmax", "ymax")] for one in objects
        ]
        mask = mask_of.get(path.stem)
        for name, value in {
            "labels": [{"aeroplane": 0, "person": 14}[one["name"]] for one in objects],
            "boxes": boxes,
            "names": [one["name"] for one in objects],
            "pose": [one.get("pose", "Unspecified") for one in objects],
            "segmentation_class": mask and mask.read_bytes(),
            "segmentation_object": mask
            and (mask.parent.parent / "SegmentationObject" / mask.name).read_bytes(),
            **{
                flag: [one.get(flag, "0") == "1" for one in objects]
                for flag in ("difficult", "truncated", "occluded")
            },
        }.items():
            fields[name].append(value)
    return Expected([], samples, fields)


VOC_FIELDS = (
    "labels", "boxes", "names", "difficult", "truncated", "occluded", "pose", "segmentation_class",
    "segmentation_object",
)  # fmt: skip


def expect_yolo(root: Path) -> Expected:
    """By hand, from the format's description."""
    rows = {
        "0.jpg": ([1, 0], [[0.5, 0.25, 0.1, 0.3], [0.125, 0.5, 0.25, 1]], [[], []]),
        "2.jpg": ([], [], []),
        "a b/1.jpg": (
            [0, 1],
            [[0.2, 0.325, 0.2, 0.25], [1, 1, 0.5, 0.5]],
            [[[0.1, 0.2, 0.3, 0.2, 0.3, 0.45]], []],
        ),
        "ünï.jpg": ([], [], []),
    }
    assert set(rows) == set(YOLO_LINES)
    paths = [root / "images/train" / name for name in rows]
    samples = [(str(p.relative_to(root).with_suffix("")), "", p.read_bytes()) for p in paths]
    labels, boxes, polygons = map(list, zip(*rows.values(), strict=True))
    boxes = [np.float32(one).tolist() for one in boxes]
    return Expected([], samples, {"labels": labels, "boxes": boxes, "polygons": polygons})


def expect_masked(root: Path) -> Expected:
    samples, masks = [], []
    for name in sorted(NAMES):
        samples.append((name[:-4], "", (root / "images/training" / name).read_bytes()))
        masks.append((root / f"annotations/training/{name[:-4]}.png").read_bytes())
    return Expected([], samples, {"mask": masks})


def expect_table(root: Path) -> Expected:
    rows = [json.loads(line) for line in (root / "table.jsonl").read_text("utf-8").splitlines()]
    samples = [
        (f"img/{name[:-4]}", row["label"], (root / "img" / name).read_bytes())
        for name, row in zip(NAMES, rows, strict=True)
    ]
    fields = {name: [row[name] for row in rows] for name in ("score", "tags", "box")}
    masks = [row["mask"] and (root / row["mask"]).read_bytes() for row in rows]
    return Expected(["chât", "dog"], samples, {**fields, "mask": masks})


class Kind(NamedTuple):
    write: Callable[[Path], Path]
    open: Callable[[Any], ImageSource]
    expect: Callable[[Path], Expected]


ANNOTATED = {
    "coco": Kind(write_coco, open_coco_images, expect_coco),
    "voc": Kind(
        write_voc_year, lambda root: VocImages(f"{root}/VOCdevkit/VOC2012", "train"), expect_voc
    ),
    "yolo": Kind(write_yolo, YoloImages, expect_yolo),
    "masks": Kind(
        write_masked,
        lambda root: MaskedImages(root, "images/training", "annotations/training"),
        expect_masked,
    ),
    "table": Kind(
        write_table,
        lambda root: TableImages(f"{root}/table.jsonl", files=["mask"]),
        expect_table,
    ),
}


@pytest.fixture(scope="module", params=ANNOTATED)
def kind(request: pytest.FixtureRequest) -> Kind:
    return ANNOTATED[request.param]


@pytest.fixture(scope="module")
def root(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kind.write(tmp_path_factory.mktemp("annotated").resolve())


class TestAnnotated(SourceConformance):
    @pytest.fixture
    def sources(self, kind: Kind, root: Path) -> list[ImageSource]:
        return [kind.open(root) for _ in range(2)]

    @pytest.fixture
    def expected(self, kind: Kind, root: Path) -> Expected:
        return kind.expect(root)


@pytest.mark.parametrize("container", first_of(["shards", "lmdb", "parquet", "folder"]))
def test_every_container(kind: Kind, root: Path, container: str, tmp_path: Path) -> None:
    expected = kind.expect(root)
    pack(
        kind.open(root),
        tmp_path / "out",
        container=container,
        workers=1,
        options=PackOptions(shuffle=False),
    )
    found = dict(packed_fields(tmp_path / "out"))
    assert found.pop("image") == [data for *_, data in expected.samples]
    assert found == expected.fields
    assert not verify(tmp_path / "out", workers=1).problems


class Die(PackingProgress):
    def advance(self, images: int, size: int) -> None:
        if images >= 3:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_killed_and_resumed(kind: Kind, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack_tree(kind.open(root), tmp_path / "whole", "shards", unit_size=1500)
    child = os.fork()
    if not child:
        try:
            pack_tree(kind.open(root), out, "shards", unit_size=1500, progress=Die())
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert not (out / "_dataset.json").exists()
    packed = pack_tree(kind.open(root), out, "shards", unit_size=1500)
    assert packed.resumed > 0
    assert digests(out) == digests(tmp_path / "whole")


@pytest.mark.slow
def test_behind_a_url(kind: Kind, web: str, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    root = kind.write(tmp_path / "web" / "data")
    table = root / "table.jsonl"
    if table.exists():  # its first path is absolute
        table.write_text(table.read_text("utf-8").replace(str(root), f"{web}/data"), "utf-8")
    source = kind.open(f"{web}/data")
    pack(
        source,
        tmp_path / "remote",
        container="parquet",
        workers=1,
        options=PackOptions(shuffle=False),
    )
    assert dict(packed_fields(tmp_path / "remote")) == {
        "image": [data for *_, data in kind.expect(root).samples],
        **kind.expect(root).fields,
    }
