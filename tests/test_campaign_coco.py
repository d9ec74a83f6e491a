"""Drawn sources of COCO's with traps: as pycocotools reads them, or an error that names a file."""

from __future__ import annotations

import json
import os
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import NAMES, open_coco, packed_fields
from fastdata.converters import CocoImages, pack
from fastdata.converters.options import PackOptions
from PIL import Image
from sources import picture

from fastdata.errors import BadSamplesError, SourceError

#: Sources that are drawn.
RUNS = int(os.environ.get("FASTDATA_CAMPAIGN_COCO", "15"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))

# pycocotools has not moved to NumPy 2 completely.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

#: Changes of an annotation that spoil its image.
SPOILT: list[dict[str, Any]] = [
    {"bbox": [1, 2, float("nan"), 4]},
    {"bbox": None},
    {"segmentation": [[1, 2, 3, 4, 5, 6, 7]]},
    {"segmentation": {"size": [7, 9], "counts": [63]}},
    {"category_id": 10**6},
    {"id": "x"},
    {"id": 1.5},
    {"iscrowd": 2},
]
UNLISTED = 10**18 + 7
#: Values of ``image_id`` that could mean any image.
OF_ANY: list[Any] = [None, "a.jpg", "1", 1.5, [1], {}]


class Drawn:
    """A source, and what traps do to it."""

    def __init__(
        self, draw: np.random.Generator, root: Path, categories: list[Any], names: list[str]
    ) -> None:
        from pycocotools import mask

        self._draw, self.root, self._categories, self._mask = draw, root, categories, mask
        self.is_sound, self.is_fatal, self.is_turned, self.is_mixed = True, False, False, False
        self.spoilt: set[int] = set()
        self.traps: Counter[str] = Counter()
        self._sizes: dict[int, tuple[int, int]] = {}
        self._swapped: set[int] = set()
        self._turns = self._maybe(0.5)
        images = [self._image(number) for number in range(draw.integers(1, 5))]
        self._ids = list(self._sizes)
        self.files, self.oracles = [], []
        first: list[Any] = []
        for at, name in enumerate(names):
            is_captions = at > 0 and self._maybe(0.3)
            clean = [self._caption(n) if is_captions else self._object(n) for n in self._numbers()]
            if first and not is_captions and self._maybe(0.5, "the same annotation twice"):
                copied = deepcopy(first[draw.integers(len(first))])
                if copied["id"] not in [one["id"] for one in clean]:
                    clean.append(copied)
            first = first or ([] if is_captions else clean)
            listed = [*images, *images[: draw.integers(2)]]
            about = {"images": listed, **({} if is_captions else {"categories": categories})}
            (root / "oracle").mkdir(exist_ok=True)
            self.oracles.append(root / "oracle" / name)
            written = [self._spoil(one) for one in deepcopy(clean)]
            pairs = zip(clean, written, strict=True)
            kept = [one for one, other in pairs if other["image_id"] != UNLISTED]
            self.oracles[-1].write_text(json.dumps({**about, "annotations": kept}))
            about["annotations"] = written
            self.files.append(root / name)
            encoding = "utf-8-sig" if self._maybe(0.2, "BOM") else "utf-8"
            text = json.dumps(about, ensure_ascii=self._maybe(0.5))
            self.files[-1].write_text(text, encoding)

    def _maybe(self, share: float, trap: str = "") -> bool:
        found = bool(self._draw.random() < share)
        if found and trap:
            self.traps[trap] += 1
        return found

    def _of(self, values: Any) -> Any:
        return values[self._draw.integers(len(values))]

    def _number(self, value: int) -> int | float:
        return float(value) if self._maybe(0.1, "float id") else value

    def _numbers(self) -> range:
        begin = int(self._of([0, 1, 1, 1, 10**9]))
        return range(begin, begin + int(self._draw.integers(0, 7)))

    def _image(self, number: int) -> dict[str, Any]:
        draw = self._draw
        size = width, height = int(draw.integers(8, 40)), int(draw.integers(8, 40))
        key = number + 1 if self._maybe(0.7) else int(draw.integers(5, 2**50)) * 5 + number
        name = self._of([f"{number}.jpg", NAMES[number], f"a/{number}/x.jpg"])
        exif, orientation = Image.Exif(), int(self._of([1, 1, 1, 3, 6, 8]))
        exif[274] = orientation
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._maybe(0.03, "missing image"):
            self._damage(key)
        else:
            picture(number, size).save(path, exif=exif)
        turns = self._turns
        if self._maybe(0.02):
            turns, self.is_sound, self.is_mixed = not turns, False, True
        if orientation in (6, 8) and turns and width != height:
            size = height, width
            self._swapped.add(key)
        self._sizes[key] = size
        entry = {"id": self._number(key), "file_name": name}
        if self._maybe(0.7):
            entry |= {"width": size[0], "height": size[1]}
            if self._maybe(0.03, "another size"):
                entry["width"] += self._of([-1, 1, 1000])
                self._damage(key)
            self.is_turned |= key in self._swapped
        return entry

    def size(self, image: int) -> tuple[int, int]:
        return self._sizes[image]

    def _damage(self, image: int) -> None:
        self.spoilt.add(image)
        self.is_sound = False

    def _caption(self, number: int) -> dict[str, Any]:
        text = str(self._of(["", "漢字", "a dog", f"{number} things"]))
        return {"id": number, "image_id": self._number(self._of(self._ids)), "caption": text}

    def _object(self, number: int) -> dict[str, Any]:
        draw, key = self._draw, self._of(self._ids)
        width, height = self._sizes[key]
        x, y = draw.uniform(0, (width - 2, height - 2)).round(2).tolist()
        found = {
            "id": self._number(number),
            "image_id": self._number(key),
            "category_id": self._number(self._of(self._categories)["id"]),
            "bbox": [x, y, *draw.uniform(1, (width - x, height - y)).round(2).tolist()],
            "area": round(float(draw.uniform(1, 99)), 3),
            "iscrowd": 0,
        }
        outline = self._outline(width, height)
        found |= {} if outline is None else {"segmentation": outline}
        self.is_turned |= isinstance(outline, dict) and key in self._swapped
        if self._maybe(0.1, "caption of an object"):
            found["caption"] = self._of(["", None, "x"])
        if self._maybe(0.1, "segments_info"):
            found["segments_info"] = []
        return found

    def _outline(self, width: int, height: int) -> Any:
        kind = int(self._draw.integers(6))
        if kind < 2:
            return [None, []][kind]
        if kind < 4:
            return [
                (self._draw.random((self._draw.integers(3, 7), 2)) * (width, height))
                .ravel()
                .tolist()
                for _ in range(self._draw.integers(1, 3))
            ]
        noise = self._draw.random((height, width)) < self._draw.random()
        rle = self._mask.encode(np.asfortranarray(noise.astype(np.uint8)))
        if kind == 4:
            return {**rle, "counts": rle["counts"].decode()}
        flat = np.concatenate([[0], noise.T.ravel(), [2]])
        ends = (
            np.flatnonzero(np.diff(flat))
            if flat[1] == 0
            else np.r_[0, np.flatnonzero(np.diff(flat))]
        )
        return {"size": [height, width], "counts": np.diff(np.r_[0, ends]).tolist()}

    def _spoil(self, annotation: dict[str, Any]) -> dict[str, Any]:
        key = int(annotation["image_id"])
        if self._maybe(0.01, "no whole number as image_id"):
            self.is_fatal, self.is_sound = True, False
            return {**annotation, "image_id": self._of(OF_ANY)}
        if self._maybe(0.01, "an image that is not listed"):
            self.is_sound = False
            return {**annotation, "image_id": UNLISTED}
        if "bbox" in annotation and self._maybe(0.03, "damage"):
            self._damage(key)
            return {**annotation, **self._of(SPOILT)}
        return annotation


