"""The manifest, ``_dataset.json``: written last, so without it there is no dataset.

The normative layout is docs/formats/dataset.md.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fastdata._native import crc32c
from fastdata.errors import CorruptionError, DatasetError, VersionError
from fastdata.storage.arrow import is_storable, stored_type
from fastdata.storage.fields import BLOBS, IMAGE, LABEL, STORED_IMAGE_AND_LABEL, Field, StoredField
from fastdata.storage.files import read_file, remedy
from fastdata.storage.jsontext import parse_json
from fastdata.storage.paths import is_inside
from fastdata.storage.peek import peek
from fastdata.storage.row_groups import require_groups
from fastdata.text import human_count

#: Containers without a writer whose manifests name files elsewhere: archives of any kind, and
#: tables whose values a library decodes.
ELSEWHERE = ("archives", "tables")
#: Containers without a writer: an index of files that stay where they are.
IN_PLACE = ("folder", *ELSEWHERE)
#: The containers by name.
CONTAINERS = ("lmdb", "parquet", "shards", *IN_PLACE)
#: Readers of Parquet, Spark and Hadoop skip files whose names begin so.
MANIFEST_NAME = "_dataset.json"
#: Folder of a part, by its number; and names of such folders.
PART_NAME, PART = "part-{:06d}", re.compile(r"part-\d{6,}")
#: Where packing lists the images that it left out.
BAD_SAMPLES_NAME = "_bad-samples.jsonl"
FORMAT_VERSION = 3
#: Most bytes of a manifest: the names of 400,000 files.
MOST_BYTES = 64 << 20
#: The field that holds the checksum of the others.
_CHECKSUM = "checksum"
#: Most that a size or count may be: sums of a few still fit 64 bits.
_MOST = 1 << 60


def _joined(folder: Path | str, name: str) -> str:
    return f"{folder}/{name}"  # a Path takes 2 µs


@dataclass(frozen=True, slots=True)  # there may be 200,000
class FileEntry:
    """One file of a dataset.

    Attributes:
        name: Its path relative to the dataset's folder, with ``/``; an archive's or table's, to
            the root. A table's is followed by ``!`` and a column.
        size: Its size in bytes.
        crc32c: CRC-32C of the whole file, 8 hexadecimal digits; empty for an archive or table.
    """

    name: str
    size: int
    crc32c: str


@dataclass(frozen=True)
class Manifest:
    """Description of a dataset.

    Attributes:
        container: ``lmdb``, ``parquet``, ``shards``, ``folder``, ``archives`` or ``tables``.
        samples: Number of samples.
        skipped: Number of bad images that were left out.
        classes: Class names; a label is an index into them.
        blob_bytes: Sum of all blobs' lengths.
        index: The index file.
        files: The files of its container, then of fields beside image and label, in the order that
            indexes count them.
        root: Folder or URL that the index's paths (``folder``) or the archives' names
            (``archives``, ``tables``) are relative to; where it is relative itself, then to the
            dataset's folder. None for other containers.
        options: What the dataset was packed with: encoding, sizes, quality.
        order: ``shuffled``, or ``source``: the samples' order is the source's.
        seed: Of the permutation, where they are shuffled.
        source: Where it came from: kind, layout, split, root.
        tool: The version of fastdata that wrote it.
        generation: Digest of what was packed, 16 hexadecimal digits. Its indexes have it, too.
        format_version: Version of the layout.
        fields: The fields of its rows, and their files.
        groups: Rows of the row groups of each file of ``tables``, as runs of (rows, groups); None
            for other containers.
    """

    container: str
    samples: int
    skipped: int
    classes: list[str]
    blob_bytes: int
    index: FileEntry
    files: list[FileEntry]
    options: dict[str, Any]
    source: dict[str, Any]
    tool: str
    generation: str
    root: str | None = None
    order: str = "source"
    seed: int | None = None
    format_version: int = field(default=FORMAT_VERSION)
    fields: tuple[StoredField, ...] = STORED_IMAGE_AND_LABEL
    groups: list[list[list[int]]] | None = None

    @property
    def field_list(self) -> list[Field]:
        """Fields of its rows."""
        return [one.field for one in self.fields]

    @property
    def object_classes(self) -> list[str]:
        """Names of the classes that COCO's, VOC's or YOLO's labels number."""
        origin: Any = self.source
        while isinstance(origin, dict) and "classes" not in origin:
            origin = origin.get("of")  # a packed dataset's own source
        names = (origin or {}).get("classes")
        return names if isinstance(names, list) and all(isinstance(x, str) for x in names) else []

    @property
    def blob_files(self) -> int:
        """Number of the first files that are the container's, not of other fields."""
        own = {name for one in self.fields for name in (one.index, one.file)}
        return sum(entry.name not in own for entry in self.files)

    @property
    def own_files(self) -> list[FileEntry]:
        """The files in the dataset's folder: all but archives and tables."""
        return [entry for entry in self.files if entry.crc32c]

    @property
    def loose_files(self) -> int:
        """Most single files that its blobs may be; 0 if containers have them."""
        blobs = sum(one.kind in BLOBS for one in self.field_list)
        return self.samples * blobs if self.container == "folder" else 0

    def places(
        self, folder: Path | str, root: Path | str | None, join: Callable[[Any, str], str] = _joined
    ) -> list[str]:
        """Return the paths or URLs of its files, below the dataset's or the archives' folder."""
        return [join(folder if entry.crc32c else root, entry.name) for entry in self.files]

    def number_of(self, name: str) -> int:
        """Return the place of a file among `files`."""
        return next(number for number, one in enumerate(self.files) if one.name == name)

    def _contents(self) -> dict[str, Any]:
        contents = vars(self) | {"index": asdict(self.index)}
        # Not by asdict: of 200,000 files, it takes seconds.
        contents["files"] = [
            {"name": one.name, "size": one.size, "crc32c": one.crc32c} for one in self.files
        ]
        if self.groups is None:
            del contents["groups"]
        return contents

    def to_json(self) -> str:
        """Return the text of its file; raise DatasetError if it is longer than readers accept."""
        head = {"format": "fastdata", "format_version": self.format_version}
        fields = [one.to_json() for one in self.fields]
        text = text_of(head | self._contents() | {"fields": fields})
        if len(text.encode()) > MOST_BYTES:
            raise DatasetError(
                f"the names of {len(self.files):,} files and {len(self.classes):,} classes need "
                f"more than the {MOST_BYTES >> 20} MiB that a manifest may have",
                "Write fewer, larger files: give a larger --shard-size.",
            )
        return text

    @classmethod
    def load(cls, dataset: str | os.PathLike[str]) -> Manifest:
        """Read the manifest of the dataset in a folder.

        Raises:
            DatasetError: The folder is missing, or holds no finished dataset that can be read.
            VersionError, CorruptionError: See `parse`.
        """
        path = Path(dataset) / MANIFEST_NAME
        try:
            return cls.parse(read_file(path, MOST_BYTES), path)
        except (FileNotFoundError, NotADirectoryError):
            raise _no_dataset(Path(dataset)) from None
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise _not_a_manifest(path, ValueError(error.strerror)) from None
            raise DatasetError(
                f"{path}: cannot be read: {error.strerror}",
                remedy(
                    error,
                    "Check that it is a file, and that you may read it and its folder (ls -ld, "
                    "chmod +r).",
                ),
            ) from None

    @classmethod
    def parse(cls, text: str | bytes, path: Path | str) -> Manifest:
        """Read a manifest from its text; ``path``, or a URL, is for error messages.

        Fields that are not known are ignored: a later fastdata may add some without a new
        format version.

        Raises:
            VersionError: An older or newer fastdata wrote it.
            CorruptionError: It is not a manifest.
        """
        try:
            contents = parse_json(text)
            checksum = contents.get(_CHECKSUM) if isinstance(contents, dict) else None
            expected = None if checksum is None else _checksum(contents)
            if not isinstance(contents, dict) or contents.get("format") != "fastdata":
                raise ValueError("its format is not fastdata")
            version = contents["format_version"]
            if type(version) is not int or version < 1:
                raise TypeError("format_version is not a number from 1")
        except (ValueError, TypeError, KeyError) as error:
            raise _not_a_manifest(path, error) from None
        if version != FORMAT_VERSION:
            raise VersionError(
                f"{path}: format version {version}, written by fastdata "
                f"{contents.get('tool', '?')}; this fastdata reads version {FORMAT_VERSION}",
                "Upgrade: pip install --upgrade fastdata-torch"
                if version > FORMAT_VERSION
                else "Pack the dataset again from its source: fastdata convert … --force",
            )
        try:
            if "parts" in contents:
                _require_checksum(checksum, expected)
                raise PartsError(path, PartsManifest.from_json(contents))
            contents["index"] = _file_entry(contents["index"])
            if not isinstance(contents["files"], list):
                raise ValueError("files is not a list")
            elsewhere = contents["container"] in ELSEWHERE
            contents["files"] = [_file_entry(entry, elsewhere) for entry in contents["files"]]
            contents["fields"] = _stored_fields(contents["fields"], contents["files"])
            manifest = cls(**_known(cls, contents))
            _check_types(manifest)
            _check_files(manifest)
            _require_checksum(checksum, expected)
        except (TypeError, KeyError, ValueError) as error:
            raise _not_a_manifest(path, error) from None
        return manifest


