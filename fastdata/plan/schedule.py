"""Schedule of an epoch: the samples of each batch, and substitutes for bad ones."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.errors import SampleError
from fastdata.plan.draws import child, sample_keys
from fastdata.plan.mixture import MixedRows
from fastdata.plan.order import Order
from fastdata.plan.sharding import Epoch

Indices = npt.NDArray[np.int64]
#: A batch: its draws, the position after it, and the number of its size class.
Drawn: TypeAlias = tuple[Indices, Any, int]


@dataclass
class Planned:
    """Batch to come.

    Attributes:
        indices: Numbers of the source's samples to read, int64, shape (B,).
        numbers: The same samples as the loader's dataset counts them: it may be a part of the
            source.
        draws: The same samples as `Numbering` counts them, with their occurrences.
        occurrences: How often each was drawn before (`fastdata.plan.draws`), int64, shape (B,);
            None where none was.
        position: The epoch's position once the batch is delivered: a state resumes from it.
        size: Number of its size class, where batches have sizes (`fastdata.plan.batches`).
        asked: The draws of the order itself; ``draws`` differ from these where a bad sample was
            replaced.
        dropped: How many bad samples it has lost.
        tries: How many substitutes each replaced slot has had.
    """

    indices: Indices
    numbers: Indices
    draws: Indices
    occurrences: Indices | None = None
    position: Any = 0
    size: int = 0
    asked: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    dropped: int = 0
    tries: dict[int, int] = field(default_factory=dict)

    def batch_key(self, key: int) -> int:
        """Return the key of draws for the batch as a whole, from the key of the epoch.

        The first sample tells the batch from others of the epoch, whatever the rank, and however
        many batches were taken before.
        """
        before = None if self.occurrences is None else self.occurrences[:1]
        return child(int(sample_keys(key, self.numbers[:1], 0, before)[0]), _BATCH)

    def call_keys(self, key: int) -> list[int]:
        """Return each sample's key for draws in Python, from the key of the epoch."""
        own = child(key, _CALLS)
        keys: list[int] = sample_keys(own, self.numbers, 0, self.occurrences).tolist()
        return keys


class Numbering:
    """Meaning of *draws*: a sample's number in the loader's dataset, plus n per earlier draw.

    So one int has the sample and its occurrence. ``subset`` has the samples' numbers in the source,
    int64, (n,); None where they are the same.
    """

    def __init__(self, n: int, subset: Indices | MixedRows | None = None) -> None:
        self.n = n
        self._subset = subset

    def __call__(self, draws: Any) -> Any:
        """Return the source's number of a draw, or of an array of draws."""
        numbers = draws % self.n
        return numbers if self._subset is None else self._subset[numbers]

    def plan(self, draws: Indices, position: Any = 0, size: int = 0, **values: Any) -> Planned:
        """Return the batch of some draws; ``values`` are attributes of `Planned`."""
        numbers, occurrences = draws, None
        if np.maximum.reduce(draws) >= self.n:  # numpy's max() is Python
            occurrences, numbers = np.divmod(draws, self.n)
        indices = numbers if self._subset is None else self._subset[numbers]
        return Planned(indices, numbers, draws, occurrences, position, size, **values)

    def place(self, planned: Planned, slots: Sequence[int], draws: Indices) -> None:
        """Put draws into slots of a batch, instead of its own."""
        own = planned.draws.copy()  # it may be `asked`, too
        own[slots] = draws
        planned.draws = own
        placed = self.plan(own)
        planned.indices, planned.numbers = placed.indices, placed.numbers
        planned.occurrences = placed.occurrences