def masks_of(found: dict[str, list[Any]], row: int, size: tuple[int, int]) -> list[Any]:
    from pycocotools import mask

    masks = []
    for polygons, rle in zip(found["polygons"][row], found["rle"][row], strict=True):
        if rle is not None:
            masks.append(mask.decode(mask.frPyObjects(rle, *rle["size"])))
        else:
            parts = mask.frPyObjects(polygons, *size[::-1]) if polygons else []
            masks.append(mask.decode(mask.merge(parts)) if parts else None)
    return masks


def compare(source: Drawn, out: Path, categories: list[Any]) -> int:
    found = dict(packed_fields(out))
    opened = [open_coco(path) for path in source.oracles]
    labels = {one["id"]: at for at, one in enumerate(sorted(categories, key=lambda c: c["id"]))}
    for row, key in enumerate(found["image_id"]):
        assert key not in source.spoilt
        objects: list[dict[str, Any]] = []
        captions: list[tuple[Any, ...]] = []
        masks = []
        for coco in opened:
            for image in coco.imgs.values():
                width, height = source.size(int(image["id"]))
                image |= {"width": width, "height": height}
            for one in coco.imgToAnns[key]:
                if one.get("caption") or "bbox" not in one:
                    captions.append((one["id"], one["caption"], id(coco)))
                if "bbox" in one and one not in objects:
                    objects.append(one)
                    masks.append(coco.annToMask(one) if one.get("segmentation") else None)
        captions = [
            one for at, one in enumerate(captions) if one[:2] not in [c[:2] for c in captions[:at]]
        ]
        assert found["boxes"][row] == [np.float32(one["bbox"]).tolist() for one in objects]
        assert found["labels"][row] == [labels[one["category_id"]] for one in objects]
        for name, column in (("annotation_ids", "id"), ("category_ids", "category_id"),
                             ("areas", "area"), ("iscrowd", "iscrowd")):  # fmt: skip
            assert found[name][row] == [one[column] for one in objects]
        assert found.get("captions", [[]] * (row + 1))[row] == [text for _, text, _ in captions]
        for mine, its in zip(masks_of(found, row, source.size(key)), masks, strict=True):
            np.testing.assert_array_equal(mine, its)
    return len(found["image_id"])