@dataclass(frozen=True)
class PartEntry:
    """One part of an index, a folder below it.

    Counts are of its samples; ``files`` of its archives or tables.
    """

    name: str
    samples: int
    skipped: int
    blob_bytes: int
    files: int
    generation: str

    @classmethod
    def of(cls, name: str, manifest: Manifest) -> PartEntry:
        """Return the entry of a dataset that becomes a part."""
        counts = manifest.samples, manifest.skipped, manifest.blob_bytes, manifest.blob_files
        return cls(name, *counts, manifest.generation)

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> PartEntry:
        """Return the part of an entry; KeyError, TypeError, ValueError if it is not sound."""
        part = cls(**_known(cls, entry))
        if not isinstance(part.name, str) or not PART.fullmatch(part.name):
            raise ValueError(f"a part's name is {part.name!r}")
        for name in ("samples", "skipped", "blob_bytes", "files"):
            _require_count(f"{name} of {part.name}", getattr(part, name))
        return part


@dataclass(frozen=True)
class PartsManifest(Manifest):
    """Manifest of an index of parts; it has no files and no index of its own.

    ``parts`` are in the order of their samples; ``remote``: their files lie behind URLs. The
    normative layout is docs/formats/parts.md.
    """

    parts: tuple[PartEntry, ...] = ()
    remote: bool = False

    def _contents(self) -> dict[str, Any]:
        contents = asdict(self)
        kept_by_parts = "index", "files", "root", "order", "seed", "groups"
        for name in (*kept_by_parts, *_TOTALS):
            del contents[name]
        return contents

    @classmethod
    def of(cls, parts: Sequence[PartEntry], like: Manifest) -> PartsManifest:
        """Return the manifest of parts, whose fields, classes and container ``like`` has."""
        names = ("container", "classes", "options", "source", "tool", "fields", "format_version")
        shared: dict[str, Any] = {name: getattr(like, name) for name in names}
        generations = "".join(part.generation for part in parts).encode()
        shared["generation"] = hashlib.blake2b(generations, digest_size=8).hexdigest()
        return cls(**shared, **_in_parts(parts), remote=getattr(like, "remote", False))

    @classmethod
    def from_json(cls, contents: dict[str, Any]) -> PartsManifest:
        """Return the manifest of a file; KeyError, TypeError, ValueError if it is not sound."""
        parts = tuple(map(PartEntry.from_json, contents["parts"]))
        if len({part.name for part in parts}) != len(parts) or not parts:
            raise ValueError("it has no parts, or one twice")
        if type(contents["remote"]) is not bool:
            raise ValueError(f"remote is {contents['remote']!r}")
        own = {"fields": _stored_fields(contents["fields"], None), **_in_parts(parts)}
        manifest = cls(**_known(cls, contents | own))
        _check_types(manifest)
        return manifest

    def problem_of(self, part: PartEntry, manifest: Manifest) -> str | None:
        """Return how a part differs from its entry here; None if it does not."""
        entry = PartEntry.of(part.name, manifest)
        if entry.samples != part.samples:
            return (
                f"has {human_count(entry.samples, 'sample')}, "
                f"the index of parts says {part.samples:,}"
            )
        if entry.generation != part.generation:
            return "was indexed again since it became a part"
        return self.difference(manifest)

    def difference(self, other: Manifest) -> str | None:
        """Return a difference between a dataset and the parts that makes it no part; else None."""
        if other.container != self.container:
            return f"is in {other.container}, the other parts in {self.container}"
        shapes = [
            {(one.name, one.kind, str(one.type), one.format) for one in manifest.field_list}
            for manifest in (self, other)
        ]
        if shapes[0] != shapes[1]:
            names = sorted({shape[0] for shape in shapes[0] ^ shapes[1]})
            return f"has other fields than the other parts: {', '.join(names)}"
        for label, (one, two) in enumerate(zip(self.classes, other.classes, strict=False)):
            # A class that no sample of the part has is named by its number.
            if one != two and str(label) not in (one, two):
                return f"names class {label} {two!r}, the other parts {one!r}"
        return None


