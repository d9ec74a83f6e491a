"""A file of a source that is read by ranges: on this machine, or behind a URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from fastdata.remote.files import remote_path
from fastdata.remote.urls import is_url


class SourceFile(Protocol):
    """A file as readers of archives and of Parquet need it; picklable.

    Its text is its name in messages, without credentials. `fastdata.remote.files.RemotePath` is
    one, too.
    """

    @property
    def location(self) -> str:
        """Its path or its URL, as records have it."""

    @property
    def mtime_ns(self) -> int:
        """When it was last changed, as `fastdata.converters.records.Record` has it."""

    def open(self, mode: Literal["rb"] = "rb") -> Any:
        """Opens it: something with ``read``, ``seek``, ``tell`` and ``close``.

        Raises:
            OSError: It is not there, or cannot be read.
        """


class LocalFile(NamedTuple):
    """A file of this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def location(self) -> str:
        """See `SourceFile.location`."""
        return str(self.path)

    @property
    def mtime_ns(self) -> int:
        """See `SourceFile.mtime_ns`."""
        return self.path.stat().st_mtime_ns

    def open(self, mode: Literal["rb"] = "rb") -> Any:
        """See `SourceFile.open`."""
        # By pread: a file that is open over a fork has one place for parent and child.
        return pa.OSFile(str(self.path), mode)


def file_at(location: str, storage_options: Mapping[str, Any] | None = None) -> SourceFile:
    """The file that a record's path names.

    Raises:
        FileNotFoundError: It is behind a URL, and not there.
        RemoteError: The URL cannot be reached.
    """
    if is_url(location):
        return remote_path(location, storage_options)
    return LocalFile(Path(location))
