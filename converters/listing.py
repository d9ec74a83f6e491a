"""Listing of a source: its records in Arrow files, and their division into units.

A source may have more records than fit in memory, and every worker needs its share of them. So
they are written once and read by all. One task lists each shard of a source and returns row
counts alone. The listing is the shards' rows in order.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, islice, pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastdata.converters.records import (
    ImageSource,
    Listable,
    Record,
)

from fastdata.errors import SourceError, printable
from fastdata.executors import Executor, report
from fastdata.once import once
from fastdata.remote.urls import redact
from fastdata.storage.arrow import array, as_numpy, python_values, update_digest
from fastdata.storage.fields import Field
from fastdata.storage.files import temporary_name
from fastdata.storage.formats.values import as_file
from fastdata.storage.paths import is_inside
from fastdata.storage.shapes import misshapen, why_misshapen

#: Rows of a record batch of a listing.
ROWS_PER_BATCH = 2_048
#: Tasks on listings that may finish ahead of a slower one.
AHEAD = 1024

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("label", pa.int32()),
        ("path", pa.binary()),  # not text: a file's name need not be UTF-8
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("orientation", pa.uint8()),
        ("annotated_size", pa.list_(pa.int32(), 2)),
        ("problem", pa.string()),
        ("column", pa.string()),
        ("group", pa.int32()),
        ("crc32c", pa.uint32()),
        ("window", pa.int64()),
        ("size", pa.int64()),
    ]
)
#: Place of a blob beside the image; its key follows from the record's.
_PLACE = ("path", "offset", "length", "mtime_ns", "column", "group", "crc32c")
_BLOB = pa.struct([SCHEMA.field(name) for name in _PLACE])
#: Begins the names of columns for other fields.
_FIELD = "field."
#: Key of their format in the metadata of these columns.
_FORMAT = "format"


def _schema(fields: Sequence[Field]) -> pa.Schema:
    columns = [
        pa.field(_FIELD + one.name, one.type or _BLOB, metadata={_FORMAT: one.format})
        for one in fields
    ]
    return pa.schema([*SCHEMA, *columns])


#: Containers that hold columns as text, a value a member or record.
_TEXTS = ("lmdb", "shards")
_TAR_BLOCK, _LMDB_PAGE = 512, 4096
#: Bytes of a record in LMDB beside its value, with its key; a value that is longer than half a
#: page has pages of its own.
_LMDB_RECORD = 48


class Estimate(NamedTuple):
    """Factors of the bytes that packing writes to a container, for images and for other fields."""

    growth: float = 1.0
    fields: float = 1.0

    def stored(self, length: Any, size: Any) -> Any:
        """Return the bytes of samples in the container; numbers or arrays of them."""
        return length * self.growth + (size - length) * self.fields

    def in_memory(self, record: Record) -> float:
        """Return the bytes that a sample takes in memory while it is packed."""
        stored: float = self.stored(record.length, record.size)
        return max(stored, record.size)


#: Of images that are stored as they are, without other fields.
UNCHANGED = Estimate()


def with_fields(
    growth: float, container: str, fields: Sequence[Field], records: Sequence[Record]
) -> Estimate:
    """Return the estimate for a container, from some records of the listing."""
    if container not in _TEXTS or not records:
        return Estimate(growth)
    stored, read = 0, sum(record.size - record.length for record in records)
    for record in records:
        for field, value in zip(fields, record.fields, strict=True):
            if value is None:
                continue
            size = value.length if isinstance(value, Record) else len(as_file(field, value)[1])
            if container == "shards":
                stored += size + _TAR_BLOCK + -size % _TAR_BLOCK
            else:
                stored += size + _LMDB_RECORD
                stored += -(size + 16) % _LMDB_PAGE if size > _LMDB_PAGE // 2 else 0
    return Estimate(growth, stored / read if read else 1.0)


class Unit(NamedTuple):
    """Run of records that are packed together: an output file, or a commit to one.

    ``size`` and ``stored`` are its bytes in the source, and about those in the container. The
    fingerprint is a hash of everything that its output depends on.
    """

    number: int
    start: int
    stop: int
    size: int
    stored: int
    fingerprint: str


def write_listing(
    source: ImageSource,
    folder: Path,
    progress: Callable[[int], None],
    executor: Executor,
    skip_bad: bool = False,
) -> RecordListing:
    """List a source into a folder; with ``skip_bad``, images of one key but the first are bad."""
    folder.mkdir(exist_ok=True)
    (folder / _SUMMARY).unlink(missing_ok=True)
    rows: list[int] = []
    left_out: Counter[str] = Counter()
    totals = Totals()
    before = executor.reported[0]

    def tick() -> None:
        progress(executor.reported[0] - before)

    numbered = enumerate(source.shards())
    task = partial(_list_shard, folder, _schema(source.fields))
    for shard_rows, shard_totals, shard_left_out in executor.run(task, numbered, tick, AHEAD):
        rows.append(shard_rows)
        totals = Totals(*map(sum, zip(totals, shard_totals, strict=True)))
        left_out.update(shard_left_out)
        tick()
    total = sum(rows)
    if not total:
        raise SourceError(
            f"{source.origin.get('root', 'the source')}: no images found"
            + (f" ({describe_left_out(left_out)} left out)" if left_out else ""),
            source.hint,
        )
    write_summary(folder, rows, totals, left_out)
    listing = RecordListing(folder)
    hashes, at = np.empty(total, np.int64), 0  # 8 bytes a sample
    for some in _key_hashes(folder, len(rows)):
        hashes[at : (at := at + len(some))] = some
    hashes.sort()
    repeated = hashes[1:][hashes[1:] == hashes[:-1]]
    clashes = _clashes(listing, repeated) if len(repeated) else {}
    if clashes and not skip_bad:
        shown = [
            f"two images have the key {key}: {first} and {path}"
            for key, first, path in islice(clashes.values(), _MOST_CLASHES)
        ]
        if len(clashes) > len(shown):
            shown.append(f"and {len(clashes) - len(shown):,} more")
        raise SourceError(
            "; ".join(shown), f"{source.key_hint}, or keep the first alone with --skip-bad."
        )
    return _with_problems(listing, clashes) if clashes else listing


#: Most pairs of images of one key in an error.
_MOST_CLASHES = 10


def _with_problems(
    listing: RecordListing, clashes: Mapping[int, tuple[str, str, str]]
) -> RecordListing:
    """Return a listing in which rows with the key of an earlier row are bad."""
    at = SCHEMA.get_field_index("problem")
    touched = {bisect_right(listing.starts, row) - 1 for row in clashes}
    for shard, (start, stop) in enumerate(pairwise(listing.starts)):
        if shard not in touched:
            continue

        def batches(row: int = start, stop: int = stop) -> Iterator[pa.RecordBatch]:
            for batch in listing.batches(row, stop):
                problems = batch.column(at).to_pylist()
                for place, problem in enumerate(problems):
                    if problem is None and row + place in clashes:
                        problems[place] = f"has the key of {clashes[row + place][1]}"
                yield batch.set_column(at, SCHEMA.field(at), array(problems, pa.string()))
                row += batch.num_rows

        write_shard(shard_path(listing.folder, shard), batches(), listing.schema)
    return RecordListing(listing.folder)


#: Row counts of the shards, written when all shards are listed.
_SUMMARY = "shards.json"


#: Most suffixes of skipped files to list; the others are summed.
_MOST_SUFFIXES = 6


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Return the numbers of skipped files by suffix, as text: ".mp4 12, .txt 3"."""
    most = Counter(left_out).most_common()
    if others := sum(count for _, count in most[_MOST_SUFFIXES:]):
        most[_MOST_SUFFIXES:] = [("others", others)]
    return ", ".join(f"{suffix} {count:,}" for suffix, count in most)


