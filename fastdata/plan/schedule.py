"""Which samples go into which batch, and what is left when some of them cannot be used."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastdata.errors import SampleError
from fastdata.plan.order import Order
from fastdata.plan.sharding import Epoch

Indices = npt.NDArray[np.int64]


class Planned(NamedTuple):
    """One batch to come.

    Attributes:
        indices: Its sample numbers, int64, shape (B,).
        position: The epoch's position once it is delivered: what a state resumes from.
        taken: The samples that it took from the order, bad ones included.
        repeated: How far repeating samples had come before it.
        left_out: How many of the samples taken were known to be bad.
    """

    indices: Indices
    position: int
    taken: Sequence[int] | Indices
    repeated: int = 0
    left_out: int = 0


def ordered(epoch: Epoch, order: Order) -> Iterator[tuple[Indices, int]]:
    """The batches of one rank in an order of ours: (indices, position after)."""
    for batch in range(len(epoch)):
        yield order(epoch.positions(batch)), epoch.consumed(batch)


def sampled(batches: Iterable[Iterable[int]], samples: int) -> Iterator[tuple[Indices, int]]:
    """The batches of a torch batch sampler: (indices, 0).

    Args:
        batches: The batch sampler.
        samples: Number of the dataset's samples.

    Raises:
        IndexError: The sampler gives a number that is no sample's, or an empty batch.
        TypeError: It gives something that is no whole number.
    """
    for batch in batches:
        indices = np.fromiter((operator.index(i) for i in batch), np.int64)
        if not len(indices):
            raise IndexError("the batch sampler gives an empty batch")
        wrong = indices[(indices < -samples) | (indices >= samples)]
        if len(wrong):
            raise IndexError(f"the sampler asks for sample {wrong[0]} of {samples}")
        yield np.where(indices < 0, indices + samples, indices), 0


class Schedule:
    """The batches of an epoch, which keep their sizes when samples are taken out.

    A bad sample leaves a hole; the samples after it move up, as if it had never been in the
    order. So what is delivered depends on the data alone, not on how far decoding is ahead.
    Where the epoch ends early by that, its first good samples are repeated: every rank needs
    the number of batches that it has announced.

    Args:
        batches: (indices, position after) of each batch.
        ahead: Samples at the beginning that were delivered already, in place of bad ones.
        bad: Samples known to be bad; grows with `exclude`.

    Attributes:
        ahead: How many samples were taken beyond the position of the last batch taken.
        left_out: How many of the samples taken were known to be bad.
    """

    def __init__(
        self, batches: Iterator[tuple[Indices, int]], ahead: int = 0, bad: set[int] | None = None
    ) -> None:
        self._batches = batches
        self._bad = set() if bad is None else bad
        # Samples of `batches` not yet handed out; size and position of the batches owed for them.
        self._samples: deque[int] = deque()
        self._owed: deque[tuple[int, int]] = deque()
        self._first: list[int] = []
        self._repeated = 0
        self._skip = self.ahead = ahead
        self.left_out = 0
        self._error: Exception | None = None

    def take(self) -> Planned | None:
        """The next batch; None at the end.

        Raises:
            SampleError: All samples are known to be bad.
            Exception: What the sampler has raised, when it is the turn of what it was to give.
        """
        if not (self._skip or self._samples or self._owed or self._bad):
            # The usual case: nothing to fill up, nothing to leave out.
            found = self._next()
            if found is None:
                return self._end()
            indices, position = found
            self._remember(indices)
            return Planned(indices, position, indices, self._repeated)
        if not self._owed and not self._pull():
            return self._end()
        size, position = self._owed.popleft()
        repeated, left_out = self._repeated, self.left_out
        good, taken = self._fill(size)
        self.ahead += len(taken) - size
        if not good:
            raise SampleError("no sample is left: all of them are bad", _MEND)
        left_out = self.left_out - left_out
        return Planned(np.array(good, np.int64), position, taken, repeated, left_out)

    def put_back(self, batches: Sequence[Planned]) -> None:
        """Takes back batches that were not delivered, given in their order."""
        for planned in reversed(batches):
            size = len(planned.indices)
            self._samples.extendleft(int(i) for i in reversed(planned.taken))
            self._owed.appendleft((size, planned.position))
            self.ahead -= len(planned.taken) - size
            self.left_out -= planned.left_out
            self._repeated = planned.repeated

    def exclude(self, indices: Iterable[int]) -> None:
        """Remembers samples as bad."""
        self._bad.update(indices)

    def more(self, count: int) -> list[int]:
        """The next samples, to fill holes of a batch that was taken; fewer if none is good.

        Batches that were taken after it must be put back first.
        """
        good, taken = self._fill(count)
        self.ahead += len(taken)
        return good

    def _next(self) -> tuple[Indices, int] | None:
        try:
            return next(self._batches, None)
        except Exception as error:
            # For when everything before it is delivered: this may be asked for long before.
            self._error = error
            return None

    def _end(self) -> Planned | None:
        if self._error is not None:
            raise self._error
        return None

    def _remember(self, indices: Indices) -> None:
        if len(self._first) < _KEPT:
            self._first.extend(indices.tolist())

    def _pull(self) -> bool:
        found = self._next()
        if found is None:
            return False
        indices, position = found
        self._remember(indices)
        self._owed.append((len(indices), position))
        delivered = min(self._skip, len(indices))
        self._skip -= delivered
        self._samples.extend(indices[delivered:].tolist())
        return True

    def _fill(self, count: int) -> tuple[list[int], list[int]]:
        """The next good samples, and all that were taken from the order for them."""
        good: list[int] = []
        taken: list[int] = []
        while len(good) < count:
            if self._samples:
                index = self._samples.popleft()
                taken.append(index)
                if index in self._bad:
                    self.left_out += 1
                else:
                    good.append(index)
            elif not self._pull():
                repeated = self._repeat()
                if repeated is None:
                    break
                good.append(repeated)
        return good, taken

    def _repeat(self) -> int | None:
        """A good sample from the epoch's beginning; None if there is none."""
        for _ in range(len(self._first)):
            index = self._first[self._repeated % len(self._first)]
            self._repeated += 1
            if index not in self._bad:
                return index
        return None


#: Samples of the epoch's beginning that are kept, to be repeated at its end.
_KEPT = 1024

_MEND = "See what is wrong with the dataset by fastdata verify."
