"""Plans of requests: neighbouring byte ranges are merged, and the next ones come first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fastdata.errors import FastdataError, OutageError
from fastdata.storage.checksum import crc32c

if TYPE_CHECKING:
    from fastdata import _native
    from fastdata.storage.source import Source

#: Most bytes between merged neighbours, as a part of the bytes needed.
_WASTE = 1 / 32
#: Parts to fetch of samples that are fetched in part, by slot: `_native.Extents.plan_fetches`.
Fetches: TypeAlias = Mapping[int, Sequence[int]]
#: Problem of a sample whose checksum is wrong.
WRONG_BYTES = "its bytes have changed since it was packed, and fetching again did not help"


class Parts(NamedTuple):
    """Bytes of a JPEG that its crop needs, for `_native.Extents.attach_rows`.

    ``header`` are its first bytes, ``rows`` those of some rows of MCUs, which begin ``at`` an
    offset.
    """

    header: bytes
    rows: bytes
    at: int


class FileRef(NamedTuple):
    """Remote file that holds samples; pieces in a cache folder have names with ``tag``."""

    url: str
    size: int
    tag: str


class Wanted:
    """Byte range to read: a sample of a dataset, or a part of one.

    ``check`` is its CRC-32C, or a function that returns whether bytes are right. ``key`` is the
    number of a whole sample, or a draw and a part.
    """

    __slots__ = ("check", "file", "key", "number", "start", "stop")

    def __init__(
        self,
        number: int,
        file: FileRef,
        start: int,
        stop: int,
        check: int | Callable[[bytes], bool],
        key: Hashable = None,
    ) -> None:
        self.number, self.file, self.start, self.stop = number, file, start, stop
        self.check = check
        self.key = number if key is None else key

    def is_right(self, data: bytes) -> bool:
        """Return whether these bytes equal those that were packed."""
        return crc32c(data) == self.check if isinstance(self.check, int) else self.check(data)

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.stop - self.start


@dataclass(slots=True, eq=False)
class Request:
    """Byte range to request, which holds one or more neighbours: `Wanted`."""

    file: FileRef
    start: int
    stop: int
    members: list[Any] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.stop - self.start


def merge(
    wanted: Iterable[Any], merge_gap: int, max_request: int, waste: float = _WASTE
) -> list[Request]:
    """Return the requests for some samples; neighbours with small gaps share one.

    ``merge_gap`` limits the bytes between two neighbours; ``waste`` those of a request, as a part
    of the bytes needed.
    """
    requests: list[Request] = []
    needed = wasted = 0
    for one in sorted(wanted, key=lambda one: (one.file.url, one.start)):
        last = requests[-1] if requests else None
        if last is not None and last.file.url == one.file.url:
            gap = max(one.start - last.stop, 0)
            if (
                gap <= merge_gap
                and wasted + gap <= waste * (needed + one.size)
                and max(one.stop, last.stop) - last.start <= max_request
            ):
                last.stop = max(last.stop, one.stop)
                last.members.append(one)
                needed += one.size
                wasted += gap
                continue
        requests.append(Request(one.file, one.start, one.stop, [one]))
        needed, wasted = one.size, 0
    return requests


def plan(
    coming: Iterable[Any],
    reach: int,
    merge_gap: int,
    max_request: int,
    needed: Iterable[Any] = (),
) -> list[Request]:
    """Return the next requests, in the order in which batches need them.

    The requests cover the next quarter of ``reach``, with neighbours from all of it. ``coming`` is
    in the order of the batches. Ranges in ``needed`` come before all others.
    """
    places: dict[Hashable, int] = {}
    near: list[Any] = []
    size = soon = 0
    for one in coming:
        places[one.key] = len(near)
        near.append(one)
        size += one.size
        if size <= reach // 4:
            soon = len(near)
        if size >= reach:
            break
    for one in needed:
        if one.key not in places:
            near.append(one)
        places[one.key] = -1
    firsts = [
        (min(places[one.key] for one in request.members), request)
        for request in merge(near, merge_gap, max_request)
    ]
    firsts.sort(key=lambda pair: pair[0])
    return [request for first, request in firsts if first <= soon]


def attach_fetched(
    fetched: Mapping[int, Any], extents: _native.Extents, source: Source, rows: Any
) -> dict[int, FastdataError]:
    """Attach fetched bytes to their extents; return the errors of the others, by slot.

    An outcome is bytes, parts, an error, or None for wrong bytes. ``rows`` are by slot, int64.
    """
    failed: dict[int, FastdataError] = {}
    for slot, found in fetched.items():
        row = int(rows[slot])
        if isinstance(found, bytes):
            extents.attach(slot, found)
        elif isinstance(found, Parts):
            extents.attach_rows(slot, *found)
        elif found is None:
            failed[slot] = source.problem(row, WRONG_BYTES, "changed")
        else:
            what = f"sample {row} ({source.key(row)}): {found.what}"
            failed[slot] = type(found)(what, found.hint)
    return failed


def raise_outage(failed: Mapping[int, FastdataError]) -> None:
    """Raise the first OutageError among the errors of samples, which may be intact."""
    for error in failed.values():
        if isinstance(error, OutageError):
            raise error
