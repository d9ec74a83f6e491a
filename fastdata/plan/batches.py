"""Plans of batches: which rows make which batch, on which rank, as a function of (seed, epoch).

A `Plan` knows columns of all rows, such as sizes or lengths, and nothing else about them. For the
key of an epoch, a number of ranks and a `Position` it returns the epoch's `Rest`: the batches to
come. All ranks have as many, and those of one step belong together: they have one size class.
`fastdata.plan.sharding.Epoch`, with an order, is the plan of batches of one size in plain order.

A position is a few integers, the same on all ranks: the number of ranks, the steps that these have
taken, and what was consumed before them. From it, another number of ranks goes on with what is
left.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from fastdata.errors import UsageError
from fastdata.plan.schedule import Drawn, Indices
from fastdata.plan.sharding import whole
from fastdata.plan.table import PlanTable

#: () for the beginning; else (ranks, their steps, what was consumed before).
Position: TypeAlias = tuple[int, ...]

_STATE_VERSION = 1


class SizedBatch(list[int]):
    """Rows of a batch that has a size, as a batch sampler yields them.

    Attributes:
        size: (width, height).
    """

    def __init__(self, rows: Iterable[int], size: tuple[int, int]) -> None:
        super().__init__(rows)
        self.size = size

    def __reduce__(self) -> tuple[Any, ...]:
        return SizedBatch, (list(self), self.size)


class Rest(ABC):
    """Batches of an epoch from a position on, for so many ranks."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of one rank, the same on every rank."""

    @abstractmethod
    def batches(self, rank: int) -> Iterator[Drawn]:
        """Yield the batches of one rank: (draws, position after, size class)."""

    @abstractmethod
    def table(self) -> PlanTable:
        """Return the table of these batches."""

    def after(self, count: int) -> Position:
        """Return the position after so many steps; the last one, if there are fewer."""
        last = deque(islice(self.batches(0), count), 1)
        return last[0][1] if last else ()


class Plan(ABC):
    """Batches of every epoch.

    Attributes:
        samples: Number of rows.
        sizes: (width, height) of the batches of each size class; () where batches have none.
        classes: What each class is, in words.
        cost: What batches cost: "pixels", or what lengths count.
        digest: Checksum of all that batches depend on.
    """

    samples: int
    sizes: tuple[tuple[int, int], ...] = ()
    classes: tuple[str, ...]
    cost: str
    digest: int

    @abstractmethod
    def rest(self, key: int, world_size: int = 1, position: Position = ()) -> Rest:
        """Return the batches of an epoch from a position on.

        Args:
            key: Key of the epoch (`fastdata.plan.draws.epoch_key`).
            world_size: Number of ranks, 1 or more.
            position: As a batch had it, also of another number of ranks.
        """

    def require(self, position: Position) -> None:
        """Check that a position is one of this plan's.

        Raises:
            UsageError: It is not.
        """
        if position and not (min(position) >= 0 < position[0] and self._fits(position)):
            raise UsageError(
                f"The state's position, {list(position)}, is not in an epoch of these batches.",
                "Give what state_dict() returned, unchanged.",
            )

    @abstractmethod
    def _fits(self, position: Position) -> bool:
        """Return whether a position that is not () is as long and as large as it may be."""


def digest_of(*parts: Any) -> int:
    """Return a checksum of arrays, and of what prints the same wherever it is equal."""
    found = 0
    for part in parts:
        array = isinstance(part, np.ndarray)
        data: Any = np.ascontiguousarray(part) if array else repr(part).encode()
        found = zlib.crc32(data, found)
    return found


@dataclass(frozen=True)
class PlanState:
    """Position of a run, from which any number of ranks can resume.

    Attributes:
        samples: Number of rows of the dataset.
        seed: The seed of the run.
        epoch: Number of the epoch, 0 or more.
        position: As of `Plan`.
        plan: The plan's digest.
    """

    samples: int
    seed: int
    epoch: int
    position: Position
    plan: int

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dict of ints and a list of ints, for JSON, pickle, torch.save."""
        about = {name: getattr(self, name) for name in _NUMBERS}
        return {"version": _STATE_VERSION, **about, "position": list(self.position)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], plan: Plan, seed: int | None) -> PlanState:
        """Return the state that `to_dict` wrote.

        Args:
            state: The state.
            plan: The plan to go on with.
            seed: Its seed; None for the state's.

        Raises:
            UsageError: It is damaged, or that of other batches.
        """
        names = {"version", *_NUMBERS, "position"}
        position = state.get("position") if isinstance(state, Mapping) else None
        if position is None or state.keys() != names or not isinstance(position, (list, tuple)):
            raise UsageError(
                f"The state, {state!r:.200}, is not one of batches that are planned: it needs "
                f"{', '.join(sorted(names))}.",
                "Give what state_dict() of this kind of loader returned, unchanged.",
            )
        if state["version"] != _STATE_VERSION:
            raise UsageError(
                f"The state is of version {state['version']!r}; this fastdata reads "
                f"{_STATE_VERSION}.",
                "Resume with the fastdata that wrote it, or restart the epoch.",
            )
        numbers = {name: whole(name, state[name]) for name in _NUMBERS}
        found = cls(position=tuple(whole("position", one) for one in position), **numbers)
        if (found.samples, found.plan) != (plan.samples, plan.digest):
            raise UsageError(
                f"The state is of other batches: of {found.samples} samples, these of "
                f"{plan.samples}; or of other sizes, lengths or options.",
                "Resume with the dataset and the arguments of the batch sampler as then, or "
                "restart the epoch.",
            )
        if seed is not None and found.seed != seed:
            raise UsageError(
                f"the state is of seed {found.seed}, this loader's is {seed}",
                "Make the loader with the same seed as then.",
            )
        plan.require(found.position)
        return found


_NUMBERS = ("samples", "seed", "epoch", "plan")


def with_occurrences(draws: Indices, rows: Indices, count: int, samples: int) -> Indices:
    """Return draws of ``samples`` rows for draws of ``count`` of them, which ``rows`` lists."""
    if np.maximum.reduce(draws) < count:  # numpy's max() is Python
        return rows[draws].astype(np.int64)
    again, at = np.divmod(draws, count)
    found: Indices = rows[at].astype(np.int64) + again * samples
    return found
