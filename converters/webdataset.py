"""Existing tar shards in the WebDataset convention.

Members of one sample stand in a row and share their name up to the first dot of its last
component, the key; what follows is what the member is: an image, ``cls``, ``json``.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fastdata.converters.imagefolder import require_utf8
from fastdata.converters.records import Listable, Record
from fastdata.converters.tree import is_folder, is_utf8, scan, storable

from fastdata.errors import SourceError
from fastdata.remote.files import RemotePath, list_paths
from fastdata.remote.urls import is_url, redact
from fastdata.storage.files import read_exactly
from fastdata.storage.formats.tars import Member, members
from fastdata.storage.probe import EXTENSIONS, IMAGE_EXTENSIONS

#: The class list is held in memory and in the manifest, so a stray label must not size it.
_MOST_CLASSES = 1 << 22
#: Records that are pickled together.
_KEPT_AT_ONCE = 1024
#: Bytes in which the header of a .npy ends: NumPy's own are 128.
_NPY_HEAD = 4096
#: Those of torchvision, and those that the shards container uses.
_IMAGE_EXTENSIONS = {*IMAGE_EXTENSIONS, *(f".{e}" for c, e in EXTENSIONS.items() if c != "raw")}


class WebDataset:
    """The samples of tar shards, by shard name, in each shard's order.

    A label is the integer in a sample's ``.cls``, or ``label`` in its ``.json``. Class
    names are ``class`` in the ``.json`` where all samples have it, else the numbers.
    The key is ``key`` in the ``.json``, where there is one, else the members' name.

    An image is a file of any format, or raw pixels as the `shards` container has them: a
    ``.npy`` of version 1.0, uint8, height x width x 3.

    The shards are walked twice, once for the classes and once for the records. Classes must be
    known before the first record is, since who packs decides by them whether it may go on; and
    what a walk finds may be more than fits in memory. Behind a URL, a walk reads all that there
    is: there it is one, and what it has found is kept in a temporary file ($TMPDIR).

    Args:
        root: A folder of ``*.tar``, or one tar file; or the URL of either.
        shard_keys: Whether keys begin with the name of their shard, ``<shard>/<key>``. Needed
            where every shard numbers its samples from the same number.
        storage_options: Options of the driver of a URL.

    Raises:
        RemoteError: The URL cannot be reached.
        SourceError: There are no shards, one cannot be read, or a sample lacks its image
            or label.
    """

    root: str | None = None  # there are no image files to leave in place

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        shard_keys: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._shard_keys = shard_keys
        self._shards: Sequence[Path | RemotePath]
        self.inputs: list[Path | str]
        self._kept: Any = None  # a file of pickled records, where a second walk costs too much
        if is_url(root):
            self._open_url(os.fspath(root), storage_options)
            return
        # The whole path: the machines of a cluster work in folders of their own.
        root = Path(root).absolute()
        if is_folder(root):
            shards = [Path(e.path) for e in scan(root) if e.name.endswith(".tar")]
        elif root.is_file():
            shards = [root]
        else:
            raise SourceError(f"{root}: no such folder or file", "Name the shards with --root.")
        self._shards = shards
        self.inputs = [*shards]
        if not shards:
            raise SourceError(
                f"{root}: holds no *.tar",
                "Name the folder of the shards with --root; compressed ones must be gunzipped.",
            )
        self.classes = self._find_classes()
        self.about = {"kind": "webdataset", "root": str(require_utf8(root.resolve()))}

    def _open_url(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self._shards = list_paths(url, ".tar", storage_options)
        if not self._shards:
            raise SourceError(
                f"{redact(url)}: no *.tar here",
                "Name the shards, or their folder, with --root; compressed ones must be gunzipped.",
            )
        self.inputs = [url]
        # Without a name: it is gone when this object, or this process, is.
        self._kept = tempfile.TemporaryFile(prefix="fastdata-")  # noqa: SIM115
        weakref.finalize(self, self._kept.close)
        self.classes = self._find_classes()
        self.about = {"kind": "webdataset", "root": redact(url)}

    def records(self) -> Iterator[Record]:
        """Yields the samples by shard, then in the shard's order."""
        for shard in self.shards():
            yield from shard.records()

    def shards(self) -> Sequence[Listable]:
        """Shards of the listing: the tar files."""
        shards = [TarListing(path, self._shard_keys) for path in self._shards]
        return shards if self._kept is None else [_Walked(shards, self._kept)]

    def _find_classes(self) -> list[str]:
        names: dict[int, str | None] = {}
        for shard in self._shards:
            listing = TarListing(shard, self._shard_keys)
            with _open_shard(shard) as opened:
                kept: list[Record] = []
                for sample in opened.samples():
                    if self._kept is not None:
                        kept.append(listing.record(opened, sample))
                    if len(kept) == _KEPT_AT_ONCE:
                        pickle.dump(kept, self._kept)
                        kept = []
                    known = names.setdefault(sample.label, sample.class_name)
                    if known != sample.class_name:
                        raise SourceError(
                            f"{shard}: sample {sample.key} has label {sample.label} and class "
                            f"{sample.class_name!r}, but another of that label has class {known!r}",
                            "Mend the .json members: one label, one class.",
                        )
                if kept:
                    pickle.dump(kept, self._kept)
        if any(name is None for name in names.values()):
            return [str(label) for label in range(max(names, default=-1) + 1)]
        return [names.get(label) or str(label) for label in range(max(names, default=-1) + 1)]


