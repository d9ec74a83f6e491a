"""Helpers for tests of `fastdata.DeviceLoader`: loaders to wrap, and tolerances."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPES = ["float32", "float16", "bfloat16"]


def rounding(dtype: Any, values: Any, largest: float) -> Any:
    """How far two results may be apart: the product may be rounded before the offset is added."""
    return 2**-22 * largest + (values.abs() * torch.finfo(dtype).eps if dtype.itemsize < 4 else 0)


def bytes_of(*shape: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


class Source:
    """Gives so many batches, fails where it is told, and remembers what it was asked for."""

    def __init__(self, count: int, fail: tuple[int, ...] = ()) -> None:
        self.count, self.fail = count, fail
        self.given, self.closed = 0, 0

    def __iter__(self) -> Iterator[Any]:
        return Pass(self)

    def __len__(self) -> int:
        return self.count


class Pass:
    def __init__(self, source: Source) -> None:
        self.source, self.position = source, 0

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        number = self.position
        if number == self.source.count:
            raise StopIteration
        self.position = self.source.given = number + 1
        if number in self.source.fail:
            raise OSError(f"batch {number}")
        return [torch.full((2,), number)]

    def close(self) -> None:
        self.source.closed += 1


def drain(iterator: Iterator[Any]) -> list[Any]:
    found: list[Any] = []
    while True:
        try:
            found.append(int(next(iterator)[0][0]))
        except StopIteration:
            return found
        except OSError as error:
            found.append(f"error {str(error)[6:]}")
