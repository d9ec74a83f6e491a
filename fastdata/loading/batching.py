"""`Batching`: which rows make the batches of a loader's epochs, on which rank.

There are three: an order of fastdata's, shared among ranks; batches that are planned; and those of
a sampler of torch's, whose order fastdata does not know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from fastdata.dataset import ImageDataset
from fastdata.errors import UsageError
from fastdata.loading.mixture import Mixture, group_of, leaves, mixtures_in
from fastdata.loading.neighbours import blocks_of, warn_of_neighbours, warn_of_rereading
from fastdata.loading.samplers import PlannedBatches, PlannedSampler, own_ranks
from fastdata.loading.sharded import SequentialOrder, ShardedSampler, ShuffledRows
from fastdata.plan.draws import rank_key
from fastdata.plan.order import AUTO, Order, OrderLike, QuasiRandom, make_order
from fastdata.plan.packing import Packed
from fastdata.plan.position import PLANNED, Fingerprint, Position, digest_of
from fastdata.plan.schedule import Drawn, ordered, sampled
from fastdata.plan.sharding import Epoch
from fastdata.text import human_count

if TYPE_CHECKING:
    from fastdata.loading.arguments import Arguments


class Drawing(NamedTuple):
    """Batches of a pass: this rank's, the key of their draws, and their number, if it is known.

    Substitutes for bad samples come from the order ``among``; None for all samples.
    """

    batches: Iterator[Drawn]
    key: int
    length: int | None
    among: Order | None = None


class Batching(ABC):
    """Batches of a loader's epochs.

    Attributes:
        sampler: The sampler for torch's loader.
        ranks: This rank and the world size; None without a shard.
        sizes: (width, height) by size class; () where batches have no size.
        resumes: Whether the order can be repeated, so that a loader has states.
        draws_seed: Whether each epoch draws a seed, where none is given.
    """

    sizes: tuple[tuple[int, int], ...] = ()
    resumes = True
    draws_seed = True
    planned: PlannedBatches | None = None
    row_sampler: PlannedSampler | None = None

    def __init__(self, arguments: Arguments, dataset: Any, sampler: Any) -> None:
        self._arguments, self._dataset, self.sampler = arguments, dataset, sampler
        self.ranks = arguments.ranks

    def __str__(self) -> str:
        return "by the given sampler"

    @property
    def is_whole(self) -> bool:
        """Whether each rank takes all samples in an order of fastdata's."""
        return self.resumes and self.ranks is None

    @property
    def drops_last(self) -> bool:
        """Whether batches that are not full are dropped."""
        return self._arguments.drop_last

    @property
    @abstractmethod
    def shuffles(self) -> bool:
        """Whether samples come in a random order."""

    def beginning(self, epoch: int, seed: int, rows: int) -> Position:
        """Return an epoch's beginning; ``rows`` is the checksum of a Subset's numbers."""
        return Position(Fingerprint(0, PLANNED), seed, epoch)

    def require(self, position: Position, own: Position, seed: int | None) -> Position:
        """Return a position with this rank; raise UsageError if it is of another run."""
        position.require(own, seed)
        return replace(position, rank=own.rank, world_size=own.world_size)

    @abstractmethod
    def draw(self, start: Position, samples: int) -> Drawing:
        """Return the batches from a position on, of a dataset of so many samples."""

    def remainder(self, start: Position) -> int:
        """Return how many samples the last batches of all ranks have; see `Pass`."""
        return -1

    def check_on_error(self) -> None:
        """Raise UsageError if ``on_error`` would break what the order or the ranks promise."""
        on_error = self._arguments.on_error
        if on_error == "skip" and not self.resumes:
            raise UsageError(
                'on_error="skip" takes other samples, which the sampler may leave out',
                'Give on_error="drop", or over several ranks "zero"; or order= or a sampler of '
                'fastdata\'s, and shard="auto" in the place of a DistributedSampler.',
            )
        if on_error == "skip" and self._arguments.order is None and not self.shuffles:
            raise UsageError(
                'on_error="skip" in a sequential order counts good samples twice',
                'Give on_error="drop", or over several ranks "zero"; or order="sequential" to '
                "replace bad samples all the same.",
            )
        if on_error != "drop":
            return
        ranks = max((self.ranks or (0, 1))[1], self._sampler_ranks)
        if ranks > 1 or self.drops_last:
            full = "drop_last=True asks for full ones"
            agree = f"all {ranks} ranks need batches of equal sizes"
            raise UsageError(
                f'on_error="drop" makes batches smaller, and {agree if ranks > 1 else full}',
                'Give on_error="zero", which marks the bad samples; or "skip" in a shuffled order.',
            )

    @property
    def _sampler_ranks(self) -> int:
        """Number of ranks that a sampler of torch's divides samples among."""
        return 1


