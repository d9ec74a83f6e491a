"""Reads of records behind URLs: neighbours in one request, several requests at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastdata.converters.records import Record

from fastdata.errors import SampleError, UnreadableError
from fastdata.remote.answers import ChangedError
from fastdata.remote.filesystem import read_bytes
from fastdata.remote.ranges import FileRef, Request, Wanted, merge
from fastdata.remote.retries import Patience

_THREADS = 16
#: Most bytes between two records of one request: tar's headers and labels.
_GAP = 64 << 10
_MOST_BYTES = 16 << 20  # of one request


def fetch(
    records: Sequence[Record], storage_options: Mapping[str, Any] | None
) -> Callable[[Record], bytes]:
    """Fetch records that are extents behind URLs; return a function that gives each one once.

    It raises UnreadableError if a record's file is gone, SampleError if it has changed.
    """
    wanted = (
        Wanted(number, FileRef(one.path, 0, ""), one.offset, one.offset + one.length, 0)
        for number, one in enumerate(records)
        if one.problem is None and one.column is None and not one.is_held
    )
    found: dict[str, bytes] = {}
    changed: set[str] = set()
    patience = Patience()

    def read(request: Request) -> None:
        try:
            url, start, stop = request.file.url, request.start, request.stop
            state = records[request.members[0].number].mtime_ns
            data = read_bytes(url, storage_options, start, stop, patience=patience, state=state)
        except FileNotFoundError:
            return
        except ChangedError:
            changed.update(records[one.number].key for one in request.members)
            return
        for one in request.members:
            part = data[one.start - request.start : one.stop - request.start]
            found[records[one.number].key] = part

    with ThreadPoolExecutor(_THREADS, "fastdata-fetch") as pool:
        # The whole file will be read, so more requests would save no bytes.
        for _ in pool.map(read, merge(wanted, _GAP, _MOST_BYTES, waste=math.inf)):
            pass

    def give(record: Record) -> bytes:
        if record.key in changed:
            raise SampleError("has changed since it was listed")
        if record.key not in found:
            raise UnreadableError("cannot be opened: it does not exist")
        return found.pop(record.key)

    return give
