"""Source of existing tar shards in the WebDataset convention.

Members of one sample are consecutive and share the key: their name up to the first dot of its
last component. The rest, in upper or lower case, is the member's kind: an image, ``cls``,
``json``. Members without an extension, or in a folder such as ``__meta__``, belong to no sample.
The webdataset package has the same rules.
"""

from __future__ import annotations

import os
import pickle
import re
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from fastdata.converters.records import MOST_CLASSES, ImageSource, Listable, Record
from fastdata.converters.trees import require_utf8, storable, unreadable

from fastdata.errors import SourceError, UsageError
from fastdata.remote.files import SourceFile, archive_files
from fastdata.remote.patterns import expand
from fastdata.remote.urls import is_url, redact
from fastdata.storage.encodings import EXTENSIONS, IMAGE_EXTENSIONS
from fastdata.storage.fields import Field
from fastdata.storage.formats.npy import HEAD, read_array, read_header
from fastdata.storage.formats.shards import npy_shape
from fastdata.storage.formats.tars import Member, members
from fastdata.storage.jsontext import parse_json
from fastdata.storage.peek import lacks_data
from fastdata.storage.shapes import with_formats, with_masks
from fastdata.text import is_utf8

#: Most bytes of a .cls and of a .json, which are read whole.
_MOST_CLS, _MOST_JSON = 100, 16 << 20
#: Most bytes of a member that is a string or a number.
_MOST_TEXT = 16 << 20
#: Last parts of extensions that the webdataset package decodes as text, JSON and integers.
_TEXTS, _NUMBERS = {"txt", "text", "transcript", "json", "jsn"}, {"id", "index", "inx"}
#: Last part of extensions of NumPy's arrays.
_ARRAYS = "npy"
#: Keys of the ``.json`` that packing to shards writes.
_OWN_KEYS = {"key", "label", "class", "width", "height"}
#: Extensions of torchvision, and of the shards container.
_IMAGE_EXTENSIONS = {*IMAGE_EXTENSIONS, *(f".{e}" for c, e in EXTENSIONS.items() if c != "raw")}


