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

from fastdata.errors import UsageError, warn
from fastdata.plan.order import OrderLike, QuasiRandom, as_order

_STATE_VERSION = 2
#: The numbers of a `State`.
_NUMBERS = ("samples", "seed", "epoch", "number", "named", "plan")
#: The order in a state of a sampler, or of batches that are planned.
PLANNED = "planned"


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
        full, rest = divmod(self.samples - self.start, self.step)
        return full + (rest > 0 and not self.drop_last)

    def positions(self, batch: int) -> npt.NDArray[np.int64]:
        """Return the positions of the order in a batch of this rank, int64, as many on every rank.

        They are ``batch_size``, or fewer in the last batch. Padding counts on past the end:
        ``samples`` is position 0 again. Raise UsageError if there is no such batch.
        """
        self._check(batch)
        first = self.start + batch * self.step
        size = self.batch_size
        if not self.full:
            size = min(size, -(-(self.samples - first) // self.world_size))
        first += self.rank * size
        return np.arange(first, first + size, dtype=np.int64)

    def consumed(self, batch: int) -> int:
        """Return how many positions all ranks together have consumed after a batch.

        It is the ``start`` to go on from, also with another world size or batch size. Raise
        UsageError if there is no such batch.
        """
        self._check(batch)
        return min(self.start + (batch + 1) * self.step, self.samples)

    @property
    def step(self) -> int:
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
        epoch: Number of the epoch, from 0.
        position: Positions of the epoch consumed by all ranks together, in [0, ``samples``]; for
            batches that are planned, as `fastdata.plan.batches.Plan` has it.
        order: Name of the order, or a `QuasiRandom`; `PLANNED` for a sampler or a plan.
        plan: Fingerprint of a mixture, sampler or plan; 0 without one.
        number: The epoch's number in random draws: ``epoch``, or 0 for a seed that was drawn for
            this epoch alone. None for ``epoch``.
        named: The epoch that ``set_epoch`` named last, from which the run counted on; -1 if none.

    Raises:
        UsageError: An argument is out of its range, or of another type.
    """

    samples: int
    seed: int
    epoch: int
    position: Any
    order: OrderLike
    plan: int = 0
    number: int | None = None
    named: int = -1

    def __post_init__(self) -> None:
        if self.number is None:
            object.__setattr__(self, "number", self.epoch)
        for name in _NUMBERS:
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        _at_least("samples", self.samples, 0)
        epoch_number(self.epoch)
        if self.order != PLANNED:
            object.__setattr__(self, "order", as_order(self.order))
        if self.order == PLANNED and isinstance(self.position, (list, tuple)):
            position: Any = tuple(whole("position", one) for one in self.position)
            good = not position or 0 <= min(position) <= max(position) < 1 << 62
        else:
            position = whole("position", self.position)
            good = 0 <= position <= self.samples
        object.__setattr__(self, "position", position)
        if not good:
            raise UsageError(
                f"position {self.position} is not in an epoch of {self.samples} samples.",
                f"Give a position from 0 to {self.samples}.",
            )
        numbers = {self.epoch} if self.order == PLANNED else {0, self.epoch}
        if self.number not in numbers or not -1 <= self.named <= self.epoch:
            raise UsageError(
                f"number {self.number} and named {self.named} are not those of epoch {self.epoch}.",
                "Give what state_dict() returned, unchanged.",
            )

    @property
    def name(self) -> int:
        """The epoch that `set_epoch` must name to resume here."""
        if self.named >= 0:
            return self.named
        return self.epoch if self.position else max(self.epoch - 1, 0)

    @property
    def ended(self) -> bool:
        """Whether the run has just ended a pass, and the next one begins here."""
        return not self.position and self.name != self.epoch

    def warn_dropped(self, epoch: int) -> None:
        """Warn that ``set_epoch`` has named another epoch than that of this state."""
        place = f"epoch {self.epoch}, position {self.position}"
        warn(f"set_epoch({epoch}) drops the place that was loaded, so it is not resumed: {place}")

    def warn_ended(self) -> None:
        """Warn that ``set_epoch`` has named the epoch whose end this state is."""
        what = (
            f"epoch {self.name} has ended in the state that was loaded, so it has no batches left"
        )
        warn(f"{what}; the next pass is epoch {self.epoch}")

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dict of ints and a string, for JSON, pickle and torch.save.

        ``window`` is that of a quasi-random order, else 0. The position in a plan is a list.
        """
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        order, window = self.order, 0
        if isinstance(order, QuasiRandom):
            window, order = order.window, "quasi-random"
        planned = isinstance(self.position, tuple)
        position = list(self.position) if planned else self.position
        about = {"position": position, "order": order, "window": window}
        return {"version": _STATE_VERSION, **numbers, **about}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> State:
        """Return the state that `to_dict` wrote; raise UsageError if it is damaged."""
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
        every = ("version", *_NUMBERS, "position", "order", "window")
        missing = [name for name in every if name not in state]
        unknown = [str(key) for key in state if key not in every]
        if missing or unknown:
            wrong = [f"lacks {', '.join(missing)}"] * bool(missing)
            wrong += [f"has {', '.join(unknown)}, which is not known"] * bool(unknown)
            raise UsageError(
                f"The state {', and '.join(wrong)}.", "Give what state_dict() returned, unchanged."
            )
        order: Any = state["order"]
        if not isinstance(order, str):  # an array may not even be compared
            raise UsageError(
                f"The state is of order {order!r}.", "Give what state_dict() returned, unchanged."
            )
        if order == "quasi-random":
            order = QuasiRandom(whole("window", state["window"]))
        numbers = {name: whole(name, state[name]) for name in _NUMBERS}
        return cls(**numbers, position=state["position"], order=order)

    def require(self, own: State, seed: int | None) -> None:
        """Raise UsageError if this is not a state of the run that ``own`` is of, in the same epoch.

        A ``seed`` of None accepts any.
        """
        if self.samples != own.samples:
            raise UsageError(
                f"The state is of a dataset with {self.samples} samples; this one has "
                f"{own.samples}.",
                "Resume with the dataset that the state was saved with, or restart the epoch.",
            )
        if self.order != own.order:
            raise UsageError(
                f"the state is of order {self.order!r}, this loader's is {own.order!r}",
                "Make the loader with the same order, shuffle or sampler as then.",
            )
        if self.plan != own.plan or type(self.position) is not type(own.position):
            raise UsageError(
                "the state is of another mixture or sampler",
                "Make the loader with the same sources, weights, sizes, lengths, arguments and "
                "seed as then.",
            )
        if seed is not None and self.seed != seed:
            raise UsageError(
                f"the state is of seed {self.seed}, this loader's is {seed}",
                "Make the loader with the same seed as then.",
            )


def epoch_number(epoch: Any) -> int:
    """Return an epoch's number; raise UsageError unless it is whole, from 0 to 2**32 - 1."""
    number = whole("epoch", epoch)
    _at_least("epoch", number, 0)
    if number >> 32:
        raise UsageError(f"epoch {number} is too large.", "Give a number below 2**32.")
    return number


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
