"""Source of images in the layout of Pascal VOC: XML files of objects, and masks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import pyarrow as pa
from fastdata.converters.annotations import (
    BOXES,
    AnnotatedImages,
    Folder,
    Rows,
    Table,
    number_of,
)

from fastdata.errors import SourceError

#: Pascal VOC's own classes, by label.
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
_IMAGES, _OBJECTS, _SETS = "JPEGImages", "Annotations", "ImageSets"
#: Kinds of lists in ImageSets; images of the second must have masks.
_MAIN, _SEGMENTATION = "Main", "Segmentation"
#: Folders of masks, and their fields.
_MASKS = {"SegmentationClass": "segmentation_class", "SegmentationObject": "segmentation_object"}
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_FLAGS = ("difficult", "truncated", "occluded")
_COLUMNS = {
    "labels": pa.list_(pa.int32()),
    "boxes": BOXES,
    "names": pa.list_(pa.string()),
    **dict.fromkeys(_FLAGS, pa.list_(pa.bool_())),
    "pose": pa.list_(pa.string()),
}


class VocImages(AnnotatedImages):
    """Source of the images of a folder such as VOCdevkit/VOC2012, in the order of a split's list.

    Objects are lists in the order of the XML file. Their columns are ``labels``, ``boxes`` (x and y
    of two corners, as the file has them), ``names``, ``difficult``, ``truncated``, ``occluded`` and
    ``pose``. Masks are the fields ``segmentation_class`` and ``segmentation_object``. An
    image whose XML file or, in a list for segmentation, mask is missing or damaged is a bad sample.

    Args:
        root: The folder with JPEGImages/ and Annotations/, or its URL.
        split: Name of a list, ImageSets/Main/<split>.txt, else ImageSets/Segmentation/<split>.txt;
            ``Segmentation/<split>`` for the latter. None for all images, by name.
        classes: Class names, by label; None for VOC's own, or the sorted names of all XML files if
            there are others.
        fields: Columns to take; None for all.
        storage_options: Options of the driver of a URL.

    Raises:
        RemoteError: The URL cannot be reached.
        SourceError: The folder has another layout, or no such list.
        UsageError: There is no such column.
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
        folder = Folder(root, storage_options)
        table = _annotated(folder, split, classes)
        super().__init__(table, root, fields, storage_options=storage_options)


def _annotated(folder: Folder, split: str | None, classes: Sequence[str] | None) -> Table:
    """Return the images of a folder, and their annotations; see `VocImages`."""
    images = {_stem(name): name for name in folder.images(_IMAGES)}
    if not images:
        raise SourceError(
            f"{folder}: has no images in {_IMAGES}/",
            "Give the folder with JPEGImages/ and Annotations/, such as VOCdevkit/VOC2012.",
        )
    masks = {
        field: {_stem(name): name for name in folder.images(below)}
        for below, field in _MASKS.items()
        if folder.has_folder(below)
    }
    has_objects = folder.has_folder(_OBJECTS)
    kind, names = _MAIN, [*images, *(name for mask in masks.values() for name in mask)]
    if split is not None:
        kind, names = _listed(folder, split)
    else:
        names += map(_stem, _xml_files(folder) if has_objects else ())
        names = sorted(set(names))
    found: list[dict[str, Any] | str] = [{} for _ in names]
    if has_objects:
        files = [f"{_OBJECTS}/{name}.xml" for name in names]
        found = [_objects_of(*one) for one in zip(files, folder.read_all(files), strict=True)]
        classes = _classes(folder, found) if classes is None else list(classes)
    labels = {name: label for label, name in enumerate(classes or ())}
    rows = Rows({**(_COLUMNS if has_objects else {}), **dict.fromkeys(masks, pa.string())})
    for name, values in zip(names, found, strict=True):
        path = images.get(name, f"{_IMAGES}/{name}.jpg")
        if isinstance(values, str):
            rows.add_bad(values, path, name)
            continue
        unknown = next((one for one in values.get("names", ()) if one not in labels), None)
        if unknown is not None:
            rows.add_bad(f"{_OBJECTS}/{name}.xml: {unknown!r} is not among the classes", path, name)
            continue
        values["labels"] = [labels[one] for one in values.get("names", ())]
        for below, field in _MASKS.items():
            # A mask that must be there is a missing file, so a bad sample.
            needed = f"{below}/{name}.png" if kind == _SEGMENTATION else None
            values[field] = masks.get(field, {}).get(name, needed)
        rows.add(path, values, name)
    about = {"kind": "voc", "split": split, "classes": list(labels)}
    return Table(rows.table(), about, tuple(masks), {"boxes": "xyxy"})


