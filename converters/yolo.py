"""Source of images with YOLO's labels: a text file for each image, a line for each object."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import pyarrow as pa
from fastdata.converters.annotations import (
    BOXES,
    LABELS,
    MOST_KEYPOINTS,
    POLYGONS,
    AnnotatedFolder,
    AnnotatedImages,
    Annotations,
    number_of,
    shown_name,
)
from fastdata.converters.table import key_of
from fastdata.converters.trees import read_file

from fastdata.errors import SourceError, warn
from fastdata.storage.encodings import is_image_name
from fastdata.storage.paths import is_inside

_SPLITS = ("train", "val", "test")
#: Share of an image's side that coordinates may lie outside, as in ultralytics.
_TOLERANCE = 0.01
_MOST_CLASSES = 1 << 20


class YoloImages(AnnotatedImages):
    """Source of the images of a split of YOLO's data.yaml, by path.

    Objects are lists in the order of the lines. Coordinates are shares of the image's sides.
    Columns are ``labels``, ``boxes`` (centre, width and height), ``polygons`` (x, y, x, y, …; empty
    for a box) and, with ``kpt_shape``, ``keypoints``. A polygon's box is the smallest around it. An
    image whose file of labels is missing or empty has empty lists; a warning says how many are
    missing. A damaged line makes its image a bad sample.

    Labels of ``…/images/…/a.jpg`` are in ``…/labels/…/a.txt``, of an image elsewhere beside it.
    Reading ``data.yaml`` needs PyYAML. ``split`` is ``train``, ``val`` or ``test``. Without
    ``data``, it is the only .yaml file in the folder. Without any ``fields``, no labels are read.
    """

    upright = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "train",
        *,
        data: str | os.PathLike[str] | None = None,
        fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        folder = AnnotatedFolder(root, storage_options)
        described = describe(folder, data, storage_options)
        annotations = _labelled(
            folder, described, split, with_labels=fields is None or len(fields) > 0
        )
        super().__init__(
            annotations, root, fields, () if data is None else (data,), storage_options
        )


class Description(NamedTuple):
    """Content of a data.yaml: its name for messages, the folder of the splits, the splits' folders
    or lists of images, class names, and number and size of keypoints.
    """

    name: str
    path: str
    splits: Mapping[str, Sequence[str]]
    classes: Sequence[str]
    keypoints: tuple[int, int] | None


def describe(
    folder: AnnotatedFolder,
    data: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Description:
    """Read a data.yaml; see `YoloImages`."""
    if data is None:
        names = ["data.yaml"]
        if not folder.has("data.yaml"):
            names = [name for name in folder.names() if re.fullmatch(r"[^/]+\.ya?ml", name)]
        if len(names) != 1:
            there = ", ".join(names) or "none"
            raise SourceError(
                f"{folder}: has no data.yaml, nor one other .yaml file (it has {there})",
                "Name the file with the splits and class names with --data.",
            )
        data = f"{folder.tree.root}/{names[0]}"
    name, text = shown_name(os.fspath(data)), read_file(data, storage_options)
    try:
        return _described(name, _parsed(name, text.decode()))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{name}: cannot be read: {error}", "Correct the file.") from None


def _parsed(name: str, text: str) -> dict[Any, Any]:
    """Return the mapping that a text in YAML is, without nulls; its scalars are text, as written.

    A class may be called no, or 1e3.
    """
    try:
        import yaml
    except ImportError:
        raise SourceError(
            f"{name}: reading it needs PyYAML", "Install it: pip install pyyaml."
        ) from None

    class Loader(yaml.BaseLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            """Refuse keys that PyYAML would resolve in silence."""
            content: dict[Any, Any] = super().construct_mapping(node, deep)
            if len(content) < len(node.value) or "<<" in content:
                what = "a mapping has a key twice, or <<"
                raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark)
            return content

    try:
        content = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    if not isinstance(content, dict):
        raise ValueError("it is not a mapping")
    return {name: value for name, value in content.items() if value not in ("", "~", "null")}


def _described(name: str, content: Mapping[str, Any]) -> Description:
    names = content.get("names")
    count = _whole("nc", content["nc"], _MOST_CLASSES) if "nc" in content else None
    if isinstance(names, dict):
        labels = {_whole("names", label, _MOST_CLASSES): one for label, one in names.items()}
        if sorted(labels) != list(range(len(names))):
            raise ValueError("names: the labels are not 0, 1, 2, …")
        names = [labels[label] for label in range(len(names))]
    if names is None and count is not None:
        names = [f"class_{label}" for label in range(count)]
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ValueError("names: the class names are missing, or one is not text")
    if count not in (None, len(names)):
        raise ValueError(f"nc: it is {count}, but there are {len(names)} names")
    shape, keypoints = content.get("kpt_shape"), None
    if shape is not None:
        points = size = 0
        if isinstance(shape, list) and len(shape) == 2:
            points, size = map(partial(_whole, "kpt_shape"), shape, (MOST_KEYPOINTS, 3))
        if points < 1 or size < 2:
            raise ValueError("kpt_shape: it is not [number, 2 or 3]")
        keypoints = points, size
    path = content.get("path", "")
    if "validation" in content:
        content = {"val": content["validation"], **content}
    splits = {one: content[one] for one in _SPLITS if content.get(one)}
    places = {one: [value] if isinstance(value, str) else value for one, value in splits.items()}
    for one, value in {"path": [path], **places}.items():
        if not isinstance(value, list) or not all(isinstance(place, str) for place in value):
            raise ValueError(f"{one}: it is neither a path nor a list of paths")
    return Description(name, path, places, names, keypoints)


def _labelled(
    folder: AnnotatedFolder, described: Description, split: str, *, with_labels: bool
) -> Annotations:
    if split not in described.splits:
        raise SourceError(
            f"{described.name}: has no split {split}",
            f"Name one with --split: {', '.join(described.splits) or 'it has none'}.",
        )
    places = [_place(folder, described, split, one) for one in described.splits[split]]
    folders = [place for place in places if not folder.has(place)]
    listed = (_listed(folder, place) for place in places if place not in folders)
    below = (paths for place in folders for paths in folder.images(place).values())
    images = sorted({*chain(*listed), *chain(*below)})
    files = {image: labels_of(image) for image in images} if with_labels else {}
    lone = _lone_labels(folder, files) if with_labels else []
    by_name = {_base(file): file for file in lone}
    columns = {"labels": LABELS, "boxes": BOXES, "polygons": POLYGONS}
    formats = {"boxes": "relative cxcywh", "polygons": "relative polygons"}
    origin: dict[str, Any] = {"kind": "yolo", "split": split, "classes": list(described.classes)}
    if described.keypoints:
        count, size = described.keypoints
        columns["keypoints"] = pa.list_(pa.list_(pa.float32(), count * size))
        formats["keypoints"] = "relative xyv" if size == 3 else "relative xy"
        origin["kpt_shape"] = [count, size]
    rows = Annotations(columns, origin, formats)
    lost, absent = [], 0
    read = folder.read_all(files.values(), partial(_objects_of, described=described))
    for image, values in zip(images, read if with_labels else repeat({}), strict=False):
        if values is None:
            file, values = files[image], {column: [] for column in columns}
            if other := by_name.get(_base(file)):
                values = f"{file} does not exist, but {other} does"
            if folder.has(image):
                lost.append(file)
            else:
                absent += 1
        rows.add(image, values)
    if lost:
        count = len(images) - absent
        what = (
            f"{described.name}: {len(lost):,} of {count:,} images of {split} have no labels; "
            f"{min(lost)} does not exist"
        )
        if len(lost) == count:
            other = by_name.get(_base(min(lost)))
            raise SourceError(
                what,
                f"{f'There is {other}. ' if other else ''}Labels of …/images/…/a.jpg are read from "
                "…/labels/…/a.txt; labels of another path lie beside the image. To pack images "
                "alone, leave out all columns: --fields ''.",
            )
        warn(f"{what}. They have no objects; if their labels lie elsewhere, they are bad samples.")
    above = {posixpath.dirname(labels_of(posixpath.join(one, "any.jpg"))): one for one in folders}
    beside = tuple(f"{labels}/" for labels, place in above.items() if labels != place)
    for name in lone:
        if name.startswith(beside):
            rows.add(None, f"{name}: has no image", key_of(name))
    return rows


def _lone_labels(folder: AnnotatedFolder, files: Mapping[str, str]) -> list[str]:
    """Return the files that may be labels, and belong to no image in the folder."""
    names: list[str] = []
    with suppress(SourceError):  # of folders that have nothing to do with it
        names = folder.names()
    used = {*files.values(), *(labels_of(name) for name in names if is_image_name(name))}
    texts = [name for name in names if _base(name).endswith(".txt") and name not in used]
    return [name for name in texts if posixpath.basename(name) != "classes.txt"]


def _base(path: str) -> str:
    return posixpath.basename(path).lower()


def labels_of(image: str) -> str:
    """Return the path of an image's file of labels."""
    before, has_folder, after = f"/{image}".rpartition("/images/")
    path = f"{before}/labels/{after}" if has_folder else f"/{image}"
    return key_of(path)[1:] + ".txt"