class WebDataset(ImageSource):
    """Source of the samples of tar shards, by shard name, in each shard's order.

    A label is the integer in a sample's ``.cls``, or ``label`` in its ``.json``; all samples have
    one, or none has. Class names are ``class`` in the ``.json`` if all samples have it, else the
    numbers. The key is ``key`` in the ``.json`` if it exists, else the members' name.

    Each other member is a field with the name of its extension. ``.txt``, ``.text``,
    ``.transcript`` and ``.json`` are strings. ``.id``, ``.index`` and ``.inx`` are int64. Those
    with an image's suffix, such as ``.seg.png``, are images. ``.npy`` are lists of a fixed size if
    all have one type and shape. All others are blobs. A sample may lack any of them.

    A sample is bad if it has no image, or a ``.json`` that is not JSON. So it is if a string is not
    UTF-8, an integer cannot be read, or an array is pickled or has too few or many bytes.

    An image is a file of any format, or raw pixels as in the `shards` container: a ``.npy`` of
    version 1.0, uint8, height x width x 3.

    The shards are walked twice: for the classes, which packing needs before the first record,
    and for the records, which may not fit in memory. Behind a URL, where a walk reads whole shards,
    a temporary file ($TMPDIR) keeps its samples instead.

    Args:
        root: A folder of ``*.tar``, one tar file, or a pattern, ``shards/{000..999}.tar``; or the
            URL of any.
        image_column: Extension of the member with the image, such as ``left.jpg``; None for the
            first with an image's suffix alone, or, if no sample has one, each sample's only image.
        shard_keys: Whether keys begin with the name of their shard, ``<shard>/<key>``. Needed
            if every shard numbers its samples from the same number.
        formats: Formats of members whose values lie in the image, such as ``{"boxes": "xywh"}``;
            see docs/formats/fields.md.
        masks: Fields of masks, images whose pixels are numbers.
    """

    archives: Sequence[SourceFile]

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        image_column: str | None = None,
        shard_keys: bool = False,
        labels: bool = True,
        fields: Sequence[str] | None = None,
        formats: Mapping[str, str] | None = None,
        masks: Sequence[str] = (),
        files: Sequence[SourceFile] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        image = None if image_column is None else image_column.lower().removeprefix(".")
        self._listing = partial(TarListing, image=image, shard_keys=shard_keys, labels=labels)
        self._lone = True  # whether a sample's only image is its image, whatever its extension
        self._kept: Any = None  # a file of pickled samples, instead of a second walk
        where = redact(os.fspath(root))
        if not is_url(root):
            where = str(require_utf8(Path(root).resolve()))
        try:
            self.archives = files or archive_files(root, ".tar", storage_options)
        except OSError as error:
            what = f"{error.filename or where}: {error.strerror}"
            raise SourceError(what, "Name the shards, or their folder, with --root.") from None
        if not self.archives:
            hint = "Name the shards, or their folder, with --root; gunzip compressed ones."
            raise lacks_data(where, "holds no *.tar", hint)
        self.inputs = [Path(file.location) for file in self.archives]
        if is_url(root):
            self.inputs = [*expand(root)]
            # Unnamed: it vanishes with this object, or with the process.
            self._kept = tempfile.TemporaryFile(prefix="fastdata-")  # noqa: SIM115
            weakref.finalize(self, self._kept.close)
        self.classes, types = self._walk()
        names = sorted(types) if fields is None else list(fields)
        for name in names:
            if name not in types:
                raise UsageError(
                    f"{where}: no sample has a member .{name}",
                    f"Samples have {', '.join(sorted(types)) or 'none beside image and label'}.",
                )
        formatted = with_formats([field_of(n, types[n]) for n in names], formats, where)
        self.fields = with_masks(formatted, masks, where)
        self.origin = {"kind": "webdataset", "root": where}
        if image is not None:
            self.hint = "Name another member with --image-column."
        if not shard_keys:
            self.key_hint = (
                "If shards use the same numbers for their samples, use fastdata convert webdataset "
                "--shard-keys (with --to archives, nothing is copied)"
            )

    def shards(self) -> Sequence[Listable]:
        opened = partial(self._listing, fields=self.fields, lone=self._lone)
        shards = [opened(file) for file in self.archives]
        return shards if self._kept is None else [_Walked(shards, self._kept)]

    def _walk(self) -> tuple[list[str], dict[str, set[pa.DataType | None]]]:
        """Return the class names and the extensions of other members, with types of arrays."""
        names: dict[int | None, str | None] = {}
        types: dict[str, set[pa.DataType | None]] = {}
        unlabelled: tuple[SourceFile, str, Mapping[str, Member]] | None = None
        lone, several = None, ""
        for number, file in enumerate(self.archives):
            for sample, read in self._listing(file).samples():
                if self._kept is not None:
                    texts = {
                        member.offset: read(member)
                        for extension, member in sample.members.items()
                        if field_of(extension).type is not None and member.size <= _MOST_TEXT
                    }
                    pickle.dump((number, sample, texts), self._kept)
                if sample.several and not several:
                    several = f"{file}: the sample {sample.key} has several images"
                if sample.problem is not None:
                    continue  # its label and class are not known
                lone = sample.lone and lone is not False
                for extension in sample.members:
                    types.setdefault(extension, set())
                for extension, kind in _arrays(sample.members, read):
                    types[extension].add(kind)
                known = names.setdefault(sample.label, sample.class_name)
                if sample.label is None and unlabelled is None:
                    unlabelled = file, sample.key, sample.members
                if unlabelled is not None and len(names) > 1:
                    raise _without_label(*unlabelled, ", though others have")
                if known != sample.class_name:
                    raise SourceError(
                        f"{file}: sample {sample.key} has label {sample.label} and class "
                        f"{sample.class_name!r}, but another of that label has class {known!r}",
                        "Correct the .json members: one label, one class.",
                    )
        if lone is None and several:
            raise SourceError(
                f"{several}, none of which is named by its suffix alone",
                "Name one with --image-column of fastdata index or convert webdataset: left.jpg.",
            )
        self._lone = bool(lone)
        labels = [label for label in names if label is not None]
        numbers = range(max(labels, default=-1) + 1)
        known_names = {} if None in names.values() else names
        return [known_names.get(label) or str(label) for label in numbers], types


def field_of(extension: str, arrays: Collection[pa.DataType | None] = ()) -> Field:
    """Return the field of a member, by its extension and the types of sound arrays (``.npy``)."""
    last = extension.rpartition(".")[2]
    if last == _ARRAYS and (len(arrays) > 1 or None in arrays):
        return Field(extension, "blob")
    if last == _ARRAYS:
        return Field(extension, "column", next(iter(arrays), pa.null()))
    if last in _TEXTS:
        return Field(extension, "column", pa.string())
    if last in _NUMBERS:
        return Field(extension, "column", pa.int64())
    return Field(extension, "image" if f".{last}" in _IMAGE_EXTENSIONS else "blob")


#: Reads a member of an opened shard.
_Read: TypeAlias = Callable[[Member], bytes]


class _Sample(NamedTuple):
    """One sample of a shard: the member of its image, the others by extension, in order.

    ``problem`` is why it is a bad sample, apart from its fields. ``lone``: its image has not an
    image's suffix alone as extension. ``several``: it has several such images, so none is taken.
    """

    key: str
    label: int | None
    class_name: str | None
    image: Member
    pixels: tuple[int, int] | None
    members: dict[str, Member]
    problem: str | None
    lone: bool
    several: bool