class OrderedBatching(Batching):
    """Batches of an order of fastdata's, or of one of its samplers, divided among ranks."""

    def __init__(
        self,
        arguments: Arguments,
        dataset: Any,
        sampler: Any,
        row_sampler: PlannedSampler | None,
        group: int,
        note: str,
    ) -> None:
        super().__init__(arguments, dataset, sampler)
        self.row_sampler, self._group = row_sampler, group
        self._note = note

    def __str__(self) -> str:
        if self.row_sampler is not None:
            return f"by the {type(self.row_sampler).__name__}"
        order = "by the Mixture" if isinstance(self._dataset, Mixture) else str(self.order)
        return order + self._note

    @property
    def order(self) -> OrderLike:
        """The order of an epoch."""
        if isinstance(self.sampler, ShardedSampler):
            return self.sampler.order
        return "sequential" if isinstance(self.sampler, SequentialSampler) else "random"

    @property
    def shuffles(self) -> bool:
        own = self.row_sampler is not None or isinstance(self._dataset, Mixture)
        return own or self.order != "sequential"

    @property
    def samples(self) -> int:
        """Number of positions in an epoch: the dataset's samples, or a sampler's."""
        return len(self._dataset if self.row_sampler is None else self.row_sampler)

    def beginning(self, epoch: int, seed: int, rows: int) -> Position:
        if isinstance(self._dataset, IterableDataset):
            return super().beginning(epoch, seed, rows)
        several = [mixture.plan.fingerprint(epoch) for mixture in mixtures_in(self._dataset)]
        several += [] if self.row_sampler is None else [self.row_sampler.fingerprint]
        digest = digest_of(rows, *several) if rows or several else 0
        fingerprint = Fingerprint(self.samples, str(self.order), digest)
        # A drawn seed serves one epoch, so torch's seed alone decides which order comes.
        given = self._arguments.seed is not None
        drawn = not given and self.ranks is None and self.row_sampler is None
        rank, world_size = self.ranks or (0, 1)
        number = 0 if drawn else epoch
        return Position(fingerprint, seed, epoch, number=number, rank=rank, world_size=world_size)

    def draw(self, start: Position, samples: int) -> Drawing:
        epoch, number = self._epoch(start), start.number or 0
        if isinstance(self.sampler, ShardedSampler):
            order = self.sampler.order_of(start.seed, number)
        else:
            order = make_order(self.order, samples, start.seed, number)
        among = None if self.row_sampler is None else order
        return Drawing(ordered(epoch, order, samples), start.key, len(epoch), among)

    def remainder(self, start: Position) -> int:
        epoch = self._epoch(start)
        return 0 if epoch.drop_last else (epoch.samples - epoch.start) % epoch.step

    def _epoch(self, start: Position) -> Epoch:
        """Return this rank's share of an epoch from a position on."""
        size = self._arguments.batch_size or 1
        if self._group > 1 and start.at % size:
            raise UsageError(
                f"resuming at position {start.at} with batch_size={size}: batches would mix what "
                "belongs apart",
                f"Resume with a batch_size that divides {start.at} and {self._group}.",
            )
        ranks = start.rank, start.world_size
        return _share(self._arguments, self.samples, ranks, self._group > 1, start.at)