def drawn_categories(draw: np.random.Generator) -> list[Any]:
    ids = draw.choice(200, int(draw.integers(1, 6)), replace=False).tolist()
    return [{"id": key, "name": f"class {key}", "supercategory": "x"} for key in ids]


def test_drawn_sources(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    counts: Counter[str] = Counter()
    for run in range(SEED, SEED + RUNS):
        draw = np.random.default_rng(run)
        categories, root = drawn_categories(draw), tmp_path / str(run)
        root.mkdir()
        names = [f"{number}.json" for number in range(draw.integers(1, 4))]
        source = Drawn(draw, root, categories, names)
        counts.update(source.traps)
        container = str(draw.choice(["lmdb", "shards", "parquet", "folder"]))
        options: dict[str, Any] = {"container": container, "workers": 1}
        options["options"] = PackOptions(shuffle=False)
        try:
            packed = pack(CocoImages(root, source.files), root / "out", **options)
        except (BadSamplesError, SourceError) as error:
            counts["refused"] += 1
            assert not source.is_sound, error
            assert ".json" in str(error) or ".jpg" in str(error) or source.is_mixed
            if isinstance(error, BadSamplesError) and not source.is_fatal:
                try:
                    pack(CocoImages(root, source.files), root / "rest", skip_bad=True, **options)
                    counts["samples"] += compare(source, root / "rest", categories)
                except (BadSamplesError, SourceError) as error:
                    assert isinstance(error, BadSamplesError) or source.is_mixed
        else:
            counts["packed"] += 1
            assert source.is_sound or not source.spoilt
            assert not source.is_fatal
            assert bool(packed.manifest.source.get("exif_transpose")) == source.is_turned
            counts["samples"] += compare(source, root / "out", categories)
    print(f"{RUNS:,} sources: {dict(sorted(counts.items()))}")
    assert counts["packed"] and (counts["refused"] or RUNS < 20)