class Totals(NamedTuple):
    """Sums of bytes over all records: in the source, and of other fields in the listing."""

    size: int = 0
    held: int = 0


def write_summary(
    folder: Path, rows: list[int], totals: Totals, left_out: Mapping[str, int]
) -> None:
    """Complete a listing: write rows of each shard, and sums over all."""
    temporary = temporary_name(folder / _SUMMARY)
    summary = {"rows": rows, "totals": list(totals), "left_out": dict(left_out)}
    temporary.write_text(json.dumps(summary), "utf-8")
    os.replace(temporary, folder / _SUMMARY)


def listed_at(folder: Path) -> int:
    """Return the time a listing was written, in nanoseconds."""
    return (folder / _SUMMARY).stat().st_mtime_ns


def _list_shard(
    folder: Path, schema: pa.Schema, numbered: tuple[int, Listable]
) -> tuple[int, Totals, Mapping[str, int]]:
    """List a shard into a file of the folder.

    Return the number of records, their sums, and numbers of skipped files by suffix. Does not sync
    to the disk: an interrupted run lists again.
    """
    number, shard = numbered
    path = shard_path(folder, number)
    rows = size = held = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal rows, size, held
        for batch in _batches(shard.records(), schema):
            yield batch
            rows += batch.num_rows
            size += int(as_numpy(batch.column("size")).sum())
            held += sum(column.nbytes for column in batch.columns[len(SCHEMA) :])
            report(batch.num_rows, 0)

    write_shard(path, batches(), schema)
    return rows, Totals(size, held), getattr(shard, "left_out", {})