#: Counts of a manifest of parts: the sums of the parts' own.
_TOTALS = ("samples", "skipped", "blob_bytes")


def _in_parts(parts: Sequence[PartEntry]) -> dict[str, Any]:
    """Return the fields of a manifest that its parts determine."""
    totals = {name: sum(getattr(part, name) for part in parts) for name in _TOTALS}
    return {**totals, "parts": tuple(parts), "index": FileEntry("", 0, ""), "files": []}


class PartsError(DatasetError):
    """Error of opening an index of parts, with this ``manifest``, as one dataset."""

    def __init__(self, path: Path | str, manifest: PartsManifest) -> None:
        folder = str(path).removesuffix(f"/{MANIFEST_NAME}")
        super().__init__(
            f"{folder}: an index of several parts, each a dataset; this takes one",
            f"Give a part: {folder}/{PART_NAME.format(0)}, and so on.",
        )
        self.manifest = manifest


def generation_of(text: bytes) -> str:
    """Return the generation in a manifest's text, of any version; "" if there is none."""
    try:
        return str(parse_json(text)["generation"])
    except (ValueError, TypeError, KeyError):
        return ""


def generation_in(folder: Path | str) -> str:
    """Return the generation of the dataset that lies in a folder now; "" if there is none."""
    path = os.path.join(folder, MANIFEST_NAME)
    try:
        state = os.stat(path)
        return _generation_at(path, (state.st_ino, state.st_size, state.st_mtime_ns))
    except (FileNotFoundError, NotADirectoryError):
        return ""


