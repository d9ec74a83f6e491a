"""Reading records behind URLs: neighbours in one request, several requests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from fastdata.converters.records import Record
from fastdata.converters.rows import read_row

from fastdata.errors import UnreadableError
from fastdata.remote.filesystem import read_bytes
from fastdata.remote.urls import is_url

_THREADS = 16
#: Bytes between two records that one request reads along: what tar puts there, and labels.
_GAP = 64 << 10
_MOST_BYTES = 16 << 20  # of one request


class _Run(NamedTuple):
    """Neighbours in one file."""

    path: str
    start: int
    stop: int
    records: list[Record]


def fetch(
    records: Sequence[Record], storage_options: Mapping[str, Any] | None
) -> Callable[[Record], bytes]:
    """Fetches records that lie behind URLs; a function gives the bytes of each.

    Rows of Parquet are not fetched but by that function: they come by row group.

    It raises UnreadableError where a record's file is gone, and as `read_row` does.

    Raises:
        RemoteError: A server cannot be reached. Nothing is wrong with the images then, so it
            is not taken for a bad image.
    """
    wanted = [
        record
        for record in records
        if record.problem is None and record.column is None and not _is_held(record)
    ]
    found: dict[str, bytes] = {}

    def read(run: _Run) -> None:
        try:
            data = read_bytes(run.path, storage_options, run.start, run.stop)
        except FileNotFoundError:
            return
        for record in run.records:
            at = record.offset - run.start
            found[record.key] = data[at : at + record.length]

    with ThreadPoolExecutor(_THREADS, "fastdata-fetch") as pool:
        for _ in pool.map(read, _runs(wanted)):
            pass

    def give(record: Record) -> bytes:
        if _is_held(record):
            assert record.pixels is not None
            return bytes(record.pixels[2] or b"")
        if record.column is not None:
            return read_row(
                record.path, record.column, record.offset, record.mtime_ns, storage_options
            )
        if record.key not in found:
            raise UnreadableError("cannot be opened: it is not there")
        return found.pop(record.key)

    return give


def is_remote(records: Sequence[Record]) -> bool:
    """Whether records lie behind URLs."""
    return bool(records) and is_url(records[0].path)


def _is_held(record: Record) -> bool:
    return record.pixels is not None and record.pixels[2] is not None


def _runs(records: Sequence[Record]) -> Iterator[_Run]:
    run: _Run | None = None
    for record in sorted(records, key=lambda record: (record.path, record.offset)):
        stop = record.offset + record.length
        if (
            run is not None
            and run.path == record.path
            and record.offset - run.stop <= _GAP
            and stop - run.start <= _MOST_BYTES
        ):
            run.records.append(record)
            run = run._replace(stop=max(run.stop, stop))
            continue
        if run is not None:
            yield run
        run = _Run(record.path, record.offset, stop, [record])
    if run is not None:
        yield run
