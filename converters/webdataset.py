"""Existing tar shards in the WebDataset convention.

Members of one sample stand in a row and share their name up to the first dot of its last
component, the key; what follows is what the member is: an image, ``cls``, ``json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from fastdata.converters.imagefolder import require_utf8
from fastdata.converters.records import Record, read_record
from fastdata.converters.tree import IMAGE_EXTENSIONS, is_folder, is_utf8, scan, storable

from fastdata.errors import SourceError
from fastdata.probe import EXTENSIONS
from fastdata.tars import Member, members

#: The class list is held in memory and in the manifest, so a stray label must not size it.
_MOST_CLASSES = 1 << 22
#: Those of torchvision, and those that the shards container uses.
_IMAGE_EXTENSIONS = {*IMAGE_EXTENSIONS, *(f".{e}" for c, e in EXTENSIONS.items() if c != "raw")}


class WebDataset:
    """The samples of tar shards, by shard name, in each shard's order.

    A label is the integer in a sample's ``.cls``, or ``label`` in its ``.json``. Class
    names are ``class`` in the ``.json`` where all samples have it, else the numbers.
    The key is ``key`` in the ``.json``, where there is one, else the members' name.

    Args:
        root: A folder of ``*.tar``, or one tar file.

    Raises:
        SourceError: There are no shards, one cannot be read, or a sample lacks its image
            or label.
    """

    root: str | None = None  # there are no image files to leave in place

    def __init__(self, root: Path) -> None:
        if is_folder(root):
            self._shards = [Path(e.path) for e in scan(root) if e.name.endswith(".tar")]
        elif root.is_file():
            self._shards = [root]
        else:
            raise SourceError(f"{root}: no such folder or file", "Name the shards with --root.")
        if not self._shards:
            raise SourceError(
                f"{root}: holds no *.tar",
                "Name the folder of the shards with --root; compressed ones must be gunzipped.",
            )
        self.classes = self._find_classes()
        self.about = {"kind": "webdataset", "root": str(require_utf8(root.resolve()))}

    def records(self) -> Iterator[Record]:
        """Yields the samples by shard, then in the shard's order."""
        for record, _ in self._samples():
            yield record

    def _find_classes(self) -> list[str]:
        names: dict[int, str | None] = {}
        for record, name in self._samples():
            known = names.setdefault(record.label, name)
            if known != name:
                raise SourceError(
                    f"{record.path}: sample {record.key} has label {record.label} and class "
                    f"{name!r}, but another of that label has class {known!r}",
                    "Mend the .json members: one label, one class.",
                )
        if any(name is None for name in names.values()):
            return [str(label) for label in range(max(names, default=-1) + 1)]
        return [names.get(label) or str(label) for label in range(max(names, default=-1) + 1)]

    def _samples(self) -> Iterator[tuple[Record, str | None]]:
        for shard in self._shards:
            mtime_ns = shard.stat().st_mtime_ns
            for stem, group in groupby(members(shard), key=_stem):
                parts = {member.name[len(stem) + 1 :].lower(): member for member in group}
                yield _sample(shard, mtime_ns, stem, parts)


def _stem(member: Member) -> str:
    folder, slash, last = member.name.rpartition("/")
    return folder + slash + last.partition(".")[0]


def _sample(
    shard: Path, mtime_ns: int, stem: str, parts: dict[str, Member]
) -> tuple[Record, str | None]:
    def missing(what: str) -> SourceError:
        return SourceError(
            f"{shard}: the sample {stem} has no {what} (it has: {', '.join(sorted(parts))})",
            "fastdata packs images with integer labels; write the shards with both.",
        )

    image = next((m for ext, m in parts.items() if "." + ext in _IMAGE_EXTENSIONS), None)
    if image is None:
        raise missing("image")
    about = _json(shard, parts["json"]) if "json" in parts else {}
    label: Any = about.get("label")
    if "cls" in parts:
        text = read_record(str(shard), parts["cls"].offset, parts["cls"].size)
        label = int(text) if text.strip().isdigit() and len(text) < 100 else None
    if not isinstance(label, int) or label < 0:
        raise missing("integer label in .cls or .json")
    if label >= _MOST_CLASSES:
        raise SourceError(
            f"{shard}: the sample {stem} has the label {label}, but there may be "
            f"{_MOST_CLASSES:,} classes at most",
            "Labels must be ranks of classes, from 0; write the shards with such.",
        )
    name = about.get("class")
    key, problem = (str(about["key"]), None) if "key" in about else storable(stem)
    record = Record(key, label, str(shard), image.offset, image.size, mtime_ns, problem=problem)
    return record, name if isinstance(name, str) else None


def _json(shard: Path, member: Member) -> dict[str, Any]:
    try:
        about = json.loads(read_record(str(shard), member.offset, member.size))
    except ValueError as error:
        raise SourceError(f"{shard}: {member.name} is not JSON: {error}") from None
    if not isinstance(about, dict):
        return {}
    for field in ("key", "class"):
        if not is_utf8(str(about.get(field, ""))):
            raise SourceError(
                f"{shard}: {member.name} has a {field} that cannot be written as UTF-8",
                "Write the shards without it.",
            )
    return about
