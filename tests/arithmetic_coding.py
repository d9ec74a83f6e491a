"""Encodes arithmetic-coded scans (ITU-T T.81, annex D, F.1.4 and G.1.3), for `scans.write`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: T.81, table D.3: Qe, the estimates after the less and after the more probable symbol, whether
#: they change places.
_TABLE = """\
5a1d 1 1 1, 2586 14 2 0, 1114 16 3 0, 080b 18 4 0, 03d8 20 5 0, 01da 23 6 0, 00e5 25 7 0,
006f 28 8 0, 0036 30 9 0, 001a 33 10 0, 000d 35 11 0, 0006 9 12 0, 0003 10 13 0, 0001 12 13 0,
5a7f 15 15 1, 3f25 36 16 0, 2cf2 38 17 0, 207c 39 18 0, 17b9 40 19 0, 1182 42 20 0, 0cef 43 21 0,
09a1 45 22 0, 072f 46 23 0, 055c 48 24 0, 0406 49 25 0, 0303 51 26 0, 0240 52 27 0, 01b1 54 28 0,
0144 56 29 0, 00f5 57 30 0, 00b7 59 31 0, 008a 60 32 0, 0068 62 33 0, 004e 63 34 0, 003b 32 35 0,
002c 33 9 0, 5ae1 37 37 1, 484c 64 38 0, 3a0d 65 39 0, 2ef1 67 40 0, 261f 68 41 0, 1f33 69 42 0,
19a8 70 43 0, 1518 72 44 0, 1177 73 45 0, 0e74 74 46 0, 0bfb 75 47 0, 09f8 77 48 0, 0861 78 49 0,
0706 79 50 0, 05cd 48 51 0, 04de 50 52 0, 040f 50 53 0, 0363 51 54 0, 02d4 52 55 0, 025c 53 56 0,
01f8 54 57 0, 01a4 55 58 0, 0160 56 59 0, 0125 57 60 0, 00f6 58 61 0, 00cb 59 62 0, 00ab 61 63 0,
008f 61 32 0, 5b12 65 65 1, 4d04 80 66 0, 412c 81 67 0, 37d8 82 68 0, 2fe8 83 69 0, 293c 84 70 0,
2379 86 71 0, 1edf 87 72 0, 1aa9 87 73 0, 174e 72 74 0, 1424 72 75 0, 119c 74 76 0, 0f6b 74 77 0,
0d51 75 78 0, 0bb6 77 79 0, 0a40 77 48 0, 5832 80 81 1, 4d1c 88 82 0, 438e 89 83 0, 3bdd 90 84 0,
34ee 91 85 0, 2eae 92 86 0, 299a 93 87 0, 2516 86 71 0, 5570 88 89 1, 4ca9 95 90 0, 44d9 96 91 0,
3e22 97 92 0, 3824 99 93 0, 32b4 99 94 0, 2e17 93 86 0, 56a8 95 96 1, 4f46 101 97 0,
47e5 102 98 0, 41cf 103 99 0, 3c3d 104 100 0, 375e 99 93 0, 5231 105 102 0, 4c0f 106 103 0,
4639 107 104 0, 415e 103 99 0, 5627 105 106 1, 50e7 108 107 0, 4b85 109 103 0, 5597 110 109 0,
504f 111 107 0, 5a10 110 111 1, 5522 112 109 0, 59eb 112 111 1
"""
_ESTIMATES = [
    (int(less, 16), int(after_less), int(after_more), int(exchange))
    for less, after_less, after_more, exchange in map(str.split, _TABLE.split(","))
]


class Conditioning(NamedTuple):
    """Conditioning of a table in a DAC segment: L, U and Kx."""

    lower: int = 0
    upper: int = 1
    ac: int = 5

    def segment(self, table: int) -> bytes:
        """Its part of that segment."""
        return bytes([table, self.upper << 4 | self.lower, 0x10 | table, self.ac])


#: Of both tables: what holds without a DAC segment; others.
USUAL = (Conditioning(), Conditioning())
OTHER = (Conditioning(1, 3, 20), Conditioning(0, 0, 1))


class _Coder:
    """The binary encoder, without the standard's handling of carries: by integers of any length."""

    def __init__(self) -> None:
        self._low, self._size, self._bits = 0, 0x10000, 16

    def code(self, bins: list[int], at: int, symbol: int) -> None:
        less, after_less, after_more, exchange = _ESTIMATES[bins[at] >> 1]
        more = bins[at] & 1
        self._size -= less
        is_less = symbol != more
        if is_less != (self._size < less):
            self._low += self._size
            self._size = less
        if self._size >= 0x8000:
            return
        bins[at] = after_less << 1 | more ^ exchange if is_less else after_more << 1 | more
        shift = 16 - self._size.bit_length()
        self._size <<= shift
        self._low <<= shift
        self._bits += shift

    def evenly(self, symbol: int) -> None:
        self.code([0], 0, symbol)

    def finish(self) -> bytes:
        """All bytes: of the numbers in the interval the one with the most zeros behind it."""
        highest = self._low + self._size - 1
        zeros = max(n for n in range(self._bits + 1) if highest >> n << n >= self._low)
        number = highest >> zeros << zeros << -self._bits % 8
        data = number.to_bytes((self._bits + 7) // 8, "big").rstrip(b"\0")
        return data.replace(b"\xff", b"\xff\0")


class Segment:
    """Encodes blocks up to a restart marker or the scan's end.

    Args:
        first: The scan's Ss.
        last: Its Se.
        high: Its Ah.
        low: Its Al.
        conditioning: Of each table; a component's are those of its number, 1 at most.
    """

    def __init__(
        self, first: int, last: int, high: int, low: int, conditioning: Sequence[Conditioning]
    ) -> None:
        self._first, self._last, self._high, self._low = first, last, high, low
        self._conditioning = conditioning
        self._coder = _Coder()
        self._dc: defaultdict[int, list[int]] = defaultdict(lambda: [0] * 49)
        self._ac: defaultdict[int, list[int]] = defaultdict(lambda: [0] * 245)
        self._before: defaultdict[int, int] = defaultdict(int)
        self._category: defaultdict[int, int] = defaultdict(int)

    def encode(self, blocks: Iterable[tuple[int, list[int]]]) -> bytes:
        """The segment's bytes; blocks with their components, in zig-zag order."""
        for component, block in blocks:
            if self._first == 0 and self._high:
                self._coder.evenly(block[0] >> self._low & 1)
            elif self._first == 0:
                self._difference(component, block[0] >> self._low)
            if self._last:
                values = [
                    (abs(value) >> self._low) * (1 if value > 0 else -1)
                    for value in block[: self._last + 1]
                ]
                (self._refine if self._high else self._band)(component, values)
        return self._coder.finish()

    def _difference(self, component: int, value: int) -> None:
        table = min(component, 1)
        bins, at = self._dc[table], self._category[component]
        difference = value - self._before[component]
        self._before[component] = value
        self._category[component] = 0
        self._coder.code(bins, at, int(difference != 0))
        if difference == 0:
            return
        negative, size = int(difference < 0), abs(difference)
        self._coder.code(bins, at + 1, negative)
        self._coder.code(bins, at + 2 + negative, int(size > 1))
        if size > 1:
            self._magnitude(bins, 20, 1, size - 1)
        conditioning = self._conditioning[table]
        if size > 1 << conditioning.upper:
            self._category[component] = 12 + 4 * negative
        elif size > 1 << conditioning.lower >> 1:
            self._category[component] = 4 + 4 * negative

    def _magnitude(self, bins: list[int], at: int, power: int, value: int) -> None:
        while value >= 2 * power:
            self._coder.code(bins, at, 1)
            power, at = 2 * power, at + 1
        self._coder.code(bins, at, 0)
        while power := power >> 1:
            self._coder.code(bins, at + 14, int(value & power != 0))

    def _band(self, component: int, values: list[int]) -> None:
        table = min(component, 1)
        bins, code = self._ac[table], self._coder.code
        end = max((k for k, value in enumerate(values) if value), default=0)
        k = max(self._first, 1)
        while k <= self._last:
            code(bins, 3 * k - 3, int(k > end))
            if k > end:
                return
            while values[k] == 0:
                code(bins, 3 * k - 2, 0)
                k += 1
            code(bins, 3 * k - 2, 1)
            self._coder.evenly(int(values[k] < 0))
            size = abs(values[k]) - 1
            code(bins, 3 * k - 1, int(size > 0))
            if size > 0:
                code(bins, 3 * k - 1, int(size > 1))
            if size > 1:
                self._magnitude(bins, 189 if k <= self._conditioning[table].ac else 217, 2, size)
            k += 1

    def _refine(self, component: int, values: list[int]) -> None:
        bins, code = self._ac[min(component, 1)], self._coder.code
        end = max((k for k, value in enumerate(values) if value), default=0)
        known = max((k for k, value in enumerate(values) if abs(value) > 1), default=0)
        k = self._first
        while k <= self._last:
            if k > known:
                code(bins, 3 * k - 3, int(k > end))
                if k > end:
                    return
            while values[k] == 0:
                code(bins, 3 * k - 2, 0)
                k += 1
            if abs(values[k]) > 1:
                code(bins, 3 * k - 1, abs(values[k]) & 1)
            else:
                code(bins, 3 * k - 2, 1)
                self._coder.evenly(int(values[k] < 0))
            k += 1
