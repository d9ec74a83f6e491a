"""Epochs of a loader, the states that it resumes from, and Accelerate, which leaves it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from fastdata.errors import SlowPathWarning, UsageError, warn
from fastdata.loading.sharded import LoadersOwn, ShardedSampler
from fastdata.plan.position import LatestPass, PassProgress, Position
from fastdata.plan.sharding import epoch_number

if TYPE_CHECKING:
    from fastdata.loading.batching import Batching
    from fastdata.loading.resolved import Resolved

T = TypeVar("T", covariant=True)


_HINT = 'Give the DataLoader shard="auto" and device=accelerator.device: it is left alone.'


class LeftAlone(torch.utils.data.DataLoader[T], Generic[T]):
    """Loader that Accelerate leaves unchanged if it shards; else a warning or an error."""

    require_native = False
    _resolved: Resolved
    _warned_taken_apart = False

    def __dir__(self) -> list[str]:
        """Leave out the question of Accelerate's, which may raise, for ``inspect``."""
        return [name for name in super().__dir__() if name != "_is_accelerate_prepared"]

    @property
    def _shares_samples(self) -> bool:
        """Whether this loader takes a rank's share of the samples."""
        batching = self._resolved.batching
        return batching is not None and batching.ranks is not None

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether Accelerate's ``prepare``, which asks for this, leaves this loader alone.

        Accelerate rebuilds others as torch's loaders from their attributes.
        """
        if not self._shares_samples:
            self._warn_taken_apart()
        return self._shares_samples

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Ignore Accelerate's mark of loaders that it has seen."""

    def _warn_taken_apart(self) -> None:
        defaults = {"seed": None, "fields": None, "batch_transform": None, "on_error": "raise"}
        lost = [name for name, value in defaults.items() if getattr(self, name) != value]
        if lost:
            what = f"Accelerate rebuilds this loader as one of torch's, without {', '.join(lost)}"
            may_share = not isinstance(self.dataset, IterableDataset)
            raise UsageError(what, _HINT if may_share else "Leave them out.")
        if not self._resolved.native or self._warned_taken_apart:
            return
        self._warned_taken_apart = True
        slow = "Accelerate rebuilds this loader as one of torch's, which decodes in Python"
        if self.require_native:
            raise UsageError(f"require_native=True, but {slow}", _HINT)
        warn(f"{slow}. {_HINT}", SlowPathWarning)
        if isinstance(self.sampler, LoadersOwn):
            self.sampler.native = False  # the other loader iterates it, as was said