class TarListing(NamedTuple):
    """One tar file of a source: a shard of its listing."""

    path: Path | RemotePath
    shard_keys: bool

    def records(self) -> Iterator[Record]:
        """Yields its samples in order."""
        with _open_shard(self.path) as opened:
            for sample in opened.samples():
                yield self.record(opened, sample)

    def record(self, shard: _Shard, sample: _Sample) -> Record:
        """The record of a sample."""
        key = sample.key
        if self.shard_keys:
            key = f"{shard.path.stem}/{key}"
        key, problem = storable(key)
        member, pixels = sample.image, None
        if sample.is_pixels:
            header, height, width = shard.npy_header(member)
            member = Member(member.name, member.offset + header, member.size - header)
            pixels = height, width, None
        return Record(
            key,
            sample.label,
            shard.location,
            member.offset,
            member.size,
            shard.mtime_ns,
            pixels=pixels,
            problem=problem,
        )


class _Walked:
    """Shards that have been walked, and what was found: one shard of a listing.

    Args:
        shards: The tar files.
        kept: A file of pickled records. It is this process's own: in another one, the shards are
            walked again.
    """

    def __init__(self, shards: Sequence[TarListing], kept: Any) -> None:
        self._shards = shards
        self._kept = kept

    def __getstate__(self) -> dict[str, Any]:
        return {"_shards": self._shards, "_kept": None}

    def records(self) -> Iterator[Record]:
        """Yields their samples in order."""
        if self._kept is None:
            for shard in self._shards:
                yield from shard.records()
            return
        self._kept.seek(0)
        for batch in _unpickled(self._kept):
            yield from batch


class _Sample(NamedTuple):
    """What a shard says of one sample."""

    key: str
    label: int
    class_name: str | None
    image: Member
    is_pixels: bool


def _unpickled(file: Any) -> Iterator[list[Record]]:
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return


def _open_shard(path: Path | RemotePath) -> _Shard:
    return _RemoteShard(path) if isinstance(path, RemotePath) else _Shard(path)


