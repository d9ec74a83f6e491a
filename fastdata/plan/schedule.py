"""Which samples go into which batch, and what is left when some of them cannot be used."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.errors import SampleError
from fastdata.plan.draws import batch_key, call_keys
from fastdata.plan.order import Order
from fastdata.plan.sharding import Epoch

Indices = npt.NDArray[np.int64]


@dataclass
class Planned:
    """One batch to come.

    Attributes:
        indices: What is read: numbers of the source's samples, int64, shape (B,).
        numbers: The same as the loader's dataset counts them, which may be a part of the source.
        draws: The same as `Numbering` has it, which says ``numbers`` and ``occurrences``.
        occurrences: How often each was drawn before (`fastdata.plan.draws`), int64, shape (B,);
            None where none was.
        position: The epoch's position once it is delivered: what a state resumes from.
        taken: The draws that it took from the order, bad ones included.
        repeated: How far repeating samples had come before it.
        left_out: How many of the samples taken were known to be bad.
    """

    indices: Indices
    numbers: Indices
    draws: Indices
    occurrences: Indices | None = None
    position: int = 0
    taken: Sequence[int] | Indices = ()
    repeated: int = 0
    left_out: int = 0

    def batch_key(self, key: int) -> int:
        """The key of what is drawn for the batch as a whole, of that of the epoch."""
        return batch_key(key, self.numbers, self.occurrences)

    def call_keys(self, key: int) -> list[int]:
        """The keys of what Python calls for each sample, of that of the epoch."""
        return call_keys(key, self.numbers, self.occurrences)


class Numbering:
    """Which sample a *draw* means: its number in the loader's dataset, plus n for each time before.

    One int says so which sample is drawn and whether it was drawn before.

    Args:
        n: Number of samples of the loader's dataset.
        subset: Their numbers in the source, int64, shape (n,); None where they are the same.
    """

    def __init__(self, n: int, subset: Indices | None = None) -> None:
        self.n = n
        self._subset = subset

    def __call__(self, draws: Any) -> Any:
        """The source's number of a draw, or of an array of draws."""
        numbers = draws % self.n
        return numbers if self._subset is None else self._subset[numbers]

    def plan(self, draws: Indices, position: int = 0, **values: Any) -> Planned:
        """The batch of some draws; ``values`` as `Planned` has them."""
        numbers, occurrences = draws, None
        if int(draws.max()) >= self.n:
            occurrences, numbers = np.divmod(draws, self.n)
        indices = numbers if self._subset is None else self._subset[numbers]
        return Planned(indices, numbers, draws, occurrences, position, **values)


def ordered(epoch: Epoch, order: Order) -> Iterator[tuple[Indices, int]]:
    """The batches of one rank in an order of ours: (draws, position after)."""
    n = epoch.samples
    for batch in range(len(epoch)):
        positions = epoch.unwrapped(batch)
        if positions[-1] < n:
            draws = order(positions)
        else:
            occurrences, positions = np.divmod(positions, n)
            draws = order(positions) + occurrences * n
        yield draws, epoch.consumed(batch)


def sampled(
    batches: Iterable[Iterable[int]], samples: int, *, replacing: bool = True
) -> Iterator[tuple[Indices, int]]:
    """The batches of a torch batch sampler: (draws, 0).

    Args:
        batches: The batch sampler.
        samples: Number of the dataset's samples.
        replacing: Whether a sample that comes again is another occurrence of it.

    Raises:
        IndexError: The sampler gives a number that is no sample's, or an empty batch.
        TypeError: It gives something that is no whole number.
    """
    # The kernel gives zeros without writing them, so this costs what is touched of it.
    drawn = np.zeros(samples if replacing else 0, np.uint32)
    for batch in batches:
        indices = np.fromiter((operator.index(i) for i in batch), np.int64)
        if not len(indices):
            raise IndexError("the batch sampler gives an empty batch")
        wrong = indices[(indices < -samples) | (indices >= samples)]
        if len(wrong):
            raise IndexError(f"the sampler asks for sample {wrong[0]} of {samples}")
        draws = np.where(indices < 0, indices + samples, indices)
        if replacing:
            occurrences = drawn[draws] + occurrences_within(draws)
            np.add.at(drawn, draws, 1)
            draws += occurrences * samples
        yield draws, 0


def occurrences_within(indices: Indices) -> Indices:
    """How often each number occurs before its own place: int64, shape (N,), as ``indices``."""
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    counts = np.diff(starts, append=len(ordered))
    occurrences = np.empty_like(indices)
    occurrences[order] = np.arange(len(ordered)) - np.repeat(starts, counts)
    return occurrences


class Repeats:
    """What a rank repeats at the end of an epoch, in the place of bad samples.

    The order from the rank's first batch on, around the epoch's end, so that there is a good
    sample if the epoch has one; whether the epoch was begun or is resumed.

    Args:
        epoch: How the epoch is divided.
        order: Its order.
    """

    def __init__(self, epoch: Epoch, order: Order) -> None:
        self._n, self._rank, self._order = epoch.samples, epoch.rank, order
        self._start = epoch.rank * epoch.batch_size
        self._held: tuple[int, list[int]] = (-1, [])

    def __call__(self, number: int) -> int:
        """The draw that is repeated as number ``number``, from 0: one for each rank and round."""
        rounds, at = divmod(number, self._n)
        chunk, place = divmod((self._start + at) % self._n, _KEPT)
        if self._held[0] != chunk:
            first = chunk * _KEPT
            positions = np.arange(first, min(first + _KEPT, self._n), dtype=np.int64)
            self._held = chunk, self._order(positions).tolist()
        return self._held[1][place] + ((1 + rounds) * _REPEAT + self._rank) * self._n