class Resumable(LeftAlone[T], Generic[T]):
    """Loader that counts its epochs, and resumes from a state.

    Attributes:
        seed: As `fastdata.DataLoader` has it.
    """

    seed: int | None
    #: The epoch of the pass to come; and where it begins, once that is settled.
    _epoch = 0
    _resume: Position | None = None
    #: The epoch that was set last, from which passes count on; -1 for none.
    _named = -1
    #: Whether a state was loaded for the pass to come; and whether that state ends the epoch that
    #: was set since.
    _loaded = _at_end = False
    _latest: LatestPass
    #: The samplers' epochs when this loader last looked.
    _seen: Sequence[tuple[Any, int]] = ()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, and of the samplers.

        A pass begins with its first batch: until then, this also counts after ``iter``. The epoch
        of a state that was loaded resumes at its position: the one that was set before the state
        was saved, where passes have counted on from it. Another epoch starts at 0. The epoch whose
        end the state is has no batches left, and a warning says so.

        Raises:
            UsageError: ``epoch`` is not a whole number from 0 to 2**32 - 1.
        """
        epoch = epoch_number(epoch)
        for one in self._followed:
            one.set_epoch(epoch)
        self._follow_samplers()
        self._set_own_epoch(epoch)

    @property
    def _followed(self) -> list[Any]:
        """Samplers that have an epoch."""
        own = self.batch_sampler, self.sampler, self._batching.row_sampler
        inside = (getattr(one, "sampler", None) for one in own)
        samplers = {id(one): one for one in (*own, *inside)}
        return [one for one in samplers.values() if callable(getattr(one, "set_epoch", None))]

    def _follow_samplers(self) -> None:
        """Begin the epoch that a framework has set on a sampler."""
        before, self._seen = self._seen, self._marks()
        for at, (epoch, times) in enumerate(self._seen):
            was = before[at] if before else (0, 0)
            if (epoch, times) != was and isinstance(epoch, int) and epoch >= 0:
                self._set_own_epoch(epoch)

    def _marks(self) -> list[tuple[Any, int]]:
        """Return the samplers' epochs, and how often they were set."""
        return [(getattr(one, "epoch", 0), getattr(one, "times_set", 0)) for one in self._followed]

    def _set_own_epoch(self, epoch: int) -> None:
        resume, loaded = self._resume, self._loaded
        self._named, self._at_end, self._latest.progress = epoch, False, None
        if resume is not None:
            name = resume.name if loaded else resume.epoch
            if epoch == name:
                self._at_end = loaded and resume.ended
                return
            if loaded and (resume.at or epoch < name):
                resume.warn_dropped(epoch)
            elif epoch == resume.epoch:
                return
        self._epoch, self._resume, self._loaded = epoch, None, False

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was delivered, as a few integers.

        Every sample of the epoch is delivered exactly once in total, also after resuming with
        another number of ranks or threads, or another batch size. After an epoch's last batch it
        is the beginning of the next epoch. All ranks have the same state.

        Off the native path, and with a sampler whose order cannot be repeated, there is no state:
        this warns and returns an empty dict. Lightning calls this method of any loader that has
        it, whenever it saves a checkpoint.
        """
        why = self._why_no_state()
        if why is not None:
            warn(
                f"cannot save this loader's position, so resuming restarts the epoch: {why.what}\n"
                f"{why.hint}"
            )
            return {}
        self._follow_samplers()
        if (current := self._current) is not None:
            return current.reached().to_dict()
        # Draw the seed now, so that this loader and one that resumes have the same order.
        return replace(self._settled(), named=self._named).to_dict()

    @property
    def _current(self) -> PassProgress | None:
        """Progress of the pass under way; None between two passes."""
        progress = self._latest.progress
        return None if self._loaded or progress is None or not progress.left else progress

    def _settled(self) -> Position:
        """Return where the next pass begins, which is settled from now on."""
        if self._resume is None:
            self._resume = self._beginning(self._epoch, self._epoch_seed())
        return self._resume

    def _record(self, start: Position | None, progress: PassProgress | None) -> None:
        """Record that a pass has begun; None is the end of an epoch."""
        self._loaded = self._at_end = False
        if start is None:
            self._settled().warn_ended()
            return
        self._resume, self._epoch, self._latest.progress = None, start.epoch + 1, progress

    def _beginning(self, epoch: int, seed: int) -> Position:
        """Return an epoch's beginning."""
        images = self._resolved.images
        return self._batching.beginning(epoch, seed, 0 if images is None else images.digest)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state with the next pass, which begins with its first batch.

        Raises:
            UsageError: It is of another dataset or order; or this loader has no states.
        """
        why = self._why_no_state()
        if why is not None:
            if state == {}:
                return  # as this loader's own state_dict() returns it
            raise why
        if isinstance(state, Mapping) and not state:
            raise UsageError(
                "The state is empty: it was saved by a loader without states, which is off the "
                "native path or has a sampler of its own, such as a DistributedSampler.",
                "Leave load_state_dict out, which restarts the epoch; save states of a loader with "
                'shard="auto".',
            )
        position = Position.from_dict(state)
        own = self._beginning(position.epoch, position.seed)
        position = self._batching.require(position, own, self.seed)
        self._follow_samplers()
        self._epoch, self._resume, self._latest.progress = position.epoch, position, None
        self._named, self._loaded, self._at_end = position.named, True, False

    @property
    def can_resume(self) -> bool:
        """Whether this loader has states."""
        return self._why_no_state() is None

    def _why_no_state(self) -> UsageError | None:
        if not self._resolved.native:
            return self._resolved.refusal("a state")
        if self._batching.resumes:
            return None
        sampler = getattr(self.batch_sampler, "sampler", self.batch_sampler)
        return UsageError(
            "a state needs an order of fastdata's, and this loader was given a "
            f"{type(sampler).__name__}",
            'Give shuffle=True (or order=) and shard="auto" in the place of a '
            "DistributedSampler, or of one that a framework adds; or a sampler of fastdata's.",
        )

    def _epoch_seed(self) -> int:
        """Return the next epoch's seed: given, or drawn as torch draws its own."""
        own = self._resolved.native or isinstance(self.sampler, ShardedSampler)
        if not own or not self._batching.draws_seed:
            return self.seed or 0
        # torch's default device may be a GPU.
        empty = torch.empty((), dtype=torch.int64, device="cpu")
        drawn = int(empty.random_(generator=self.generator).item())
        if self.seed is not None:
            return self.seed
        # Ranks must agree, and their generators need not.
        return drawn if self._batching.ranks is None else 0

    @property
    def _batching(self) -> Batching:
        """The rows of batches."""
        batching = self._resolved.batching
        assert batching is not None
        return batching
