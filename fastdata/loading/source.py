"""Where a loader's samples come from: a packed dataset, or the files of an ``ImageFolder``."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.dataset import ImageDataset
from fastdata.decode.codecs import NATIVE, PILLOW, Encoded, Foreseen, foresee, way_of
from fastdata.decode.fallback import NOT_NATIVE
from fastdata.decode.limits import MOST_BYTES, Limits
from fastdata.errors import (
    CorruptionError,
    DatasetError,
    FastdataError,
    SampleError,
    printable,
    warn,
)
from fastdata.loading.seek_cache import SeekCache, Stamped
from fastdata.plan.schedule import Indices, Numbering
from fastdata.remote.opening import RemoteBlobs
from fastdata.remote.prefetch import PlanFetches, RemotePass
from fastdata.storage.encodings import ENCODINGS, NATIVE_JPEGS
from fastdata.storage.files import open_file, read_file
from fastdata.storage.index import ExtentTable
from fastdata.text import human_share

#: Encodings that the native core reads: by their place in `ENCODINGS`.
_NATIVE = np.isin(ENCODINGS, (*NATIVE_JPEGS, "raw"))


class Gathered(NamedTuple):
    """What is known of a batch's samples before they are read.

    Attributes:
        extents: Where they lie.
        labels: int64, shape (N,).
        widths: int32, shape (N,), in pixels; 0 where only the file can tell.
        heights: As ``widths``.
        pillow: bool, shape (N,): which ones the native core does not decode.
        encodings: int8, shape (N,): places in `ENCODINGS`; -1 where only the file can tell.
    """

    extents: _native.Extents
    labels: npt.NDArray[np.int64]
    widths: npt.NDArray[np.int32]
    heights: npt.NDArray[np.int32]
    pillow: npt.NDArray[np.bool_]
    encodings: npt.NDArray[np.int8]


#: (draws, position after) of batches to come.
Batches: TypeAlias = Iterator[tuple[Indices, int]]
#: Pixels.
Sides: TypeAlias = npt.NDArray[np.int32]
#: Places in `ENCODINGS`.
Encodings: TypeAlias = npt.NDArray[np.int8]


class Source(ABC):
    """Samples by number; learns from what is found out about them.

    Attributes:
        has_seek_points: Whether all JPEGs of one scan that are whole have some.
        stride: Pixels between the seek points to build for samples without any; 0: build none.
        tells_fallback: Whether the next sample that Pillow decodes is to be warned of.
        limits: What an image may cost.
        table: The index, where decode threads can look rows up in it by themselves; else None.
    """

    table: ExtentTable | None = None
    has_seek_points = False
    stride = 0
    tells_fallback = False
    limits = Limits()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def gather(self, indices: Indices) -> Gathered:
        """What is known of some samples.

        Raises:
            DatasetError: The index cannot be read.
        """

    def described(self, extents: _native.Extents) -> Gathered:
        """Return what `gather` does, of rows that were looked up in `table`."""
        raise NotImplementedError

    @abstractmethod
    def encoded(self, index: int, data: bytes | None = None) -> Encoded:
        """A sample for the codec table to decode.

        Args:
            index: Its number.
            data: Its bytes, where they are here already.

        Raises:
            FastdataError: It cannot be read, has changed, or cannot be decoded.
        """

    @abstractmethod
    def way(self, index: int) -> Foreseen:
        """What kind of image a sample is, and what will decode it, by little reading.

        Raises:
            FastdataError: Its row of the index is damaged, or its bytes are.
            OSError: Its file cannot be read.
        """

    @abstractmethod
    def key(self, index: int) -> str:
        """A sample's name, unique in the dataset."""

    @abstractmethod
    def problem(self, index: int, detail: str, code: str = "") -> FastdataError:
        """The error for a sample: which it is, where it lies, and a hint."""

    @abstractmethod
    def resized(
        self, indices: Indices, widths: Sides, heights: Sides, encodings: Encodings | None = None
    ) -> None:
        """Notes sizes that `gather` did not know, or that differ from what it said; and encodings.

        Safe to call from several threads.

        Raises:
            FastdataError: That cannot be.
        """

    @abstractmethod
    def declined(self, index: int, code: str) -> None:
        """Notes that the native core does not decode a sample as it is, and its code for why."""

    def start_pass(
        self,
        batches: Batches,
        numbering: Numbering,
        bad: Set[int],
        plan_fetches: PlanFetches | None = None,
    ) -> RemotePass | None:
        """Begins to fetch a pass's samples; None where the native core reads them by itself.

        Args:
            batches: (draws, position after) of each batch to come.
            numbering: Which samples the draws mean.
            bad: Samples that no batch will have; may grow.
            plan_fetches: Says which parts of large images their crops need; None: all of them.
        """
        return None

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        """Remembers seek points that were built because of ``stride``: (index, table)."""
        return

    def end_epoch(self) -> None:
        """All samples of an epoch have been delivered."""
        return


