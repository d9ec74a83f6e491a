"""Whether a dataset is what its manifest says: sizes, checksums, extents, images."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastdata import formats
from fastdata.arrow import as_numpy
from fastdata.blobs import Blobs
from fastdata.checksum import crc32c_file
from fastdata.engines import local_engine, report
from fastdata.errors import CorruptionError, DatasetError, SampleError
from fastdata.manifest import FileEntry
from fastdata.probe import ImageInfo, open_image

#: Samples that one task decodes.
_ROWS = 256


class Problem(NamedTuple):
    """One thing that is wrong with a dataset.

    Attributes:
        where: The file or sample.
        what: What is wrong with it.
    """

    where: str
    what: str


class Verification(NamedTuple):
    """What verifying found.

    Attributes:
        samples: Number of samples the dataset has.
        files: Number of its files, the index included.
        problems: Everything that is wrong; empty if the dataset is sound.
    """

    samples: int
    files: int
    problems: list[Problem]


def verify(
    path: str | os.PathLike[str],
    *,
    fast: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Checks a dataset.

    Checks that every file has its size and checksum; that every extent of the index lies in
    its file, and is where the container itself has the blob; that every blob has its
    checksum, decodes, and is an image of the size and encoding that the index says.

    Args:
        path: The dataset's folder; a staged copy of it is not looked at.
        fast: Whether to check sizes only: of files, and of extents against them.
        workers: Worker processes; None for one a CPU.
        progress: Called now and then with the number of samples checked and of all.

    Raises:
        DatasetError: There is no dataset at ``path``, or none that can be opened at all.
    """
    _open.cache_clear()
    blobs = Blobs(Path(path))
    manifest = blobs.manifest
    samples = manifest.samples
    problems = [*_check_sizes(blobs), *_check_extents(blobs)]
    # What was cut short cannot be scanned further without finding the same again.
    if not fast and not problems:
        tasks: list[_CheckFile | _CheckRows] = [
            _CheckFile(blobs.path, number) for number in range(-1, len(manifest.files))
        ]
        tasks += [
            _CheckRows(blobs.path, start, min(start + _ROWS, samples))
            for start in range(0, samples, _ROWS)
        ]
        with local_engine(workers) as engine:

            def tick() -> None:
                if progress is not None:
                    progress(engine.reported()[0], samples)

            for found in engine.run(_call, tasks, tick):
                problems += found
    return Verification(samples, len(manifest.files) + 1, problems)


def _check_sizes(blobs: Blobs) -> Iterator[Problem]:
    for entry in blobs.manifest.files:
        path = blobs.path / entry.name
        try:
            size = path.stat().st_size
        except OSError as error:
            yield Problem(str(path), error.strerror or "cannot be read")
            continue
        if size != entry.size:
            yield Problem(str(path), f"has {size} bytes, the manifest says {entry.size}")


def _check_extents(blobs: Blobs) -> Iterator[Problem]:
    """Checks all rows against sizes and classes: what needs no blob to be read."""
    sizes = np.array([entry.size for entry in blobs.manifest.files], np.int64)
    classes = len(blobs.manifest.classes)
    start = previous = 0
    for batch in blobs.index.batches():
        columns = {
            name: as_numpy(batch.column(name)) for name in ("label", "file", "offset", "length")
        }
        labels, files = columns["label"], columns["file"]
        bad = (labels < 0) | (labels >= classes)
        if len(sizes):
            known = (files >= 0) & (files < len(sizes))
            end = sizes[np.where(known, files, 0)]
            bad |= ~known | (np.diff(files, prepend=previous) < 0)
            bad |= (columns["offset"] < 0) | (columns["length"] < 0)
            bad |= columns["offset"] > end - columns["length"]
            previous = int(files[-1])
        else:
            yield from _check_loose_files(blobs, start, start + batch.num_rows)
        for at in np.flatnonzero(bad).tolist():
            row = blobs.index[start + at]
            yield Problem(
                f"sample {start + at} ({row.key})",
                f"its index row is impossible: label {row.label}, file {row.file}, "
                f"offset {row.offset}, length {row.length}",
            )
        start += batch.num_rows


