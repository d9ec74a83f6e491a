"""Where a loader's samples come from: a packed dataset, or the files of an ``ImageFolder``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from fastdata import _native
from fastdata.dataset import ImageDataset
from fastdata.errors import CorruptionError, DatasetError, FastdataError, SampleError
from fastdata.loading.seek_cache import SeekCache, Stamped
from fastdata.plan.schedule import Numbering
from fastdata.remote.opening import RemoteBlobs
from fastdata.remote.prefetch import CachePass, RangePass, RemotePass
from fastdata.storage.probe import ENCODINGS, ImageInfo, open_image

#: Encodings that the native core reads: by their place in `ENCODINGS`.
_NATIVE = np.isin(ENCODINGS, ("jpeg", "raw"))


class Gathered(NamedTuple):
    """What is known of a batch's samples before they are read.

    Attributes:
        extents: Where they lie.
        labels: int64, shape (N,).
        widths: int32, shape (N,), in pixels; 0 where only the file can tell.
        heights: As ``widths``.
        pillow: bool, shape (N,): which ones the native core does not decode.
    """

    extents: _native.Extents
    labels: npt.NDArray[np.int64]
    widths: npt.NDArray[np.int32]
    heights: npt.NDArray[np.int32]
    pillow: npt.NDArray[np.bool_]


#: (draws, position after) of batches to come.
Batches: TypeAlias = Iterator[tuple[npt.NDArray[np.int64], int]]


class Source(Protocol):
    """Samples by number."""

    @property
    def stride(self) -> int:
        """Pixels between the seek points to build for samples without any; 0: build none."""

    def __len__(self) -> int: ...

    def gather(self, indices: npt.NDArray[np.int64]) -> Gathered:
        """What is known of some samples.

        Raises:
            DatasetError: The index cannot be read.
        """

    def open_image(self, index: int, data: bytes | None = None) -> Image.Image:
        """A sample decoded by Pillow, mode RGB.

        Args:
            index: Its number.
            data: Its bytes, where they are here already.

        Raises:
            FastdataError: It cannot be read, has changed, or cannot be decoded.
        """

    def start_pass(
        self, batches: Batches, numbering: Numbering, bad: Set[int]
    ) -> RemotePass | None:
        """Begins to fetch a pass's samples; None where the native core reads them by itself.

        Args:
            batches: (draws, position after) of each batch to come.
            numbering: Which samples the draws mean.
            bad: Samples that no batch will have; may grow.
        """

    def size(self, index: int) -> tuple[int, int]:
        """A sample's (width, height), asked of Pillow.

        Raises:
            FastdataError: It cannot be read, or is no image.
        """

    def key(self, index: int) -> str:
        """A sample's name, unique in the dataset."""

    def problem(self, index: int, detail: str, code: str = "") -> FastdataError:
        """The error for a sample: which it is, where it lies, how to mend it."""

    def probed(
        self,
        indices: npt.NDArray[np.int64],
        widths: npt.NDArray[np.int32],
        heights: npt.NDArray[np.int32],
    ) -> None:
        """Remembers sizes that `gather` did not know."""

    def resized(self, index: int, width: int, height: int) -> None:
        """Notes that an image has another size than `gather` said.

        Safe to call from several threads.

        Raises:
            FastdataError: That cannot be.
        """

    def not_native(self, index: int) -> None:
        """Remembers that a sample is one for Pillow."""

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        """Remembers seek points that were built: (index, table)."""

    def bad_seek_points(self, index: int) -> None:
        """Forgets a sample's seek points, which are not those of its image."""

    def end_epoch(self) -> None:
        """All samples of an epoch have been delivered."""


