"""Sources without an index: files in a list, as torchvision's folders have them, and their base."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.errors import LEAVE_OUT
from fastdata.storage.cache import Cache
from fastdata.storage.encodings import NOT_NATIVE
from fastdata.storage.fields import BLOBS
from fastdata.storage.files import is_too_many, read_file
from fastdata.storage.learnt import LearningSource, Learnt, learnt_of
from fastdata.storage.source import (
    MOST_BYTES,
    Blob,
    BlobColumn,
    Gathered,
    Hints,
    Measured,
    Rows,
)
from fastdata.text import human_count


class ListsFiles(Protocol):
    """Object with a list of files, such as torchvision's ``DatasetFolder``."""

    @property
    def samples(self) -> Sequence[tuple[Any, int]]:
        """(path, label) of each file."""

    @property
    def classes(self) -> Sequence[str]:
        """Names of classes."""


class FileList(NamedTuple):
    """List of files that does not change."""

    samples: Sequence[tuple[Any, int]]
    classes: Sequence[str] = ("",)


class UnindexedSource(LearningSource):
    """Source without an index, of ``count`` rows.

    Sizes and kinds that the first epoch discovers are kept for the next ones (10 bytes a row), and
    so are seek points after `learn`.
    """

    def __init__(self, count: int) -> None:
        self._sizes = np.zeros((count, 2), np.int32)  # (width, height)
        self._encodings = np.full(count, -1, np.int8)
        self._orientations = np.full(count, -1, np.int8)
        self._pillow: set[int] = set()

    @abstractmethod
    def _identity(self) -> tuple[str, int]:
        """Return a text that identifies this dataset, and the number of images that it has."""

    def _open_learnt(self, cache: Cache | None) -> Learnt | None:
        text, count = self._identity()
        digest = hashlib.sha256(os.fsencode(text)).hexdigest()[:16]
        return learnt_of(self.location, digest, count, cache)

    def _images(self, rows: Rows, paths: Sequence[str], raw: bool = False) -> BlobColumn:
        """Return images with their known sizes and kinds; path "" if bytes are attached later.

        ``raw``: they are pixels, not files.
        """
        pillow = np.zeros(len(rows), np.bool_)
        if self._pillow:
            pillow[:] = [row in self._pillow for row in rows.tolist()]
        sizes = self._sizes[rows]
        orientations = self._orientations[rows] if self.upright else None
        extents = _native.Extents(paths, sizes=sizes, orientations=orientations, raw=raw)
        if self._learnt is not None:
            self._learnt.find(extents, self._images_of(rows))
        return BlobColumn(
            extents,
            widths=sizes[:, 0],
            heights=sizes[:, 1],
            pillow=pillow,
            encodings=self._encodings[rows],
        )

    def _file(self, row: int, path: str, field: str = "") -> Blob:
        """Return the blob that is a file of a row; ``field`` if it is not the image."""
        it = f"its {field}" if field else "it"
        try:
            data = read_file(path, MOST_BYTES)
        except FileNotFoundError:
            detail = f"{it} is missing: {path}" if field else "the file is missing"
            raise self.problem(row, detail, "file_missing") from None
        except OSError as error:
            code = "too_many_files" if is_too_many(error) else ""
            raise self.problem(
                row, f"{it} cannot be read: {error.strerror or error}", code
            ) from None
        return self._turned(data, field)

    def _turned(self, data: bytes, field: str = "") -> Blob:
        """Return a blob with its unknown turn, if it has any; ``field`` if it is not the image."""
        kind = self.field(field).kind if field else "image"
        return Blob(data, orientation=-1 if self.upright and kind == "image" else 0)

    def resized(self, rows: Rows, measured: Measured) -> None:
        """See `Source.resized`. A file may have been replaced."""
        widths, heights, encodings, orientations = measured
        self._sizes[rows, 0] = widths
        self._sizes[rows, 1] = heights
        self._encodings[rows] = -1 if encodings is None else encodings
        self._orientations[rows] = -1 if orientations is None else orientations

    def declined(self, row: int, code: str) -> None:
        if code in NOT_NATIVE:
            self._pillow.add(row)
        super().declined(row, code)


#: Most files that tell a list from others of as many files.
_NAMED = 16


class FilesSource(UnindexedSource):
    """Source of one file a row; relative paths lie below ``base``, "" for the current folder.

    ``listing``: the list must keep its length once rows have been gathered.
    """

    hints = Hints(
        missing="Put the file back, or rebuild torchvision's dataset.",
        undecodable=f"Repair the file, or {LEAVE_OUT}",
    )

    def __init__(self, listing: ListsFiles, location: Path | str = "", base: str = "") -> None:
        super().__init__(len(listing.samples))
        self._listing, self._base = listing, base
        self.location = location

    def __len__(self) -> int:
        return len(self._listing.samples)

    @property
    def classes(self) -> Sequence[str]:
        return self._listing.classes

    @property
    def summary(self) -> str:
        return f"{type(self._listing).__name__} of {human_count(len(self), 'file')}"

    def key(self, row: int) -> str:
        """See `Source.key`: the file's path."""
        path: str = os.fspath(self._listing.samples[row][0])
        return path

    def path(self, row: int) -> str:
        """Return the path of a row's file, which ``os.chdir`` does not change."""
        return os.path.join(self._base, self.key(row))

    def _identity(self) -> tuple[str, int]:
        """See `UnindexedSource._identity`: its folder, and some of its files."""
        count = len(self)
        some = [os.path.realpath(self.path(row)) for row in range(0, count, 1 + count // _NAMED)]
        return repr((os.path.realpath(self.location), count, some)), count

    def describe(self, row: int) -> str:
        return f"{self.path(row)}: sample {row}"

    def column(self, field: str, rows: Rows | None = None) -> npt.NDArray[np.int64]:
        self.field(field, ("column",))
        samples = self._listing.samples
        chosen = samples if rows is None else [samples[row] for row in rows.tolist()]
        return np.array([label for _, label in chosen], np.int64)

    def gather(self, rows: Rows, fields: Sequence[str] = ("image",)) -> Gathered:
        samples = self._listing.samples
        chosen = [samples[row] for row in rows.tolist()]
        images = self._images(rows, [os.path.join(self._base, path) for path, _ in chosen])
        columns = {}
        if "label" in fields:
            columns["label"] = np.array([label for _, label in chosen], np.int64)
        return Gathered({"image": images}, columns)

    def encoded(self, row: int, field: str = "image", data: bytes | None = None) -> Blob:
        self.field(field, BLOBS)
        return self._file(row, self.path(row)) if data is None else self._turned(data)
