"""File of this machine, with the methods that readers of archives and Parquet need."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from fastdata.storage.files import check_regular


class LocalFile(NamedTuple):
    """File of this machine; `fastdata.remote.files.RemotePath` is its like behind a URL."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def location(self) -> str:
        """Its path."""
        return str(self.path)

    @property
    def stem(self) -> str:
        """Its name without extension."""
        return self.path.stem

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self.path.stat().st_size

    @property
    def mtime_ns(self) -> int:
        """Its modification time, in nanoseconds."""
        return self.path.stat().st_mtime_ns

    def open(self, mode: Literal["rb"] = "rb") -> Any:
        """Open it for reading."""
        check_regular(self.path)
        # pyarrow uses pread: after a fork, parent and child would share one file position.
        return pa.OSFile(str(self.path), mode)
