"""Division of an epoch among ranks and batches, and the state of a run.

A global batch is the batches of all ranks at one step. It covers a contiguous piece of the order,
so what all ranks have consumed is one number, and an epoch resumes from it on any number of ranks
and with any batch size. All ranks have the same number of batches, of the same sizes, so
none waits for a rank that has run out.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.errors import UsageError
from fastdata.plan.order import OrderLike, QuasiRandom, as_order

_STATE_VERSION = 1
#: The numbers of a `State`.
_NUMBERS = ("samples", "seed", "epoch", "position", "plan")


@dataclass(frozen=True)
class Epoch:
    """Division of an epoch, or of its rest, among ranks and batches.

    A last global batch that is not full is dropped on all ranks (``drop_last``), or divided evenly
    and padded with positions from the beginning of the epoch. Only padding is repeated.

    Args:
        samples: Number of samples in the epoch, 0 or more.
        batch_size: Samples in a batch of one rank, 1 or more.
        rank: This rank, in [0, ``world_size``).
        world_size: Number of ranks, 1 or more.
        drop_last: Whether to drop samples that do not fill a batch on every rank.
        start: Positions already consumed, by all ranks together, in [0, ``samples``].
        full: Whether to pad the last batches to ``batch_size`` instead of dividing them, because
            each batch belongs together.

    Raises:
        UsageError: An argument is out of its range.
    """

    samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    start: int = 0
    full: bool = False

    def __post_init__(self) -> None:
        for name in ("samples", "batch_size", "rank", "world_size", "start"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        _at_least("samples", self.samples, 0)
        _at_least("batch_size", self.batch_size, 1)
        _at_least("world_size", self.world_size, 1)
        if not 0 <= self.rank < self.world_size:
            raise UsageError(
                f"rank {self.rank} is not among {self.world_size} ranks (world_size).",
                f"Give a rank from 0 to {self.world_size - 1}.",
            )
        if not 0 <= self.start <= self.samples:
            raise UsageError(
                f"start {self.start} is not in an epoch of {self.samples} samples.",
                f"Give a start from 0 to {self.samples}.",
            )

    def __len__(self) -> int:
        """Return the number of batches from ``start`` on, the same on every rank."""
        full, rest = divmod(self.samples - self.start, self._step)
        return full + (rest > 0 and not self.drop_last)

    def positions(self, batch: int) -> npt.NDArray[np.int64]:
        """Return the positions of the order in a batch of this rank.

        Args:
            batch: Number of the batch, in [0, ``len(self)``).

        Returns:
            int64, one dimension, of the same length on every rank: ``batch_size``, or less in the
            last batch. Padding counts on past the end: ``samples`` is position 0 again.

        Raises:
            UsageError: There is no such batch.
        """
        self._check(batch)
        first = self.start + batch * self._step
        size = self.batch_size
        if not self.full:
            size = min(size, -(-(self.samples - first) // self.world_size))
        first += self.rank * size
        return np.arange(first, first + size, dtype=np.int64)

    def consumed(self, batch: int) -> int:
        """Return how many positions all ranks together have consumed after a batch.

        Args:
            batch: Number of the batch, in [0, ``len(self)``).

        Returns:
            The ``start`` to go on from, also with another world size or batch size.

        Raises:
            UsageError: There is no such batch.
        """
        self._check(batch)
        return min(self.start + (batch + 1) * self._step, self.samples)

    @property
    def _step(self) -> int:
        """Number of positions in a full global batch."""
        return self.world_size * self.batch_size

    def _check(self, batch: int) -> None:
        if not 0 <= batch < len(self):
            raise UsageError(
                f"batch {batch} is not among the {len(self)} batches of this epoch.",
                "Batches are numbered from 0.",
            )


@dataclass(frozen=True)
class State:
    """Position of a run, from which any number of ranks can resume.

    Args:
        samples: Number of positions in an epoch, 0 or more: the dataset's samples, or a sampler's.
        seed: The seed of the run, any int.
        epoch: Number of the epoch, 0 or more.
        position: Positions of the epoch consumed by all ranks together, in [0, ``samples``].
        order: Name of the order, or a `QuasiRandom`.
        plan: Fingerprint of a mixture or sampler; 0 without one.

    Raises:
        UsageError: An argument is out of its range, or of another type.
    """

    samples: int
    seed: int
    epoch: int
    position: int
    order: OrderLike
    plan: int = 0

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        _at_least("samples", self.samples, 0)
        _at_least("epoch", self.epoch, 0)
        if not 0 <= self.position <= self.samples:
            raise UsageError(
                f"position {self.position} is not in an epoch of {self.samples} samples.",
                f"Give a position from 0 to {self.samples}.",
            )
        object.__setattr__(self, "order", as_order(self.order))

    def to_dict(self) -> dict[str, int | str]:
        """Return the state as a dict of ints and a string, for JSON, pickle and torch.save.

        ``window`` is that of a quasi-random order, else 0.
        """
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        order, window = self.order, 0
        if isinstance(order, QuasiRandom):
            window, order = order.window, "quasi-random"
        return {"version": _STATE_VERSION, **numbers, "order": order, "window": window}

    @classmethod
    def from_dict(cls, state: Mapping[str, object], samples: int | None = None) -> State:
        """Return the state that :meth:`to_dict` wrote.

        Args:
            state: Result of :meth:`to_dict`.
            samples: Number of samples of the dataset to resume with; None if unknown.

        Raises:
            UsageError: It is of an unknown version, damaged, or of another number of samples.
        """
        if not isinstance(state, Mapping):
            raise UsageError(
                f"The state is a {type(state).__name__}, not a dict.",
                "Give what state_dict() returned.",
            )
        version = state.get("version", _STATE_VERSION)
        if type(version) is not int or version != _STATE_VERSION:
            raise UsageError(
                f"The state is of version {version!r}; this fastdata reads {_STATE_VERSION}.",
                "Resume with the fastdata that wrote it, or restart the epoch.",
            )
        every = ("version", *_NUMBERS, "order", "window")
        missing = [name for name in every if name not in state]
        unknown = [str(key) for key in state if key not in every]
        if missing or unknown:
            wrong = [f"lacks {', '.join(missing)}"] * bool(missing)
            wrong += [f"has {', '.join(unknown)}, which is not known"] * bool(unknown)
            raise UsageError(
                f"The state {', and '.join(wrong)}.", "Give what state_dict() returned, unchanged."
            )
        order: Any = state["order"]
        if order == "quasi-random":
            order = QuasiRandom(whole("window", state["window"]))
        read = cls(**{name: whole(name, state[name]) for name in _NUMBERS}, order=order)
        if samples is not None and read.samples != samples:
            raise UsageError(
                f"The state is of a dataset with {read.samples} samples; this one has {samples}.",
                "Resume with the dataset that the state was saved with, or restart the epoch.",
            )
        return read


def whole(name: str, value: object) -> int:
    """Return a whole number, also numpy's, as an int; refuse bools."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise UsageError(f"{name} {value!r} is not a whole number.", f"Give an int as {name}.")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{name} {value} is less than {least}.", f"Give {least} or more.")
