"""Drawn VOC and YOLO sources with traps: as torchvision and PyYAML read them, or an error."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest
from annotated import CORNERS, voc_xml
from fastdata.converters import VocImages, YoloImages
from sources import encoded, picture
from torchvision_stub import import_torchvision

from fastdata.errors import SourceError

#: Sources that are drawn of each kind.
RUNS = int(os.environ.get("FASTDATA_CAMPAIGN_VOC_YOLO", "30"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))
pytestmark = pytest.mark.slow

IMAGES = {
    suffix: [encoded(picture(seed, (12, 9)), form) for seed in range(6)]
    for suffix, form in (("jpg", "JPEG"), ("png", "PNG"), ("tif", "TIFF"))
}
NAMES = ["street", "street 1", "road", "road 0", "a/x", "b/x", "été", "a.b", "x-1", " lead", "lead"]


class Meant(NamedTuple):
    """An image as it was drawn."""

    path: Path
    objects: list[tuple[Any, list[float]]] | None
    trap: bool


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def names_a_file(problem: str, root: Path) -> bool:
    return (
        any(
            part in problem
            for part in ("JPEGImages", "Annotations", "Segmentation", "labels", "images")
        )
        or str(root) in problem
    )


def drawn_voc(draw: np.random.Generator, root: Path) -> dict[str, Meant]:
    """Write images and annotations; return what is meant, by name."""
    classes = ["cat", "dog", "person"] + ["helmet"] * bool(draw.random() < 0.5)
    meant = {}
    for name in draw.choice(NAMES, draw.integers(2, 8), replace=False).tolist():
        objects = [
            (str(draw.choice(classes)), np.round(draw.uniform(1, 40, 4), 1).tolist())
            for _ in range(draw.integers(0, 3))
        ]
        text = voc_xml(
            *(
                {"name": one, **dict(zip(CORNERS, map(str, box), strict=True))}
                for one, box in objects
            )
        )
        suffix = str(draw.choice(["jpg", "jpg", "jpg", "png"]))
        trap = False
        path = write(root / f"JPEGImages/{name}.{suffix}", draw.choice(IMAGES[suffix]))
        for other in ("png", "tif"):
            if other != suffix and draw.random() < 0.1:
                write(root / f"JPEGImages/{name}.{other}", draw.choice(IMAGES[other]))
                trap = suffix != "jpg"  # which of them is the image?
        damage = draw.choice([""] * 12 + ["deep", "case", "cut", "root", "twice", "lost", "name"])
        damaged = damage in ("deep", "case", "twice") and bool(objects)
        if damage == "deep":
            text = text.replace("<object>", "<x><object>").replace("</object>", "</object></x>")
        elif damage == "case":
            text = text.replace("object>", "OBJECT>")
        elif damage == "twice":
            text = text.replace("<object>", "<object><name>boat</name>")
        elif damage == "cut":
            text, damaged = text[:-4], True
        elif damage == "root":
            text, damaged = text.replace("annotation>", "annotations>"), True
        elif damage == "name":  # readers ignore it
            text = text.replace("<folder>", "<filename>other.jpg</filename><folder>")
        if damage == "lost":
            damaged = True
        else:
            write(root / f"Annotations/{name}.xml", text)
        if draw.random() < 0.5:
            write(root / f"SegmentationClass/{name}.png", IMAGES["png"][0])
        if draw.random() < 0.1:
            write(root / f"SegmentationClass/{name}.tif", IMAGES["tif"][0])
        meant[name] = Meant(path, None if damaged else objects, trap)
    return meant


def test_drawn_voc_sources() -> None:
    """Images of a list are those of torchvision's VOCDetection, or of the drawn list."""
    torchvision = import_torchvision()
    seen: Counter[str] = Counter()
    for run in range(SEED, SEED + RUNS):
        draw = np.random.default_rng([run, 0])
        with TemporaryDirectory() as folder:
            root = Path(folder).resolve() / "VOCdevkit/VOC2012"
            meant = drawn_voc(draw, root)
            numbers = []
            for split in ("train", "val"):
                names = draw.permutation(list(meant))[: draw.integers(1, 5)].tolist()
                numbers.append(check_voc(draw, torchvision, root, split, names, meant, seen))
            # One class has one number, unless both splits are refused.
            assert numbers[0] == numbers[1], (run, numbers)
    print(f"{RUNS:,} VOC sources: {dict(seen)}")
    assert (
        seen["equal"] > 3 * RUNS / 2 and seen["torchvision"] > RUNS / 2 and seen["bad"] > RUNS / 2
    )