def _check_loose_files(blobs: Blobs, start: int, stop: int) -> Iterator[Problem]:
    for number in range(start, stop):
        row = blobs.index[number]
        try:
            path = blobs.file(row, number)
            size = path.stat().st_size
        except OSError as error:
            yield Problem(str(path), error.strerror or "cannot be read")
        except CorruptionError as error:
            yield Problem(f"sample {number} ({row.key})", error.what)
        else:
            if size != row.length:
                yield Problem(str(path), f"has {size} bytes, the index says {row.length}")


@lru_cache(maxsize=1)
def _open(dataset: Path) -> Blobs:
    """A dataset, opened once in a worker rather than once a task."""
    return Blobs(dataset)


def _call(task: _CheckFile | _CheckRows) -> list[Problem]:
    return list(task())


class _CheckFile(NamedTuple):
    """Checks one file's checksum, and that the container agrees with the index.

    Attributes:
        dataset: The dataset's folder.
        number: Which of the manifest's files; -1 for the index.
    """

    dataset: Path
    number: int

    def __call__(self) -> Iterator[Problem]:
        blobs = _open(self.dataset)
        if self.number < 0:
            yield from _check_crc(blobs.path, blobs.manifest.index)
            return
        entry = blobs.manifest.files[self.number]
        damaged = list(_check_crc(blobs.path, entry))
        if damaged:
            # Not walked: LMDB trusts its own pages, and what is damaged may crash it.
            yield from damaged
            return
        path = blobs.path / entry.name
        try:
            walk = formats.extents(blobs.manifest.container, path)
            found = np.fromiter(chain.from_iterable(walk), np.int64).reshape(-1, 2)
        except CorruptionError as error:
            yield Problem(str(path), error.what)
            return
        expected = self._expected(blobs)
        if not np.array_equal(found, expected):
            rows = min(len(found), len(expected))
            differing = np.flatnonzero((found[:rows] != expected[:rows]).any(axis=1))
            first = int(differing[0]) if len(differing) else rows
            yield Problem(
                str(path),
                f"holds {len(found)} blobs, the index names {len(expected)} in it; "
                f"they differ from its blob {first} on",
            )

    def _expected(self, blobs: Blobs) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Offsets and lengths that the index has for this file; its rows are in file order."""
        pieces = [np.empty((0, 2), np.int64)]
        for batch in blobs.index.batches():
            files = as_numpy(batch.column("file"))
            if files[0] > self.number:
                break
            here = files == self.number
            if here.any():
                columns = (as_numpy(batch.column(name))[here] for name in ("offset", "length"))
                pieces.append(np.stack(tuple(columns), axis=1))
        return np.concatenate(pieces)


def _check_crc(dataset: Path, entry: FileEntry) -> Iterator[Problem]:
    path = dataset / entry.name
    try:
        crc = f"{crc32c_file(path):08x}"
    except OSError as error:
        yield Problem(str(path), error.strerror or "cannot be read")
        return
    if crc != entry.crc32c:
        yield Problem(str(path), f"has CRC-32C {crc}, the manifest says {entry.crc32c}")


class _CheckRows(NamedTuple):
    """Reads and decodes some samples.

    Attributes:
        dataset: The dataset's folder.
        start: The first sample.
        stop: One past the last.
    """

    dataset: Path
    start: int
    stop: int

    def __call__(self) -> Iterator[Problem]:
        blobs = _open(self.dataset)
        for number in range(self.start, self.stop):
            row = blobs.index[number]
            where = f"sample {number} ({row.key})"
            try:
                data = blobs.read(row, number)
                info = ImageInfo(row.encoding, row.width, row.height, row.channels)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # broken EXIF does not make a bad image
                    image = open_image(data, info)
            except (DatasetError, SampleError) as error:
                yield Problem(where, error.what)
            else:
                if image.size != (row.width, row.height):
                    yield Problem(
                        where,
                        f"is {image.width} x {image.height} pixels, "
                        f"the index says {row.width} x {row.height}",
                    )
            report(1, row.length)