@lru_cache(maxsize=8)
def _generation_at(path: str, _: tuple[int, ...]) -> str:
    """Return the generation in a file; thousands of samples may ask for it."""
    return generation_of(read_file(path, MOST_BYTES))


def has_manifest(folder: Path) -> bool:
    """Return whether a folder holds a manifest, of any version."""
    return (folder / MANIFEST_NAME).exists()


def with_root(text: bytes, root: str) -> bytes:
    """Return a manifest's text with another ``root``; keep fields of a later version."""
    return text_of({**parse_json(text), "root": root}).encode()


def _require_checksum(checksum: Any, expected: str | None) -> None:
    if checksum is None:
        raise KeyError(_CHECKSUM)
    if checksum != expected:
        raise ValueError(f"its checksum is {checksum!r}, its contents have {expected!r}")


def text_of(fields: dict[str, Any]) -> str:
    """Return the text of a manifest, with its checksum: a line for each value and list item."""
    dumps = partial(json.dumps, ensure_ascii=False)  # with indent=, it is ten times as slow
    lines = []
    for name, value in {**fields, _CHECKSUM: _checksum(fields)}.items():
        if isinstance(value, list) and value:
            lines.append(f"{dumps(name)}: [\n  " + ",\n  ".join(map(dumps, value)) + "\n ]")
        else:
            lines.append(f"{dumps(name)}: {dumps(value)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def _checksum(fields: dict[str, Any]) -> str:
    """Return the CRC-32C of all other fields in their canonical form."""
    contents = {name: value for name, value in fields.items() if name != _CHECKSUM}
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{crc32c(text.encode()):08x}"


def _known(kind: type, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry that a dataclass has."""
    return {field.name: entry[field.name] for field in fields(kind) if field.name in entry}


def _file_entry(fields: dict[str, Any], elsewhere: bool = False) -> FileEntry:
    entry = FileEntry(fields["name"], fields["size"], fields["crc32c"])
    name = entry.name
    if not isinstance(name, str):
        raise ValueError(f"file name is {name!r}")
    if not is_inside(name) or "\\" in name:
        raise ValueError(f"file name {name!r} leaves the dataset's folder")
    if type(entry.size) is not int or not 0 <= entry.size <= _MOST:
        raise ValueError(f"size of {name} is {entry.size!r}")
    if entry.crc32c == "" and elsewhere:
        return entry
    if not re.fullmatch("[0-9a-f]{8}", entry.crc32c):
        raise ValueError(f"crc32c of {name} is {entry.crc32c!r}")
    return entry


def _stored_fields(entries: Any, files: list[FileEntry] | None) -> tuple[StoredField, ...]:
    """Return the fields of a manifest's entries; see `StoredField.parse` for errors."""
    names = None if files is None else {entry.name for entry in files}
    stored = tuple(StoredField.parse(entry, names) for entry in entries)
    for name, _, kind, *_ in (one.field for one in stored):
        if kind is not None and (not is_storable(kind) or stored_type(kind) != kind):
            raise ValueError(f"the type of field {name} is {kind}")
    fields = [one.field.name for one in stored]
    if fields[:1] != [IMAGE.name]:
        raise ValueError("its first field is not the image")
    if len({name.lower() for name in fields}) != len(fields):
        raise ValueError("two of its fields have one name")
    own = [name for one in stored for name in (one.index, one.file) if name is not None]
    if len(set(own)) != len(own):
        raise ValueError("two of its fields have one file")
    return stored


def _check_types(manifest: Manifest) -> None:
    """Raise ValueError for values that no manifest has."""
    for name in ("samples", "skipped", "blob_bytes"):
        _require_count(name, getattr(manifest, name))
    kinds = {"tool": str, "generation": str, "classes": list, "options": dict, "source": dict}
    for name, kind in kinds.items():
        if not isinstance(getattr(manifest, name), kind):
            raise ValueError(f"{name} is {getattr(manifest, name)!r}")
    if not re.fullmatch("[0-9a-f]{16}", manifest.generation):
        raise ValueError(f"generation is {manifest.generation!r}")
    if not isinstance(manifest.order, str):
        raise ValueError(f"order is {manifest.order!r}")
    if not (manifest.seed is None or type(manifest.seed) is int):
        raise ValueError(f"seed is {manifest.seed!r}")
    if manifest.container not in CONTAINERS:
        raise ValueError(f"container is {manifest.container!r}")
    if not all(isinstance(name, str) for name in manifest.classes):
        raise ValueError("a class name is not a string")
    if manifest.classes and LABEL not in manifest.field_list:
        raise ValueError("there are classes, but no field label")


def _check_files(manifest: Manifest) -> None:
    root = manifest.root
    if not (root is None or isinstance(root, str)) or (root and "\0" in root):
        raise ValueError(f"root is {root!r}")
    if (manifest.container in IN_PLACE) != (root is not None):
        raise ValueError(f"container is {manifest.container!r}, but root is {root!r}")
    if manifest.container == "folder" and manifest.blob_files:
        raise ValueError("container is 'folder', but there are files")
    elsewhere = [not entry.crc32c for entry in manifest.files]
    expected = [manifest.container in ELSEWHERE] * manifest.blob_files
    if elsewhere != expected + [False] * (len(elsewhere) - len(expected)):
        raise ValueError("files without a checksum are neither archives nor tables")
    if (manifest.container == "tables") != (manifest.groups is not None):
        raise ValueError(f"container is {manifest.container!r}, but groups {manifest.groups!r}")
    if manifest.groups is not None:
        require_groups(manifest.groups, manifest.blob_files)


def _require_count(name: str, value: Any) -> None:
    """Raise ValueError unless a value may be a size or a count."""
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{name} is {value!r}")


def _not_a_manifest(path: Path | str, error: Exception) -> CorruptionError:
    """Return the error for a file that is no manifest, or one that contradicts itself."""
    reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
    return CorruptionError(
        f"{path}: not a manifest of a fastdata dataset ({reason})",
        "Copy the dataset again, or pack it again with fastdata convert … --force.",
    )


def _no_dataset(dataset: Path) -> DatasetError:
    if not dataset.exists():
        return DatasetError(
            f"{dataset}: no such folder", "Check the path; fastdata convert makes a dataset."
        )
    if (dataset / WORK_NAME).exists():
        return DatasetError(
            f"{dataset}: packing has not finished here, so this is not yet a dataset",
            "Run the same fastdata convert again: it resumes.",
        )
    seen = peek(dataset)
    hint = seen.hint
    if seen.source:
        whole = f"ImageDataset(torchvision.datasets.ImageFolder({str(dataset)!r}))"
        read = f"read this one as {whole}, " if seen.source == "imagefolder" else ""
        hint = f"Name a folder that fastdata convert has made, {read}or convert this one. {hint}"
    missing = "" if dataset.is_file() else f" here ({MANIFEST_NAME} is missing)"
    return DatasetError(f"{dataset}: no dataset{missing}, but {seen.what}", hint)


#: Folder inside an unfinished dataset where packing keeps its state.
WORK_NAME = ".packing"