class PlannedBatching(Batching):
    """Batches of `PlannedBatches`, which take the loader's seed and ranks as their own."""

    draws_seed = False
    planned: PlannedBatches

    def __init__(self, arguments: Arguments, dataset: Any, planned: PlannedBatches) -> None:
        super().__init__(arguments, dataset, arguments.sampler)
        planned.seed = planned.seed if arguments.seed is None else arguments.seed
        planned.ranks = planned.ranks if arguments.ranks is None else arguments.ranks
        self.planned = planned
        self.ranks, self.sizes = planned.ranks, planned.plan.sizes
        self._check()

    def __str__(self) -> str:
        return f"by {self.planned!r}"

    @property
    def shuffles(self) -> bool:
        return bool(getattr(self.planned.plan, "shuffle", True))

    @property
    def drops_last(self) -> bool:
        return self._arguments.drop_last or bool(getattr(self.planned.plan, "drop_last", False))

    def beginning(self, epoch: int, seed: int, rows: int) -> Position:
        own = self.planned.beginning(epoch)
        if not rows:
            return own
        digest = digest_of(own.fingerprint.digest, rows)
        return replace(own, fingerprint=replace(own.fingerprint, digest=digest))

    def require(self, position: Position, own: Position, seed: int | None) -> Position:
        position = super().require(position, own, own.seed)
        self.planned.plan.require(position.at, position.key)
        return position

    def draw(self, start: Position, samples: int) -> Drawing:
        self._check()  # the dataset may have been changed
        rest = self.planned.plan.rest(start.key, start.world_size, start.at)
        return Drawing(rest.batches(start.rank), start.key, len(rest))

    def _check(self) -> None:
        """Raise UsageError for a dataset, or an ``on_error``, that does not suit the plan."""
        dataset, plan, name = self._dataset, self.planned.plan, type(self.planned).__name__
        if self._arguments.on_error == "skip" and isinstance(plan, Packed):
            raise UsageError(
                'on_error="skip" fills slots with other samples, which may exceed the budget',
                'Take on_error="drop", or over several ranks "zero".',
            )
        if next(mixtures_in(dataset), None) is not None:
            raise UsageError(
                f"a {name} is of some rows; a Mixture has others in each epoch",
                "Leave batch_sampler= out; group= of the Mixture makes batches of one source.",
            )
        if len(dataset) != plan.samples:
            raise UsageError(
                f"the {name} is of {human_count(plan.samples, 'sample')}, and the loader's "
                f"dataset has {len(dataset)}",
                "Make it with the dataset that is given to the loader.",
            )


class SampledBatching(Batching):
    """Batches of a sampler, or batch sampler, of torch's or the user's."""

    resumes = False

    @property
    def _batch_sampler(self) -> Any:
        arguments = self._arguments
        if arguments.batch_sampler is not None or arguments.batch_size is None:
            return arguments.batch_sampler
        sampler: Any = arguments.sampler
        return BatchSampler(sampler, arguments.batch_size, arguments.drop_last)

    @property
    def _rows(self) -> Any:
        """The sampler of single rows, if one is known."""
        return getattr(self._batch_sampler, "sampler", None)

    @property
    def shuffles(self) -> bool:
        several = self._rows, self._batch_sampler
        return not isinstance(self._rows, SequentialSampler) and all(
            getattr(one, "shuffle", True) for one in several
        )

    @property
    def drops_last(self) -> bool:
        return bool(getattr(self._batch_sampler, "drop_last", False))

    @property
    def _sampler_ranks(self) -> int:
        return int(getattr(self._rows, "num_replicas", 1))

    def draw(self, start: Position, samples: int) -> Drawing:
        own = self._batch_sampler
        once = _draws_once(own, samples)
        batches = sampled(own, samples, replacing=not once)
        key = start.key if once else rank_key(start.key, own_ranks()[0])
        try:
            length = len(own)
        except TypeError:  # a sampler without a length
            length = None
        return Drawing(batches, key, length)


def planned_batching(arguments: Arguments, dataset: Any) -> PlannedBatching | None:
    """Return the batches of a loader's ``batch_sampler``, if they are planned."""
    planned = arguments.batch_sampler
    if not isinstance(planned, PlannedBatches):
        return None
    return PlannedBatching(arguments, dataset, planned)