def ordered(epoch: Epoch, order: Order, samples: int | None = None) -> Iterator[Drawn]:
    """Yield one rank's batches in an order; without ``samples``, an epoch has them all."""
    n, at_once = samples or epoch.samples, max(_AT_ONCE // epoch.batch_size, 1)
    for first in range(0, len(epoch), at_once):
        batches = range(first, min(first + at_once, len(epoch)))
        parts = [epoch.positions(batch) for batch in batches]
        draws = order.draws(np.concatenate(parts), n)
        begin = 0
        for batch, part in zip(batches, parts, strict=True):
            end = begin + len(part)
            yield draws[begin:end], epoch.consumed(batch), 0
            begin = end


def sampled(
    batches: Iterable[Iterable[int]], samples: int, *, replacing: bool = True
) -> Iterator[Drawn]:
    """Yield the batches of a torch batch sampler, whose positions are 0.

    With ``replacing``, a sample that comes again is another occurrence of it. Raise IndexError for
    a number out of range or an empty batch, TypeError for other than whole numbers.
    """
    # The kernel provides zeros lazily: only pages that are touched cost memory.
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
        yield draws, 0, 0


def occurrences_within(indices: Indices) -> Indices:
    """Return how often each number occurs before its place: int64, shape (N,)."""
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    counts = np.diff(starts, append=len(ordered))
    occurrences = np.empty_like(indices)
    occurrences[order] = np.arange(len(ordered)) - np.repeat(starts, counts)
    return occurrences


class BatchSchedule:
    """Batches of an epoch, with substitutes in the slots of bad samples.

    A substitute is a pure function of (key, draw of the bad sample, number of the try) and of the
    set of bad samples. So batches do not depend on when a sample turns out to be bad, and states
    need not record it. It comes from the order ``among``; None for all samples alike. ``bad`` are
    the source's samples known to be bad; it grows with `exclude`. ``drops``: leave bad samples out
    instead.

    Attributes:
        taken: How many batches were taken.
    """

    taken = 0

    def __init__(
        self,
        batches: Iterator[Drawn],
        numbering: Numbering,
        key: int,
        bad: set[int] | None = None,
        *,
        among: Order | None = None,
        drops: bool = False,
    ) -> None:
        self._batches, self._among, self._drops = batches, among, drops
        self.numbering = numbering
        self._key = child(key, _SUBSTITUTES)
        self._bad = set() if bad is None else bad
        self._ahead: deque[Drawn] = deque()
        self._error: Exception | None = None

    def ahead(self, number: int) -> Drawn | None:
        """Return batch ``number`` of the schedule, which was not taken; None if there is none.

        An error of the order is left to `take`.
        """
        while len(self._ahead) <= number - self.taken and self._error is None:
            try:
                drawn = next(self._batches, None)
            except Exception as error:
                self._error = error
                break
            if drawn is None:
                return None
            self._ahead.append(drawn)
        return self._ahead[number - self.taken] if number - self.taken < len(self._ahead) else None

    def take(self) -> Planned | None:
        """Return the next batch, None at the end; raise SampleError if all samples are bad."""
        if self._error is not None and not self._ahead:
            raise self._error
        drawn = self._ahead.popleft() if self._ahead else next(self._batches, None)
        if drawn is None:
            return None
        self.taken += 1
        draws, position, size = drawn
        planned = self.numbering.plan(draws, position, size, asked=draws)
        if self._bad:
            bad = [slot for slot, n in enumerate(planned.indices.tolist()) if n in self._bad]
            if bad and self._drops:  # a batch without any good sample is left to the decoder
                return self.without(planned, bad) if len(bad) < len(draws) else planned
            if bad:
                self.numbering.place(planned, bad, self.substitutes(planned, bad))
        return planned

    def without(self, planned: Planned, slots: Sequence[int]) -> Planned:
        """Return a batch without the samples in some slots; others are left."""
        dropped = planned.dropped + len(slots)
        draws = np.delete(planned.draws, slots)
        return self.numbering.plan(draws, planned.position, planned.size, dropped=dropped)

    def exclude(self, indices: Iterable[int]) -> None:
        """Remember samples of the source as bad."""
        self._bad.update(indices)

    def substitutes(self, planned: Planned, slots: Sequence[int]) -> Indices:
        """Return good draws to try next in some slots; raise SampleError if none is left."""
        draws = np.empty(len(slots), np.int64)
        for at, slot in enumerate(slots):
            while True:
                number = planned.tries.get(slot, 0)
                planned.tries[slot] = number + 1
                draws[at] = self._substitute(int(planned.asked[slot]), number)
                if int(self.numbering(draws[at])) not in self._bad:
                    break
        return draws

    def _substitute(self, bad: int, number: int) -> int:
        """Return try ``number`` for a bad draw: at random, then one after the other."""
        n = self.numbering.n
        drawn = child(child(self._key, bad), number)
        # Every substitute has an occurrence, and so a crop, of its own.
        occurrence = _SUBSTITUTE + child(drawn, 0) % max(_MOST // n, 1)
        every = n if self._among is None else len(self._among)
        at = (drawn * every) >> 64 if number < _GUESSES else number - _GUESSES
        if at >= every:
            raise SampleError("no sample is left: all that are drawn are bad", _HINT)
        if self._among is not None:
            return int(self._among(np.array([at]))[0]) + occurrence * n
        return (at if number < _GUESSES else (bad + 1 + at) % n) + occurrence * n


#: Samples of which the order is computed at once: numpy's calls take long for a batch.
_AT_ONCE = 4096

#: Tries at random instead of a bad sample. Then each sample is tried in turn.
_GUESSES = 16

#: Children of the key of an epoch, as in `fastdata.plan.draws`.
_CALLS, _SUBSTITUTES = -7, -8
#: A child of the key of a sample: occurrences have -2 and below, draws 0 and above.
_BATCH = -1
#: The least occurrence of a substitute; an order or a sampler draws no sample as often.
_SUBSTITUTE = 1 << 20
#: Draws stay below 2**63.
_MOST = 1 << 62

_HINT = "See what is wrong with the dataset by fastdata verify."
