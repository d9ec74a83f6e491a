"""Source of images that COCO's JSON files annotate: objects, keypoints and captions."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import pyarrow as pa
from fastdata.converters.annotations import (
    BOXES,
    LABELS,
    MOST_KEYPOINTS,
    POLYGONS,
    AnnotatedImages,
    Annotations,
    are_numbers,
    is_number,
    is_text,
    shown_name,
)
from fastdata.converters.trees import data_files, read_file, source_tree

from fastdata.errors import SourceError, UsageError
from fastdata.storage.jsontext import parse_json
from fastdata.text import human_size

#: Run lengths of each object's mask, from the top left, by columns; null for polygons.
RLES = pa.list_(pa.struct([("size", pa.list_(pa.int32(), 2)), ("counts", pa.list_(pa.uint32()))]))
_OBJECTS = {
    "labels": LABELS,
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
#: Keys of objects. An annotation in which all of them are empty may be a caption.
_OF_OBJECTS = ("bbox", "segmentation", "keypoints")
#: Most pixels of a mask.
_MOST_PIXELS = (1 << 32) - 1


class CocoImages(AnnotatedImages):
    """Source of the images of COCO's annotations, by image id.

    Objects are lists in the order of the annotations. Their columns are ``labels`` (from 0, by
    category id), ``boxes`` (x, y, width, height, as the file has them), ``areas``, ``iscrowd``,
    ``polygons``, ``rle``, ``category_ids`` and ``annotation_ids``. With keypoints, there are also
    ``keypoints`` and ``num_keypoints``. ``captions`` are strings. An image without annotations has
    empty lists. The categories with their original ids are in ``origin``.

    An annotation that is damaged, or names an unknown category, makes its image a bad sample. An
    image without a whole number as id, without its file, or of another width or height, is a bad
    sample, and so is an annotation of an unknown image.

    ``file_name`` is relative to ``images``. JSON files of the same images give one row for each
    image. ``others`` are files of other splits, whose categories labels number, too.
    """

    def __init__(
        self,
        images: str | os.PathLike[str],
        annotations: Sequence[str | os.PathLike[str]],
        *,
        others: Sequence[str | os.PathLike[str]] = (),
        fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not annotations:
            what = "no file of annotations"
            raise UsageError(what, "Name COCO's JSON files with --annotations.")
        reader = _Reader()
        for path in others:
            name, content = _parsed(path, storage_options)
            reader.add_categories(name, content)
        for path in annotations:
            reader.read(*_parsed(path, storage_options))
        super().__init__(reader.annotations(), images, fields, annotations, storage_options)


def coco_splits(
    root: str | os.PathLike[str],
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, tuple[str, list[str]]]:
    """Return the folder of images and the annotations of each split in COCO's folder.

    Files are ``annotations/<kind>_<split>.json``, and images in ``<split>/`` or
    ``images/<split>/``; or both are in ``<split>/``, and the file is ``_annotations.coco.json``.
    """
    tree = source_tree(root, storage_options)
    folders = {name: tree / name for name in tree.classes()}
    if "images" in folders:
        images = folders["images"]
        folders = {**{name: images / name for name in images.classes()}, **folders}
    files: dict[str, list[str]] = {}
    if "annotations" in folders:
        for name, file in data_files(folders["annotations"], ".json").items():
            match = _ANNOTATIONS.fullmatch(name)
            if match and match[1] in folders:
                files.setdefault(match[1], []).append(file.location)
    for name, folder in folders.items():
        if beside := folder.file("_annotations.coco.json"):
            files.setdefault(name, []).append(beside.location)
    if not files or (split is not None and split not in files):
        raise SourceError(
            f"{tree}: has no {split or 'split'} with annotations",
            f"It has {', '.join(sorted(files)) or 'none'}. --root is the folder with annotations/; "
            "or, if --annotations names the files, the folder of the images.",
        )
    return {name: (folders[name].root, files[name]) for name in sorted(files)}


class _Object(NamedTuple):
    """Object apart from its id and box; None for what a file does not say.

    A mask is polygons (arrays) or RLE (a dict).
    """

    mask: Any
    category: int | None
    area: float | None
    crowd: bool | None
    keypoints: list[float] | None

    def merged(self, other: _Object) -> _Object:
        """Return the object that both are; raise ValueError if they contradict each other."""
        for name, mine, its in zip(self._fields, self, other, strict=True):
            if mine is not None and its is not None and mine != its:
                raise ValueError(f"an annotation of the same id and box has another {name}")
        return _Object(
            *(its if mine is None else mine for mine, its in zip(self, other, strict=True))
        )


@dataclass
class _Image:
    """Image, its objects by id and box, and its captions' ids and texts.

    Each file may number its annotations from 1, so several may have one id. ``key`` is its key in
    the list of bad samples, if it has no path.
    """

    path: str | None
    key: str | None = None
    size: tuple[int, int] | None = None
    problem: str | None = None
    objects: dict[tuple[int, tuple[float, ...]], _Object] = field(default_factory=dict)
    captions: dict[tuple[int, str], None] = field(default_factory=dict)

    def require_size(self, what: str, width: int, height: int) -> None:
        """Note the size that a part of the annotations gives the image."""
        if self.size is not None and self.size != (width, height):
            raise ValueError(
                f"{what} is {human_size(width, height)}, but {human_size(*self.size)} elsewhere"
            )
        self.size = width, height


class _Reader:
    """Reader that merges the annotations of some files by image."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._images: dict[int, _Image] = {}
        self._categories: dict[int, dict[str, Any]] = {}
        self._ids: dict[str, set[int]] = {}  # of categories, by name
        self._known: set[tuple[int, int]] = set()  # ids of images and annotations of a file
        # Key and reason of an annotation of an unknown image, by the image's id.
        self._bad: dict[int, tuple[str, str]] = {}
        self._unnumbered: dict[str, str] = {}  # reasons, by key, where an id is no whole number
        self._odd_ids: set[str] = set()  # of these images
        self._has_objects = self._has_captions = False
        self._keypoints = 0

    def read(self, name: str, content: dict[str, Any]) -> None:
        """Read the content of one file: its categories, images, then annotations."""
        short = name.rpartition("/")[2]
        self._names.append(short)
        self._known = set()
        self.add_categories(name, content)
        for number, image in enumerate(content["images"]):
            self._add_image(f"{name}: images[{number}]", f"{short}/images/{number}", image)
        if content.get("annotations") is not None:
            self._has_objects |= "categories" in content
            self._has_captions |= "categories" not in content
            self._add_annotations(name, short, content["annotations"])

    def add_categories(self, file: str, content: dict[str, Any]) -> None:
        """Add the categories of a file."""
        ids_by_name: dict[str, set[int]] = {}
        for category in content.get("categories", ()):
            known = self._add_category(file, category)
            ids_by_name.setdefault(known["name"], set()).add(known["id"])
        for name, ids in ids_by_name.items():  # two categories of one file may have one name
            elsewhere = self._ids.setdefault(name, ids)
            if ids.isdisjoint(elsewhere):
                raise SourceError(
                    f"{file}: the category {name!r} has the id {min(ids)}, but {min(elsewhere)} "
                    "elsewhere",
                    "Correct the files: one name, one id.",
                )
            elsewhere |= ids

    def _add_category(self, file: str, category: Any) -> dict[str, Any]:
        fields = category if isinstance(category, dict) else {}
        number, name = _whole(fields.get("id")), fields.get("name")
        if number is None or not is_text(name):
            raise _not_coco(file, f"a category has no id and name: {_short(category)}")
        known = self._categories.setdefault(number, {"id": number, "name": name})
        if known["name"] != name:
            raise SourceError(
                f"{file}: the category {number} is {name!r}, but {known['name']!r} elsewhere",
                "Correct the files: one id, one name.",
            )
        if is_text(fields.get("supercategory")):
            known["supercategory"] = fields["supercategory"]
        points = fields.get("keypoints") or []
        if not isinstance(points, list) or not all(map(is_text, points)):
            raise _not_coco(file, f"keypoints of category {number} are not a list of names")
        if points:
            known["keypoints"] = points
        self._keypoints = max(self._keypoints, len(points))
        return known

    def _add_image(self, place: str, key: str, entry: Any) -> None:
        fields = entry if isinstance(entry, dict) else {}
        number, path = _whole(fields.get("id")), fields.get("file_name")
        if number is None:
            self._unnumbered[key] = f"{place} has no whole number as id: {_short(entry)}"
            self._odd_ids.add(repr(fields.get("id")))
            return
        if not is_text(path) or not path:
            image = self._images.setdefault(number, _Image(None, key))
            image.problem = image.problem or f"{place} has no file_name: {_short(entry)}"
            return
        image = self._images.setdefault(number, _Image(path))
        name, sides = f"the image {number}", [fields.get("width"), fields.get("height")]
        try:
            if image.path != path:
                raise ValueError(f"{name} has the file_name {image.path}, and {path}, too")
            if None not in sides:
                width, height = map(_whole, sides)
                if not _is_side(width) or not _is_side(height):
                    raise ValueError(f"{name} has the sides {_short(sides)}, not whole numbers")
                image.require_size(name, width, height)
        except ValueError as error:
            image.problem = image.problem or str(error)

    def _add_annotations(self, name: str, short: str, annotations: list[Any]) -> None:
        annotations.reverse()
        for number in range(len(annotations)):
            # A file's objects need ten times the memory of the arrays that become of them.
            annotation = annotations.pop()
            place = f"{name}: annotations[{number}]"
            image_id = annotation.get("image_id") if isinstance(annotation, dict) else None
            where = _whole(image_id)
            if where is None:
                problem = f"{place} has no whole number as image_id: {_short(annotation)}"
                self._add_unnumbered(image_id, f"{short}/annotations/{number}", problem)
                continue
            image = self._images.get(where)
            if image is None:
                problem = f"{place}: its image {where} is in none of the files read so far"
                self._bad.setdefault(where, (f"{short}/annotations/{number}", problem))
                continue
            try:
                self._add_annotation(where, image, annotation)
            except ValueError as error:
                what = f"{place} (id {_short(annotation.get('id'))})"
                image.problem = image.problem or f"{what}: {error}"

    def _add_unnumbered(self, image_id: Any, key: str, problem: str) -> None:
        """Add an annotation whose image's id is no whole number; an image that it means is bad."""
        digits = (
            image_id
            if isinstance(image_id, str) and image_id.isascii() and image_id.isdigit()
            else ""
        )
        if image := self._images.get(int(digits)) if digits else None:
            image.problem = image.problem or problem
        elif image_id is None or repr(image_id) not in self._odd_ids:
            self._unnumbered[key] = problem

    def _add_annotation(self, where: int, image: _Image, annotation: dict[str, Any]) -> None:
        number, caption = _whole(annotation.get("id")), annotation.get("caption")
        if number is None:
            raise ValueError("its id is not a whole number")
        if (where, number) in self._known:
            raise ValueError("another annotation of the image has the same id")
        self._known.add((where, number))
        is_object = any(annotation.get(key) not in (None, []) for key in _OF_OBJECTS)
        is_object |= annotation.get("category_id") is not None and not caption
        if is_object or "caption" not in annotation:
            box, described = self._object(annotation)
            if isinstance(described.mask, dict):
                height, width = described.mask["size"]
                image.require_size("its RLE", width, height)
            self._has_objects = True
            self._keypoints = max(self._keypoints, len(described.keypoints or ()) // 3)
            other = image.objects.get((number, box), described)
            image.objects[number, box] = other.merged(described)
            if caption in (None, ""):  # exporters write the key for every object
                return
        if not is_text(caption):
            raise ValueError(f"its caption is {_short(caption)}")
        self._has_captions = True
        image.captions[number, caption] = None

    def _object(self, annotation: dict[str, Any]) -> tuple[tuple[float, ...], _Object]:
        """Return an object's box and the rest."""
        get = annotation.get
        category, box, area = _whole(get("category_id")), get("bbox"), get("area")
        crowd, points = get("iscrowd", 0), get("keypoints")
        if category not in self._categories:
            raise ValueError(f"its category {_short(get('category_id'))} is not listed")
        if not are_numbers(box, 4):
            raise ValueError(f"its bbox is {_short(box)}, not four finite numbers")
        if area is not None and not is_number(area):
            raise ValueError(f"its area is {_short(area)}")
        if crowd not in (0, 1):
            raise ValueError(f"its iscrowd is {_short(crowd)}, neither 0 nor 1")
        mask = _segmentation(get("segmentation"))
        if points is not None and (
            not are_numbers(points) or len(points) % 3 or len(points) > 3 * MOST_KEYPOINTS
        ):
            raise ValueError(f"its keypoints are {_short(points)}, not triples of numbers")
        # Arrow refuses integers that a float cannot hold exactly.
        return tuple(map(float, box or ())), _Object(
            mask=mask,
            category=category,
            area=None if area is None else float(area),
            crowd=bool(crowd) if "iscrowd" in annotation else None,
            keypoints=None if points is None else list(map(float, points)),
        )

    def annotations(self) -> Annotations:
        """Return the images sorted by id, then annotations that belong to no image."""
        labels = {number: label for label, number in enumerate(sorted(self._categories))}
        columns: dict[str, pa.DataType] = {"image_id": pa.int64()}
        if self._has_objects:
            columns |= _OBJECTS
        if self._has_objects and self._keypoints:
            columns["keypoints"] = pa.list_(pa.list_(pa.float32(), 3 * self._keypoints))
            columns["num_keypoints"] = LABELS
        if self._has_captions:
            columns["captions"] = pa.list_(pa.string())
        categories = [self._categories[number] for number in sorted(self._categories)]
        origin = {
            "kind": "coco",
            "annotations": self._names,
            "classes": [category["name"] for category in categories],
            "categories": categories,
        }
        rows = Annotations(columns, origin, _FORMATS)
        for where in self._bad.keys() & self._images.keys():  # listed in a later file
            self._images[where].problem = self._bad[where][1]
        for number in sorted(self._images):
            image = self._images.pop(number)
            values = image.problem or self._values(number, image, labels)
            rows.add(image.path, values, image.key, image.size)
        for key, problem in (*self._bad.values(), *self._unnumbered.items()):
            rows.add(None, problem, key)
        return rows

    def _values(self, number: int, image: _Image, labels: Mapping[Any, int]) -> dict[str, Any]:
        objects, boxes = list(image.objects.values()), [box for _, box in image.objects]
        masks, points = [one.mask for one in objects], 3 * self._keypoints
        return {
            "image_id": number,
            "labels": [labels[one.category] for one in objects],
            "boxes": boxes,
            "areas": [
                box[2] * box[3] if one.area is None else one.area
                for box, one in zip(boxes, objects, strict=True)
            ],
            "iscrowd": [bool(one.crowd) for one in objects],
            "polygons": [mask if isinstance(mask, list) else [] for mask in masks],
            "rle": [mask if isinstance(mask, dict) else None for mask in masks],
            "category_ids": [one.category for one in objects],
            "annotation_ids": [number for number, _ in image.objects],
            "keypoints": [((one.keypoints or []) + [0.0] * points)[:points] for one in objects],
            "num_keypoints": [
                sum(value > 0 for value in (one.keypoints or ())[2::3]) for one in objects
            ],
            "captions": [text for _, text in image.captions],
        }


def _parsed(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """Return a file's name, for messages, and its content."""
    name = shown_name(os.fspath(path))
    try:
        content = parse_json(read_file(path, storage_options), lenient=True)
    except ValueError as error:
        raise _not_coco(name, f"it is not JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        raise _not_coco(name, "it has no list of images")
    for part in ("categories", "annotations"):
        if not isinstance(content.get(part, []), list):
            raise _not_coco(name, f"{part} is not a list")
    return name, content


def _segmentation(value: Any) -> Any:
    """Return polygons as arrays, or run lengths as a dict; None for none."""
    if value is None or value == []:
        return None
    if isinstance(value, list):
        if not all(are_numbers(one) and not len(one) % 2 for one in value):
            raise ValueError("its segmentation has a polygon that is not pairs of finite numbers")
        return [array("d", one) for one in value]
    size = value.get("size") if isinstance(value, dict) else None
    if not (isinstance(size, list) and len(size) == 2 and all(map(_is_side, size))):
        raise ValueError(f"its segmentation is neither polygons nor RLE: {_short(value)}")
    counts, whole = value.get("counts"), size[0] * size[1]
    if isinstance(counts, str):
        counts = decode_counts(counts)
    if not isinstance(counts, list) or not all(
        type(one) is int and 0 <= one <= whole for one in counts
    ):
        raise ValueError("its RLE has counts that are not whole numbers of pixels")
    if whole > _MOST_PIXELS or sum(counts) != whole:
        raise ValueError(f"its RLE has {sum(counts):,} pixels, but its size is {size}")
    return {"size": size, "counts": counts}


def decode_counts(text: str) -> list[int]:
    """Return the run lengths of COCO's compressed RLE.

    A number has five bits a character, the lowest first; from the fourth on, it is the difference
    from the one before the last.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            raise ValueError("its RLE has counts that are not in COCO's compressed form")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            if bits & 16:  # negative
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if shift:
        raise ValueError("its RLE ends within a count")
    return counts


def _whole(value: Any) -> int | None:
    """Return an id or a number that may be written as 1.0; None if it is not whole."""
    if type(value) is float and float.is_integer(value):
        value = int(value)
    return value if type(value) is int and -(1 << 63) <= value < 1 << 63 else None


def _is_side(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 31


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _not_coco(name: str, reason: str) -> SourceError:
    return SourceError(f"{name}: cannot be read as COCO's annotations: {reason}", "Check the file.")
