"""Remote files that read like local ones: by byte ranges, with read-ahead."""

from __future__ import annotations

import errno
import io
import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fastdata.errors import SourceError, UsageError
from fastdata.remote.filesystem import file_info, list_files, read_bytes
from fastdata.remote.patterns import absolute, expand, is_pattern
from fastdata.remote.requests import in_threads
from fastdata.remote.retries import Patience
from fastdata.remote.urls import is_url, join_url, name_of, redact
from fastdata.storage.local import LocalFile

_MOST = 8 << 20  # bytes of a request
_LEAST = 64 << 10
_GROWTH = 4  # factor of the read-ahead at each sequential request
#: Most bytes between two sequential requests: fetching them is faster than another round trip.
_NEAR = 1 << 20
_KEPT = 3  # requests: walking an archive also looks back a little


@dataclass(eq=False, repr=False)
class RemotePath:
    """File behind a URL, with the methods that readers of local files need; picklable.

    Sequential reads get read-ahead, up to 8 MiB. Reads far apart fetch little more than they ask
    for. Up to 24 MiB stay in memory until a reader is closed. ``mtime_ns`` is a number that changes
    when the file changes.
    """

    location: str
    size: int
    mtime_ns: int
    storage_options: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        self._patience = Patience()
        self.forget()

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePath, (self.location, self.size, self.mtime_ns, self.storage_options)

    def __str__(self) -> str:
        return redact(self.location)

    @property
    def stem(self) -> str:
        """Its name without extension."""
        return name_of(self.location).rpartition(".")[0]

    def open(self, mode: Literal["rb"] = "rb") -> io.RawIOBase:
        """Open it for reading."""
        return _RemoteStream(self)

    def read(self, offset: int, length: int) -> bytes:
        """Read bytes, fewer at the end of the file; raise ChangedError if the file has changed."""
        end = min(offset + length, self.size)
        pieces = []
        while offset < end:
            start, data = self._around(offset, end)
            piece = data[offset - start : end - start]
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def forget(self) -> None:
        """Free the bytes that were read."""
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self._ahead = _LEAST
        self._next = 0

    def _around(self, offset: int, end: int) -> tuple[int, bytes]:
        """Return (start, bytes) of a block that contains ``offset``."""
        for start, data in self._kept:
            if start <= offset < start + len(data):
                return start, data
        is_sequential = 0 <= offset - self._next <= _NEAR
        self._ahead = min(self._ahead * _GROWTH, _MOST) if is_sequential else _LEAST
        self._next = min(max(end, offset + self._ahead), self.size)
        where = self.location, self.storage_options, offset, self._next
        data = read_bytes(*where, patience=self._patience, state=self.mtime_ns)
        if len(data) <= _MOST:
            self._kept.append((offset, data))
        return offset, data


class _RemoteStream(io.RawIOBase):
    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._at = 0

    def close(self) -> None:
        self._path.forget()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._path.size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        length = self._path.size if size is None or size < 0 else size
        data = self._path.read(self._at, length)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def remote_path(url: str, storage_options: Mapping[str, Any] | None = None) -> RemotePath:
    """Return the file at a URL; raise FileNotFoundError if there is none."""
    entry = file_info(url, storage_options)
    return RemotePath(url, entry.size, entry.state, storage_options)


def list_paths(url: str, storage_options: Mapping[str, Any] | None = None) -> dict[str, RemotePath]:
    """Return the files below a folder by path, sorted; none if it is missing."""
    return {
        name: RemotePath(join_url(url, name), entry.size, entry.state, storage_options)
        for name, entry in list_files(url, storage_options).items()
    }


def archive_files(
    place: str | os.PathLike[str], extension: str, storage_options: Mapping[str, Any] | None = None
) -> list[LocalFile] | list[RemotePath]:
    """Return the files of a folder, of a pattern, or the one file that a place names.

    Files of a folder are those with ``extension``, such as ``.tar``, sorted by name, without hidden
    ones of this machine. Raise OSError for a path that is missing or cannot be read.
    """
    names = [absolute(name) for name in expand(place)]
    if not is_url(names[0]):
        if is_pattern(place) or not os.path.isdir(names[0]):
            return [LocalFile(_file(name)) for name in names]
        folder = os.path.abspath(names[0])
        chosen = sorted(name for name in os.listdir(folder) if name.lower().endswith(extension))
        return [LocalFile(Path(folder, name)) for name in chosen if not name.startswith(".")]
    if is_pattern(place):
        files = in_threads(partial(_matching, storage_options=storage_options), names)
        return list(chain.from_iterable(files))
    url = names[0].rstrip("/")
    if url.lower().endswith(extension):
        with suppress(FileNotFoundError):
            return [remote_path(url, storage_options)]
    listed = list_paths(url, storage_options).items()
    return [one for name, one in listed if "/" not in name and name.lower().endswith(extension)]


def _matching(url: str, storage_options: Mapping[str, Any] | None) -> list[RemotePath]:
    """Return the files of a folder that a URL names by ``*``, or its one file."""
    if "*" not in url:
        return [remote_path(url, storage_options)]
    folder, _, last = url.rpartition("/")
    if "*" in folder:
        hint = "Write * in the name of files alone."
        raise UsageError(f"{redact(url)}: its folder is a pattern", hint)
    files = list_paths(folder, storage_options).items()
    matching = [file for name, file in files if "/" not in name and fnmatchcase(name, last)]
    if not matching:
        raise SourceError(f"{redact(url)}: no file matches", "Check the URL.")
    return matching


def _file(name: str) -> Path:
    """Return the absolute path of a file; raise FileNotFoundError if there is none."""
    if os.path.isdir(name):
        raise OSError(errno.EISDIR, "a folder, but the pattern has to name files", name)
    if not os.path.isfile(name):
        raise FileNotFoundError(errno.ENOENT, "no such folder or file", name)
    return Path(os.path.abspath(name))


#: File for readers of archives and Parquet; picklable. ``str()`` is its name for messages.
SourceFile: TypeAlias = LocalFile | RemotePath


def file_at(location: str, storage_options: Mapping[str, Any] | None = None) -> SourceFile:
    """Return the file of a record's path."""
    if is_url(location):
        return remote_path(location, storage_options)
    return LocalFile(Path(location))