#: Samples whose kind `describe_kinds` looks at.
_LOOKED_AT = 200
#: Bytes of a file that are read for a JPEG's header; and the largest image that is read whole to
#: see whether the codec of its kind takes it.
_HEAD, _WHOLE = 1 << 16, 1 << 22


def describe_kinds(source: Source, subset: Indices | None = None) -> str:
    """The share of each kind of image, and what decodes it, in words.

    Args:
        source: Some of its samples are looked at.
        subset: Which of them are read; None for all.
    """
    found: Counter[Foreseen] = Counter()
    numbers = range(len(source)) if subset is None else subset
    for index in numbers[:: max(1, len(numbers) // _LOOKED_AT)]:
        with suppress(OSError, FastdataError):  # it is told when the sample is read
            found[source.way(int(index))] += 1
    return ", ".join(
        f"{human_share(count / found.total())} {seen.kind} "
        f"({seen.way or 'which nothing here decodes'}"
        + ("" if seen.sure else ", by its kind alone")
        + ")"
        for seen, count in found.most_common()
    )


class PackedSource(Source):
    """The samples of an `ImageDataset`."""

    def __init__(self, dataset: ImageDataset) -> None:
        self._dataset = dataset
        self.limits = dataset.limits
        self._table = dataset.blobs.extents()
        self.table = None if isinstance(dataset.blobs, RemoteBlobs) else self._table
        self._told = False
        self.has_seek_points = bool(dataset.manifest.options.get("seek_points"))

    def __len__(self) -> int:
        return len(self._dataset)

    def gather(self, indices: Indices) -> Gathered:
        """See `Source.gather`."""
        return self.described(self._table.gather(indices))

    def described(self, extents: _native.Extents) -> Gathered:
        """See `Source.described`."""
        encodings, seekable = extents.encodings, extents.seekable
        pillow = np.zeros(len(extents), np.bool_)
        # Nearly always all are JPEGs with seek points, and one look is enough.
        if np.count_nonzero(seekable) < len(extents):
            pillow[:] = ~_NATIVE[encodings]
        return Gathered(
            extents, extents.labels.copy(), extents.widths, extents.heights, pillow, encodings
        )

    def encoded(self, index: int, data: bytes | None = None) -> Encoded:
        """See `Source.encoded`."""
        return self._dataset.encoded(index, data)

    def way(self, index: int) -> Foreseen:
        """See `Source.way`."""
        dataset = self._dataset
        row = dataset.row(index)
        kind = row.encoding
        if kind == "raw" or row.seek_points is not None:
            return Foreseen(kind, NATIVE)
        if isinstance(dataset.blobs, RemoteBlobs):
            if kind.startswith("jpeg") and row.channels == 4:
                return Foreseen(kind, PILLOW)
            return Foreseen(kind, way_of(kind), sure=False)
        if row.length > _WHOLE:
            extents = self._table.gather(np.array([index]))
            with open_file(extents.path(0)) as file:
                file.seek(row.offset)
                return foresee(file.read(_HEAD), row.length, self.limits)
        (data,) = dataset.read([index])
        return foresee(data, len(data), self.limits, trusted=True)

    def start_pass(
        self,
        batches: Batches,
        numbering: Numbering,
        bad: Set[int],
        plan_fetches: PlanFetches | None = None,
    ) -> RemotePass | None:
        """See `Source.start_pass`."""
        blobs = self._dataset.blobs
        if not isinstance(blobs, RemoteBlobs):
            return None
        return RemotePass(blobs, self._table, batches, numbering, bad, plan_fetches)

    def key(self, index: int) -> str:
        """See `Source.key`."""
        return self._dataset.row(index).key

    def problem(self, index: int, detail: str, code: str = "") -> FastdataError:
        """See `Source.problem`."""
        dataset = self._dataset
        try:
            row = dataset.row(index)
            file = dataset.blobs.file(row, index)
        except CorruptionError as error:
            return error
        what = f"{dataset.location}: sample {index} ({printable(row.key)}) in {file}: {detail}"
        if code in ("changed", "cut_short", "corrupt_index"):
            return CorruptionError(
                what,
                "See what else is damaged with fastdata verify; copy or pack the dataset again.",
            )
        if code in ("file_missing", "file_unreadable"):
            return DatasetError(what, "Put the file back, or pack the dataset again.")
        return SampleError(what, _SAMPLE_HINT)

    def resized(
        self, indices: Indices, widths: Sides, heights: Sides, encodings: Encodings | None = None
    ) -> None:
        """See `Source.resized`. Only an index that is damaged has no sizes."""
        for index, width, height in zip(indices.tolist(), widths, heights, strict=True):
            row = self._dataset.row(index)
            if row.width and row.height:
                raise self.problem(
                    index,
                    f"the image has {width} x {height} pixels, the index says "
                    f"{row.width} x {row.height}",
                    "corrupt_index",
                )

    def declined(self, index: int, code: str) -> None:
        """See `Source.declined`. Says once that seek points are not those of their images."""
        if code != "bad_seek_points" or self._told:
            return
        self._told = True
        location = self._dataset.location
        warn(
            f"{location}: sample {index} ({self.key(index)}) has seek points of another image. "
            "Such samples are decoded without seek points, which is slower. Rebuild them: "
            f"fastdata seek-points {location}"
        )


_SAMPLE_HINT = (
    'Leave such samples out with on_error="skip", or find them all with fastdata verify and pack '
    "without them (--skip-bad)."
)


class FolderSource(Source):
    """Image files, one a sample, as torchvision's ``ImageFolder`` lists them.

    What is learnt from them in the first epoch is kept for the next ones: their sizes and kinds
    (9 bytes a sample) and, within a bound, their seek points.

    Args:
        samples: (path, label) of each.
        cache: Keeps seek points; None to build none.
        limits: What an image may cost.
    """

    def __init__(
        self,
        samples: Sequence[tuple[Any, int]],
        cache: SeekCache | None,
        limits: Limits,
    ) -> None:
        self._samples = samples
        self.limits = limits
        self._cache = cache
        self.stride = 0 if cache is None else cache.stride
        self._sizes = np.zeros((len(samples), 2), np.int32)  # (width, height)
        self._encodings = np.full(len(samples), -1, np.int8)
        self._pillow: set[int] = set()

    def __len__(self) -> int:
        return len(self._samples)

    def gather(self, indices: Indices) -> Gathered:
        """See `Source.gather`."""
        numbers = indices.tolist()
        chosen = [self._samples[i] for i in numbers]
        paths = [os.fspath(path) for path, _ in chosen]
        tables = stamps = None
        if self._cache is not None:
            found = [self._cache.get(path) for path in paths]
            tables = [entry.table if entry is not None else None for entry in found]
            stamps = np.array(
                [(entry.size, entry.mtime_ns) if entry is not None else (0, 0) for entry in found],
                np.int64,
            ).reshape(-1, 2)
            if self._cache.full:
                self.stride = 0
        pillow = np.zeros(len(numbers), np.bool_)
        if self._pillow:
            pillow[:] = [i in self._pillow for i in numbers]
        sizes = self._sizes[indices]
        return Gathered(
            _native.Extents(paths, seek_points=tables, stamps=stamps, sizes=sizes),
            np.array([label for _, label in chosen], np.int64),
            sizes[:, 0],
            sizes[:, 1],
            pillow,
            self._encodings[indices],
        )

    def encoded(self, index: int, data: bytes | None = None) -> Encoded:
        """See `Source.encoded`."""
        try:
            if data is None:
                data = read_file(self._samples[index][0], MOST_BYTES)
        except OSError as error:
            raise self._unreadable(index, error) from None
        try:
            return Encoded(data, limits=self.limits)
        except SampleError as error:
            problem = self.problem(index, error.what)
            raise SampleError(problem.what, error.hint or problem.hint) from None

    def way(self, index: int) -> Foreseen:
        """See `Source.way`."""
        with open_file(self._samples[index][0]) as file:
            data, size = file.read(_HEAD), os.fstat(file.fileno()).st_size
            found = foresee(data, size, self.limits)
            if found.sure or size > _WHOLE:
                return found
            return foresee(data + file.read(), size, self.limits)

    def _unreadable(self, index: int, error: OSError) -> FastdataError:
        detail = f"it cannot be read: {error.strerror or error}"
        return self.problem(index, detail, "file_unreadable")

    def key(self, index: int) -> str:
        """See `Source.key`."""
        path: str = os.fspath(self._samples[index][0])
        return path

    def problem(self, index: int, detail: str, code: str = "") -> FastdataError:
        """See `Source.problem`."""
        what = f"{self.key(index)}: sample {index}: {detail}"
        if code in ("file_missing", "file_unreadable"):
            return DatasetError(what, "Put the file back, or make the dataset anew.")
        return SampleError(what, 'Leave such samples out with on_error="skip".')

    def resized(
        self, indices: Indices, widths: Sides, heights: Sides, encodings: Encodings | None = None
    ) -> None:
        """See `Source.resized`. A file may have been replaced."""
        self._sizes[indices, 0] = widths
        self._sizes[indices, 1] = heights
        self._encodings[indices] = -1 if encodings is None else encodings

    def declined(self, index: int, code: str) -> None:
        """See `Source.declined`. Seek points are built anew next time."""
        if code in NOT_NATIVE:
            self._pillow.add(index)
        elif code == "bad_seek_points" and self._cache is not None:
            self._cache.drop(self.key(index))

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        """See `Source.built`."""
        if self._cache is not None:
            for index, entry in tables:
                self._cache.put(self.key(index), entry)

    def end_epoch(self) -> None:
        """See `Source.end_epoch`."""
        if self._cache is not None:
            self._cache.save()
