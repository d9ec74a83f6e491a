"""Source of images that COCO's JSON files annotate: objects, keypoints and captions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastdata.converters.annotations import (
    BOXES,
    POLYGONS,
    AnnotatedImages,
    Rows,
    Table,
    are_numbers,
    is_text,
    read_file,
    shown_name,
)
from fastdata.converters.trees import source_tree

from fastdata.errors import SourceError, UsageError
from fastdata.remote.urls import is_url, name_of
from fastdata.storage.jsontext import parse_json

#: Run lengths of each object's mask, from the top left, by columns; null for polygons.
RLES = pa.list_(pa.struct([("size", pa.list_(pa.int32(), 2)), ("counts", pa.list_(pa.uint32()))]))
_OBJECTS = {
    "labels": pa.list_(pa.int32()),
    "boxes": BOXES,
    "areas": pa.list_(pa.float64()),
    "iscrowd": pa.list_(pa.bool_()),
    "polygons": POLYGONS,
    "rle": RLES,
    "category_ids": pa.list_(pa.int64()),
    "annotation_ids": pa.list_(pa.int64()),
}
_FORMATS = {"boxes": "xywh", "polygons": "polygons", "rle": "rle", "keypoints": "xyv"}
#: COCO's names of the files that have a row for each image; [1] is the split.
_ANNOTATIONS = re.compile(r"(?:instances|person_keypoints|captions)_(.+)\.json")
#: Most pixels of a mask.
_MOST_PIXELS = (1 << 32) - 1
#: Most keypoints of an object.
_MOST_KEYPOINTS = 10_000


class CocoImages(AnnotatedImages):
    """Source of the images of COCO's annotations, by image id.

    Objects are lists in the order of the annotations. Their columns are ``labels`` (from 0, by
    category id), ``boxes`` (x, y, width, height, as the file has them), ``areas``, ``iscrowd``,
    ``polygons``, ``rle``, ``category_ids`` and ``annotation_ids``. With keypoints, there are also
    ``keypoints`` and ``num_keypoints``. ``captions`` are strings. An image without annotations has
    empty lists. The categories with their original ids are in ``about``.

    An annotation that is damaged, or names an unknown category, makes its image a bad sample. An
    image without its file is a bad sample, and so is an annotation of an unknown image.

    Args:
        images: The folder that ``file_name`` is relative to, or its URL.
        annotations: JSON files of the same images, or their URLs; each image becomes one row.
        fields: Columns to take; None for all.
        storage_options: Options of the driver of a URL.

    Raises:
        RemoteError: A URL cannot be reached.
        SourceError: A file is not COCO's, or two contradict each other.
        UsageError: There is no such column.
    """

    def __init__(
        self,
        images: str | os.PathLike[str],
        annotations: Sequence[str | os.PathLike[str]],
        *,
        fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        table = coco_table(annotations, storage_options)
        super().__init__(table, images, fields, annotations, storage_options)


def coco_table(
    annotations: Sequence[str | os.PathLike[str]],
    storage_options: Mapping[str, Any] | None = None,
) -> Table:
    """Return the images of COCO's JSON files, and their annotations; see `CocoImages`.

    Raises:
        RemoteError: A URL cannot be reached.
        SourceError: A file is not COCO's, or two contradict each other.
        UsageError: There is no file.
    """
    if not annotations:
        raise UsageError("no file of annotations", "Name COCO's JSON files with --annotations.")
    reader = _Reader()
    for path in annotations:
        name = os.fspath(path)
        short = name_of(name) if is_url(name) else os.path.basename(name)
        reader.read(shown_name(name), short, _parsed(path, storage_options))
    return reader.table()


def coco_splits(
    root: str | os.PathLike[str],
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, tuple[str, list[str]]]:
    """Return the folder of images and the annotations of each split in COCO's folder, or of one.

    Files are ``annotations/<kind>_<split>.json``, and images in ``<split>/`` or
    ``images/<split>/``; or both are in ``<split>/``, and the file is ``_annotations.coco.json``.

    Raises:
        RemoteError: The URL cannot be reached.
        SourceError: There is no split, or not this one.
    """
    tree = source_tree(root, storage_options)
    folders = {name: tree / name for name in tree.classes()}
    if "images" in folders:
        images = folders["images"]
        folders = {**{name: images / name for name in images.classes()}, **folders}
    found: dict[str, list[str]] = {}
    if "annotations" in folders:
        for name, file in folders["annotations"].files(".json").items():
            match = _ANNOTATIONS.fullmatch(name)
            if match and match[1] in folders:
                found.setdefault(match[1], []).append(file.location)
    for name, folder in folders.items():
        beside = folder.file("_annotations.coco.json")
        if beside is not None:
            found.setdefault(name, []).append(beside.location)
    if not found or (split is not None and split not in found):
        there = f"There is: {', '.join(sorted(found))}. " if found else ""
        raise SourceError(
            f"{tree}: has no {split or 'split'} with annotations",
            f"{there}Give the folder of images with --root and its JSON files with --annotations.",
        )
    return {
        name: (folders[name].root, found[name]) for name in sorted(found) if split in (None, name)
    }


class _Object(NamedTuple):
    """One annotated object.

    Attributes:
        file: Number of the file that it is from.
        category: Its category's id.
        box: Its box.
        area: Its area.
        crowd: Whether it is a crowd.
        polygons: Its polygons, arrays of float64.
        rle: Its run lengths; None for polygons.
        keypoints: Its keypoints; None without any.
        labelled: Number of labelled keypoints.
    """

    file: int
    category: int
    box: list[float]
    area: float
    crowd: bool
    polygons: list[npt.NDArray[np.float64]]
    rle: dict[str, Any] | None
    keypoints: list[float] | None
    labelled: int


class _Image:
    """One image, and its annotations by their ids."""

    __slots__ = ("captions", "objects", "path", "problem")

    def __init__(self, path: str) -> None:
        self.path = path
        self.objects: dict[int, _Object] = {}
        self.captions: dict[int, tuple[int, str]] = {}
        self.problem: str | None = None


class _Reader:
    """Reader that merges the annotations of some files by image."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._images: dict[int, _Image] = {}
        self._categories: dict[int, dict[str, Any]] = {}
        self._bad: list[tuple[str, str]] = []  # key and reason of what belongs to no image
        self._has_objects = self._has_captions = False
        self._keypoints = 0

    def read(self, name: str, short: str, found: Any) -> None:
        """Read one file: its categories, images, then annotations, which are removed from it."""
        if not isinstance(found, dict) or not isinstance(found.get("images"), list):
            raise _not_coco(name, "it has no list of images")
        for part in ("categories", "annotations"):
            if not isinstance(found.get(part, []), list):
                raise _not_coco(name, f"{part} is not a list")
        self._names.append(short)
        for category in found.get("categories", ()):
            self._add_category(name, category)
        for number, image in enumerate(found["images"]):
            problem = self._add_image(image)
            if problem is not None:
                self._bad.append((f"{short}/images/{number}", f"{name}: images[{number}]{problem}"))
        annotations = found.get("annotations")
        if annotations is None:
            return
        self._has_objects |= "categories" in found
        self._has_captions |= "categories" not in found
        self._add_annotations(name, short, annotations)

    def _add_category(self, file: str, category: Any) -> None:
        number = category.get("id") if isinstance(category, dict) else None
        name = category.get("name") if isinstance(category, dict) else None
        if not _is_id(number) or not is_text(name):
            raise _not_coco(file, f"a category has no id and name: {_short(category)}")
        known = self._categories.setdefault(number, {"id": number, "name": name})
        if known["name"] != name:
            raise SourceError(
                f"{file}: the category {number} is {name!r}, but {known['name']!r} elsewhere",
                "Correct the files: one id, one name.",
            )
        if is_text(category.get("supercategory")):
            known["supercategory"] = category["supercategory"]
        points, skeleton = category.get("keypoints", []), category.get("skeleton", [])
        if not isinstance(points, list) or not all(map(is_text, points)):
            raise _not_coco(file, f"keypoints of category {number} are not a list of names")
        if not isinstance(skeleton, list) or not all(map(_is_edge, skeleton)):
            raise _not_coco(file, f"the skeleton of category {number} is not a list of pairs")
        if points:
            known |= {"keypoints": points, "skeleton": skeleton}
        self._keypoints = max(self._keypoints, len(points))

    def _add_image(self, entry: Any) -> str | None:
        """Add an image; return its problem if it cannot be a row."""
        if not isinstance(entry, dict):
            return f" is not an object: {_short(entry)}"
        number, path = entry.get("id"), entry.get("file_name")
        if not _is_id(number):
            return f": its id is {_short(number)}, not a whole number"
        if not is_text(path) or not path:
            return f": its file_name is {_short(path)}"
        image = self._images.setdefault(number, _Image(path))
        if image.path != path:
            problem = f"the image {number} has the file_name {image.path}, and {path}, too"
            image.problem = image.problem or problem
        return None

    def _add_annotations(self, name: str, short: str, annotations: list[Any]) -> None:
        orphans: dict[Any, list[int]] = {}
        annotations.reverse()
        for number in range(len(annotations)):
            # A file's objects need ten times the memory of the arrays that become of them.
            annotation = annotations.pop()
            if not isinstance(annotation, dict):
                what = f"{name}: annotations[{number}] is not an object: {_short(annotation)}"
                self._bad.append((f"{short}/annotations/{number}", what))
                continue
            if "segments_info" in annotation:
                raise SourceError(
                    f"{name}: these are panoptic annotations, whose masks are PNG files",
                    "Pack images and masks: fastdata convert masks.",
                )
            where = annotation.get("image_id")
            image = self._images.get(where) if _is_id(where) else None
            if image is None:
                orphans.setdefault(_short(where), []).append(number)
                continue
            try:
                self._add_annotation(image, annotation)
            except ValueError as error:
                what = f"{name}: annotations[{number}] (id {_short(annotation.get('id'))})"
                image.problem = image.problem or f"{what}: {error}"
        for where, numbers in orphans.items():
            what = ", ".join(f"annotations[{number}]" for number in numbers[:5])
            more = f" and {len(numbers) - 5:,} more" if len(numbers) > 5 else ""
            problem = f"{name}: the image {where} of {what}{more} is not listed"
            self._bad.append((f"{short}/annotations/{numbers[0]}", problem))

    def _add_annotation(self, image: _Image, annotation: dict[str, Any]) -> None:
        """Add an annotation to its image.

        Raises:
            ValueError: It is damaged, or contradicts another.
        """
        file = len(self._names)
        number = annotation.get("id")
        if not _is_id(number):
            raise ValueError("its id is not a whole number")
        if "caption" in annotation:
            caption = annotation["caption"]
            if not is_text(caption):
                raise ValueError(f"its caption is {_short(caption)}")
            self._has_captions = True
            before = image.captions.get(number)
            if before is not None and (before[0] == file or before[1] != caption):
                raise ValueError("another caption of the image has the same id")
            image.captions[number] = (file, caption)
            return
        found = self._object(file, annotation)
        known = image.objects.get(number)
        self._has_objects = True
        if found.keypoints is not None:
            self._keypoints = max(self._keypoints, len(found.keypoints) // 3)
        if known is None:
            image.objects[number] = found
        elif known.file == file or known.category != found.category:
            raise ValueError("another annotation of the image has the same id")
        elif known.keypoints is None and found.keypoints is not None:
            image.objects[number] = known._replace(
                file=file, keypoints=found.keypoints, labelled=found.labelled
            )
        else:
            image.objects[number] = known._replace(file=file)

    def _object(self, file: int, annotation: dict[str, Any]) -> _Object:
        category, box = annotation.get("category_id"), annotation.get("bbox")
        if not _is_id(category) or category not in self._categories:
            raise ValueError(f"its category {_short(category)} is not listed")
        if not are_numbers(box, 4):
            raise ValueError(f"its bbox is {_short(box)}, not four finite numbers")
        assert isinstance(box, list)
        area = annotation.get("area")
        area = float(box[2]) * float(box[3]) if area is None else area
        if not _is_finite(area):
            raise ValueError(f"its area is {_short(area)}")
        crowd = annotation.get("iscrowd", 0)
        if crowd not in (0, 1) or not isinstance(crowd, int):
            raise ValueError(f"its iscrowd is {_short(crowd)}, neither 0 nor 1")
        polygons, rle = _segmentation(annotation.get("segmentation"))
        points, count = annotation.get("keypoints"), annotation.get("num_keypoints")
        if points is not None:
            if not are_numbers(points) or len(points) % 3 or len(points) > 3 * _MOST_KEYPOINTS:
                raise ValueError(f"its keypoints are {_short(points)}, not triples of numbers")
            count = sum(value > 0 for value in points[2::3]) if count is None else count
        if count is not None and not (_is_id(count) and 0 <= count <= _MOST_KEYPOINTS):
            raise ValueError(f"its num_keypoints is {_short(count)}")
        # Arrow refuses integers that a float cannot hold exactly.
        points = None if points is None else list(map(float, points))
        about = (file, category, list(map(float, box)), float(area), bool(crowd))
        return _Object(*about, polygons, rle, points, count or 0)

    def table(self) -> Table:
        """Return the images, sorted by id, and then what belongs to none."""
        labels = {number: label for label, number in enumerate(sorted(self._categories))}
        columns: dict[str, pa.DataType] = {"image_id": pa.int64()}
        if self._has_objects:
            columns |= _OBJECTS
        if self._has_objects and self._keypoints:
            columns["keypoints"] = pa.list_(pa.list_(pa.float32(), 3 * self._keypoints))
            columns["num_keypoints"] = pa.list_(pa.int32())
        if self._has_captions:
            columns["captions"] = pa.list_(pa.string())
        rows = Rows(columns)
        for number in sorted(self._images):
            image = self._images.pop(number)
            if image.problem:
                rows.add_bad(image.problem, image.path)
            else:
                rows.add(image.path, self._values(number, image, labels))
        for key, problem in self._bad:
            rows.add_bad(problem, None, key)
        categories = [self._categories[number] for number in labels]
        about = {
            "kind": "coco",
            "annotations": self._names,
            "classes": [category["name"] for category in categories],
            "categories": categories,
        }
        return Table(rows.table(), about, formats=_FORMATS)

    def _values(self, number: int, image: _Image, labels: Mapping[int, int]) -> dict[str, Any]:
        objects = list(image.objects.values())
        return {
            "image_id": number,
            "labels": [labels[one.category] for one in objects],
            "boxes": [one.box for one in objects],
            "areas": [one.area for one in objects],
            "iscrowd": [one.crowd for one in objects],
            "polygons": [one.polygons for one in objects],
            "rle": [one.rle for one in objects],
            "category_ids": [one.category for one in objects],
            "annotation_ids": list(image.objects),
            "keypoints": [self._padded(one.keypoints or []) for one in objects],
            "num_keypoints": [one.labelled for one in objects],
            "captions": [caption for _, caption in image.captions.values()],
        }

    def _padded(self, points: list[float]) -> list[float]:
        return points + [0.0] * (3 * self._keypoints - len(points))


def _parsed(path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Any:
    """Return a file's JSON.

    Raises:
        RemoteError: The URL cannot be reached.
        SourceError: It cannot be read.
    """
    try:
        return parse_json(read_file(path, storage_options), lenient=True)
    except ValueError as error:
        reason = f"it is not JSON: {error}"
        raise _not_coco(shown_name(os.fspath(path)), reason) from None


def _segmentation(
    found: Any,
) -> tuple[list[npt.NDArray[np.float64]], dict[str, Any] | None]:
    """Return polygons, or run lengths.

    Raises:
        ValueError: It is neither.
    """
    if found is None:
        return [], None
    if isinstance(found, list):
        if not all(map(_is_polygon, found)):
            raise ValueError("its segmentation has a polygon that is not pairs of finite numbers")
        return [np.array(one, np.float64) for one in found], None
    size = found.get("size") if isinstance(found, dict) else None
    if not (isinstance(size, list) and len(size) == 2 and all(map(_is_side, size))):
        raise ValueError(f"its segmentation is neither polygons nor RLE: {_short(found)}")
    counts = found.get("counts")
    if isinstance(counts, str):
        counts = decode_counts(counts)
    whole = size[0] * size[1]
    if not isinstance(counts, list) or not all(_is_id(one) and 0 <= one <= whole for one in counts):
        raise ValueError("its RLE has counts that are not whole numbers of pixels")
    if whole > _MOST_PIXELS or sum(counts) != whole:
        raise ValueError(f"its RLE has {sum(counts):,} pixels, but its size is {size}")
    return [], {"size": size, "counts": counts}


def decode_counts(text: str) -> list[int]:
    """Return the run lengths of COCO's compressed RLE.

    A number has five bits a character, the lowest first; from the fourth on, it is the difference
    from the one before the last.

    Raises:
        ValueError: The text is no such RLE.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            raise ValueError("its RLE has counts that are not in COCO's compressed form")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:  # negative
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("its RLE ends within a count")
    return counts


def _is_id(value: Any) -> TypeGuard[int]:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _is_side(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _is_finite(value: Any) -> bool:
    # A comparison, not math.isfinite(): integers may be too large for a float.
    return type(value) in (int, float) and abs(value) <= 1.7976931348623157e308


def _is_polygon(value: Any) -> bool:
    return isinstance(value, list) and not len(value) % 2 and all(map(_is_finite, value))


def _is_edge(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_id, value))


def _short(value: Any) -> str:
    """Return a value of the file for a message."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _not_coco(name: str, reason: str) -> SourceError:
    return SourceError(f"{name}: cannot be read as COCO's annotations: {reason}", "Check the file.")
