"""Source of images in the layout of Pascal VOC: XML files of objects, and masks."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any
from xml.etree.ElementTree import Element, ParseError, fromstring

import pyarrow as pa
from fastdata.converters.annotations import (
    BOXES,
    LABELS,
    AnnotatedFolder,
    AnnotatedImages,
    Annotations,
    number_of,
)
from fastdata.converters.table import distinct_classes, key_of

from fastdata.errors import SourceError

#: Pascal VOC's own classes, by label.
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
_IMAGES, _OBJECTS, _SETS = "JPEGImages", "Annotations", "ImageSets"
#: Kinds of lists in ImageSets; images of the second must have masks.
_MAIN, _SEGMENTATION = _KINDS = "Main", "Segmentation"
#: Folders of masks, and their fields.
_MASKS = {"SegmentationClass": "segmentation_class", "SegmentationObject": "segmentation_object"}
#: A line of a list of one class: a name, and whether the class is in the image.
_OF_ONE_CLASS = re.compile(r"(.*\S)\s+(?:-1|0|1)\s*")
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_UNKNOWN = "Unspecified"
_FLAGS = ("difficult", "truncated", "occluded")
_COLUMNS = {
    "labels": LABELS,
    "boxes": BOXES,
    "names": pa.list_(pa.string()),
    **dict.fromkeys(_FLAGS, pa.list_(pa.bool_())),
    "pose": pa.list_(pa.string()),
}


class VocImages(AnnotatedImages):
    """Source of the images of a folder such as VOCdevkit/VOC2012, in the order of a split's list.

    The image ``a`` is JPEGImages/a.jpg; if there is none, the only file of that name with another
    suffix of images. Its masks have the suffix .png by the same rule.

    Objects are lists in the order of the XML file. Their columns are ``labels``, ``boxes`` (x and y
    of two corners, as the file has them), ``names``, ``difficult``, ``truncated``, ``occluded`` and
    ``pose``. Masks are the fields ``segmentation_class`` and ``segmentation_object``. An
    image whose XML file or, in a list for segmentation, mask is missing or damaged is a bad sample,
    and so is one of another size than its XML file says.

    Args:
        split: Name of a list, ImageSets/Main/<split>.txt, else ImageSets/Segmentation/<split>.txt;
            ``Segmentation/<split>`` for the latter. None for all images, by name.
        classes: Class names, by label; None for VOC's own, or, if any XML file has another name,
            the sorted names of all XML files.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str | None = None,
        *,
        classes: Sequence[str] | None = None,
        fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        annotations = _annotations(AnnotatedFolder(root, storage_options), split, classes)
        super().__init__(annotations, root, fields, storage_options=storage_options)


def _annotations(
    folder: AnnotatedFolder, split: str | None, classes: Sequence[str] | None
) -> Annotations:
    images = folder.images(_IMAGES)
    if not images:
        raise SourceError(
            f"{folder}: has no images in {_IMAGES}/",
            "Give the folder with JPEGImages/ and Annotations/, such as VOCdevkit/VOC2012.",
        )
    masks = {below: folder.images(below) for below in _MASKS if folder.has_folder(below)}
    every = [name for name in folder.names(_OBJECTS) if name.endswith(".xml")]
    has_objects = folder.has_folder(_OBJECTS)
    known = {*images, *(key_of(path[len(_OBJECTS) + 1 :]) for path in every)}
    if split is not None:
        kind, names = _listed(folder, split, known)
    else:
        kind, names = _MAIN, sorted(known.union(*masks.values()))
    objects_of_names: list[dict[str, Any] | str | None] = [{} for _ in names]
    if has_objects:
        # Labels must be the same in each split, so all files together give the classes.
        files = [f"{_OBJECTS}/{name}.xml" for name in names]
        objects_of_names = list(folder.read_all(files, _objects_of))
        if classes is None:
            of_others = folder.read_all(sorted(set(every).difference(files)), _objects_of)
            read = (one for one in chain(objects_of_names, of_others) if isinstance(one, dict))
            used = {name for one in read for name in one["names"]}
            classes = CLASSES if used <= set(CLASSES) else sorted(used)
    labels = {name: label for label, name in enumerate(distinct_classes(classes or ()))}
    fields = {_MASKS[below]: pa.string() for below in masks}
    origin = {"kind": "voc", "split": split, "classes": list(labels)}
    columns = {**(_COLUMNS if has_objects else {}), **fields}
    rows = Annotations(columns, origin, {"boxes": "xyxy"}, tuple(fields))
    for name, values in zip(names, objects_of_names, strict=True):
        path, objects = f"{_IMAGES}/{name}.jpg", f"{_OBJECTS}/{name}.xml"
        values = f"{objects} does not exist" if values is None else values
        size = None
        try:
            path = _file_of(path, images.get(name, []), alone=split is None)
            if isinstance(values, dict):
                size, used = values.pop("size", None), values.get("names", ())
                if unknown := [one for one in used if one not in labels]:
                    raise ValueError(f"{objects}: {unknown[0]!r} is not among the classes")
                values["labels"] = [labels[one] for one in used]
                for below, of_name in masks.items():
                    # A mask that must be there is a missing file, so a bad sample.
                    if name in of_name or kind == _SEGMENTATION:
                        mask = _file_of(f"{below}/{name}.png", of_name.get(name, []))
                        values[_MASKS[below]] = mask
        except ValueError as error:
            values = str(error)
        rows.add(path, values, name, size)
    return rows