class PackedSource:
    """The samples of an `ImageDataset`."""

    stride = 0

    def __init__(self, dataset: ImageDataset) -> None:
        self._dataset = dataset
        self._table = dataset.blobs.extents()
        # Progressive JPEGs have no seek points where the others have, and are Pillow's.
        self._has_seek_points = bool(dataset.manifest.options.get("seek_points"))

    def __len__(self) -> int:
        return len(self._dataset)

    def gather(self, indices: npt.NDArray[np.int64]) -> Gathered:
        """See `Source.gather`."""
        extents = self._table.gather(indices)
        encodings, seekable = extents.encodings, extents.seekable
        pillow = np.zeros(len(indices), np.bool_)
        # Nearly always all are JPEGs with seek points, and one look is enough.
        if np.count_nonzero(seekable) < len(indices):
            pillow[:] = ~_NATIVE[encodings]
            if self._has_seek_points:
                pillow |= (encodings == _JPEG) & (seekable == 0)
        return Gathered(extents, extents.labels.copy(), extents.widths, extents.heights, pillow)

    def open_image(self, index: int, data: bytes | None = None) -> Image.Image:
        """See `Source.open_image`."""
        if data is None:
            return self._dataset.open_image(index)
        return self._dataset.decode(self._dataset.row(index), index, data)

    def start_pass(
        self, batches: Batches, numbering: Numbering, bad: Set[int]
    ) -> RemotePass | None:
        """See `Source.start_pass`."""
        blobs = self._dataset.blobs
        if not isinstance(blobs, RemoteBlobs):
            return None
        kind = RangePass if blobs.cache is None else CachePass
        return kind(blobs, self._table, batches, numbering, bad)

    def size(self, index: int) -> tuple[int, int]:
        """See `Source.size`."""
        row = self._dataset.row(index)
        return row.width, row.height

    def key(self, index: int) -> str:
        """See `Source.key`."""
        return self._dataset.row(index).key

    def problem(self, index: int, detail: str, code: str = "") -> FastdataError:
        """See `Source.problem`."""
        dataset = self._dataset
        row = dataset.row(index)
        try:
            file = dataset.blobs.file(row, index)
        except CorruptionError as error:
            return error
        what = f"{dataset.location}: sample {index} ({row.key}) in {file}: {detail}"
        if code in ("changed", "cut_short", "corrupt_index"):
            return CorruptionError(
                what,
                "See what else is damaged with fastdata verify; copy or pack the dataset again.",
            )
        if code in ("file_missing", "file_unreadable"):
            return DatasetError(what, "Put the file back, or pack the dataset again.")
        return SampleError(what, _MEND_SAMPLE)

    def probed(
        self,
        indices: npt.NDArray[np.int64],
        widths: npt.NDArray[np.int32],
        heights: npt.NDArray[np.int32],
    ) -> None:
        """See `Source.probed`. The index knows all sizes."""

    def resized(self, index: int, width: int, height: int) -> None:
        """See `Source.resized`."""
        row = self._dataset.row(index)
        raise self.problem(
            index,
            f"the image has {width} x {height} pixels, the index says {row.width} x {row.height}",
            "corrupt_index",
        )

    def not_native(self, index: int) -> None:
        """See `Source.not_native`. Rare where the index has seek points; not kept."""

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        """See `Source.built`. ``fastdata index`` is for this."""

    def bad_seek_points(self, index: int) -> None:
        """See `Source.bad_seek_points`. They are in the index."""

    def end_epoch(self) -> None:
        """See `Source.end_epoch`."""


_JPEG = ENCODINGS.index("jpeg")
_MEND_SAMPLE = (
    'Leave such samples out with on_error="skip", or find them all with fastdata verify and pack '
    "without them (--skip-bad)."
)


class FolderSource:
    """Image files, one a sample, as torchvision's ``ImageFolder`` lists them.

    What is learnt from them in the first epoch is kept for the next ones: their sizes (8 bytes
    a sample) and, within a bound, their seek points.

    Args:
        samples: (path, label) of each.
        cache: Keeps seek points; None to build none.
    """

    def __init__(self, samples: Sequence[tuple[Any, int]], cache: SeekCache | None) -> None:
        self._samples = samples
        self._cache = cache
        self.stride = 0 if cache is None else cache.stride
        self._sizes = np.zeros((len(samples), 2), np.int32)  # (width, height)
        self._pillow: set[int] = set()

    def __len__(self) -> int:
        return len(self._samples)

    def gather(self, indices: npt.NDArray[np.int64]) -> Gathered:
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
        )

    def open_image(self, index: int, data: bytes | None = None) -> Image.Image:
        """See `Source.open_image`."""
        try:
            if data is None:
                with open(self._samples[index][0], "rb") as file:
                    data = file.read()
        except OSError as error:
            raise self._unreadable(index, error) from None
        try:
            return open_image(data, ImageInfo("", 0, 0, 3))
        except SampleError as error:
            raise self.problem(index, error.what) from None

    def start_pass(
        self, batches: Batches, numbering: Numbering, bad: Set[int]
    ) -> RemotePass | None:
        """See `Source.start_pass`. The files are local."""
        return None

    def size(self, index: int) -> tuple[int, int]:
        """See `Source.size`."""
        try:
            with Image.open(self._samples[index][0]) as image:
                return image.size
        except UnidentifiedImageError:
            raise self.problem(index, "it is no image that Pillow knows") from None
        except OSError as error:
            raise self._unreadable(index, error) from None
        except Exception as error:  # Pillow's plugins raise almost anything
            raise self.problem(index, f"Pillow: {error}") from None

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

    def probed(
        self,
        indices: npt.NDArray[np.int64],
        widths: npt.NDArray[np.int32],
        heights: npt.NDArray[np.int32],
    ) -> None:
        """See `Source.probed`."""
        self._sizes[indices, 0] = widths
        self._sizes[indices, 1] = heights

    def resized(self, index: int, width: int, height: int) -> None:
        """See `Source.resized`. The file was replaced since."""
        self._sizes[index] = width, height

    def not_native(self, index: int) -> None:
        """See `Source.not_native`."""
        self._pillow.add(index)

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        """See `Source.built`."""
        if self._cache is not None:
            for index, entry in tables:
                self._cache.put(self.key(index), entry)

    def bad_seek_points(self, index: int) -> None:
        """See `Source.bad_seek_points`. They are built anew next time."""
        if self._cache is not None:
            self._cache.drop(self.key(index))

    def end_epoch(self) -> None:
        """See `Source.end_epoch`."""
        if self._cache is not None:
            self._cache.save()
