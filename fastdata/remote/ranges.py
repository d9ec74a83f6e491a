"""Which byte ranges of remote files are asked for: neighbours are merged, the next ones first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fastdata.storage.checksum import crc32c

#: What lies between merged neighbours is at most this part of what is needed.
_WASTE = 1 / 32


class FileRef(NamedTuple):
    """A remote file that samples lie in.

    Attributes:
        url: Where it is.
        size: Its size in bytes.
        tag: What its pieces are called in a cache folder.
    """

    url: str
    size: int
    tag: str


class Wanted:
    """A sample whose bytes are wanted, or a part of one.

    Attributes:
        number: The sample's number in the dataset.
        file: The file that it lies in.
        start: Its first byte there.
        stop: One past its last.
        check: Its CRC-32C; or what says whether bytes are the right ones.
        key: What tells it from all others: a whole sample's number, or a draw's part.
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
        """Whether these bytes are those that were packed."""
        return crc32c(data) == self.check if isinstance(self.check, int) else self.check(data)

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.stop - self.start


@dataclass(slots=True, eq=False)
class Request:
    """A byte range to ask for: what several neighbours lie in.

    Attributes:
        file: The file.
        start: First byte.
        stop: One past the last.
        members: What lies in it.
    """

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
    """The requests for some samples: neighbours by one, where little lies between them.

    Args:
        wanted: `Wanted`, in any order.
        merge_gap: Most bytes between two neighbours of a request.
        max_request: Most bytes of a request for more than one sample.
        waste: Most bytes between a request's neighbours, as a part of what is needed of it.
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
    """The requests to make next, those that are needed first in front.

    They are for the next quarter of ``reach``, and have the neighbours that are in all of it.

    Args:
        coming: `Wanted`, in the order in which they will be needed.
        reach: How many bytes of them are looked at.
        merge_gap: See `merge`.
        max_request: See `merge`.
        needed: Some of them whose requests are to be made in any case, in front.
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
