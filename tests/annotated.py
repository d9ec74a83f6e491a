"""Images with annotations in the formats of others, and what their own readers make of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pytest
from fastdata.converters.options import PackOptions
from fastdata.converters.packing import PackResult, pack
from fastdata.converters.records import ImageSource
from PIL import Image
from sources import jpeg

from fastdata.storage.arrow import as_arrow
from fastdata.storage.packed import PackedSource

#: Names of images, in and beside folders.
NAMES = ["b/2 a.jpg", "Ünï 漢.jpg", "a.b.jpg", "c/d/0001.jpg", "x%20.jpg"]


def write_images(root: Path, names: list[str]) -> None:
    for seed, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(seed))


def write_mask(path: Path, seed: int = 0) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 4, (36, 48), np.uint8)
    Image.fromarray(pixels).save(path)
    return path.read_bytes()


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), "utf-8")
    return path


def object_of(number: int, image: int, category: int, **more: Any) -> dict[str, Any]:
    """An annotation of COCO's, with values that float32 cannot hold exactly."""
    x = 0.1 + number
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": [x, 2.2, 10.7, 8.3],
        "area": 88.81 + number,
        "iscrowd": 0,
        "segmentation": [[x, 2.2, x + 10.7, 2.2, x + 10.7, 10.5, x, 10.5]],
        **more,
    }


CATEGORIES = [
    {"id": 90, "name": "dog", "supercategory": "animal"},
    {"id": 7, "name": "chât"},
    {"id": 1, "name": "person", "keypoints": ["nose", "eye"], "skeleton": [[1, 2]]},
]
COUNTS = [100, 7, 1000, 3, 36 * 48 - 1110]


def write_coco(root: Path, split: str = "val2017") -> Path:
    write_images(root / split, NAMES)
    images = [{"id": 100 - n, "file_name": name, "width": 48} for n, name in enumerate(NAMES)]
    images.append(dict(images[0]))  # listed twice
    crowd = {"size": [36, 48], "counts": COUNTS}
    points = {"keypoints": [1.5, 2.5, 2, 0, 0, 0], "num_keypoints": 1}
    objects = [
        object_of(5, 100, 90),
        object_of(3, 100, 1),
        object_of(9, 98, 7, iscrowd=1, segmentation=crowd),
        object_of(10, 98, 1, segmentation=[]),
        object_of(11, 97, 1, segmentation=[[1, 2, 3, 4.5, 5, 6], [9.1, 9, 20, 9, 20, 20.3]]),
    ]
    people = [{**one, **points} for one in objects if one["category_id"] == 1]
    captions = [
        {"id": 3, "image_id": 100, "caption": 'une "photo" d\'été,\n漢字'},
        {"id": 2, "image_id": 100, "caption": ""},
        {"id": 1, "image_id": 96, "caption": "x"},
    ]
    folder = root / "annotations"
    about = {"info": {}, "licenses": [], "images": images}
    write_json(folder / f"captions_{split}.json", {**about, "annotations": captions})
    instances = {**about, "annotations": objects, "categories": CATEGORIES}
    write_json(folder / f"instances_{split}.json", instances)
    keypoints = {**about, "annotations": people, "categories": CATEGORIES[2:]}
    write_json(folder / f"person_keypoints_{split}.json", keypoints)
    return root


def open_coco(path: Path) -> Any:
    COCO = pytest.importorskip("pycocotools.coco").COCO  # noqa: N806 - its name
    with redirect_stdout(StringIO()):
        return COCO(str(path))


def voc_xml(*objects: dict[str, str]) -> str:
    parts = []
    for one in objects:
        inner = "".join(f"<{k}>{escape(v)}</{k}>" for k, v in one.items() if k not in CORNERS)
        corners = "".join(f"<{k}>{v}</{k}>" for k, v in one.items() if k in CORNERS)
        part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
        parts.append(f"<object>{inner}<bndbox>{corners}</bndbox>{part}</object>")
    head = "<folder>VOC</folder><size><width>48</width></size>"
    return f"<annotation>{head}{''.join(parts)}</annotation>"


