"""Byte ranges that coming batches need, as columns: objects would cost more than requests do."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.remote.ranges import (
    FileRef,
    Numbers,
    RangeRequest,
    Ranges,
    SampleRanges,
    Sound,
    sound_of,
)

_NAMES = ("place", "start", "stop", "check", "key", "uses", "position", "member")
_COLUMNS = np.dtype([(name, np.int64) for name in _NAMES])
#: Value of ``member`` of a range that is in no request.
_UNPLANNED = -1


class Announced:
    """Ranges that are known, by numbers; one is used again after the last use of its range.

    A range that several batches need is known once, by its key. Positions are bytes in the order of
    the batches; each range counts as its bytes and ``each``.

    Attributes:
        released: Position of the ranges that are needed next.
        farthest: Position after all ranges.
        files: The file of each range, by its number.
        requests: The request that each range is in, by its number; None if it is in none.
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self.released = self.farthest = 0
        self.files: list[FileRef | None] = []
        self.requests: list[RangeRequest | None] = []
        self._table = np.zeros(0, _COLUMNS)
        self._free: list[int] = []
        self._numbers: dict[int, int] = {}
        self._sound: Sound = {}

    @property
    def ahead(self) -> int:
        """Bytes from `released` to `farthest`."""
        return self.farthest - self.released

    def column(self, name: str, numbers: Numbers) -> Numbers:
        """Return values of a column of `_COLUMNS`."""
        return self._table[name][numbers]

    def add(self, wanted: SampleRanges) -> tuple[Numbers, list[int]]:
        """Count a use of ranges; return their numbers, and those that were not known."""
        keys, known = wanted.keys.tolist(), self._numbers
        numbers: list[Any] = list(map(known.get, keys))
        # Of equal keys, the first.
        fresh = {keys[at]: at for at in range(len(keys) - 1, -1, -1) if numbers[at] is None}
        new: list[int] = []
        if fresh:
            while len(self._free) < len(fresh):
                self._grow()
            new = self._free[-len(fresh) :]
            del self._free[-len(fresh) :]
            known.update(zip(fresh, new, strict=True))
            numbers = list(map(known.__getitem__, keys))
            self._enter(new, wanted, list(fresh.values()))
        found = np.array(numbers, np.int64)
        np.add.at(self._table["uses"], found, 1)
        return found, new

    def _enter(self, numbers: list[int], wanted: SampleRanges, places: list[int]) -> None:
        """Enter new ranges, which are at some places of those wanted, under numbers."""
        ranges, rows = wanted.ranges, np.zeros(len(numbers), _COLUMNS)
        rows["place"], rows["check"] = ranges.places[places], ranges.checks[places]
        rows["start"], rows["stop"] = ranges.starts[places], ranges.stops[places]
        rows["key"], rows["member"] = wanted.keys[places], _UNPLANNED
        costs = rows["stop"] - rows["start"] + self._each
        rows["position"] = self.farthest + np.cumsum(costs) - costs
        self.farthest += int(costs.sum())
        self._table[numbers] = rows
        for at, number in zip(places, numbers, strict=True):
            self.files[number] = ranges.files[at]
            if at in ranges.sound:
                self._sound[number] = ranges.sound[at]

    def _grow(self) -> None:
        size = len(self._table)
        self._table = np.concatenate([self._table, np.zeros(max(size, 1024), _COLUMNS)])
        self._free += range(size, len(self._table))
        self.files += [None] * (len(self._table) - size)
        self.requests += [None] * (len(self._table) - size)

    def release(self, numbers: Numbers) -> tuple[list[int], list[RangeRequest | None]]:
        """Drop a use of ranges; return those that are not known any more, and their requests."""
        uses = self._table["uses"]
        np.subtract.at(uses, numbers, 1)
        rows = np.unique(numbers[uses[numbers] == 0])
        freed, known = rows.tolist(), self._table[rows]
        self.released += int((known["stop"] - known["start"]).sum()) + self._each * len(freed)
        for key in known["key"].tolist():
            del self._numbers[key]
        requests = [self.requests[number] for number in freed]
        for number in freed:
            self.requests[number] = None
            if self._sound:
                self._sound.pop(number, None)
        self._free += freed
        return freed, requests

    def unplanned(self) -> Numbers:
        """Return the ranges that are in no request."""
        table = self._table
        return np.flatnonzero((table["uses"] > 0) & (table["member"] == _UNPLANNED))

    def ranges(self, numbers: Numbers) -> Ranges:
        """Return ranges by their numbers."""
        rows = self._table[numbers]
        files: list[Any] = [self.files[number] for number in numbers.tolist()]
        sound = sound_of(self._sound, numbers)
        return Ranges(files, rows["place"], rows["start"], rows["stop"], rows["check"], sound)

    def put(self, numbers: Numbers, request: RangeRequest) -> None:
        """Note that ranges are in a request, in this order."""
        self._table["member"][numbers] = np.arange(len(numbers))
        for number in numbers.tolist():
            self.requests[number] = request
