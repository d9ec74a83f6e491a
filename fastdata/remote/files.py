"""A remote file that is read like a local one: in blocks, the last few of which are kept."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

from fastdata.remote.filesystem import list_entries, read_bytes
from fastdata.remote.urls import name_of, redact

_BLOCK = 8 << 20  # bytes of a request
_KEPT = 3  # blocks: who walks an archive also looks back a little


class RemotePath:
    """A file behind a URL, as far as readers of local files need one.

    Args:
        url: The file's URL.
        size: Its size in bytes.
        changed: A number that is another one when the file has changed.
        storage_options: See `fastdata.remote.filesystem.open_filesystem`.
    """

    def __init__(
        self, url: str, size: int, changed: int, storage_options: Mapping[str, Any] | None
    ) -> None:
        self.url = url
        self.size = size
        self.changed = changed
        self._options = storage_options
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def __str__(self) -> str:
        return redact(self.url)

    @property
    def stem(self) -> str:
        """Its name without extension."""
        return name_of(self.url).rpartition(".")[0]

    def open(self, mode: Literal["rb"] = "rb") -> io.RawIOBase:
        """Opens it for reading."""
        return _Reader(self)

    def read(self, offset: int, length: int) -> bytes:
        """Reads bytes; fewer where the file ends.

        Raises:
            FileNotFoundError: It is gone.
            RemoteError: It cannot be read.
        """
        end = min(offset + length, self.size)
        pieces = []
        while offset < end:
            number, at = divmod(offset, _BLOCK)
            piece = self._block(number)[at : at + end - offset]
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is None:
            start = number * _BLOCK
            block = read_bytes(self.url, self._options, start, min(start + _BLOCK, self.size))
            self._blocks[number] = block
            while len(self._blocks) > _KEPT:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(number)
        return block


class _Reader(io.RawIOBase):
    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._path.size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._path.read(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def list_paths(
    url: str, extension: str, storage_options: Mapping[str, Any] | None
) -> list[RemotePath]:
    """The files of an extension that lie in a folder, sorted by name; or the file itself.

    Raises:
        RemoteError: It cannot be listed.
    """
    url = url.rstrip("/")
    folder = url.rpartition("/")[0] if url.endswith(extension) else url
    found = []
    for name, entry in sorted(list_entries(folder, storage_options).items()):
        path = f"{folder}/{name}"
        if "/" not in name and name.endswith(extension) and (folder == url or path == url):
            found.append(RemotePath(path, entry.size, entry.changed, storage_options))
    return found