def _place(folder: AnnotatedFolder, described: Description, split: str, entry: str) -> str:
    """Return the path of a folder of images, or of a list, below the root.

    Exports often name folders from another one: ``../train/images``.
    """
    rest = entry
    while rest.startswith("../"):
        rest = rest[3:]
    for one in (posixpath.join(described.path, entry), entry, rest):
        path = posixpath.normpath(one.removeprefix(f"{folder.tree.root}/"))
        path = "" if path == "." else path
        if (not path or is_inside(path)) and (folder.has(path) or folder.has_folder(path)):
            return path
    raise SourceError(
        f"{described.name}: the images of {split} are in {entry}, which is not in {folder}",
        "Give the dataset's folder with --root, and the .yaml file with --data.",
    )


def _listed(folder: AnnotatedFolder, place: str) -> Iterator[str]:
    """Yield the images that a text file lists, relative to its folder."""
    for line in filter(None, map(str.strip, folder.lines(place))):
        path = line.removeprefix(f"{folder.tree.root}/")
        yield posixpath.normpath(posixpath.join(posixpath.dirname(place), path))


def _objects_of(data: bytes, described: Description) -> dict[str, Any]:
    objects: list[tuple[int, Any, Any, Any]] = []
    for number, line in enumerate(data.decode("utf-8-sig").splitlines(), 1):
        if not line.strip():
            continue
        try:
            objects.append(_object(line.split(), described))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    names = ("labels", "boxes", "polygons", "keypoints")
    return {name: [one[place] for one in objects] for place, name in enumerate(names)}


