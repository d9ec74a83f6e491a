"""Writes JPEGs in any scans, as no library does: an encoder of ITU-T T.81, annexes F and G."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: Sampling factors (across, down) of each component.
SAMPLINGS = {
    "grey": [(1, 1)],
    "4:4:4": [(1, 1), (1, 1), (1, 1)],
    "4:2:2": [(2, 1), (1, 1), (1, 1)],
    "4:2:0": [(2, 2), (1, 1), (1, 1)],
    "4:4:0": [(1, 2), (1, 1), (1, 1)],
}


class Scan(NamedTuple):
    """Components, spectral selection, successive approximation: Cs, Ss, Se, Ah, Al."""

    components: tuple[int, ...]
    first: int = 0
    last: int = 63
    high: int = 0
    low: int = 0


@dataclass
class Coefficients:
    """Quantised coefficients: blocks are int, (rows, columns, 64), whole MCUs, zig-zag order."""

    width: int
    height: int
    sampling: str
    blocks: list[npt.NDArray[np.int64]] = field(default_factory=list)

    @property
    def mcu(self) -> tuple[int, int]:
        return SAMPLINGS[self.sampling][0]

    @property
    def mcus(self) -> tuple[int, int]:
        across, down = self.mcu
        return -(-self.width // (8 * across)), -(-self.height // (8 * down))


def drawn(width: int, height: int, sampling: str, rng: random.Random) -> Coefficients:
    """Coefficients at random: from empty blocks to full ones, small values mostly."""
    image = Coefficients(width, height, sampling)
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    for across, down in SAMPLINGS[sampling]:
        shape = (image.mcus[1] * down, image.mcus[0] * across, 64)
        density = numbers.choice([0, 0.02, 0.2, 0.9], shape[:2])[..., None]
        values = numbers.geometric(0.3, shape) * numbers.choice([-1, 1], shape)
        blocks = np.where(numbers.random(shape) < density, values, 0)
        blocks[..., 0] = numbers.integers(-60, 60, shape[:2])
        image.blocks.append(blocks)
    return image


def progression(components: int, rng: random.Random) -> list[Scan]:
    """A script at random: bands and bits of each component, in any order that T.81 allows."""
    every = tuple(range(components))
    low = rng.randrange(3)
    split = rng.random() < 0.4
    groups = [(c,) for c in every] if split else [every]
    if not split and components == 3 and rng.random() < 0.3:
        groups = [(0,), (1, 2)]
    dc = [[Scan(group, 0, 0, 0, low) for group in groups]]
    dc += [[Scan(group, 0, 0, bit + 1, bit) for group in groups] for bit in reversed(range(low))]
    queues: list[list[Scan]] = []
    for c in every:
        cuts = sorted(rng.sample(range(2, 64), rng.randrange(3)))
        for first, end in zip([1, *cuts], [*cuts, 64], strict=True):
            low = rng.randrange(4)
            band = [Scan((c,), first, end - 1, 0, low)]
            band += [Scan((c,), first, end - 1, bit + 1, bit) for bit in reversed(range(low))]
            queues.append(band)
    script = dc[0]
    queues += [[scan for later in dc[1:] for scan in later]]
    while queues := [queue for queue in queues if queue]:
        script.append(rng.choice(queues).pop(0))
    return script


def sequential(components: int, rng: random.Random) -> list[Scan]:
    if components == 3 and rng.random() < 0.5:
        return [Scan((0, 1)), Scan((2,))] if rng.random() < 0.5 else [Scan((0,)), Scan((1, 2))]
    return [Scan((c,)) for c in range(components)]


def write(
    image: Coefficients,
    script: Sequence[Scan],
    *,
    progressive: bool = True,
    restart: int = 0,
    step: int = 3,
    between: bytes = b"",
) -> bytes:
    """A JPEG of those coefficients."""
    out = b"\xff\xd8" + _segment(0xDB, bytes([0, *[step] * 64]))
    frame = bytes([8]) + image.height.to_bytes(2, "big") + image.width.to_bytes(2, "big")
    factors = SAMPLINGS[image.sampling]
    frame += bytes([len(factors)])
    for number, (across, down) in enumerate(factors):
        frame += bytes([number + 1, across << 4 | down, 0])
    out += _segment(0xC2 if progressive else 0xC0, frame)
    if restart:
        out += _segment(0xDD, restart.to_bytes(2, "big"))
    for number, scan in enumerate(script):
        out += between if number else b""
        out += _Writer(image, scan, progressive).encode(restart)
    return out + b"\xff\xd9"


def _scan_header(scan: Scan, tables: Sequence[int]) -> bytes:
    header = bytes([len(scan.components)])
    for component, table in zip(scan.components, tables, strict=True):
        header += bytes([component + 1, table])
    return _segment(0xDA, header + bytes([scan.first, scan.last, scan.high << 4 | scan.low]))


def _segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(payload) + 2).to_bytes(2, "big") + payload


def _shifted(value: int, low: int) -> int:
    """An AC coefficient's bits from `low` on: rounded towards zero (G.1.2.1)."""
    return (abs(value) >> low) * (1 if value > 0 else -1)