class TarListing(NamedTuple):
    """One tar file of a source: a shard of its listing."""

    file: SourceFile
    image: str | None = None
    shard_keys: bool = False
    labels: bool = True
    fields: tuple[Field, ...] = ()
    lone: bool = True

    def records(self) -> Iterator[Record]:
        """Yield its samples in order."""
        for sample, read in self.samples():
            yield self.record(sample, read)

    def record(self, sample: _Sample, read: _Read) -> Record:
        """Return the record of a sample."""
        key = f"{self.file.stem}/{sample.key}" if self.shard_keys else sample.key
        key, problem = storable(key)
        problem = problem or sample.problem
        if sample.lone and not self.lone:
            problem = problem or f"has no image but {sample.image.name}"
        values: list[Any] = []
        for field in self.fields:
            value = None
            if field.name in sample.members:
                try:
                    value = self._value(key, field, sample.members[field.name], read)
                except ValueError as error:
                    problem = problem or f"its .{field.name} {error}"
            values.append(value)
        place = self.file.location, sample.image.offset, sample.image.size, self.file.mtime_ns
        details: Any = {"pixels": sample.pixels, "problem": problem, "fields": tuple(values)}
        return Record(key, sample.label or 0, *place, **details)

    def _value(self, key: str, field: Field, member: Member, read: _Read) -> Any:
        if field.type is None:
            where = (self.file.location, member.offset, member.size, self.file.mtime_ns)
            return Record(f"{key}\0{field.name}", 0, *where)
        if member.size > _MOST_TEXT:
            raise ValueError(f"has {member.size:,} bytes, more than {_MOST_TEXT:,}")
        data = read(member)
        if field.name.rpartition(".")[2] == _ARRAYS:
            array = read_array(data)
            return array if array.ndim else array.item()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ValueError("is not UTF-8") from None
        if field.type == pa.string():
            return text
        if not re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text):
            raise ValueError(f"is {text[:40]!r}, which is no integer of 64 bits")
        return int(text)

    def samples(self) -> Iterator[tuple[_Sample, _Read]]:
        """Yield the samples in the shard's order, and what reads their members."""
        try:
            opened = self.file.open()
        except OSError as error:
            raise unreadable(self.file, error) from None

        def read(member: Member) -> bytes:
            try:
                opened.seek(member.offset)
                data: bytes = opened.read(member.size)
            except OSError as error:
                raise unreadable(f"{self.file}: {member.name}", error) from None
            return data

        with opened:
            for stem, parts in self._groups():
                yield self._sample(stem, parts, read), read

    def _groups(self) -> Iterator[tuple[str, dict[str, Member]]]:
        key: str | None = None
        parts: dict[str, Member] = {}
        for member in members(self.file):
            stem, extension = _split(member.name)
            if stem is None:
                continue
            if stem != key:
                if key is not None:
                    yield key, parts
                key, parts = stem, {}
            if extension in parts:
                raise SourceError(
                    f"{self.file}: the sample {key} has two members .{extension}, "
                    f"{parts[extension].name} and {member.name}",
                    "Write the shard with one key for each sample, and each member once.",
                )
            parts[extension] = member
        if key is not None:
            yield key, parts

    def _sample(self, stem: str, parts: dict[str, Member], read: _Read) -> _Sample:
        raw, images = EXTENSIONS["raw"], [ext for ext in parts if field_of(ext).kind == "image"]
        first = next((ext for ext in images if "." + ext in _IMAGE_EXTENSIONS), None)
        others = images if first is None and raw not in parts else []
        if self.image is not None:
            others, first = [], self.image if self.image in parts and self.image != raw else None
        if lone := len(others) == 1:
            first = others[0]
        members = {ext: member for ext, member in parts.items() if ext != first}
        image = None if first is None else parts[first]
        pixels: tuple[int, int] | None = None
        problem: str | None = None
        if image is None and raw in parts and self.image in (None, raw):
            image = members.pop(raw)
            try:
                image, pixels = _pixels(image, read)
            except ValueError as error:
                problem = f"its {image.name} is no image: {error}"
        if image is None:
            image = next(iter(parts.values()))  # a place for the list of bad samples
            what = "image" if self.image is None else f"member .{self.image}"
            problem = f"has no {what} (it has: {', '.join(sorted(parts))})"
        # Where a field has the name json, packing to shards writes the other.
        own = next((ext for ext in ("fastdata.json", "json") if ext in parts), None)
        notes: dict[str, Any] = {}
        try:
            notes = {} if own is None else _about(parts[own], read)
        except ValueError as error:
            problem = problem or str(error)
        if notes and own and _OWN_KEYS.issuperset(notes):
            del members[own]
        label: Any = notes.get("label") if self.labels else None
        if "cls" in parts and self.labels:
            text = read(parts["cls"]) if parts["cls"].size < _MOST_CLS else b""
            label = int(text) if text.strip().isdigit() else None
            del members["cls"]
        if problem is not None:
            label = None
        claimed = self.labels and problem is None and ("cls" in parts or "label" in notes)
        if claimed and (type(label) is not int or label < 0):
            raise _without_label(self.file, stem, parts)
        if label is not None and label >= MOST_CLASSES:
            raise SourceError(
                f"{self.file}: the sample {stem} has the label {label}, but there may be "
                f"{MOST_CLASSES:,} classes at most",
                "Labels must be ranks of classes, from 0; write the shards again.",
            )
        name, key = notes.get("class"), notes.get("key")
        key, name = stem if key is None else str(key), name if isinstance(name, str) else None
        return _Sample(key, label, name, image, pixels, members, problem, lone, len(others) > 1)