def _splits(folder: Folder) -> list[str]:
    """Return the names of the lists in ImageSets/Main, else of those in ImageSets/Segmentation.

    Lists of one class, such as ``cat_train``, are left out.
    """
    for kind in (_MAIN, _SEGMENTATION):
        names = [_stem(name) for name in folder.names(f"{_SETS}/{kind}") if name.endswith(".txt")]
        found = [name for name in names if name.partition("_")[0] not in CLASSES]
        if found:
            return found
    return []


def _listed(folder: Folder, split: str) -> tuple[str, list[str]]:
    """Return the kind of a split's list, and the names of images in it."""
    kind, _, name = split.rpartition("/")
    for one in [kind] if kind else [_MAIN, _SEGMENTATION]:
        path = f"{_SETS}/{one}/{name}.txt"
        if folder.has(path):
            break
    else:
        there = ", ".join(_splits(folder)) or "none"
        raise SourceError(
            f"{folder}: has no list {_SETS}/{kind or _MAIN}/{name}.txt",
            f"There are: {there}. Name one with --split, or leave it out for all images.",
        )
    try:
        lines = folder.read(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(f"{folder}/{path}: {error}", "Write it in UTF-8.") from None
    # Lists of one class have a second column.
    names = [line.split()[0] for line in lines if line.strip()]
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise SourceError(f"{folder}/{path}: lists {name} twice", "Remove one of the lines.")
    return one, names


def _classes(folder: Folder, found: Sequence[dict[str, Any] | str]) -> list[str]:
    """Return VOC's classes; if there are others, those of all splits: labels must not differ."""
    if _names_in(found) <= set(CLASSES):
        return list(CLASSES)
    files = _xml_files(folder)
    everything = map(_objects_of, files, folder.read_all(files))
    return sorted(_names_in(list(everything)))


def _xml_files(folder: Folder) -> list[str]:
    return [name for name in folder.names(_OBJECTS) if name.endswith(".xml")]


def _names_in(found: Sequence[dict[str, Any] | str]) -> set[str]:
    return {name for one in found if not isinstance(one, str) for name in one["names"]}


def _objects_of(path: str, data: bytes | str) -> dict[str, Any] | str:
    """Return the columns of an XML file; its problem if it has one."""
    if isinstance(data, str):
        return f"its annotation {path} {data}"
    try:
        root = parse_xml(data)
        if root.tag != "annotation":
            raise ValueError(f"its root is <{root.tag}>, not <annotation>")
        values: dict[str, Any] = {name: [] for name in _COLUMNS}
        for number, one in enumerate(root.findall("object")):
            for name, value in _object(number, one).items():
                values[name].append(value)
    except (ValueError, expat.ExpatError) as error:
        return f"{path}: {error}"
    return values


def _object(number: int, element: Element) -> dict[str, Any]:
    """Return the values of one object.

    Raises:
        ValueError: It is damaged.
    """
    name = _text(element, "name")
    if not name:
        raise ValueError(f"object {number} has no name")
    box = element.find("bndbox")
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
        if text not in ("0", "1"):
            raise ValueError(f"object {number} ({name}): its {flag} is {text!r}, neither 0 nor 1")
        values[flag] = text == "1"
    values["pose"] = _text(element, "pose") or "Unspecified"
    return values


def _text(element: Element, name: str) -> str | None:
    text = element.findtext(name)
    return None if text is None else text.strip()


def parse_xml(data: bytes) -> Element:
    """Read XML that declares no entities.

    Raises:
        ValueError: It declares one.
        xml.parsers.expat.ExpatError: It is not XML.
    """
    builder = TreeBuilder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = _refuse_entity
    try:
        parser.Parse(data, True)
    except LookupError as error:  # an unknown encoding
        raise ValueError(str(error)) from None
    return builder.close()


def _refuse_entity(name: str, *_: Any) -> None:
    raise ValueError(f"it declares the entity {name}, which might be a bomb")


def _stem(name: str) -> str:
    return os.path.splitext(os.path.basename(name))[0]
