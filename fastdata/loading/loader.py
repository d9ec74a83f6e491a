"""`DataLoader`: torch's, with native decoding by threads where possible.

It takes one of three paths: *native* (threads of this process decode), *workers* (fastdata decodes
in torch's worker processes, where the rest of the transform runs) and *torch* (torch's loader
unchanged). `DataLoader.explain` says which one, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
import torch.utils.data
from torch import distributed as dist
from torch.utils.data import Sampler, SequentialSampler

from fastdata.dataset import ImageDataset
from fastdata.device.delivery import DeviceIterator, Tracker
from fastdata.errors import SlowPathWarning, UsageError, warn
from fastdata.loading.config import Choice, LoaderConfig
from fastdata.loading.fields.images import Readable
from fastdata.loading.fields.stats import Stats
from fastdata.loading.images import PrefixDataset, reads_remotely
from fastdata.loading.mixture import Mixture, group_of, leaves, mixtures_in, refuse_paths
from fastdata.loading.native import NativePath
from fastdata.loading.neighbours import (
    blocks_of,
    starts_of,
    warn_of_neighbours,
    warn_of_rereading,
)
from fastdata.loading.noticing import NoticingPass, in_memory
from fastdata.loading.passes import NoBatches, Pass
from fastdata.loading.planned import PlannedBatches, recognise_any, transforms_of
from fastdata.loading.progress import Progress, ProgressTracker
from fastdata.loading.resuming import Resumable
from fastdata.loading.sampler import (
    LoadersOwn,
    SequentialOrder,
    ShardedSampler,
    ShuffledRows,
    draws_once,
    own_ranks,
    own_sampler,
)
from fastdata.loading.samplers import PlannedSampler
from fastdata.loading.seeding import seeded
from fastdata.loading.torchs import (
    DrawnPass,
    in_order_option,
    let_torch_refuse,
    torch_loader,
    zero_invalid,
)
from fastdata.machine import cpus_for_this_rank
from fastdata.plan.draws import child, epoch_key, rank_key
from fastdata.plan.order import AUTO, OrderLike, QuasiRandom, make_order
from fastdata.plan.schedule import Drawn, ordered, sampled
from fastdata.plan.sharding import Epoch, State
from fastdata.transforms.compile import Recipe
from fastdata.transforms.identity import fresh_look
from fastdata.transforms.schedule import BySize, Schedule

T = TypeVar("T", covariant=True)

#: Child of a batch's key, of a second transform of it; `seeded` has the first ones.
_AGAIN = 4


class DataLoader(Resumable[T], Generic[T]):
    """``torch.utils.data.DataLoader``, with the same arguments, several times faster for images.

    An `ImageDataset`, and torchvision's ``ImageFolder``, ``DatasetFolder`` and ``ImageNet``, take
    the native path if fastdata knows every step of the transform (`fastdata.transforms`, or
    torchvision's and timm's). Everything else takes torch's own path.

    On the native path a batch is [images, labels], or a dict of the fields that the dataset, the
    loader or a `Mixture` was given; with ``transforms`` of the dataset, it is of their form:

    - images: uint8, N x 3 x H x W in channels-last memory; or the shape, dtype and layout of the
      torchvision transforms; or, with `fastdata.transforms.Views`, a list of such tensors or a
      dict of lists;
    - labels: int64, shape (N,);
    - numbers, and lists of fixed length: tensors of their own dtype, shape (N,) or (N, K, …);
    - lists of different lengths, of numbers or of K numbers each: a `fastdata.Ragged`;
    - strings, other values, and columns with nulls: a list of N Python objects;
    - blobs: a list of N ``bytes``, None where a sample has none.

    ``num_workers`` is the number of decode threads in this process, 0 for the caller's;
    ``prefetch_factor`` batches are prefetched, whatever their number. A batch's memory is reused
    once nothing refers to it.

    Args:
        dataset: As torch's.
        batch_size: As torch's; on one rank.
        shuffle: As torch's: the same as ``order="auto"``.
        sampler: As torch's; a ``DistributedSampler`` shards. A `WeightedSampler`, `RepeatSampler`,
            `BalancedSampler` or `MPerClassSampler` of fastdata's is shared out by ``shard``.
        batch_sampler: As torch's.
        num_workers: Decode threads, or torch's worker processes; "auto" for the CPUs that this
            process may use (affinity, cgroup), divided among the ranks on this machine.
        collate_fn: As torch's. On the native path it is called in the caller's thread with the
            samples that torch would give it, whose tensors are views of the batch's memory. With
            ``device``, and where the transform returns PIL images, torch's loader calls it.
            `fastdata.fast_collate` makes uint8 batches; timm's ``fast_collate`` and
            ``FastCollateMixup`` are known, with images of bytes.
        pin_memory: As torch's: page-locked memory where there is a GPU.
        drop_last: As torch's. Over several ranks: whether samples that do not fill a batch on
            every rank are dropped; else some are repeated, and every rank has as many batches.
        timeout: As torch's: seconds to wait for a batch; 0 for ever.
        worker_init_fn: As torch's. Needs worker processes, so takes torch's workers; timm's own,
            of its ``create_loader``, only seeds generators that native threads do not use.
        multiprocessing_context: As torch's, for worker processes.
        generator: As torch's: where the seed of each epoch is drawn from, unless ``seed`` is given.
        prefetch_factor: As torch's; on the native path for all threads together.
        persistent_workers: As torch's: threads and batch memory stay from epoch to epoch.
        pin_memory_device: As torch's.
        in_order: As torch's. Native batches are always in order.
        order: "random", "quasi-random" (neighbours stay near each other: for disks and object
            stores; `QuasiRandom(window=512)` for windows of 512 blocks instead of 128) or
            "sequential", in constant memory. "auto" is "quasi-random" where one sample costs as
            much as its neighbours (a dataset behind a URL, rows that are decoded in groups), else
            "random".
        seed: Seed of order, crops and flips, which are then functions of (seed, epoch, sample)
            (with a sampler given: of crops and flips). Off the native path Python's, NumPy's and
            torch's global generators (the CPU's) are seeded for each sample, and for the
            ``collate_fn``; afterwards they are as they were. None to draw one from ``generator`` at
            each epoch's beginning (with ``shard``: 0). The epoch counts up by itself; `set_epoch`
            sets it.
        shard: This rank's share of the samples: "auto" for the rank and the world size of an
            initialised process group, else of the environment (``RANK`` and ``WORLD_SIZE``, as
            torchrun sets them), else one process, so that one script runs on one GPU and on
            eight; or (rank, world_size). None: all samples, or the sampler's. An `IterableDataset`
            is split by rank and by worker process; leave ``shard`` out for one that splits itself
            by rank.
        device: Where batches go: "cuda" (or "cuda:1", …) or "cpu"; None to leave them on the host,
            as torch does. They are sent ahead, from page-locked memory, on a stream of their own,
            as `fastdata.DeviceLoader` says: on the native path as bytes, which are normalised
            there if the transform says so. Images come in channels-last memory, and
            ``batch_transform`` is given what is on the device.
        fields: Keys of a batch, which is then a dict in that order: any fields of the dataset,
            "index" (sample numbers, int64, shape (N,)) and "key" (a list of sample names). A
            further field of images must be one of the dataset's ``fields``. None for those.
        on_error: For samples that cannot be read or decoded: "raise" an error in the batch's place;
            "skip" to replace it by another one, drawn at random, in a shuffled order (or where
            ``order="sequential"`` is given); "drop" it from its batch, which is then smaller, on
            one rank; or "zero" the slot, and add "valid" to the batch, bool, shape (N,): the dict's
            or list's last entry.
        batch_transform: Called with each batch, the list or dict; returns the batch that the loader
            delivers (CutMix, MixUp, transforms on the GPU). Its draws from the global generators of
            Python, NumPy and torch (the CPU's) are a function of (seed, epoch, batch): on the
            native path, and with ``seed`` on all paths.
        require_native: Whether any other path than the native one is an error, which says why.
            Pillow may still decode single images; `stats` counts them, and one warning names the
            first.

    Raises:
        UsageError: Arguments contradict each other, or cannot be honoured on the path taken; or
            no path can put the transform's results into batches.
        ValueError: Torch's own errors about its arguments.
        IndexError: A ``Subset`` has the number of a sample that its dataset has not.
        TypeError: A ``Subset`` has numbers that are not whole.
    """

    order: OrderLike | None
    shard: str | tuple[int, int] | None
    device: str | torch.device | None
    fields: Sequence[str] | None
    on_error: str
    batch_transform: Callable[[Any], Any] | None
    _warned_unsharded = _noticed = False

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | str = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        order: OrderLike | None = None,
        seed: int | None = None,
        shard: str | tuple[int, int] | None = None,
        device: str | torch.device | None = None,
        fields: Sequence[str] | None = None,
        on_error: str = "raise",
        batch_transform: Callable[[Any], Any] | None = None,
        require_native: bool = False,
    ) -> None:
        refuse_paths(dataset)
        if num_workers == "auto":
            num_workers = cpus_for_this_rank()
        torchs: dict[str, Any] = {
            "shuffle": shuffle,
            "sampler": sampler,
            "batch_sampler": batch_sampler,
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "drop_last": drop_last,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            **in_order_option(in_order),
        }
        unread = {
            "multiprocessing_context": multiprocessing_context,
            "pin_memory_device": pin_memory_device,
        }
        own: dict[str, Any] = {
            "order": order,
            "seed": seed,
            "shard": shard,
            "device": device,
            "fields": fields,
            "on_error": on_error,
            "batch_transform": batch_transform,
            "require_native": require_native,
        }
        vars(self).update(own)  # frameworks rebuild loaders from these attributes
        batched = batch_size is not None or batch_sampler is not None
        try:
            self._config = LoaderConfig(batched=batched, **own, **torchs)
            # Before torch's constructor, which warns of too many workers: threads are none.
            if isinstance(batch_sampler, PlannedBatches):
                batch_sampler.join(seed, self._config.ranks, dataset, on_error)
                self._planned = batch_sampler
            self._choose(dataset)
        except UsageError:
            let_torch_refuse(dataset, batch_size, torchs | unread)
            raise
        self._row_sampler = sampler if isinstance(sampler, PlannedSampler) else None
        if self._row_sampler is not None:
            let_torch_refuse(dataset, batch_size, torchs | unread)
            torchs["sampler"] = sampler = None  # replaced by this rank's share of it
        self._own_order = sampler is None and batch_sampler is None
        given = sampler if batch_sampler is None else batch_sampler
        self._ranks = self._config.ranks if self._planned is None else self._planned.ranks
        sharded = self._make_sampler(dataset, batch_size, shuffle, drop_last)
        asked = "random" if shuffle else None
        warn_of_rereading(dataset, asked if sharded is None else sharded.order, given)
        if sharded is not None:
            sampler, shuffle = sharded, None
        elif self._own_order and not isinstance(dataset, torch.utils.data.IterableDataset):
            sampler = SequentialOrder(dataset)
            if shuffle:
                sampler, shuffle = ShuffledRows(dataset, generator=generator), None
        torchs |= {"shuffle": shuffle, "sampler": sampler, "pin_memory": self._config.pin_memory}
        super().__init__(dataset, batch_size, **torchs, **unread)
        self._check_on_error()
        self._open()
        self._tell_slow_path()

    def _make_sampler(
        self, dataset: Any, batch_size: int | None, shuffle: bool | None, drop_last: bool
    ) -> ShardedSampler | None:
        """Return the sampler for this loader's order, seed or share; None if torch's will do."""
        order, seed, planned = self._config.order, self.seed, self._row_sampler
        given = shuffle or order not in (None, "sequential")
        group = group_of(dataset, planned, batch_size, given) if self._own_order else 1
        if seed is not None and not self._own_order and self._choice.path != "native":
            raise self._choice.refusal(f"seed={seed} with a sampler, where it is for crops,")
        auto = order == AUTO or (order is None and shuffle)
        self._keeps_neighbours = auto and self._own_order and reads_remotely(dataset)
        if self._keeps_neighbours:
            blocks = blocks_of(dataset)
            order = QuasiRandom() if blocks is None else QuasiRandom(blocks.window)
        elif order == AUTO:
            order = "random"
        if self._planned is not None and order is None:
            return None
        stream = isinstance(dataset, torch.utils.data.IterableDataset)
        sharded = self._ranks is not None and not stream
        asked = planned is not None or order is not None or sharded
        if not asked and (seed is None or not self._own_order):
            return None
        if not self._own_order or (planned is not None and order is not None):
            raise UsageError(
                "a sampler was given, and order= or shard= as well", "Leave one of them out."
            )
        about = order, seed, self._ranks or (0, 1), starts_of(dataset), planned, group
        sampler = own_sampler(dataset, batch_size, shuffle, drop_last, *about)
        warn_of_neighbours(dataset, sampler.order)
        return sampler

    def _check_on_error(self) -> None:
        """Raise UsageError if ``on_error`` would break what the order or the ranks promise."""
        order: Any = getattr(self.batch_sampler, "sampler", None)
        plan: Any = self.batch_sampler if self._planned is None else self._planned.plan
        if self.on_error == "skip" and self.order is None:
            own = self._row_sampler is not None or isinstance(self.dataset, Mixture)
            shuffled = not isinstance(order, SequentialSampler) and (
                getattr(order, "shuffle", True) and getattr(plan, "shuffle", True)
            )
            if not own and not shuffled:
                raise UsageError(
                    'on_error="skip" in a sequential order counts good samples twice',
                    'Give on_error="drop", or over several ranks "zero"; or order="sequential" to '
                    "replace bad samples all the same.",
                )
        if self.on_error != "drop":
            return
        ranks = max((self._ranks or (0, 1))[1], getattr(order, "num_replicas", 1))
        if ranks > 1 or self._config.drop_last or getattr(plan, "drop_last", False):
            full = "drop_last=True asks for full ones"
            agree = f"all {ranks} ranks need batches of equal sizes"
            raise UsageError(
                f'on_error="drop" makes batches smaller, and {agree if ranks > 1 else full}',
                'Give on_error="zero", which marks the bad samples; or "skip" in a shuffled order.',
            )

    def _choose(self, dataset: Any) -> None:
        """Choose the path; with a `BySize`, for each size class of the batches."""
        sizes: Sequence[tuple[int, int] | None] = ()
        if any(isinstance(one, BySize) for one in transforms_of(dataset)):
            sizes = () if self._planned is None else self._planned.plan.sizes
        with fresh_look():
            self._collation = self._config.changed_collation()
            found = [self._config.choose(recognise_any(dataset, size)) for size in sizes or (None,)]
        # They differ in their sizes alone.
        self._choice = next((one for one in found if one.path != "native"), found[0])
        self._sized = found if sizes else []

    def _open(self) -> None:
        """Prepare the path; read nothing before the first ``iter``."""
        choice = self._choice
        self._inner: torch.utils.data.DataLoader[Any] | None = None
        self._native: NativePath | None = None
        followers = self._follows
        if choice.path != "native" and followers and self.persistent_workers:
            kind = type(followers[0]).__name__
            raise UsageError(
                f"a {kind}'s epoch does not reach workers that persist, and {choice.reason}",
                choice.hint or "Leave persistent_workers out.",
            )
        if choice.path == "native":
            assert choice.images is not None
            assert choice.recipe is not None
            self._native = self._native_path(choice.images, choice.recipe, self._config)
            if self._sized and type(self._native) is not NativePath:
                hint = "Take fastdata.DataLoader, or batches of one size."
                raise UsageError("a BySize needs the core's own decoder", hint)
            self._native.differ([self._path_of(one) for one in self._sized])
        own = getattr(self.batch_sampler, "sampler", self.sampler)
        if isinstance(own, LoadersOwn):
            own.native = self._native is not None and self._own_order

    def _path_of(self, choice: Choice) -> NativePath:
        """Return the native path of batches of one size."""
        assert choice.images is not None
        assert choice.recipe is not None
        return NativePath(choice.images, choice.recipe, self._config)

    def _native_path(self, images: Readable, recipe: Recipe, config: LoaderConfig) -> NativePath:
        """Return the native path; a subclass may decode by other means."""
        return NativePath(images, recipe, config)

    def _tell_slow_path(self) -> None:
        """Warn if this loader takes a slower path that can be avoided."""
        if self._choice.path != "native" and self._choice.avoidable:
            self._warn_slow_path()

    def _warn_slow_path(self) -> None:
        warn(self._choice.slow_path(), SlowPathWarning)

    def check_worker_number_rationality(self) -> None:
        """Warn as torch does of too many worker processes; not of threads."""
        if self._choice.path != "native":
            super().check_worker_number_rationality()

    # Iteration.

    def __iter__(self) -> Any:
        """Return one pass over the samples: a new iterator each time."""
        return self._begin_iter(lambda batches: batches)

    def _iter_through(self, through: Callable[[Any], Any]) -> Any:
        """Return one pass whose batches go through a function, such as a `DeviceLoader`'s."""
        own = type(self).__iter__ is DataLoader.__iter__
        return self._begin_iter(through) if own else through(iter(self))

    def _begin_iter(self, through: Callable[[Any], Any]) -> Any:
        plain = self._choice.path == "torch" and self.seed is None and self.device is None
        if (
            plain
            and not self._follows
            and isinstance(self.sampler, (ShuffledRows, SequentialOrder))
        ):
            # No epoch matters here, so the iterator is torch's own.
            start, progress, batches = self._open_pass()
            self._begin_pass(start, progress)
            return through(batches)
        return Pass(self, through)

    @property
    def _follows(self) -> list[Any]:
        """Schedules and mixtures of the dataset, which follow the epoch."""
        return [*self._schedules, *mixtures_in(self.dataset)]

    def __len__(self) -> int:
        """Return the number of batches; of this rank, where the loader shards.

        For an `IterableDataset` it is torch's estimate, which takes no account of workers.
        """
        if self._planned is not None:
            current = self._current
            return self._planned.length(self._epoch if current is None else current.start.epoch)
        if not self._shares_stream:
            return super().__len__()
        samples = len(self.dataset)  # type: ignore[arg-type]
        share = len(Epoch(samples, 1, *self._ranks or (0, 1), self.drop_last))
        if self.batch_size is None:
            return share
        return len(Epoch(share, self.batch_size, drop_last=self.drop_last))

    @property
    def _shares_stream(self) -> bool:
        """Whether this loader takes a rank's share of an iterable dataset."""
        return self._ranks is not None and not self._shares_samples

    def _open_pass(self) -> tuple[State | None, Progress | None, Iterator[Any]]:
        """Return where the next pass begins, its progress and its batches."""
        self._warn_unsharded()
        self._config.check_ranks()
        self._follow_samplers()
        self._progress = None
        if self._at_end:
            return None, None, NoBatches()
        for one in self._follows:
            one.set_epoch(self._epoch)
        images = self._choice.images
        size = self._planned.plan.sizes[0] if self._sized and self._planned is not None else None
        with fresh_look():
            unchanged = images is None or (
                self._collation == self._config.changed_collation()
                and images.equals(recognise_any(self.dataset, size))
            )
        if not unchanged:
            before, told_before = self._native, self._choice.reason
            # Its transform, or its samples, are others now.
            self._choose(self.dataset)
            self._open()
            if self._choice.reason != told_before:
                self._tell_slow_path()
            if isinstance(self.sampler, ShardedSampler):
                self.sampler.recount()
            if self._native is not None and before is not None:
                self._native.take_over(before)
        start = self._settled()
        if self._native is not None:
            return start, *self._native_iterator(self._native, start)
        if isinstance(self.sampler, ShardedSampler) and self._own_order:
            self.sampler.seed, self.sampler.epoch = start.seed, start.number or 0
        if self._planned is not None:
            self._planned.epoch = start.epoch
        self._seen = self._marks()
        if self.seed is not None:
            return start, *self._seeded_pass(start)
        # An ImageDataset decodes natively by itself, where it is asked for whole batches; in this
        # process it would go on with a transform that was changed in place.
        direct = isinstance(self.dataset, ImageDataset) and self.batch_sampler is not None
        direct = direct and self.num_workers > 0
        if self._choice.path == "workers" and not direct:
            return start, None, self._on_device(iter(self._torch_loader()), Tracker())
        batches = iter(self._torch_loader()) if self._shares_stream else super().__iter__()
        return start, None, self._on_device(self._noticing(batches), Tracker())

    def _noticing(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return a pass of torch's path that warns of itself if its first batch has images."""
        if self._noticed or self._choice.avoidable:
            return batches
        self._noticed = True
        if all(map(in_memory, leaves(self.dataset))):
            return batches
        return NoticingPass(batches, self.batch_sampler is not None, self._warn_slow_path)

    def _on_device(self, batches: Iterator[Any], tracker: Tracker) -> Iterator[Any]:
        """Return the batches on their device."""
        where = self._choice.where
        if where is None:
            return batches
        transform = self.batch_transform
        if self._config.on_error == "zero":
            images = self._choice.images
            key = "image" if images is None or self.fields is not None else images.key
            transform = partial(zero_invalid, batch_transform=self.batch_transform, key=key)
        return DeviceIterator(batches, where, tracker, transform)

    def _seeded_pass(self, start: State) -> tuple[Progress, Iterator[Any]]:
        """Return a pass of torch's loader that draws from the seed."""
        loader, sampler = self._torch_loader(), self.sampler
        assert isinstance(sampler, ShardedSampler)
        batches: Any = loader.batch_sampler if self.batch_sampler is not None else loader.sampler
        sent = Progress(start, -1)
        progress = sent if self._choice.where is None else replace(sent)
        started = DrawnPass(self._noticing(iter(loader)), batches, sent)
        return progress, self._on_device(started, ProgressTracker(sent, progress))

    def _native_iterator(self, native: NativePath, start: State) -> tuple[Progress, Iterator[Any]]:
        samples, number = len(native), start.number or 0
        key = epoch_key(start.seed, number)
        batches: Iterator[Drawn]
        length: int | None
        among = None
        planned = self._planned
        if planned is not None:
            planned.join(None, None, self.dataset, self.on_error)  # they may be others now
            rank, world_size = planned.ranks or (0, 1)
            rest = planned.plan.rest(key, world_size, start.position)
            batches, length = rest.batches(rank), len(rest)
        elif self._own_order:
            assert self.batch_size is not None
            plan = self._plan(start.position)
            if isinstance(self.sampler, ShardedSampler):
                order = self.sampler.order_of(start.seed, number)
            else:
                about = start.order, samples, start.seed, number, starts_of(self.dataset)
                order = make_order(*about)
            batches, length = ordered(plan, order, samples), len(plan)
            if self._row_sampler is not None:
                among = order
        else:
            assert self.batch_sampler is not None
            once = draws_once(self.batch_sampler, samples)
            batches = sampled(self.batch_sampler, samples, replacing=not once)
            if not once:
                key = rank_key(key, own_ranks()[0])
            try:
                length = len(self.batch_sampler)  # type: ignore[arg-type]
            except TypeError:  # a sampler without a length
                length = None
        progress = Progress(start, -1 if length is None else length)
        # On a device, a state must not count what was only sent ahead.
        sent = replace(progress) if self._choice.where is not None else progress
        of_sampler = not self._own_order and planned is None
        passing = batches, key, sent, length
        started = native.start(*passing, sampler=of_sampler, among=among)
        return progress, self._on_device(started, ProgressTracker(sent, progress))

    def _seeded(self) -> AbstractContextManager[None]:
        """Return the context in which a `DeviceLoader` transforms the batch returned last."""
        if self._progress is None:
            return nullcontext()
        key = self._progress.batch_key
        # Other draws than those of this loader's own transform.
        return seeded(key if self.batch_transform is None else child(key, _AGAIN))

    def _torch_loader(self) -> torch.utils.data.DataLoader[Any]:
        """Return torch's loader over the same dataset; the same one for every epoch."""
        if self._inner is None:
            ranks = self._ranks if self._shares_stream else None
            prefixed = self._choice.path == "workers"
            dataset = PrefixDataset(self.dataset) if prefixed else self.dataset
            self._inner = torch_loader(self, dataset, prefixed, ranks)
        return self._inner

    @property
    def _schedules(self) -> list[Schedule]:
        """Schedules of the dataset's transforms."""
        return [one for one in transforms_of(self.dataset) if isinstance(one, Schedule)]

    def _warn_unsharded(self) -> None:
        if (
            self._warned_unsharded
            or isinstance(self.dataset, torch.utils.data.IterableDataset)
            or not (self._own_order or self._planned is not None)
            or self._ranks is not None
            or not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
        ):
            return
        self._warned_unsharded = True
        warn(
            f"each of the {dist.get_world_size()} ranks of this job loads all samples: give the "
            'DataLoader shard="auto" or a DistributedSampler, so that each loads its share'
        )

    # What users see.

    def stats(self) -> Stats:
        """Return counts and shares of time since the last ``iter``.

        Raises:
            UsageError: The native path is not taken, or nothing was iterated yet.
        """
        if self._native is None:
            raise self._choice.refusal("stats()")
        if self._native.counters is None:
            raise UsageError("there are no statistics before the first iter(loader)", "Iterate it.")
        return self._native.counters.stats()

    def explain(self) -> str:
        """Describe which path this loader takes, and why.

        On the native path, also estimate the share of each kind of image and name its decoder, from
        some of the samples; `stats` counts them.
        """
        order = str(self._order) if self._own_order else "that of the sampler given"
        if self._row_sampler is not None:
            order = f"that of the {type(self._row_sampler).__name__}"
        elif self._own_order and isinstance(self.dataset, Mixture):
            order = "that of the Mixture"
        order = order if self._planned is None else f"that of {self._planned!r}"
        if self._keeps_neighbours:
            what = "a remote dataset is shuffled: neighbours are fetched together "
            if blocks_of(self.dataset) is not None:
                what = "row groups are decoded: each is read once, in windows "
            order += f', as order="auto" is where {what}(order="random" for a full shuffle)'
        kinds = "" if self._native is None else self._native.describe_kinds()
        path = self._config.explain(self._choice, order, kinds)
        if self._sized:
            path += f"\nsizes: {len(self._sized)}; this is told of the first"
        schedules = self._schedules
        return f"{path}\nschedule: this is epoch {schedules[0].epoch}'s" if schedules else path

    def __repr__(self) -> str:
        choice = self._choice
        return (
            f"<fastdata.DataLoader, {choice.path} path: {choice.reason}; batch size "
            f"{self.batch_size}, {self.num_workers} "
            f"{'threads' if choice.path == 'native' else 'workers'}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # Threads and files; and what depends on modules that may not be there.
        for name in ("_native", "_inner", "_choice", "_sized"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._choose(self.dataset)
        self._open()
