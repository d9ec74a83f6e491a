"""Epochs of a loader, and the states that it resumes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any, Generic, SupportsIndex, TypeVar

import torch
from torch.utils.data import SequentialSampler

from fastdata.errors import UsageError, warn
from fastdata.loading.accelerate import LeftAlone
from fastdata.loading.config import Choice
from fastdata.loading.mixture import group_of, mixtures_in
from fastdata.loading.planned import PlannedBatches
from fastdata.loading.progress import Progress
from fastdata.loading.sampler import ShardedSampler
from fastdata.loading.samplers import PlannedSampler
from fastdata.plan.batches import PlanState
from fastdata.plan.draws import child
from fastdata.plan.order import OrderLike
from fastdata.plan.sharding import Epoch, State
from fastdata.plan.table import PlanTable, table_of

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing only since Python 3.11

T = TypeVar("T", covariant=True)


class Resumable(LeftAlone[T], Generic[T]):
    """Loader that counts its epochs, and resumes from a state.

    Attributes:
        seed: As `fastdata.DataLoader` has it.
    """

    seed: int | None
    _choice: Choice
    _own_order: bool
    _row_sampler: PlannedSampler | None = None
    _epoch = 0
    _resume: State | PlanState | None = None
    _planned: PlannedBatches | None = None
    _progress: Progress | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next ``iter``, and of the samplers.

        The epoch of a state that was loaded resumes at its position; another one starts at 0.
        """
        _set_epoch(self.batch_sampler, epoch)
        _set_epoch(self.sampler, epoch)
        self._begin_epoch(epoch)

    def _follow_sampler(self) -> None:
        """Begin the epoch that a framework has set on the sampler."""
        for one in (self.sampler, self._planned):
            if isinstance(one, (ShardedSampler, PlannedBatches)) and one.asked:
                self._begin_epoch(one.epoch)

    def _begin_epoch(self, epoch: int) -> None:
        if self._resume is None or self._resume.epoch != epoch:
            self._resume = None
            if self._progress is not None:
                # The iterator of the epoch before may still be going on with the old one.
                self._progress = replace(self._progress, ended=True)
        self._epoch = epoch
        for one in (self.sampler, self._planned):
            if isinstance(one, (ShardedSampler, PlannedBatches)):
                one.asked = False

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was delivered, as a few integers.

        Every sample of the epoch is delivered exactly once in total, also after resuming with
        another number of ranks or threads, or another batch size. All ranks have the same state.

        Off the native path, and with a sampler whose order cannot be repeated, there is no state:
        this warns and returns an empty dict. Lightning calls this method of any loader that has
        it, whenever it saves a checkpoint.
        """
        why = self._why_no_state()
        if why is not None:
            warn(f"cannot save this loader's position, so resuming restarts the epoch: {why.what}")
            return {}
        assert self._native is not None
        progress = self._progress
        if self._resume is None and progress is not None and not progress.ended:
            if self._planned is not None:
                return self._planned.state(progress.epoch, progress.position).to_dict()
            return self._state(progress.seed, progress.epoch, progress.position).to_dict()
        if self._resume is None:
            # Draw the seed now, so that this loader and one that resumes have the same order.
            self._resume = self._beginning()
        return self._resume.to_dict()

    def _beginning(self) -> State | PlanState:
        """Return the state in which the next epoch begins."""
        if self._planned is not None:
            return self._planned.state(self._epoch, ())
        return self._state(self._epoch_seed(), self._epoch, 0)

    def _state(self, seed: int, epoch: int, position: Any) -> State:
        about = self._samples, seed, epoch, position, self._order
        return State(*about, self._fingerprint(epoch))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state with the next ``iter``.

        Raises:
            UsageError: It is of another dataset or order; or this loader has no states.
        """
        why = self._why_no_state()
        if why is not None:
            if state == {}:
                return  # as this loader's own state_dict() returns it
            raise why
        if not isinstance(state, Mapping):
            State.from_dict(state)  # raises the error
        if not state:
            raise UsageError(
                "The state is empty: it was saved by a loader without states, which is off the "
                "native path or has a sampler of its own.",
                "Leave load_state_dict out, which restarts the epoch.",
            )
        if self._planned is not None:
            plan = self._planned
            of_plan = PlanState.from_dict(state, plan.plan, plan.seed)
            self._epoch, self._resume = of_plan.epoch, of_plan
            self._progress = Progress(plan.seed, of_plan.epoch, of_plan.position)
            return
        found = State.from_dict(state, self._samples)
        if found.order != self._order:
            raise UsageError(
                f"the state is of order {found.order!r}, this loader's is {self._order!r}",
                "Make the loader with the same order or shuffle as then.",
            )
        if found.plan != self._fingerprint(found.epoch):
            raise UsageError(
                "the state is of another mixture or sampler",
                "Make the loader with the same sources, weights, arguments and seed as then.",
            )
        if self.seed is not None and found.seed != self.seed:
            raise UsageError(
                f"the state is of seed {found.seed}, this loader's is {self.seed}",
                "Make the loader with the same seed as then.",
            )
        self._epoch = found.epoch
        self._resume = found
        self._progress = Progress(found.seed, found.epoch, found.position)

    def skip_first_batches(self, count: int) -> Self:
        """Begin the next ``iter`` so many batches later; none of them is read or decoded.

        Like Accelerate's function of this name, for a native loader. Later passes are whole.

        Returns:
            This loader.

        Raises:
            UsageError: ``count`` is not a whole number from 0; or the loader has no states.
        """
        if isinstance(count, bool) or not isinstance(count, SupportsIndex) or index(count) < 0:
            raise UsageError(f"skip_first_batches({count!r})", "Give a whole number from 0.")
        why = self._why_no_state()
        if why is not None:
            raise why
        self._follow_sampler()
        samples, (_, world_size) = self._samples, self._ranks or (0, 1)
        resume = self._beginning() if self._resume is None else self._resume
        if isinstance(resume, PlanState):
            assert self._planned is not None
            key = self._planned.key(resume.epoch)
            rest = self._planned.plan.rest(key, world_size, resume.position)
            after = rest.after(index(count)) or resume.position
            self._resume = replace(resume, position=after)
            return self
        skipped = index(count) * world_size * (self.batch_size or 1)
        position = min(resume.position + skipped, samples)
        self._resume = replace(resume, position=position)
        return self

    def plan(self, epoch: int | None = None) -> PlanTable:
        """Return a table of an epoch's batches on all ranks; nothing is read or decoded for it.

        Args:
            epoch: Its number; None for the next one.

        Raises:
            UsageError: The batches are a sampler's.
        """
        epoch = self._epoch if epoch is None else epoch
        if self._planned is not None:
            return self._planned.table(epoch)
        if not self._own_order or self.batch_size is None:
            hint = "Give batch_size= and order=, or a batch sampler such as AspectRatioBatches."
            raise UsageError("plan() knows batches that fastdata makes alone", hint)
        plan = self._plan(0)
        if len(plan) >> 32:
            raise UsageError("an endless epoch has no table", "Give a number as samples=.")
        return table_of(plan)

    @property
    def can_resume(self) -> bool:
        """Whether this loader has states."""
        return self._why_no_state() is None

    @property
    def _order(self) -> OrderLike:
        """The order of an epoch."""
        if isinstance(self.sampler, ShardedSampler):
            return self.sampler.order
        return "sequential" if isinstance(self.sampler, SequentialSampler) else "random"

    @property
    def _samples(self) -> int:
        """Number of positions in an epoch: the dataset's samples, or a sampler's."""
        if self._row_sampler is not None:
            return len(self._row_sampler)
        counted: Any = self.dataset if self._native is None else self._native
        return len(counted)

    def _fingerprint(self, epoch: int) -> int:
        """Return a number that tells the mixture or sampler of an epoch; 0 without one."""
        found = 0
        for mixture in mixtures_in(self.dataset):
            found = child(found, mixture.plan.fingerprint(epoch))
        if self._row_sampler is not None:
            found = child(found, self._row_sampler.fingerprint)
        return found >> 1  # as a signed integer of 64 bits

    def _plan(self, start: int) -> Epoch:
        """Return this rank's share of an epoch from a position on."""
        size, group = self.batch_size or 1, 1
        if self._own_order:
            group = group_of(self.dataset, self._row_sampler, size)
        if group > 1 and start % size:
            raise UsageError(
                f"resuming at position {start} with batch_size={size}: batches would mix what "
                "belongs apart",
                f"Resume with a batch_size that divides {start} and {group}.",
            )
        about = *(self._ranks or (0, 1)), self.drop_last, start, group > 1
        return Epoch(self._samples, size, *about)

    def _why_no_state(self) -> UsageError | None:
        if self._native is None:
            return self._choice.refusal("a state")
        if not self._own_order and self._planned is None:
            return UsageError(
                "a state needs an order of fastdata's; this loader was given a sampler",
                "Give shuffle=True or order=, and shard= instead of a DistributedSampler; or a "
                "batch sampler of fastdata's, such as AspectRatioBatches.",
            )
        return None

    def _epoch_seed(self) -> int:
        """Return the next epoch's seed: given, or drawn as torch draws its own."""
        # torch's default device may be a GPU.
        empty = torch.empty((), dtype=torch.int64, device="cpu")
        drawn = int(empty.random_(generator=self.generator).item())
        if self.seed is not None:
            return self.seed
        # Ranks must agree, and their generators need not.
        return drawn if self._ranks is None else 0


def _set_epoch(sampler: Any, epoch: int) -> None:
    for one in (sampler, getattr(sampler, "sampler", None)):
        set_epoch = getattr(one, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
