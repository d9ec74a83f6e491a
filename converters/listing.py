"""The listing: a source's records, spilled to a file, and how they fall into output files.

A source may have more records than fit in memory, and every worker needs its share of
them: so they are written to an Arrow file once and mapped by all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastdata.converters.records import Record, Source
from fastdata.converters.tree import printable

from fastdata.arrow import array, as_numpy, update_digest
from fastdata.errors import SourceError

_ROWS_PER_BATCH = 2_048
_SORTED_AT_ONCE = 2_000_000

_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("label", pa.int32()),
        ("path", pa.binary()),  # not text: a file's name need not be UTF-8
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("pixels", pa.binary()),
        ("problem", pa.string()),
        ("column", pa.string()),
    ]
)


class Unit(NamedTuple):
    """A run of records that are packed together: an output file, or a commit to one.

    Attributes:
        number: Its place among the units, from 0.
        start: Its first record.
        stop: One past its last record.
        fingerprint: What its output depends on, as a hash.
    """

    number: int
    start: int
    stop: int
    fingerprint: str


def write_listing(source: Source, path: Path, progress: Callable[[int], None]) -> Listing:
    """Lists a source into a file.

    Args:
        source: What to list.
        path: The file to write.
        progress: Called now and then with the number of records listed so far.

    Raises:
        SourceError: The source is unreadable, has no images, or has two of one key.
    """
    rows = 0
    hashes = path.with_suffix(".hashes")
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, _SCHEMA) as writer,
        hashes.open("wb") as hash_file,
    ):
        for batch in _batches(source.records()):
            keys = batch.column("key").to_pylist()
            hash_file.write(np.fromiter(map(hash, keys), np.int64, len(keys)).tobytes())
            writer.write_batch(batch)
            rows += batch.num_rows
            progress(rows)
    if not rows:
        raise SourceError(
            f"{source.about.get('root', 'the source')}: no images found",
            "Check --root; images are told by their extension (.jpg, .jpeg, .png, …).",
        )
    listing = Listing(path)
    repeated = _repeated(hashes, rows)
    hashes.unlink()
    if repeated:
        _require_unique(listing, repeated)
    return listing


def _batches(records: Iterator[Record]) -> Iterator[pa.RecordBatch]:
    columns: list[list[Any]] = [[] for _ in _SCHEMA]
    for record in records:
        _require_safe(record)
        height, width, pixels = record.pixels or (None, None, None)
        values = (
            record.key,
            record.label,
            record.path.encode("utf-8", "surrogateescape"),
            record.offset,
            record.length,
            record.mtime_ns,
            height,
            width,
            pixels,
            record.problem,
            record.column,
        )
        for column, value in zip(columns, values, strict=True):
            column.append(value)
        if len(columns[0]) == _ROWS_PER_BATCH:
            yield _batch(columns)
            columns = [[] for _ in _SCHEMA]
    if columns[0]:
        yield _batch(columns)


def _batch(columns: list[list[Any]]) -> pa.RecordBatch:
    arrays = [array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _require_safe(record: Record) -> None:
    """Keys become names in archives; they must not lead out of the folder unpacked in."""
    parts = PurePosixPath(record.key).parts
    if not parts or record.key.startswith("/") or ".." in parts or "\0" in record.key:
        raise SourceError(
            f"{printable(record.path)}: {record.key!r} cannot be a key: keys are relative paths "
            "without ..",
            "Rename the sample.",
        )


def _repeated(path: Path, count: int) -> set[int]:
    """Hashes that occur more than once in a file of 64-bit integers.

    In as many passes as it takes to sort no more than some millions at a time, so that a
    source of any size is checked in the same memory.
    """
    found: set[int] = set()
    passes = 1 + count // _SORTED_AT_ONCE
    for number in range(passes):
        pieces = []
        with path.open("rb") as file:
            while data := file.read(8 << 20):
                chunk = np.frombuffer(data, np.uint64)
                pieces.append(chunk[chunk % np.uint64(passes) == number].view(np.int64))
        values = np.sort(np.concatenate(pieces))
        found.update(values[1:][values[1:] == values[:-1]].tolist())
    return found


def _require_unique(listing: Listing, repeated: set[int]) -> None:
    seen: dict[str, str] = {}
    for record in listing.records(0, len(listing)):
        if hash(record.key) in repeated:
            if record.key in seen:
                raise SourceError(
                    f"two images have the key {record.key}: {printable(seen[record.key])} and "
                    f"{printable(record.path)}",
                    "A key is the path without its extension, and must be unique: rename one. "
                    "Where shards number their samples alike, use --shard-keys.",
                )
            seen[record.key] = record.path


class Listing:
    """A listing, read a batch at a time.

    Not mapped: a pass over a map leaves all of it in this process's memory until the kernel
    wants it back, and there are processes in plenty.
    """

    def __init__(self, path: Path) -> None:
        self._reader = pa.ipc.open_file(pa.OSFile(str(path)))
        self._held: tuple[int, pa.RecordBatch] | None = None
        batches = self._reader.num_record_batches
        self._rows = 0
        if batches:
            self._rows = (batches - 1) * _ROWS_PER_BATCH + self._batch(batches - 1).num_rows

    def _batch(self, number: int) -> pa.RecordBatch:
        held = self._held
        if held is None or held[0] != number:
            self._held = held = number, self._reader.get_batch(number)
        return held[1]

    def __len__(self) -> int:
        return self._rows

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows from ``start`` to ``stop``."""
        while start < stop:
            number, at = divmod(start, _ROWS_PER_BATCH)
            piece = self._batch(number).slice(at, stop - start)
            yield piece
            start += piece.num_rows

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """The records from ``start`` to ``stop``."""
        for batch in self.batches(start, stop):
            for row in batch.to_pylist():
                height, width, pixels = row.pop("height"), row.pop("width"), row["pixels"]
                row["path"] = row["path"].decode("utf-8", "surrogateescape")
                row["pixels"] = None if height is None else (height, width, pixels)
                yield Record(**row)

    def lengths(self, start: int, stop: int) -> Iterator[npt.NDArray[np.int64]]:
        """Source bytes of the records from ``start`` to ``stop``, in pieces."""
        for batch in self.batches(start, stop):
            yield as_numpy(batch.column("length"))

    def total_bytes(self) -> int:
        """Source bytes of all records."""
        return sum(int(lengths.sum()) for lengths in self.lengths(0, len(self)))

    def lengths_are_exact(self) -> bool:
        """Whether the records' lengths are those of their blobs, not estimates."""
        return not len(self) or next(self.records(0, 1)).column is None

    def sample(self, count: int) -> list[Record]:
        """At most ``count`` records, evenly spaced."""
        step = max(1, len(self) // count)
        positions = range(step // 2, len(self), step)
        return [next(self.records(at, at + 1)) for at in positions[:count]]

    def runs(
        self, start: int, stop: int, most_bytes: float, most_rows: int
    ) -> Iterator[tuple[int, int]]:
        """Cuts records into runs that end on reaching a number of bytes or rows."""
        at, held = start, 0
        position = start
        for lengths in self.lengths(start, stop):
            for length in lengths.tolist():
                position += 1
                held += length
                if held >= most_bytes or position - at == most_rows:
                    yield at, position
                    at, held = position, 0
        if at < stop:
            yield at, stop

    def units(
        self, most_bytes: float, most_rows: int, options: dict[str, Any], *, chained: bool
    ) -> Iterator[Unit]:
        """Cuts the listing into units.

        Args:
            most_bytes: A unit ends on reaching this many source bytes,
            most_rows: or this many records.
            options: Everything else that the output depends on; JSON values.
            chained: Whether a unit's output depends on those before it.
        """
        start = json.dumps(options, sort_keys=True).encode()
        previous = ""
        for number, (first, stop) in enumerate(self.runs(0, len(self), most_bytes, most_rows)):
            digest = hashlib.blake2b(start, digest_size=16)
            digest.update(previous.encode())
            for batch in self.batches(first, stop):
                for column in batch.columns:
                    update_digest(digest, column)
            if chained:
                previous = digest.hexdigest()
            yield Unit(number, first, stop, digest.hexdigest())
