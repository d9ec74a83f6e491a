"""Containers: where blobs lie, so that other tools can read them too.

A container's module holds its writer and its reader side by side. A writer takes samples
in order and says where each blob came to lie; a reader walks a finished file by the
container's own structure and finds the same extents again, which is how ``fastdata
verify`` knows that index and container agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from fastdata.storage.arrow import size_of
from fastdata.storage.fields import BLOBS, IMAGE, Field
from fastdata.storage.manifest import CONTAINERS, IN_PLACE
from fastdata.storage.records import Row

#: Tells Hugging Face's ``datasets`` which files of the folder are the data.
HUGGING_FACE_NAME = ".huggingface.yaml"


class NewSample(NamedTuple):
    """Sample to write.

    Attributes:
        row: Index row of its image.
        blob: Bytes of its image.
        fields: Values of its other fields, in their order; None where there is none. A column's
            is one of `fastdata.storage.arrow.python_values`; a blob's is its index row and bytes.
        is_turned: Whether its annotations are for the image as its EXIF orientation turns it; None
            if that changes no size, or they do not say a size.
    """

    row: Row
    blob: bytes
    fields: tuple[Any, ...] = ()
    is_turned: bool | None = None

    @property
    def blob_bytes(self) -> int:
        """Sum of its blobs' lengths."""
        return self.row.length + sum(row.length for row, _ in self._blobs())

    @property
    def size(self) -> int:
        """Bytes of its blobs and, roughly, of its columns' values."""
        values = (value for value in self.fields if not isinstance(value, tuple))
        return self.blob_bytes + sum(map(size_of, values))

    def without_blobs(self) -> NewSample:
        """Return the sample without bytes of blobs."""
        fields = ((one[0], b"") if isinstance(one, tuple) else one for one in self.fields)
        return NewSample(self.row, b"", tuple(fields))

    def _blobs(self) -> Iterator[tuple[Row, bytes]]:
        return (value for value in self.fields if isinstance(value, tuple))


class Writer(Protocol):
    """Writer of one file of a container. Not thread-safe."""

    def add(self, sample: NewSample) -> None:
        """Append one sample."""

    def finish(self) -> Mapping[str, Sequence[int]]:
        """Complete the file; return each blob's offset by field, 0 where a sample has none."""

    def checksum(self) -> int:
        """Return the finished file's CRC-32C."""

    def close(self) -> None:
        """Release the file, finished or not. May be called twice."""


def open_writer(
    container: str,
    path: Path,
    classes: Sequence[str],
    fields: Sequence[Field] = (),
    *,
    plain: bool = False,
) -> Writer:
    """Return the writer of a new ``parquet`` or ``shards`` file.

    ``classes`` are empty if there are no labels; ``fields``: beside image and label; ``plain``:
    Parquet's column of blobs is one of bytes, not of Hugging Face's images.
    """
    options = {"plain": plain} if container == "parquet" else {}
    writer: Writer = _module(container).open_writer(path, classes, fields, **options)
    return writer


def file_name(container: str, number: int) -> str:
    """Return the name of a container's file by its number from 0; an LMDB has one."""
    name: str = _module(container).FILE_NAME.format(number)
    return name


def hugging_face(container: str, fields: Sequence[Field]) -> str | None:
    """Return the text of `HUGGING_FACE_NAME`; None if ``datasets`` finds the files without it."""
    if container == "shards" or (container == "parquet" and fields):
        suffix = Path(_module(container).FILE_NAME).suffix
        return f"configs: [{{config_name: default, data_files: '*{suffix}'}}]\n"
    return None


def extents(
    container: str, path: Path, fields: Sequence[Field] = ()
) -> Iterator[Mapping[str, tuple[int, int]]]:
    """Yield each sample's blobs in a container's file, by its own structure: (offset, length).

    Raises:
        CorruptionError: The file is not one that this container's writer makes.
    """
    names = [field.name for field in fields if field.kind in BLOBS and field != IMAGE]
    places: Iterator[Mapping[str, tuple[int, int]]] = _module(container).extents(path, names)
    return places


def _module(container: str) -> ModuleType:
    if container not in CONTAINERS or container in IN_PLACE:
        raise ValueError(f"{container} has no files of its own, so no writer")
    # Imported late: reading one container does not load the libraries of another.
    return import_module(f"{__name__}.{container}")