def check_voc(
    draw: np.random.Generator,
    torchvision: Any,
    root: Path,
    split: str,
    names: list[str],
    meant: dict[str, Meant],
    seen: Counter[str],
) -> list[str]:
    flags = [f" {draw.choice(['-1', ' 0', ' 1'])}" for _ in names] if draw.random() < 0.3 else []
    lines = [name + flag for name, flag in zip(names, flags or [""] * len(names), strict=True)]
    ends = [str(draw.choice(["\n", "\r\n", " \n", "\n\n"])) for _ in names]
    mark = "\ufeff" if draw.random() < 0.1 else ""
    text = mark + "".join(line + end for line, end in zip(lines, ends, strict=True))
    write(root / f"ImageSets/Main/{split}.txt", text)
    source = VocImages(root, split)
    theirs = torchvision.datasets.VOCDetection(str(root.parent.parent), "2012", split)
    # torchvision has an image for each empty line.
    numbers = [number for number, line in enumerate(text.splitlines()) if line.strip()]
    records = list(source.records())
    assert [record.key for record in records] == names, (text, names)
    at = [field.name for field in source.fields]
    for place, (name, record) in enumerate(zip(names, records, strict=True)):
        expected = meant[name]
        try:
            tree = theirs[numbers[place]][1]
        except (OSError, SyntaxError, AttributeError):  # a ParseError is a SyntaxError
            tree = None
        if record.problem:
            assert names_a_file(record.problem, root), record.problem
            assert expected.trap or expected.objects is None, (name, record.problem)
            seen["bad"] += 1
            continue
        assert expected.objects is not None, (name, record)
        values = dict(zip(at, record.fields, strict=True))
        assert record.path == str(expected.path)
        found = list(zip(values["names"], values["boxes"], strict=True))
        assert found == [
            (one, np.float32([dict(zip(CORNERS, box, strict=True))[c] for c in ORDER]).tolist())
            for one, box in expected.objects
        ]
        assert [source.origin["classes"][n] for n in values["labels"]] == values["names"]
        mask = values.get("segmentation_class")
        masks = [root / f"SegmentationClass/{name}.{suffix}" for suffix in ("png", "tif")]
        assert (mask and mask.path) == next((str(one) for one in masks if one.exists()), None)
        seen["equal"] += 1
        if tree is not None and lines[place].strip() == name:
            objects = (tree["annotation"] or {}).get("object", [])
            assert theirs.images[numbers[place]] == record.path
            assert [one["name"] for one in objects] == values["names"]
            boxes = [[float(one["bndbox"][c]) for c in ORDER] for one in objects]
            assert np.float32(boxes).tolist() == values["boxes"]
            seen["torchvision"] += 1
    return list(source.origin["classes"])


ORDER = ("xmin", "ymin", "xmax", "ymax")


CLASSES = ["big dog", "a: b", "it's", "café", "x" * 30 + " y", "#1", "no ", "-", "two\nlines"]


def labels_path(image: Path) -> Path:
    parts = str(image).rsplit("/images/", 1)
    return Path("/labels/".join(parts).rsplit(".", 1)[0] + ".txt")


def plain_labels(path: Path, classes: int) -> list[tuple[int, list[float], list[float]]] | None:
    """Return class, box and polygon of each line, by ultralytics's rules; None if refused."""
    found = []
    for line in path.read_text("utf-8-sig").splitlines():
        try:
            label, *values = map(float, line.split() or [0, 0.5, 0.5, 0, 0])
        except ValueError:
            return None
        if not line.strip():
            continue
        polygon = values if len(values) > 5 else []
        if polygon:
            points = np.reshape(values, (-1, 2)) if len(values) % 2 == 0 else np.zeros((0, 2))
            if not len(points):
                return None
            low, high = points.min(0), points.max(0)
            values = [*(low + high) / 2, *(high - low)]
        if len(values) != 4 or not 0 <= label < classes or label % 1:
            return None
        if min(values) < -0.01 or max(values) > 1.01 or min(values[2:]) < 0:
            return None
        found.append((int(label), np.float32(values).tolist(), polygon))
    return found


def drawn_lines(draw: np.random.Generator, classes: int) -> str:
    lines = []
    polygons = draw.random() < 0.3
    for _ in range(draw.integers(0, 4)):
        count = 2 * int(draw.integers(3, 6)) if polygons else 4
        label = draw.integers(classes) if draw.random() < 0.95 else draw.choice([-1, classes])
        numbers = np.round(draw.uniform(0.05, 0.95, count), 4).tolist()
        if draw.random() < 0.05:
            numbers = [numbers[:-1], [*numbers, 0.5], [3.5] * count][draw.integers(3)]
        lines.append(" ".join(map(str, [label, *numbers])))
    text = str(draw.choice(["\n", "\r\n", " \n\n"])).join(lines)
    return ("\ufeff" if draw.random() < 0.1 else "") + text