class _Shard:
    """One shard, open for reading beside the walk over its members."""

    path: Path | RemotePath

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError(
                f"{path}: cannot be opened: {error.strerror}", "Check its permissions."
            ) from None
        self.mtime_ns = os.fstat(self._file).st_mtime_ns

    def __enter__(self) -> _Shard:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._file)

    def read(self, member: Member) -> bytes:
        """Reads a member.

        Raises:
            SourceError: It cannot be read.
        """
        try:
            return read_exactly(self._file, member.offset, member.size)
        except OSError as error:
            raise SourceError(
                f"{self.path}: {member.name} cannot be read: {error.strerror}", "Check the disk."
            ) from None

    def samples(self) -> Iterator[_Sample]:
        """Yields the samples in the shard's order.

        Raises:
            SourceError: The shard is damaged, or a sample lacks its image or label.
        """
        for stem, group in groupby(members(self.path), key=_stem):
            yield self._sample(
                stem, {member.name[len(stem) + 1 :].lower(): member for member in group}
            )

    def _sample(self, stem: str, parts: dict[str, Member]) -> _Sample:
        image = next((m for ext, m in parts.items() if "." + ext in _IMAGE_EXTENSIONS), None)
        pixels = parts.get(EXTENSIONS["raw"]) if image is None else None
        found = image or pixels
        if found is None:
            raise self._missing("image", stem, parts)
        about = self._json(parts["json"]) if "json" in parts else {}
        label: Any = about.get("label")
        if "cls" in parts:
            text = self.read(parts["cls"])
            label = int(text) if text.strip().isdigit() and len(text) < 100 else None
        if not isinstance(label, int) or label < 0:
            raise self._missing("integer label in .cls or .json", stem, parts)
        if label >= _MOST_CLASSES:
            raise SourceError(
                f"{self.path}: the sample {stem} has the label {label}, but there may be "
                f"{_MOST_CLASSES:,} classes at most",
                "Labels must be ranks of classes, from 0; write the shards with such.",
            )
        name = about.get("class")
        return _Sample(
            str(about.get("key", stem)),
            label,
            name if isinstance(name, str) else None,
            found,
            pixels is not None,
        )

    def _missing(self, what: str, stem: str, parts: dict[str, Member]) -> SourceError:
        return SourceError(
            f"{self.path}: the sample {stem} has no {what} (it has: {', '.join(sorted(parts))})",
            "fastdata packs images with integer labels; write the shards with both.",
        )

    def _json(self, member: Member) -> dict[str, Any]:
        try:
            about = json.loads(self.read(member))
        except ValueError as error:
            raise SourceError(
                f"{self.path}: {member.name} is not JSON: {error}", "Write the shards anew."
            ) from None
        if not isinstance(about, dict):
            return {}
        for field in ("key", "class"):
            if not is_utf8(str(about.get(field, ""))):
                raise SourceError(
                    f"{self.path}: {member.name} has a {field} that cannot be written as UTF-8",
                    "Write the shards without it.",
                )
        return about

    def npy_header(self, member: Member) -> tuple[int, int, int]:
        """The length of NumPy's header before raw pixels, their height and their width.

        Raises:
            SourceError: The member is not an array of pixels.
        """
        head = io.BytesIO(self.read(member._replace(size=min(member.size, _NPY_HEAD))))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what Python 2 wrote
                version = np.lib.format.read_magic(head)
                if version != (1, 0):
                    raise ValueError(f"version {version}")
                shape, by_column, kind = np.lib.format.read_array_header_1_0(head)
            length = head.tell()
            if by_column or kind != np.uint8:
                raise ValueError(f"{kind}, Fortran order: {by_column}")
            if len(shape) != 3 or shape[2] != 3 or min(shape) < 1:
                raise ValueError(f"shape {shape}")
            if length + shape[0] * shape[1] * 3 != member.size:
                raise ValueError(f"{member.size} bytes for shape {shape}")
        except Exception as error:  # NumPy's parser raises almost anything on foreign bytes
            raise SourceError(
                f"{self.path}: {member.name} does not hold pixels: {error}",
                "An image as .npy must be of version 1.0, uint8, height x width x 3; write the "
                "shards with such, or with image files.",
            ) from None
        return length, shape[0], shape[1]


class _RemoteShard(_Shard):
    """One shard behind a URL."""

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        self.location = path.location
        self.mtime_ns = path.mtime_ns

    def __exit__(self, *exception: object) -> None:
        pass

    def read(self, member: Member) -> bytes:
        assert isinstance(self.path, RemotePath)
        return self.path.read(member.offset, member.size)


def _stem(member: Member) -> str:
    folder, slash, last = member.name.rpartition("/")
    return folder + slash + last.partition(".")[0]
