"""The state of a run: its seed, its epoch, and how far all ranks together have come in it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fastdata.errors import UsageError, warn
from fastdata.plan.draws import epoch_key
from fastdata.plan.sharding import epoch_number, settle, whole

_VERSION = 3
#: The numbers of a saved position, beside its place in the epoch.
_NUMBERS = ("seed", "epoch", "number", "named")
#: The order of a sampler, or of batches that are planned.
PLANNED = "planned"
_UNCHANGED = "Give what state_dict() returned, unchanged."


def digest_of(*parts: Any) -> int:
    """Return a checksum of arrays, and of what prints the same wherever it is equal."""
    digest = 0
    for part in parts:
        array = isinstance(part, np.ndarray)
        data: Any = np.ascontiguousarray(part) if array else f"{part!r},".encode()
        digest = zlib.crc32(data, digest)
    return digest


@dataclass(frozen=True)
class Fingerprint:
    """Rows, order and shares of an epoch: what a saved position is valid for.

    It depends on no machine, container, thread, batch size or transform.

    Args:
        samples: Number of positions in an epoch, 0 or more: the dataset's samples, or a sampler's.
        order: The order in words; `PLANNED` for a sampler or a plan.
        digest: Checksum of a Subset's numbers, a mixture, a sampler and a plan; 0 without any.

    Raises:
        UsageError: A number is out of its range, or of another type.
    """

    samples: int
    order: str
    digest: int = 0

    def __post_init__(self) -> None:
        settle(self, "samples", 0)
        settle(self, "digest")
        if not isinstance(self.order, str):  # an array may not even be compared
            raise UsageError(f"The state is of order {self.order!r}.", _UNCHANGED)


@dataclass(frozen=True)
class Position:
    """Place in a run, from which any number of ranks can resume.

    Args:
        fingerprint: What decides the rows of the epoch.
        seed: The seed of the run, any int.
        epoch: Number of the epoch, from 0.
        at: Positions of the epoch consumed by all ranks together, in [0, ``samples``]; for batches
            that are planned, as `fastdata.plan.batches.Plan` has it.
        number: The epoch's number in random draws: ``epoch``, or 0 for a seed that was drawn for
            this epoch alone. None for ``epoch``.
        named: The epoch that ``set_epoch`` named last, from which the run counted on; -1 if none.
        rank: This rank. It is not saved, nor is ``world_size``: all ranks save the same.
        world_size: Number of ranks.

    Raises:
        UsageError: An argument is out of its range, or of another type.
    """

    fingerprint: Fingerprint
    seed: int
    epoch: int
    at: Any = 0
    number: int | None = None
    named: int = -1
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.number is None:
            object.__setattr__(self, "number", self.epoch)
        for name in _NUMBERS:
            settle(self, name)
        epoch_number(self.epoch)
        samples, planned = self.fingerprint.samples, self.fingerprint.order == PLANNED
        if planned and isinstance(self.at, (list, tuple)):
            at: Any = tuple(whole("position", one) for one in self.at)
            good = not at or 0 <= min(at) <= max(at) < 1 << 62
        else:
            at = whole("position", self.at)
            good = 0 <= at <= samples
        object.__setattr__(self, "at", at)
        if not good:
            raise UsageError(
                f"position {self.at} is not in an epoch of {samples} samples.",
                f"Give a position from 0 to {samples}.",
            )
        numbers = {self.epoch} if planned else {0, self.epoch}
        if self.number not in numbers or not -1 <= self.named <= self.epoch:
            raise UsageError(
                f"number {self.number} and named {self.named} are not those of epoch {self.epoch}.",
                _UNCHANGED,
            )

    @property
    def key(self) -> int:
        """The key of the epoch's draws."""
        return epoch_key(self.seed, self.number or 0)

    @property
    def name(self) -> int:
        """The epoch that `set_epoch` must name to resume here."""
        if self.named >= 0:
            return self.named
        return self.epoch if self.at else max(self.epoch - 1, 0)

    @property
    def ended(self) -> bool:
        """Whether the run has just ended a pass, and the next one begins here."""
        return not self.at and self.name != self.epoch

    def warn_dropped(self, epoch: int) -> None:
        """Warn that ``set_epoch`` has named another epoch than this position's."""
        place = f"epoch {self.epoch}, position {self.at}"
        warn(f"set_epoch({epoch}) drops the place that was loaded, so it is not resumed: {place}")

    def warn_ended(self) -> None:
        """Warn that ``set_epoch`` has named the epoch that ends here."""
        what = (
            f"epoch {self.name} has ended in the state that was loaded, so it has no batches left"
        )
        warn(f"{what}; the next pass is epoch {self.epoch}")

    def to_dict(self) -> dict[str, Any]:
        """Return the position as a dict of ints and a string, for JSON, pickle and torch.save.

        ``at`` is a list in a plan.
        """
        at = list(self.at) if isinstance(self.at, tuple) else self.at
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {"version": _VERSION, **asdict(self.fingerprint), **numbers, "at": at}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Position:
        """Return the position that `to_dict` wrote; raise UsageError if it is damaged."""
        if not isinstance(state, Mapping):
            raise UsageError(
                f"The state is a {type(state).__name__}, not a dict.",
                "Give what state_dict() returned.",
            )
        version = state.get("version", _VERSION)
        if type(version) is not int or version != _VERSION:
            raise UsageError(
                f"The state is of version {version!r}; this fastdata reads {_VERSION}.",
                "Resume with the fastdata that wrote it, or restart the epoch.",
            )
        of_run = tuple(Fingerprint.__dataclass_fields__)
        every = ("version", *of_run, *_NUMBERS, "at")
        missing = [name for name in every if name not in state]
        unknown = [str(key) for key in state if key not in every]
        if missing or unknown:
            wrong = [f"lacks {', '.join(missing)}"] * bool(missing)
            wrong += [f"has {', '.join(unknown)}, which is not known"] * bool(unknown)
            raise UsageError(f"The state {', and '.join(wrong)}.", _UNCHANGED)
        fingerprint = Fingerprint(**{name: state[name] for name in of_run})
        numbers = {name: whole(name, state[name]) for name in _NUMBERS}
        return cls(fingerprint, at=state["at"], **numbers)

    def require(self, own: Position, seed: int | None) -> None:
        """Raise UsageError unless this is a position in the epoch that begins at ``own``.

        A ``seed`` of None accepts any.
        """
        saved, here = self.fingerprint, own.fingerprint
        if saved.samples != here.samples:
            raise UsageError(
                f"The state is of a dataset with {saved.samples} samples; this one has "
                f"{here.samples}.",
                "Resume with the dataset that the state was saved with, or restart the epoch.",
            )
        if saved.order != here.order:
            raise UsageError(
                f"the state is of order {saved.order!r}, this loader's is {here.order!r}",
                "Make the loader with the same order, shuffle or sampler as then.",
            )
        if saved.digest != here.digest or type(self.at) is not type(own.at):
            raise UsageError(
                "the state is of another mixture, sampler or Subset",
                "Make the loader with the same samples, sources, weights, sizes, lengths, "
                "arguments and seed as then.",
            )
        if seed is not None and self.seed != seed:
            raise UsageError(
                f"the state is of seed {self.seed}, this loader's is {seed}",
                "Make the loader with the same seed as then.",
            )


@dataclass
class PassProgress:
    """Progress of a pass from ``start``; outlives its iterator.

    ``left`` counts batches to come, negative if unknown. ``position`` counts positions delivered by
    all ranks together; of a plan of batches as it has it; None for the start's. ``batch_key`` is
    the key of the draws of the batch delivered last.
    """

    start: Position
    left: int
    position: Any = None
    batch_key: int = 0

    def __post_init__(self) -> None:
        if self.position is None:
            self.position = self.start.at

    def reached(self) -> Position:
        """Return the position after the batch delivered last."""
        return replace(self.start, at=self.position)


@dataclass
class LatestPass:
    """Progress of the pass that delivered the last batch; None before the next one begins."""

    progress: PassProgress | None = None