def _object(words: list[str], described: Description) -> tuple[int, Any, Any, Any]:
    try:
        label, *values = map(number_of, words)
    except ValueError:
        raise ValueError("it has something other than finite numbers") from None
    if not 0 <= label < len(described.classes) or label != int(label):
        raise ValueError(f"its class is {words[0]}, and there are {len(described.classes)}")
    shares = box = values[:4]
    points: list[float] = []
    polygons: list[list[float]] = []
    if described.keypoints:
        count, size = described.keypoints
        if len(values) != 4 + count * size:
            raise ValueError(f"it has {len(words)} numbers, not {5 + count * size}")
        points = values[4:]
        # The box of keypoints, and the corners of a polygon, may lie farther outside.
        shares = [x for at in range(0, len(points), size) for x in points[at : at + 2]]
    elif len(values) >= 6 and len(values) % 2 == 0:
        left, right = min(values[::2]), max(values[::2])
        top, bottom = min(values[1::2]), max(values[1::2])
        shares = box = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
        polygons = [values]
    elif len(values) != 4:
        raise ValueError(
            f"it has {len(words)} numbers; a box has 5, a polygon 7 or any higher odd number"
        )
    if min(*box, *points) < -_TOLERANCE or max(shares) > 1 + _TOLERANCE:
        raise ValueError("it has coordinates outside of the image, or not normalised")
    if min(box[2:]) < 0:
        raise ValueError("its box has a negative side")
    return int(label), box, polygons, points


def _whole(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > most:
        raise ValueError(f"{name}: {text} is not a whole number up to {most:,}")
    return int(text)