def _mcus(image: Coefficients, scan: Scan) -> Iterator[list[tuple[int, npt.NDArray[np.int64]]]]:
    across, down = image.mcus
    if len(scan.components) > 1:
        for y in range(down):
            for x in range(across):
                yield [
                    (c, image.blocks[c][y * v + j, x * h + i])
                    for c in scan.components
                    for h, v in [SAMPLINGS[image.sampling][c]]
                    for j in range(v)
                    for i in range(h)
                ]
        return
    (c,) = scan.components
    h, v = SAMPLINGS[image.sampling][c]
    width = -(-image.width * h // (8 * image.mcu[0]))
    height = -(-image.height * v // (8 * image.mcu[1]))
    for y in range(height):
        for x in range(width):
            yield [(c, image.blocks[c][y, x])]


class _Writer:
    """Encodes one scan: symbols first, then their codes."""

    def __init__(self, image: Coefficients, scan: Scan, progressive: bool) -> None:
        self._image, self._scan, self._progressive = image, scan, progressive
        # (table class, symbol or None, extra bits as text)
        self._tokens: list[tuple[int, int | None, str] | int] = []
        self._end_run, self._corrections = 0, ""

    def encode(self, restart: int) -> bytes:
        scan = self._scan
        for number, mcu in enumerate(_mcus(self._image, scan)):
            if number == 0 or (restart and number % restart == 0):
                self._flush_ends()
                if number:
                    self._tokens.append(0xD0 + (number // restart - 1) % 8)
                self._predictors = dict.fromkeys(scan.components, 0)
            for component, block in mcu:
                self._block(component, [int(value) for value in block])
        self._flush_ends()
        codes, tables = self._codes()
        data, bits = b"", ""
        for token in [*self._tokens, None]:
            if isinstance(token, tuple):
                kind, symbol, extra = token
                bits += ("" if symbol is None else codes[kind][symbol]) + extra
                continue
            bits += "1" * (-len(bits) % 8)
            data += bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)).replace(
                b"\xff", b"\xff\0"
            )
            data += b"" if token is None else bytes([0xFF, token])
            bits = ""
        return tables + _scan_header(scan, [0] * len(scan.components)) + data

    def _block(self, component: int, block: list[int]) -> None:
        scan = self._scan
        if scan.first == 0 and scan.high:
            self._tokens.append((0, None, str(block[0] >> scan.low & 1)))
        elif scan.first == 0:
            value = block[0] >> scan.low
            self._value(0, 0, value - self._predictors[component])
            self._predictors[component] = value
        if scan.last and scan.high:
            self._refine(block)
        elif scan.last:
            self._band(block)

    def _value(self, kind: int, run: int, value: int) -> None:
        size = abs(value).bit_length()
        extra = value if value > 0 else value + (1 << size) - 1
        self._tokens.append((kind, run << 4 | size, f"{extra:0{size}b}" if size else ""))

    def _band(self, block: list[int]) -> None:
        run = 0
        for k in range(max(self._scan.first, 1), self._scan.last + 1):
            value = _shifted(block[k], self._scan.low)
            if value == 0:
                run += 1
                continue
            self._flush_ends()
            while run > 15:
                self._tokens.append((1, 0xF0, ""))
                run -= 16
            self._value(1, run, value)
            run = 0
        if run:
            self._end()

    def _refine(self, block: list[int]) -> None:
        scan = self._scan
        values = {k: _shifted(block[k], scan.low) for k in range(scan.first, scan.last + 1)}
        new = [k for k, value in values.items() if abs(value) == 1]
        run, corrections = 0, ""
        for k, value in values.items():
            if value == 0:
                run += 1
            elif abs(value) > 1:
                corrections += str(abs(value) & 1)
            if not new or k > new[-1]:
                continue
            if run == 16:
                self._flush_ends()
                self._tokens.append((1, 0xF0, corrections))
                run, corrections = 0, ""
            if abs(value) == 1:
                self._flush_ends()
                self._tokens.append((1, run << 4 | 1, str(int(value > 0)) + corrections))
                run, corrections = 0, ""
        if run or corrections:
            self._corrections += corrections
            self._end()

    def _end(self) -> None:
        if not self._progressive:
            self._tokens.append((1, 0, ""))
            return
        self._end_run += 1
        if self._end_run == 0x7FFF:
            self._flush_ends()

    def _flush_ends(self) -> None:
        if self._end_run:
            size = self._end_run.bit_length() - 1
            extra = f"{self._end_run - (1 << size):0{size}b}" if size else ""
            self._tokens.append((1, size << 4, extra + self._corrections))
        self._end_run, self._corrections = 0, ""

    def _codes(self) -> tuple[dict[int, dict[int, str]], bytes]:
        """Codes of 2 to 9 bits for the eight most frequent symbols, of 16 for the others."""
        codes: dict[int, dict[int, str]] = {}
        tables = b""
        for kind in (0, 1):
            tokens = [token for token in self._tokens if isinstance(token, tuple)]
            counts = Counter(s for k, s, _ in tokens if k == kind and s is not None)
            symbols = [symbol for symbol, _ in counts.most_common()]
            if not symbols:
                continue
            lengths = [min(rank + 2, 16) if rank < 8 else 16 for rank in range(len(symbols))]
            codes[kind], code, before = {}, 0, 0
            for symbol, length in zip(symbols, lengths, strict=True):
                code <<= length - before
                codes[kind][symbol] = f"{code:0{length}b}"
                code, before = code + 1, length
            counted = bytes(lengths.count(length) for length in range(1, 17))
            tables += _segment(0xC4, bytes([kind << 4]) + counted + bytes(symbols))
        return codes, tables