CORNERS = ("xmax", "xmin", "ymax", "ymin")


def write_voc(root: Path) -> Path:
    names = ["2007_000032", "2007_000027", "2008_000001", "été"]
    write_images(root / "JPEGImages", [f"{name}.jpg" for name in names])
    box = dict(zip(CORNERS, ("40", "3.5", "30.25", "1"), strict=True))
    first = {"name": "person", "pose": "Frontal", "truncated": "1", "difficult": "0", **box}
    second = {"name": "aeroplane", "difficult": "1", "occluded": "1", **box, "xmin": "7"}
    texts = [voc_xml(first, second, first), voc_xml(), voc_xml(second), voc_xml(first)]
    (root / "Annotations").mkdir()
    for name, text in zip(names, texts, strict=True):
        (root / f"Annotations/{name}.xml").write_text(text, "utf-8")
    for kind, listed in (("Main", names), ("Segmentation", names[:2])):
        (root / f"ImageSets/{kind}").mkdir(parents=True)
        (root / f"ImageSets/{kind}/train.txt").write_text("\n".join([*listed, ""]), "utf-8")
    for seed, name in enumerate(names[:2]):
        for folder in ("SegmentationClass", "SegmentationObject"):
            write_mask(root / folder / f"{name}.png", seed)
    return root


YOLO_LINES = {
    "0.jpg": "1 0.5 0.25 0.1 0.3\n0 0.125 0.5 0.25 1\n",
    "a b/1.jpg": "0 0.1 0.2 0.3 0.2 0.3 0.45\n\n1 1 1 0.5 0.5 ",
    "2.jpg": "",
    "ünï.jpg": "\n",
}


def write_yolo(root: Path) -> Path:
    write_images(root / "images/train", list(YOLO_LINES))
    for name, lines in YOLO_LINES.items():
        path = (root / "labels/train" / name).with_suffix(".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines, "utf-8")
    (root / "labels/train/classes.txt").write_text("chât\ndog\n", "utf-8")
    text = "path: .\ntrain: images/train  # here\nval: images/val\nnames:\n  0: chât\n  1: dog\n"
    (root / "data.yaml").write_text(text, "utf-8")
    return root


def write_masked(root: Path) -> Path:
    write_images(root / "images/training", NAMES)
    for seed, name in enumerate(NAMES):
        write_mask((root / "annotations/training" / name).with_suffix(".png"), seed)
    (root / "annotations/training/._hidden.png").write_bytes(b"of a Mac")
    return root


def write_table(root: Path) -> Path:
    write_images(root / "img", NAMES)
    write_mask(root / "mask/0.png")
    rows = [
        {
            "file_name": f"./img/{name}" if number else f"{root}/img/{name}",
            "label": ["dog", "chât"][number % 2],
            "score": None if number == 1 else number / 3,
            "tags": [["a", None], [], None, ["漢"], ["b"] * 3][number],
            "box": {"x": number, "y": [0.5] * number},
            "mask": "mask/0.png" if number == 2 else None,
        }
        for number, name in enumerate(NAMES)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (root / "table.jsonl").write_text(lines, "utf-8")
    return root


def bad_of(source: ImageSource) -> dict[str, str]:
    return {record.key: record.problem for record in source.records() if record.problem}


def packed_fields(out: Path) -> Iterator[tuple[str, list[Any]]]:
    """Each field of a dataset but ``label``, and its values; bytes of blobs, None without any."""
    source = PackedSource(out)
    for field in source.fields:
        if field.type is None:
            found = [source.encoded(row, field.name).data for row in range(len(source))]
            yield field.name, [data or None for data in found]
        elif field.name != "label":
            yield field.name, as_arrow(source.column(field.name)).to_pylist()


def packed_without_bad(
    source: ImageSource, out: Path, shuffle: bool | None = None, **more: Any
) -> PackResult:
    options = PackOptions(shuffle=shuffle)
    return pack(source, out, container="shards", options=options, workers=1, skip_bad=True, **more)
