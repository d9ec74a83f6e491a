"""torchvision's datasets with boxes and masks, made small in the folders that torchvision reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROWS = 9
_NAMES = ("aeroplane", "dog", "person")


def _images(folder: Path, ending: str, prefix: str = "") -> list[tuple[str, int, int]]:
    rng = np.random.default_rng(5)
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number in range(ROWS):
        width, height = (int(side) for side in rng.integers(40, 120, 2))
        pixels = rng.integers(0, 256, (5, 7, 3), np.uint8)
        name = f"{prefix}{number:06}"
        Image.fromarray(pixels).resize((width, height)).save(folder / f"{name}.{ending}")
        found.append((name, width, height))
    return found


def _boxes(number: int, width: int, height: int, whole: bool) -> list[list[float]]:
    rng = np.random.default_rng(number)
    places = rng.uniform(0, 0.6, (number, 2)) * (width, height)
    found = np.concatenate([places, rng.uniform(2, 30, (number, 2))], 1)
    return (found.astype(int) if whole else found.round(2)).tolist()  # type: ignore[no-any-return]


def make_coco(root: Path) -> Path:
    images, annotations = [], []
    for number, (name, width, height) in enumerate(_images(root / "images", "jpg")):
        key = 100 - number  # torchvision sorts them
        images.append({"id": key, "file_name": f"{name}.jpg", "width": width, "height": height})
        for box in _boxes(number % 3 * 2, width, height, number % 2 == 0):
            x, y, w, h = box
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": key,
                    "category_id": 1 + len(annotations) % 5,
                    "bbox": box,
                    "area": w * h,
                    "iscrowd": 0,
                    "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
                }
            )
    categories = [{"id": one, "name": str(one)} for one in range(1, 6)]
    about = {"images": images, "annotations": annotations, "categories": categories}
    (root / "instances.json").write_text(json.dumps(about))
    return root


def make_voc(root: Path) -> Path:
    base = root / "VOCdevkit" / "VOC2007"
    made = _images(base / "JPEGImages", "jpg")
    for split in ("Main", "Segmentation"):
        (base / "ImageSets" / split).mkdir(parents=True)
        names = "".join(f"{name}\n" for name, *_ in made)
        (base / "ImageSets" / split / "train.txt").write_text(names)
    (base / "Annotations").mkdir()
    (base / "SegmentationClass").mkdir()
    for number, (name, width, height) in enumerate(made):
        objects = "".join(
            f"<object><name>{_NAMES[at % 3]}</name><difficult>0</difficult><bndbox><xmin>{x}</xmin>"
            f"<ymin>{y}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax></bndbox></object>"
            for at, (x, y, w, h) in enumerate(_boxes(1 + number % 3, width, height, True))
        )
        (base / "Annotations" / f"{name}.xml").write_text(
            f"<annotation><filename>{name}.jpg</filename><size><width>{width}</width></size>"
            f"{objects}</annotation>"
        )
        mask(base / "SegmentationClass" / f"{name}.png", width, height, True)
    return root


def mask(path: Path, width: int, height: int, palette: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(width)
    small = Image.fromarray(rng.integers(0, 21, (6, 8)).astype(np.uint8))
    found = small.resize((width, height), Image.Resampling.NEAREST)
    if palette:
        found.putpalette(rng.integers(0, 256, 768).astype(np.uint8).tobytes())
    found.save(path)


def assert_same(found: Any, expected: Any) -> None:
    import torch

    if isinstance(expected, torch.Tensor):
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        for name in ("format", "canvas_size"):
            assert getattr(found, name, None) == getattr(expected, name, None)
        one, other = (value.as_subclass(torch.Tensor) for value in (found, expected))
        image = expected.ndim > 2 and expected.shape[-3] == 3
        most = (1.0 if expected.dtype == torch.uint8 else 1.01 / 255) if image else 1e-4
        exact = not image and not expected.is_floating_point()
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=0 if exact else most)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_same(found[name], value)
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert type(found) is type(expected)
        assert found == expected