class Schedule:
    """The batches of an epoch, which keep their sizes when samples are taken out.

    A bad sample leaves a hole; the samples after it move up, as if it had never been in the
    order. So what is delivered depends on the data alone, not on how far decoding is ahead.
    Where the epoch ends early by that, its first good samples are repeated: every rank needs
    the number of batches that it has announced.

    Args:
        batches: (draws, position after) of each batch.
        numbering: Which samples the draws mean.
        ahead: Samples at the beginning that were delivered already, in place of bad ones.
        bad: The source's samples known to be bad; grows with `exclude`.
        repeats: What is repeated; None for what ``batches`` begin with.
        repeated: How much of that was repeated already.

    Attributes:
        ahead: How many samples were taken beyond the position of the last batch taken.
        repeated: How far repeating has come, bad ones included.
        left_out: How many of the samples taken were known to be bad.
    """

    def __init__(
        self,
        batches: Iterator[tuple[Indices, int]],
        numbering: Numbering,
        ahead: int = 0,
        bad: set[int] | None = None,
        repeats: Repeats | None = None,
        repeated: int = 0,
    ) -> None:
        self._batches = batches
        self._numbering = numbering
        self._bad = set() if bad is None else bad
        # Draws of `batches` not yet handed out; size and position of the batches owed for them.
        self._draws: deque[int] = deque()
        self._owed: deque[tuple[int, int]] = deque()
        self._repeats = repeats
        self._first: list[int] = []
        self.repeated = repeated
        self._skip = self.ahead = ahead
        self.left_out = 0
        self._error: Exception | None = None

    def take(self) -> Planned | None:
        """The next batch; None at the end.

        Raises:
            SampleError: All samples are known to be bad.
            Exception: What the sampler has raised, when it is the turn of what it was to give.
        """
        if not (self._skip or self._draws or self._owed or self._bad):
            # The usual case: nothing to fill up, nothing to leave out.
            found = self._next()
            if found is None:
                return self._end()
            draws, position = found
            self._remember(draws)
            return self._numbering.plan(draws, position, taken=draws, repeated=self.repeated)
        if not self._owed and not self._pull():
            return self._end()
        size, position = self._owed.popleft()
        repeated, left_out = self.repeated, self.left_out
        good, taken = self._fill(size)
        self.ahead += len(taken) - size
        if not good:
            raise SampleError("no sample is left: all of them are bad", _HINT)
        left_out = self.left_out - left_out
        return self._numbering.plan(
            np.array(good, np.int64),
            position,
            taken=taken,
            repeated=repeated,
            left_out=left_out,
        )

    def put_back(self, batches: Sequence[Planned]) -> None:
        """Takes back batches that were not delivered, given in their order."""
        for planned in reversed(batches):
            size = len(planned.indices)
            self._draws.extendleft(int(draw) for draw in reversed(planned.taken))
            self._owed.appendleft((size, planned.position))
            self.ahead -= len(planned.taken) - size
            self.left_out -= planned.left_out
            self.repeated = planned.repeated

    def exclude(self, indices: Iterable[int]) -> None:
        """Remembers samples of the source as bad."""
        self._bad.update(indices)

    def more(self, count: int) -> Planned | None:
        """The next samples, to fill holes of a batch that was taken; None if none is good.

        Batches that were taken after it must be put back first.
        """
        good, taken = self._fill(count)
        self.ahead += len(taken)
        return self._numbering.plan(np.array(good, np.int64)) if good else None

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

    def _remember(self, draws: Indices) -> None:
        if self._repeats is None and len(self._first) < _KEPT:
            self._first.extend(draws.tolist())

    def _pull(self) -> bool:
        found = self._next()
        if found is None:
            return False
        draws, position = found
        self._remember(draws)
        self._owed.append((len(draws), position))
        delivered = min(self._skip, len(draws))
        self._skip -= delivered
        self._draws.extend(draws[delivered:].tolist())
        return True

    def _fill(self, count: int) -> tuple[list[int], list[int]]:
        """The next good draws, and all that were taken from the order for them."""
        good: list[int] = []
        taken: list[int] = []
        while len(good) < count:
            if self._draws:
                draw = self._draws.popleft()
                taken.append(draw)
                if self._numbering(draw) in self._bad:
                    self.left_out += 1
                else:
                    good.append(draw)
            elif not self._pull():
                repeated = self._repeat()
                if repeated is None:
                    break
                good.append(repeated)
        return good, taken

    def _repeat(self) -> int | None:
        """A good sample from the epoch's beginning, drawn once more; None if there is none."""
        n = len(self._first) if self._repeats is None else self._numbering.n
        for _ in range(n):
            if self._repeats is None:
                rounds, at = divmod(self.repeated, n)
                draw = self._first[at] + (1 + rounds) * _REPEAT * self._numbering.n
            else:
                draw = self._repeats(self.repeated)
            self.repeated += 1
            if self._numbering(draw) not in self._bad:
                return draw
        return None


#: Samples of the epoch's beginning that are kept, to be repeated at its end.
_KEPT = 1024

#: Occurrences between a sample and the same one repeated; more than there are ranks.
_REPEAT = 1 << 20

_HINT = "See what is wrong with the dataset by fastdata verify."