def drawn_yolo(draw: np.random.Generator, root: Path, classes: int) -> dict[Path, bool | None]:
    """Write images and labels; return whether the labels of each lie elsewhere, None if unclear."""
    whole = str(draw.choice(["labels"] * 9 + ["label", "Labels", "images"]))
    found = {}
    stems = ["0", "a b", "c/0", "c/é", "D", "e.f", "images/g"]
    for stem in draw.choice(stems, draw.integers(1, 6), replace=False).tolist():
        suffix = str(draw.choice(["jpg", "png"]))
        image = write(root / f"images/train/{stem}.{suffix}", IMAGES[suffix][0])
        path = Path(str(labels_path(image)).replace(f"{root}/labels/", f"{root}/{whole}/"))
        trap = str(draw.choice([""] * 6 + ["none", "case", "name", "up", "beside"]))
        if trap == "case":
            path = path.with_suffix(".TXT")
        elif trap == "name":
            path = path.with_name(path.name.swapcase())
        elif trap == "up":
            path = root / "labels/train/up" / path.name
        elif trap == "beside":
            path = image.with_suffix(".txt")
        astray = path != labels_path(image)
        if trap == "none":
            astray = False
        else:
            write(path, drawn_lines(draw, classes))
        # Labels in a folder of another name are missing, and a warning says how many.
        found[image] = astray if whole == "labels" else None
    return found


def test_drawn_yolo_sources() -> None:
    """Labels are those of a plain reader, class names those of PyYAML."""
    yaml = pytest.importorskip("yaml")
    seen: Counter[str] = Counter()
    for run in range(SEED, SEED + RUNS):
        draw = np.random.default_rng([run, 1])
        with TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            names = draw.permutation(CLASSES)[: draw.integers(1, 6)].tolist()
            images = drawn_yolo(draw, root, len(names))
            listed = draw.random() < 0.3
            if listed:
                lines = [f"./{image.relative_to(root)}" for image in images]
                write(root / "list.txt", "\r\n".join(lines))
            value = dict(enumerate(names)) if draw.random() < 0.5 else names
            about = {"path": ".", "train": "list.txt" if listed else "images/train", "names": value}
            text = yaml.safe_dump(about, width=int(draw.integers(5, 90)), allow_unicode=True)
            write(root / "data.yaml", text)
            check_yolo(root, names, images, listed, seen)
    print(f"{RUNS:,} YOLO sources: {dict(seen)}")
    assert seen["equal"] > RUNS and seen["bad"] > RUNS / 2 and seen["refused"] > RUNS / 20


def check_yolo(
    root: Path,
    names: list[str],
    images: dict[Path, bool | None],
    listed: bool,
    seen: Counter[str],
) -> None:
    there = {image: labels_path(image).is_file() for image in images}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            source = YoloImages(root)
        except SourceError as error:
            assert not any(there.values()) and f"of {len(images)} images" in str(error)
            assert names_a_file(str(error), root)
            seen["refused"] += 1
            return
    assert any(there.values())
    lacking = sum(not found for found in there.values())
    said = [str(one.message) for one in caught]
    assert [f"{lacking} of {len(images)} images" in one for one in said] == [True] * bool(lacking)
    assert source.origin["classes"] == names
    records = {record.path: record for record in source.records()}
    for image, astray in images.items():
        record = records.pop(str(image))
        values = dict(zip([field.name for field in source.fields], record.fields, strict=True))
        expected = plain_labels(labels_path(image), len(names)) if there[image] else []
        if record.problem:
            assert names_a_file(record.problem, root)
            other = record.problem.partition(" but ")[2].removesuffix(" does")
            assert expected is None or (not there[image] and (root / other).is_file())
            seen["bad"] += 1
            continue
        assert expected is not None, (image, labels_path(image).read_bytes())
        # A list has no folder of labels: those in a folder below are not looked for.
        assert not astray or listed or there[image], (image, record)
        found = zip(values["labels"], values["boxes"], values["polygons"], strict=True)
        for (label, box, polygon), (number, numbers, points) in zip(found, expected, strict=True):
            assert label == number and polygon == ([points] if points else [])
            assert np.allclose(box, numbers, rtol=0, atol=1e-6)
        seen["equal"] += 1
    # What remains are labels without an image.
    assert all("has no image" in str(record.problem) for record in records.values())