def _file_of(usual: str, files: Sequence[str], *, alone: bool = False) -> str:
    """Return the file of a name: VOC's usual one if it exists, else the only one of ``files``.

    ``alone`` refuses another beside the usual one.
    """
    if len(files) > 1 and (alone or usual not in files):
        raise ValueError(f"{' and '.join(files)} have the same name; keep one of them")
    return usual if usual in files or not files else files[0]


def _listed(folder: AnnotatedFolder, split: str, known: set[str]) -> tuple[str, list[str]]:
    """Return the kind of a split's list, and the names of images in it."""
    kind, _, name = split.rpartition("/")
    for one in [kind] if kind else _KINDS:
        path = f"{_SETS}/{one}/{name}.txt"
        if folder.has(path):
            break
    else:
        texts = [key_of(path) for one in _KINDS for path in folder.names(f"{_SETS}/{one}")]
        lists = {path.rpartition("/")[2] for path in texts}
        # Without lists of one class, such as cat_train.
        of_classes = tuple(f"{name}_" for name in CLASSES)
        there = ", ".join(sorted(x for x in lists if not x.startswith(of_classes))) or "none"
        raise SourceError(
            f"{folder}: has no list {_SETS}/{kind or _MAIN}/{name}.txt",
            f"It has {there}. Name one with --split, or leave it out for all images.",
        )
    lines = [line for line in folder.lines(path) if line.strip()]
    names = [_stripped(line, known) for line in lines]
    # Lists of one class have a second column. Names may have spaces, too.
    parts = [_OF_ONE_CLASS.fullmatch(line) for line in lines]
    if all(parts) and known.isdisjoint(names):
        names = [_stripped(part[1], known) for part in parts if part]
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise SourceError(f"{folder}/{path}: lists {name} twice", "Remove one of the lines.")
    return one, names


def _stripped(name: str, known: Container[str]) -> str:
    """Return a name in a list without spaces around it, unless they are the file's, too."""
    candidates = (one for one in (name, name.rstrip(), name.lstrip()) if one in known)
    return next(candidates, name.strip())


def _objects_of(data: bytes) -> dict[str, Any]:
    try:
        root = fromstring(data)
    except (LookupError, ParseError) as error:  # of an unknown encoding
        raise ValueError(str(error)) from None
    if root.tag != "annotation":
        raise ValueError(f"its root is <{root.tag}>, not <annotation>")
    values: dict[str, Any] = {name: [] for name in _COLUMNS} | {"size": _size(root)}
    objects = root.findall("object")
    if sum(one.tag.lower() == "object" for one in root.iter()) > len(objects):
        raise ValueError("it has objects that are not <object> directly in <annotation>")
    for number, one in enumerate(objects):
        for name, value in _object(number, one).items():
            values[name].append(value)
    return values


def _size(root: Element) -> tuple[int, int] | None:
    """Return the width and height that an annotation gives its image; None if it gives none."""
    size = _child(root, "size")
    texts = ["0" if size is None else _text(size, side) or "0" for side in ("width", "height")]
    with suppress(ValueError):
        width, height = map(float, texts)
        if all(side.is_integer() and 0 <= side < 1 << 31 for side in (width, height)):
            # Tools write 0 where they do not know it.
            return (int(width), int(height)) if width and height else None
    raise ValueError(f"its size is {' x '.join(texts)}, not whole numbers from 0")


def _object(number: int, element: Element) -> dict[str, Any]:
    name = _text(element, "name")
    if not name:
        raise ValueError(f"object {number} has no name")
    box = _child(element, "bndbox")
    if box is None:
        raise ValueError(f"object {number} ({name}) has no bndbox")
    corners = []
    for corner in _CORNERS:
        text = _text(box, corner)
        try:
            corners.append(number_of(text))
        except ValueError:
            raise ValueError(
                f"object {number} ({name}): its {corner} is {text!r}, not a finite number"
            ) from None
    values: dict[str, Any] = {"names": name, "boxes": corners}
    for flag in _FLAGS:
        text = _text(element, flag) or "0"
        share = 0.0 if text == _UNKNOWN else -1.0
        with suppress(ValueError):
            share = number_of(text)
        if not 0 <= share <= 1:
            what = f"object {number} ({name}): its {flag} is {text!r}"
            raise ValueError(f"{what}, neither 0 nor 1, nor a share")
        values[flag] = share > 0
    values["pose"] = _text(element, "pose") or _UNKNOWN
    return values


def _child(element: Element, name: str) -> Element | None:
    children = element.findall(name)
    if len(children) > 1:
        raise ValueError(f"<{element.tag}> has {len(children)} <{name}>")
    return children[0] if children else None


def _text(element: Element, name: str) -> str | None:
    child = _child(element, name)
    return None if child is None else (child.text or "").strip()