def write_shard(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    """Write a shard's file, which appears only when it is complete."""
    temporary = temporary_name(path)
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    os.replace(temporary, path)


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of a shard's file."""
    return folder / f"{number:06d}.arrow"


def _batches(records: Iterator[Record], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while held := list(islice(records, ROWS_PER_BATCH)):
        columns = zip(*map(_values, held), strict=True)
        arrays = [array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _values(record: Record) -> tuple[Any, ...]:
    _require_safe(record)
    height, width = record.pixels or (None, None)
    more = {"height": height, "width": width, "path": _stored_path(record)}
    row = record._asdict() | more | {"size": record.size}
    fields = (_blob(value) if isinstance(value, Record) else value for value in record.fields)
    return *(row[name] for name in SCHEMA.names), *fields


def _stored_path(record: Record) -> bytes:
    return record.path.encode("utf-8", "surrogateescape")


def _blob(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in _PLACE} | {"path": _stored_path(record)}


def _require_safe(record: Record) -> None:
    """Check a key: names in archives must stay inside the folder where they are unpacked."""
    if not is_inside(record.key) or not PurePosixPath(record.key).parts:
        raise SourceError(
            f"{printable(redact(record.path))}: {record.key!r} cannot be a key: keys are relative "
            "paths without ..",
            "Rename the sample.",
        )


def _hashes(keys: Sequence[str]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(hash, keys), np.int64, len(keys))


def _key_hashes(folder: Path, shards: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield hashes of all keys, which take less memory than the keys."""
    keys_alone = pa.ipc.IpcReadOptions(included_fields=[SCHEMA.get_field_index("key")])
    for number in range(shards):
        with pa.OSFile(str(shard_path(folder, number))) as file:
            shard = pa.ipc.open_file(file, options=keys_alone)
            for at in range(shard.num_record_batches):
                yield _hashes(shard.get_batch(at).column(0).to_pylist())


def _clashes(
    listing: RecordListing, repeated: npt.NDArray[np.int64]
) -> dict[int, tuple[str, str, str]]:
    """Return rows whose key an earlier row has: the key, and the paths of both, by number."""
    seen: dict[str, str] = {}
    clashes: dict[int, tuple[str, str, str]] = {}
    start = 0
    for batch in listing.batches(0, len(listing)):
        keys = batch.column("key").to_pylist()
        paths = batch.column("path").to_pylist()
        for at in np.flatnonzero(np.isin(_hashes(keys), repeated)).tolist():
            path = printable(redact(paths[at].decode("utf-8", "surrogateescape")))
            if keys[at] in seen:
                clashes[start + at] = keys[at], seen[keys[at]], path
            seen.setdefault(keys[at], path)
        start += batch.num_rows
    return clashes


class RecordListing:
    """Reader of a listing, a batch at a time.

    Files are read, not mapped: a mapped file would count as resident memory of every worker.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        summary = json.loads((folder / _SUMMARY).read_text("utf-8"))
        self.totals = Totals(*summary["totals"])
        #: Numbers of files that the source skipped, by suffix.
        self.left_out: dict[str, int] = summary["left_out"]
        #: First row of each shard, and one past the last; `bisect_right` skips empty ones.
        self.starts: list[int] = list(accumulate(summary["rows"], initial=0))
        self._open: tuple[int, Any] | None = None
        self._held: tuple[tuple[int, int], pa.RecordBatch] | None = None

    def __len__(self) -> int:
        return self.starts[-1]

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from ``start`` to ``stop``."""
        while start < stop:
            shard = bisect_right(self.starts, start) - 1
            number, at = divmod(start - self.starts[shard], ROWS_PER_BATCH)
            rows = min(min(stop, self.starts[shard + 1]) - start, ROWS_PER_BATCH - at)
            if self._open is None or self._open[0] != shard:
                file = pa.OSFile(str(shard_path(self.folder, shard)))
                self._open = shard, pa.ipc.open_file(file)
            held = self._held
            if held is None or held[0] != (shard, number):
                self._held = held = (shard, number), self._open[1].get_batch(number)
            yield held[1].slice(at, rows)
            start += rows

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Yield the records from ``start`` to ``stop``."""
        columns_of_fields = [
            (one.name, one.type) for one in self.schema if one.name.startswith(_FIELD)
        ]
        for batch in self.batches(start, stop):
            columns = map(python_values, batch.columns)
            misshapen = self._misshapen(batch)
            for at, values in enumerate(zip(*columns, strict=True)):
                row = dict(zip(batch.schema.names, values, strict=True))
                row["problem"] = row["problem"] or misshapen.get(at)
                height, width = row.pop("height"), row.pop("width")
                row["path"] = row["path"].decode("utf-8", "surrogateescape")
                row["pixels"] = None if height is None else (height, width)
                if (annotated := row["annotated_size"]) is not None:
                    row["annotated_size"] = tuple(map(int, annotated))
                del row["size"]
                key = row["key"]
                fields = tuple(
                    _field(key, name, row.pop(name), kind) for name, kind in columns_of_fields
                )
                yield Record(**row, fields=fields)

    def _misshapen(self, batch: pa.RecordBatch) -> dict[int, str]:
        """Return the problems of rows with a value of another shape than its format's, by place."""
        problems: dict[int, str] = {}
        for field in self.schema:
            meaning = (field.metadata or {}).get(_FORMAT.encode(), b"").decode()
            if meaning:
                places = np.flatnonzero(misshapen(batch.column(field.name), meaning)).tolist()
                problem = why_misshapen(field.name.removeprefix(_FIELD), meaning)
                problems |= dict.fromkeys(places, problem)
        return problems

    @once
    def schema(self) -> pa.Schema:
        """Columns of the listing."""
        with pa.OSFile(str(shard_path(self.folder, 0))) as file:
            return pa.ipc.open_file(file).schema

    def sample(self, count: int) -> list[Record]:
        """Return at most ``count`` records, evenly spaced."""
        step = max(1, len(self) // count)
        positions = range(step // 2, len(self), step)
        return [next(self.records(at, at + 1)) for at in positions[:count]]

    def runs(
        self,
        start: int,
        stop: int,
        most_bytes: float,
        most_rows: int,
        estimate: Estimate = UNCHANGED,
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield runs of records that end at a limit of stored bytes or rows.

        Each has its first record, one past the last, and the bytes in the source and stored.
        """
        begin = at = start
        held, size = 0.0, 0
        for batch in self.batches(start, stop):
            lengths, sizes = (as_numpy(batch.column(name)) for name in ("length", "size"))
            stored = np.asarray(estimate.stored(lengths, sizes), np.float64).tolist()
            for its_stored, its_size in zip(stored, sizes.tolist(), strict=True):
                at, held, size = at + 1, held + its_stored, size + its_size
                if held >= most_bytes or at - begin == most_rows:
                    yield begin, at, size, round(held)
                    begin, held, size = at, 0.0, 0
        if begin < stop:
            yield begin, stop, size, round(held)

    def units(
        self,
        most_bytes: float,
        most_rows: int,
        options: dict[str, Any],
        estimate: Estimate = UNCHANGED,
    ) -> Iterator[Unit]:
        """Cut the listing into units."""
        salt = json.dumps(options, sort_keys=True).encode()
        runs = self.runs(0, len(self), most_bytes, most_rows, estimate)
        for number, (start, stop, size, stored) in enumerate(runs):
            digest = hashlib.blake2b(salt, digest_size=16)
            for batch in self.batches(start, stop):
                for column in batch.columns:
                    update_digest(digest, column)
            yield Unit(number, start, stop, size, stored, digest.hexdigest())


def _field(key: str, name: str, value: Any, kind: pa.DataType) -> Any:
    if kind != _BLOB or value is None:
        return value
    path = value.pop("path").decode("utf-8", "surrogateescape")
    return Record(f"{key}\0{name.removeprefix(_FIELD)}", 0, path, **value)