def _about(member: Member, read: _Read) -> dict[str, Any]:
    """Return the object in a ``.json``; an empty one for other JSON."""
    try:
        if member.size > _MOST_JSON:
            raise ValueError(f"it has {member.size:,} bytes, more than {_MOST_JSON:,}")
        notes = parse_json(read(member), lenient=True)
    except ValueError as error:
        raise ValueError(f"its {member.name} is not JSON: {error}") from None
    if not isinstance(notes, dict):
        return {}
    if type(notes.get("key")) not in (str, int, type(None)):
        raise ValueError(f"the key in its {member.name} is neither text nor a number")
    for field in ("key", "class"):
        if not is_utf8(str(notes.get(field, ""))):
            raise ValueError(f"its {member.name} has a {field} that is not UTF-8")
    return notes


def _pixels(member: Member, read: _Read) -> tuple[Member, tuple[int, int]]:
    """Return the raw pixels after NumPy's header, and their size."""
    head = read(member._replace(size=min(member.size, HEAD)))
    try:
        length, height, width = npy_shape(head, member.size)
    except ValueError as error:
        raise ValueError(
            f"{error}; an image as .npy must be of version 1.0, uint8, height x width x 3"
        ) from None
    image = Member(member.name, member.offset + length, member.size - length)
    return image, (height, width)


def _arrays(members: Mapping[str, Member], read: _Read) -> Iterator[tuple[str, pa.DataType | None]]:
    """Yield the extension and the type of each array; None for one that no column has."""
    for extension, member in members.items():
        if extension.rpartition(".")[2] != _ARRAYS:
            continue
        try:
            head = read(member._replace(size=min(member.size, HEAD)))
            header = read_header(head, member.size)
        except ValueError:
            continue  # a bad sample, later
        kind, shape = header.dtype, header.shape
        if kind.kind not in "biuf" or kind.itemsize > 8 or 0 in shape or member.size > _MOST_TEXT:
            yield extension, None
            continue
        column_type = pa.from_numpy_dtype(kind.newbyteorder("="))
        for size in reversed(shape):
            column_type = pa.list_(column_type, size)
        yield extension, column_type


def _without_label(
    file: SourceFile, key: str, members: Mapping[str, Member], more: str = ""
) -> SourceError:
    return SourceError(
        f"{file}: the sample {key} has no integer label in .cls or .json{more} (it has: "
        f"{', '.join(sorted(members))})",
        "Labels are integers in .cls or .json members. With --no-labels there are none, and these "
        "members are fields.",
    )


class _Walked:
    """Shards that have been walked, with a file of their pickled samples: a shard of a listing.

    The file is not pickled with this object: another process walks the shards again.
    """

    def __init__(self, shards: Sequence[TarListing], kept: Any) -> None:
        self._shards, self._kept = shards, kept

    def __reduce__(self) -> Any:
        return _Walked, (self._shards, None)

    def records(self) -> Iterator[Record]:
        if self._kept is None:
            for shard in self._shards:
                yield from shard.records()
            return
        self._kept.seek(0)
        with suppress(EOFError):
            while True:
                number, sample, texts = pickle.load(self._kept)
                yield self._shards[number].record(sample, lambda one, of=texts: of[one.offset])


def _split(name: str) -> tuple[str | None, str]:
    """Return the key and the extension of a member's name, by the webdataset package's rules.

    The key is None for members that the package skips.
    """
    folder, slash, last = name.rpartition("/")
    stem, dot, extension = last.partition(".")
    above = folder.rpartition("/")[2]
    if not dot or not (stem or (above and "." not in above)):
        return None, ""
    first = name.partition("/")[0]
    if len(first) >= 4 and first.startswith("__") and first.endswith("__"):
        return None, ""
    return folder + slash + stem, extension.lower()
