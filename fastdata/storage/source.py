"""`Source`: random access to the rows of a dataset, wherever they lie.

A row has named fields: an image is a blob that something above decodes, a label is a number of a
column. A source knows bytes and never pixels. It implements five methods; defaults for the others
are written over these, so a new source is correct before it is fast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata.errors import (
    LEAVE_OUT,
    MORE_FILES,
    CorruptionError,
    DatasetError,
    FastdataError,
    SampleError,
    UsageError,
)
from fastdata.once import once
from fastdata.storage.encodings import NATIVE_JPEGS, upright_size
from fastdata.storage.fields import BLOBS, IMAGE_AND_LABEL, KINDS, Field
from fastdata.text import human_count

#: Numbers of rows.
Rows: TypeAlias = npt.NDArray[np.int64]
#: Values of some rows: a NumPy array, shape (N,) or (N, K, …), where each row has one number or an
#: array of one shape; else an Arrow array of N values.
Column: TypeAlias = npt.NDArray[Any] | pa.Array

#: Most bytes of an image. The native core has the same bound (``io/extents.cpp``).
MOST_BYTES = 1 << 30


#: Whether the core decodes an encoding, by its place in `_native.ENCODINGS`.
_NATIVE = np.isin(_native.ENCODINGS, (*NATIVE_JPEGS, "raw"))


@dataclass(frozen=True)
class Capabilities:
    """Properties of a source that decide how its rows are read.

    Attributes:
        local: The core can read the blobs itself. If not, `Source.start_pass` fetches them.
        shuffled: The rows lie in random order.
        seek_points: Every sound JPEG of one scan has seek points.
        stride: Pixels between the seek points that the core builds for JPEGs without any, for
            `Source.built` to remember; 0 to build none.
        partly_local: The core can read the blobs of some rows, of a source that is not local.
        row_groups: A library decodes the blobs, a row group at a time.
    """

    local: bool = True
    shuffled: bool = False
    seek_points: bool = False
    stride: int = 0
    partly_local: bool = False
    row_groups: bool = False


class Blob(NamedTuple):
    """Encoded bytes of one field of one row.

    Attributes:
        data: The bytes.
        encoding: Name in `_native.ENCODINGS`; "" if only the bytes tell.
        width: Columns of the image in pixels; 0 if only the bytes tell.
        height: Rows of the image in pixels; 0 if only the bytes tell.
        channels: Colour components as stored.
        orientation: EXIF orientation by which to turn the image, 1 to 8; -1 if only the bytes
            tell; 0 to leave it as it is stored.
        checked: Whether the bytes are known to be those that were packed.
    """

    data: bytes
    encoding: str = ""
    width: int = 0
    height: int = 0
    channels: int = 3
    orientation: int = 0
    checked: bool = False

    @property
    def upright_size(self) -> tuple[int, int]:
        """(width, height) of the turned image; zeros if only the bytes tell."""
        if self.orientation < 0:
            return 0, 0
        return upright_size(self.width, self.height, self.orientation)


class BlobColumn:
    """Blobs of one field in several rows, before they are read. Arrays have the shape (N,).

    Arrays that are left out are the extents' own. They are made on first use, because a batch that
    the core decodes needs few of them.
    """

    def __init__(self, extents: _native.Extents, **arrays: npt.NDArray[Any]) -> None:
        self.extents = extents
        vars(self).update(arrays)  # the properties below are then not called

    @once
    def widths(self) -> npt.NDArray[np.int32]:
        """int32, in pixels; 0 if only the file tells."""
        return self.extents.widths

    @once
    def heights(self) -> npt.NDArray[np.int32]:
        """int32, in pixels; 0 if only the file tells."""
        return self.extents.heights

    @once
    def pillow(self) -> npt.NDArray[np.bool_]:
        """True for blobs that the core is known not to decode."""
        return ~_NATIVE[self.encodings]

    @once
    def encodings(self) -> npt.NDArray[np.int8]:
        """int8, places in `_native.ENCODINGS`; -1 if only the file tells."""
        return self.extents.encodings


class Gathered(NamedTuple):
    """Several rows, by field.

    Attributes:
        blobs: Fields of the kinds "image", "mask" and "blob".
        columns: Fields of the kind "column"; ``label`` is int64, shape (N,), writeable.
    """

    blobs: dict[str, BlobColumn]
    columns: dict[str, Column]


class Stamped(NamedTuple):
    """A seek table, and the size and time of change of the file it was built from; 0 for a blob."""

    table: bytes
    size: int = 0
    mtime_ns: int = 0


class Measured(NamedTuple):
    """Properties of images that decoding has discovered, (N,).

    Widths and heights in pixels, places in `_native.ENCODINGS`, values of `Blob.orientation`.
    """

    widths: npt.NDArray[np.int32]
    heights: npt.NDArray[np.int32]
    encodings: npt.NDArray[np.int8] | None = None
    orientations: npt.NDArray[np.int8] | None = None


class Lookahead(Protocol):
    """Batches of a pass."""

    @property
    def taken(self) -> int:
        """How many were taken."""

    def ahead(self, number: int) -> tuple[Rows, Any, int] | None:
        """Return the draws of batch ``number``, which was not taken, and more; None at the end."""


class PassRequest(NamedTuple):
    """Rows that one pass reads.

    Attributes:
        schedule: Its batches (`fastdata.plan.schedule.BatchSchedule`).
        number: Maps draws to rows.
        bad: Rows that no batch will have; may grow.
        plan_fetches: Returns the parts of large images that crops need; None for whole images.
        fields: The fields of images and blobs to prefetch.
        share: Part of `fastdata.remote.RemoteOptions.memory` that the pass may use.
    """

    schedule: Lookahead
    number: Callable[[Rows], Rows]
    bad: Set[int]
    plan_fetches: Callable[[_native.Extents, Rows], Any] | None = None
    fields: Sequence[str] = ("image",)
    share: float = 1.0


class Blocks(NamedTuple):
    """Runs of rows that are read together, whichever of them are wanted.

    Attributes:
        starts: First row of each, int64, ascending from 0.
        window: How many of them memory has room for while others are prefetched.
    """

    starts: Rows
    window: int


class ExtentTable:
    """Extents of an index's rows, gathered by the native core without Python for each row.

    `fastdata.storage.index.Index.locate` makes it. Safe to use from several threads, and after a
    fork. ``labelled``: its rows have labels.
    """

    def __init__(
        self,
        table: _native.RecordTable,
        require_unchanged: Callable[[], None],
        unusable: Callable[[OSError | ValueError], DatasetError],
        labelled: bool,
    ) -> None:
        self._table, self._labelled = table, labelled
        self._require_unchanged, self._unusable = require_unchanged, unusable

    def learn(self, file: _native.Files) -> None:
        """Take seek points of rows that have none from a file of `Learnt` from now on."""
        self._table.learn(file)

    def gather(self, indices: Rows) -> _native.Extents:
        """Return the extents of some rows, int64, (N,); raise IndexError if there is no such row.

        A row that is damaged, or whose values make no sense, is an error only when it is read: its
        code is then ``corrupt_index``.
        """
        self._require_unchanged()
        try:
            return self._table.gather(np.ascontiguousarray(indices, np.int64))
        except (OSError, ValueError) as error:
            raise self._unusable(error) from None

    def rows(
        self, indices: Rows, numbers: Rows, occurrences: Rows | None, max_pixels: int
    ) -> _native.Rows:
        """Return some rows as `_native.Rows`, for decode threads to look up."""
        self._require_unchanged()
        return _native.Rows(self._table, indices, numbers, occurrences, max_pixels)

    def described(self, extents: _native.Extents) -> Gathered:
        """Return rows that decode threads have looked up, as `Source.gather` does."""
        columns = {"label": extents.labels.copy()} if self._labelled else {}
        return Gathered({"image": BlobColumn(extents)}, columns)


class Hints(NamedTuple):
    """Remedies for rows whose bytes changed, whose file is missing, or that cannot be decoded."""

    changed: str = "Restore the data, or open them again."
    missing: str = "Put the file back."
    undecodable: str = f"Repair them, or {LEAVE_OUT}"


class Source(ABC):
    """Random access to rows by their number from 0.

    Safe to use from several threads, and after a fork.

    Attributes:
        fields: The schema of every row.
        capabilities: See `Capabilities`.
        location: The folder or URL for messages, without credentials.
        hints: Remedies for its errors.
        upright: Whether images, but not masks, are turned as their EXIF orientation says. Sizes are
            then of turned images.
        generation: The manifest's; "" without one.
        note: Ends the hints of errors about its data.
    """

    fields: Sequence[Field] = IMAGE_AND_LABEL
    capabilities = Capabilities()
    location: Path | str = ""
    hints = Hints()
    upright = False
    generation = ""
    note = ""

    # The minimum.

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @property
    @abstractmethod
    def classes(self) -> Sequence[str]:
        """Names of classes; a label is an index into them."""

    @abstractmethod
    def key(self, row: int) -> str:
        """Return a row's name, unique in the dataset."""

    @abstractmethod
    def encoded(self, row: int, field: str = "image", data: bytes | None = None) -> Blob:
        """Return the blob of one row for a decoder in Python.

        Args:
            row: Its number.
            field: A field of the kind "image", "mask" or "blob".
            data: The blob's bytes if the caller has them already.

        Raises:
            FastdataError: It cannot be read, or has changed; the text names the row.
            UsageError: There is no such field.
        """

    @abstractmethod
    def column(self, field: str, rows: Rows | None = None) -> Column:
        """Return the values of a column in some rows; in all rows without ``rows``.

        Labels are int64, shape (N,).

        Raises:
            DatasetError: The index is damaged.
            UsageError: There is no such field.
        """

    # Reading.

    @property
    def summary(self) -> str:
        """Number and kind of its rows, in words."""
        return count_samples(len(self), self.classes)

    def generation_now(self) -> str:
        """Return the generation of the dataset at its location now; "" if there is none."""
        return self.generation

    def gather(self, rows: Rows, fields: Sequence[str] = ("image",)) -> Gathered:
        """Return some fields of several rows, without reading blobs whose extents are known.

        A row that is damaged is an error only when the core reads its blob.

        Args:
            rows: Their numbers.
            fields: Names of fields; others are not read.

        Raises:
            DatasetError: The index cannot be read.
            UsageError: There is no such field.
        """
        blobs, columns = {}, {}
        for name in fields:
            if self.field(name).kind in BLOBS:
                blobs[name] = self._read(rows, name)
            else:
                columns[name] = self.column(name, rows)
        return Gathered(blobs, columns)

    def field(self, name: str, kinds: Sequence[str] = KINDS) -> Field:
        """Return a field of the schema, of some kinds; raise UsageError if there is none."""
        of_kinds = [field for field in self.fields if field.kind in kinds]
        for field in of_kinds:
            if field.name == name:
                return field
        known = ", ".join(field.name for field in of_kinds)
        listed = f"{', '.join(kinds[:-1])} or {kinds[-1]}" if len(kinds) > 1 else kinds[0]
        what = "field" if kinds == KINDS else f"{listed} field"
        raise UsageError(f"{self.location}: no {what} {name!r}", f"It has {known}.")

    def table_of(self, field: str = "image") -> ExtentTable | None:
        """Return the index in which the core looks up a field's blobs; None if there is none."""
        return None

    def _read(self, rows: Rows, field: str) -> BlobColumn:
        """Return blobs whose bytes are in memory; unreadable ones fail as missing files."""
        count = len(rows)
        blobs: dict[int, Blob] = {}
        sizes = np.zeros((2, count), np.int32)
        encodings, orientations = np.full(count, -1, np.int8), np.zeros(count, np.int8)
        for slot, row in enumerate(rows.tolist()):
            with suppress(FastdataError):  # reading it again says why
                blob = blobs[slot] = self.encoded(row, field)
                sizes[:, slot] = blob.upright_size
                encodings[slot] = _native.ENCODINGS.index(blob.encoding) if blob.encoding else -1
                orientations[slot] = blob.orientation
        extents = _native.Extents([""] * count, orientations=orientations)
        for slot, blob in blobs.items():
            extents.attach(slot, blob.data)
        pillow = encodings == _native.ENCODINGS.index("raw")
        return BlobColumn(
            extents, widths=sizes[0], heights=sizes[1], pillow=pillow, encodings=encodings
        )

    @property
    def blocks(self) -> Blocks | None:
        """Runs of rows that are decoded together; None if rows are read one by one."""
        return None

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(width, height) of every image in pixels; None if sizes differ or are unknown."""
        return None

    def start_pass(self, request: PassRequest) -> Any:
        """Start to prefetch the rows of one pass; return None if the source is local.

        Returns:
            A `fastdata.remote.prefetch.RemotePass`.
        """
        return None

    def is_fetched(self, row: int) -> bool:
        """Return whether `start_pass` fetches a row's blobs."""
        return not self.capabilities.local

    # Errors.

    def describe(self, row: int) -> str:
        """Return a row's number, key and place: the beginning of an error message."""
        return f"{self.location}: sample {row} ({self.key(row)})"

    def problem(self, row: int, detail: str, code: str = "", hint: str = "") -> FastdataError:
        """Return the error for a row.

        Args:
            row: Its number.
            detail: The problem; follows the description of the row and a colon.
            code: One of the core's codes (fastdata/native/status.h); "" if it cannot be decoded.
            hint: The remedy; "" for one of `hints`.
        """
        try:
            what = f"{self.describe(row)}: {detail}"
        except CorruptionError as error:
            return error
        if code in ("changed", "cut_short", "corrupt_index"):
            return CorruptionError(what, hint or self.hints.changed)
        if code in ("file_missing", "file_unreadable"):
            return DatasetError(what, hint or self.hints.missing)
        if code == "too_many_files":
            return DatasetError(what, MORE_FILES)
        return SampleError(what, hint or self.hints.undecodable)

    # Discoveries while decoding. Safe to call from several threads.

    def resized(self, rows: Rows, measured: Measured) -> None:
        """Record properties that `gather` did not know, or knew wrongly."""
        return

    def declined(self, row: int, code: str) -> None:
        """Record that the core does not decode a row as it is; ``code`` is its reason."""
        return

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        """Keep seek points that were built because of `Capabilities.stride`: (row, table)."""
        return

    def end_epoch(self) -> None:
        """Record that all rows of an epoch were delivered."""
        return


def count_samples(count: int, classes: Sequence[str]) -> str:
    """Return a number of samples in words, and the number of classes if there are labels."""
    samples = human_count(count, "sample")
    return f"{samples} of {human_count(len(classes), 'class', 'classes')}" if classes else samples
