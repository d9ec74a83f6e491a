"""Containers: where blobs lie, so that other tools can read them too.

A container's module holds its writer and its reader side by side. A writer takes samples
in order and says where each blob came to lie; a reader walks a finished file by the
container's own structure and finds the same extents again, which is how ``fastdata
verify`` knows that index and container agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fastdata.storage.records import Row


#: The containers by name. `folder` has no writer: it leaves a tree where it is.
CONTAINERS = ("lmdb", "parquet", "shards", "folder")


class Writer(Protocol):
    """Writer of one file of a container. Not thread-safe."""

    def add(self, row: Row, blob: bytes) -> None:
        """Append one sample.

        Raises:
            OSError: The file cannot be written.
        """

    def finish(self) -> Sequence[int]:
        """Complete the file.

        Returns:
            The offset of each sample's blob in the file, in the order added.
        """

    def checksum(self) -> int:
        """Return the finished file's CRC-32C."""

    def close(self) -> None:
        """Release the file, finished or not. May be called twice."""


def open_writer(
    container: str, path: Path, classes: Sequence[str], *, plain: bool = False
) -> Writer:
    """Open the writer of a container whose files are written independently.

    Args:
        container: ``parquet`` or ``shards``.
        path: The file to write.
        classes: Class names, by label.
        plain: Whether Parquet's column of blobs is one of bytes, not of Hugging Face's images.
    """
    options = {"plain": plain} if container == "parquet" else {}
    writer: Writer = _module(container).open_writer(path, classes, **options)
    return writer


def file_name(container: str, number: int) -> str:
    """Return the name of a container's file by its number from 0; an LMDB has one."""
    name: str = _module(container).FILE_NAME.format(number)
    return name


def extents(container: str, path: Path) -> Iterator[tuple[int, int]]:
    """Find every blob of a container's file by the container's own structure.

    Yields:
        Offset and length of each blob in bytes, in the order of the samples.

    Raises:
        CorruptionError: The file is not one that this container's writer makes.
    """
    found: Iterator[tuple[int, int]] = _module(container).extents(path)
    return found


def _module(container: str) -> ModuleType:
    if container not in CONTAINERS or container == "folder":
        raise ValueError(f"{container} has no files of its own, so no writer")
    # Imported when it is needed: reading one container does not load the others' libraries.
    return import_module(f"{__name__}.{container}")