def find_batching(
    arguments: Arguments, dataset: Any, planned: PlannedBatching | None, refusal: Any
) -> Batching:
    """Return the batches for ``order``, ``seed``, ``shard`` and the samplers that were given.

    ``refusal`` returns the error for what needs the native path; None where that is taken. Raise
    UsageError if arguments contradict each other.
    """
    sampler: Any = arguments.sampler
    row_sampler = sampler if isinstance(sampler, PlannedSampler) else None
    own = (sampler is None or row_sampler is not None) and arguments.batch_sampler is None
    order, shuffle, seed = arguments.order, arguments.shuffle, arguments.seed
    group = 1
    if own:
        asked = shuffle or order not in (None, "sequential")
        group = group_of(dataset, row_sampler, arguments.batch_size, asked)
    elif seed is not None and refusal is not None:
        raise refusal(f"seed={seed} with a sampler, where it is for crops,")
    note = ""
    if own and (order == AUTO or (order is None and shuffle)) and _reads_remotely(dataset):
        blocks = blocks_of(dataset)
        order = QuasiRandom() if blocks is None else QuasiRandom(blocks.window)
        what = "a remote dataset is shuffled: neighbours are fetched together "
        if blocks is not None:
            what = "row groups are decoded: each is read once, in windows "
        note = f', as order="auto" is where {what}(order="random" for a full shuffle)'
    elif order == AUTO:
        order = "random"
    stream = isinstance(dataset, IterableDataset)
    sharded = arguments.ranks is not None
    if stream and (sharded or order is not None or (own and seed is not None)):
        raise UsageError(
            "order=, seed= and shard= have no meaning with an IterableDataset",
            "Let the dataset choose its order, draw from its own seed and yield its rank's share.",
        )
    if planned is not None and order is None:
        warn_of_rereading(dataset, "random" if shuffle else None, arguments.batch_sampler)
        return planned
    if row_sampler is None and order is None and not sharded and (seed is None or not own):
        given = arguments.batch_sampler if sampler is None else sampler
        warn_of_rereading(dataset, "random" if shuffle else None, given)
        if not own:
            return SampledBatching(arguments, dataset, sampler)
        if not stream:
            sampler = SequentialOrder(dataset)
            if shuffle:
                sampler = ShuffledRows(dataset, generator=arguments.generator)
        return OrderedBatching(arguments, dataset, sampler, None, group, note)
    if not own or (row_sampler is not None and order is not None):
        raise UsageError(
            "a sampler was given, and order= or shard= as well", "Leave one of them out."
        )
    made = _sharded(arguments, dataset, order, row_sampler, group)
    warn_of_neighbours(dataset, made.order)
    warn_of_rereading(dataset, made.order, None)
    return OrderedBatching(arguments, dataset, made, row_sampler, group, note)


def _reads_remotely(dataset: Any) -> bool:
    """Return whether a dataset's images lie behind a URL."""
    return any(isinstance(one, ImageDataset) and one.is_remote for one in leaves(dataset))


def _sharded(
    arguments: Arguments,
    dataset: Any,
    order: OrderLike | None,
    planned: PlannedSampler | None,
    group: int,
) -> ShardedSampler:
    """Return the sampler for ``order``, ``seed``, ``shard`` and a sampler of fastdata's.

    Raise UsageError if they contradict torch's arguments.
    """
    shuffle = arguments.shuffle
    if order is not None and shuffle is not None and shuffle == (order == "sequential"):
        raise UsageError(
            f"order={order!r} and shuffle={shuffle} contradict each other", "Leave one out."
        )
    if planned is not None and planned.rows != len(dataset):
        raise UsageError(
            f"the sampler is for {planned.rows} samples, and the dataset has {len(dataset)}",
            "Give the sampler a weight, factor or label of each sample.",
        )
    order = order or ("random" if shuffle else "sequential")
    samples = len(dataset if planned is None else planned)
    plan = _share(arguments, samples, arguments.ranks or (0, 1), group > 1)
    blocks = blocks_of(dataset)
    starts = None if blocks is None else blocks.starts
    return ShardedSampler(dataset, plan, order, arguments.seed or 0, starts, planned)


def _share(
    arguments: Arguments, samples: int, ranks: tuple[int, int], full: bool, start: int = 0
) -> Epoch:
    """Return a rank's share of an epoch; ``full``: each batch belongs together."""
    size = arguments.batch_size or 1
    return Epoch(samples, size, *ranks, arguments.drop_last, start, full)


def _draws_once(batch_sampler: Any, samples: int) -> bool:
    """Return whether a batch sampler is torch's own, and repeats samples only to fill ranks."""
    if type(batch_sampler) is not BatchSampler:
        return False
    sampler: Any = batch_sampler.sampler
    if type(sampler) in (RandomSampler, ShuffledRows):
        return not sampler.replacement and sampler.num_samples <= samples
    return type(sampler) in (SequentialSampler, SequentialOrder, DistributedSampler)
