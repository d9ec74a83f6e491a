"""`DataLoader`: torch's, with native decoding by threads where possible.

It takes one of three paths: *native* (threads of this process decode), *workers* (fastdata decodes
in torch's worker processes, where the rest of the transform runs) and *torch* (torch's loader
unchanged). `DataLoader.explain` says which one, and why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
import torch.utils.data
from torch import distributed as dist
from torch.utils.data import IterableDataset, Sampler

from fastdata.dataset import ImageDataset
from fastdata.device.delivery import DeviceIterator, Tracker
from fastdata.errors import SlowPathWarning, UsageError, warn
from fastdata.loading.arguments import Arguments, let_torch_refuse, torchs
from fastdata.loading.batching import Batching, OrderedBatching, find_batching, planned_batching
from fastdata.loading.fields.readable import Readable
from fastdata.loading.fields.stats import Stats
from fastdata.loading.images import PrefixDataset, recognise_any
from fastdata.loading.iterator import NativeIterator, OpenedPass
from fastdata.loading.mixture import leaves, mixtures_in, refuse_paths, transforms_of
from fastdata.loading.native import NativePath
from fastdata.loading.noticing import NoticingPass, in_memory
from fastdata.loading.passes import NoBatches, Pass, ProgressTracker, ReportedPass, TorchPass
from fastdata.loading.resolved import Resolved, resolved_path
from fastdata.loading.resuming import Resumable
from fastdata.loading.samplers import PlannedSampler
from fastdata.loading.seeding import seeded
from fastdata.loading.sharded import LoadersOwn, SequentialOrder, ShardedSampler, ShuffledRows
from fastdata.loading.torchs import DrawnPass, torch_loader, zero_invalid
from fastdata.machine import cpus_for_this_rank
from fastdata.plan.draws import child
from fastdata.plan.order import OrderLike
from fastdata.plan.position import LatestPass, PassProgress, Position
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
            takes its share itself.
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
        self._latest = LatestPass()
        refuse_paths(dataset)
        if num_workers == "auto":
            num_workers = cpus_for_this_rank()
        known = Arguments.__dataclass_fields__
        raw = {name: value for name, value in locals().items() if name in known}
        theirs = torchs(raw)
        own = {name: value for name, value in raw.items() if name not in theirs}
        vars(self).update(own)  # frameworks rebuild loaders from it
        try:
            arguments = Arguments(**raw)
            # Before torch's constructor, which warns of too many workers: threads are none.
            planned = planned_batching(arguments, dataset)
            self._resolved = resolved = resolve(arguments, dataset, planned)
        except UsageError:
            let_torch_refuse(dataset, raw)
            raise
        if isinstance(sampler, PlannedSampler):
            let_torch_refuse(dataset, raw)
        refusal = None if resolved.native else resolved.refusal
        batching = find_batching(arguments, dataset, planned, refusal)
        if isinstance(batching, OrderedBatching) and batching.sampler is not None:
            shuffle = None  # the sampler shuffles
        changes = {"shuffle": shuffle, "sampler": batching.sampler}
        super().__init__(dataset, **torchs(raw, **changes, pin_memory=arguments.pin_memory))
        batching.check_on_error()
        self._resolved = replace(resolved, batching=batching)
        self._open()
        self._warn_avoidable()

    def _open(self) -> None:
        """Prepare the path; read nothing before the first ``iter``."""
        resolved = self._resolved
        self._inner: torch.utils.data.DataLoader[Any] | None = None
        self._native: NativePath | None = None
        followers = self._follows
        if not resolved.native and followers and self.persistent_workers:
            kind = type(followers[0]).__name__
            raise UsageError(
                f"a {kind}'s epoch does not reach workers that persist, and {resolved.reason}",
                resolved.hint or "Leave persistent_workers out.",
            )
        if resolved.native:
            self._native = self._native_path(resolved)
            if resolved.by_size and type(self._native) is not NativePath:
                hint = "Take fastdata.DataLoader, or batches of one size."
                raise UsageError("a BySize needs the core's own decoder", hint)
        own = getattr(self.batch_sampler, "sampler", self.sampler)
        if isinstance(own, LoadersOwn):
            own.native = resolved.native and self._batching.resumes

    def _native_path(self, resolved: Resolved) -> NativePath:
        """Return the native path; a subclass may decode by other means."""
        return NativePath(resolved)

    def _warn_avoidable(self) -> None:
        """Warn if this loader takes a slower path that can be avoided."""
        if not self._resolved.native and self._resolved.avoidable:
            self._warn_slow_path()

    def _warn_slow_path(self) -> None:
        warn(self._resolved.slow_path(), SlowPathWarning)

    def check_worker_number_rationality(self) -> None:
        """Warn as torch does of too many worker processes; not of threads."""
        if not self._resolved.native:
            super().check_worker_number_rationality()

    # Iteration.

    def __iter__(self) -> Any:
        """Return one pass over the samples, which begins with its first batch."""
        self._warn_unsharded()
        self._resolved.arguments.check_ranks()
        self._follow_samplers()
        self._latest.progress = None
        settled = self._next()
        batches: Iterator[Any]
        if self._native is not None:
            if settled is not None:
                self._native.prepare(settled)
            latest = self._latest_on_host()
            begin = partial(self._begin_native, settled)
            batches = self._on_device(NativeIterator(begin, self._length, latest), latest)
        elif self._is_torchs_own:
            batches = self._begin_torch(settled, None, True).batches
        else:
            batches = Pass(partial(self._begin_torch, settled), self._length)
        module = sys.modules.get("accelerate.state") if self._shares_samples else None
        if module is not None and module.GradientState._shared_state:
            return ReportedPass(batches, self._remainder, module.GradientState())
        return batches

    @property
    def _is_torchs_own(self) -> bool:
        """Whether a pass is torch's own iterator, as no epoch matters."""
        plain = self._resolved.path == "torch" and self.seed is None and self.device is None
        own = isinstance(self.sampler, (ShuffledRows, SequentialOrder))
        return plain and own and not self._follows

    @property
    def _follows(self) -> list[Any]:
        """Schedules and mixtures of the dataset, which follow the epoch."""
        return [*self._schedules, *mixtures_in(self.dataset)]

    def __len__(self) -> int:
        """Return the number of batches; of this rank, where the loader shards.

        For an `IterableDataset` it is torch's estimate, which takes no account of workers.
        """
        planned = self._batching.planned
        if planned is not None:
            current = self._current
            return planned.length(self._epoch if current is None else current.start.epoch)
        return super().__len__()

    def _next(self) -> Position | None:
        """Return where the next pass begins, with the dataset as it is; None: an epoch's end."""
        if self._at_end:
            return None
        for one in self._follows:
            one.set_epoch(self._epoch)
        resolved = current(self._resolved, self.dataset)
        if resolved is not self._resolved:
            self._reopen(resolved)
        return self._settled()

    def _start(self, settled: Position | None, native: bool) -> Position | None:
        """Return where a pass begins that was to begin at ``settled``; None: an epoch's end."""
        self._follow_samplers()
        if self._at_end:
            return None
        if settled is None or settled is not self._resume:
            settled = self._next()
        assert settled is not None
        if native != self._resolved.native:
            raise UsageError(
                f"the dataset has left the path of this iterator: {self._resolved.reason}",
                "Call iter(loader) after set_epoch, and after changes of the dataset.",
            )
        return replace(settled, named=self._named)

    def _begin_native(
        self, settled: Position | None, opened: OpenedPass | None, begins: bool
    ) -> OpenedPass | None:
        """Open a pass on the native path, or take the one that is ``opened`` where it begins.

        Return None for an epoch's end. ``begins``: its first batch is taken.
        """
        start = self._start(settled, True)
        if start is None:
            opened = None
        elif opened is None or opened.progress.start != start:
            assert self._native is not None
            opened = self._native.start(start)
        if begins:
            self._record(start, None if opened is None else replace(opened.progress))
        return opened

    def _begin_torch(
        self, settled: Position | None, opened: TorchPass | None, begins: bool
    ) -> TorchPass:
        """Open a pass on another path; arguments are as of `_begin_native`."""
        start = self._start(settled, False)
        if opened is None or opened.start != start:
            made = (None, NoBatches()) if start is None else self._torch_pass(start)
            opened = TorchPass(start, *made)
        if begins:
            self._record(start, opened.progress)
        return opened

    def _length(self) -> Any:
        """Return the number of batches of a pass that begins now; None if unknown."""
        self._follow_samplers()
        if self._at_end:
            return 0
        return super().__len__() if self._native is None else self._native.length(self._settled())

    def _remainder(self) -> int:
        """Return the remainder of a pass that begins now; see `ReportedPass`."""
        self._follow_samplers()
        return -1 if self._at_end else self._batching.remainder(self._settled())

    def _reopen(self, resolved: Resolved) -> None:
        """Follow a dataset that was changed in place: its transform or its samples."""
        native, reason = self._native, self._resolved.reason
        self._resolved = resolved
        self._open()
        if resolved.reason != reason:
            self._warn_avoidable()
        if isinstance(self.sampler, ShardedSampler):
            self.sampler.recount()
        if self._native is not None and native is not None:
            self._native.take_over(native)

    def _torch_pass(self, start: Position) -> tuple[PassProgress | None, Iterator[Any]]:
        """Return the progress, if there is any, and the batches of a pass of torch's loader."""
        if isinstance(self.sampler, ShardedSampler) and self._batching.resumes:
            self.sampler.seed, self.sampler.epoch = start.seed, start.number or 0
        if self._batching.planned is not None:
            self._batching.planned.epoch = start.epoch
        self._seen = self._marks()
        if self.seed is not None:
            return self._seeded_pass(start)
        # An ImageDataset decodes natively by itself, where it is asked for whole batches; in this
        # process it would keep a transform that was changed in place.
        direct = isinstance(self.dataset, ImageDataset) and self.batch_sampler is not None
        direct = direct and self.num_workers > 0
        if self._resolved.path == "workers" and not direct:
            return None, self._on_device(iter(self._torch_loader()))
        return None, self._on_device(self._noticing(super().__iter__()))

    def _noticing(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return a pass of torch's path that warns of itself if its first batch has images."""
        if self._noticed or self._resolved.avoidable:
            return batches
        self._noticed = True
        if all(map(in_memory, leaves(self.dataset))):
            return batches
        return NoticingPass(batches, self.collate_fn, self._warn_slow_path)

    def _on_device(self, batches: Iterator[Any], latest: LatestPass | None = None) -> Iterator[Any]:
        """Return the batches on their device; ``latest`` has the progress on the host."""
        resolved = self._resolved
        if resolved.where is None:
            return batches
        transform = self.batch_transform
        if resolved.arguments.on_error == "zero":
            images = resolved.images
            key = "image" if images is None or self.fields is not None else images.key
            transform = partial(zero_invalid, batch_transform=self.batch_transform, key=key)
        tracker = Tracker() if latest is None else ProgressTracker(latest, self._latest)
        return DeviceIterator(batches, resolved.where, tracker, transform)

    def _latest_on_host(self) -> LatestPass:
        """Return what gets the progress on the host: what was only sent ahead does not count."""
        return self._latest if self._resolved.where is None else LatestPass()

    def _seeded_pass(self, start: Position) -> tuple[PassProgress, Iterator[Any]]:
        """Return a pass of torch's loader that draws from the seed."""
        loader, sampler = self._torch_loader(), self.sampler
        assert isinstance(sampler, ShardedSampler)
        batches: Any = loader.batch_sampler if self.batch_sampler is not None else loader.sampler
        progress = PassProgress(start, -1)
        latest = self._latest_on_host()
        started = DrawnPass(self._noticing(iter(loader)), batches, progress, latest)
        return replace(progress), self._on_device(started, latest)

    def _seeded(self) -> AbstractContextManager[None]:
        """Return the context in which a `DeviceLoader` transforms the batch returned last."""
        if self._latest.progress is None:
            return nullcontext()
        key = self._latest.progress.batch_key
        # Draw otherwise than this loader's own transform.
        return seeded(key if self.batch_transform is None else child(key, _AGAIN))

    def _torch_loader(self) -> torch.utils.data.DataLoader[Any]:
        """Return torch's loader over the same dataset; the same one for every epoch."""
        if self._inner is None:
            prefixed = self._resolved.path == "workers"
            dataset = PrefixDataset(self.dataset) if prefixed else self.dataset
            self._inner = torch_loader(self, dataset, prefixed)
        return self._inner

    @property
    def _schedules(self) -> list[Schedule]:
        """Schedules of the dataset's transforms."""
        return [one for one in transforms_of(self.dataset) if isinstance(one, Schedule)]

    def _warn_unsharded(self) -> None:
        if (
            self._warned_unsharded
            or isinstance(self.dataset, IterableDataset)
            or not self._batching.is_whole
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
            raise self._resolved.refusal("stats()")
        if self._native.counters is None:
            raise UsageError("there are no statistics before the first iter(loader)", "Iterate it.")
        return self._native.counters.stats()

    def explain(self) -> str:
        """Describe which path this loader takes, and why; `stats` counts kinds and decoders."""
        path = self._resolved.explain(str(self._batching))
        schedules = self._schedules
        return f"{path}\nschedule: this is epoch {schedules[0].epoch}'s" if schedules else path

    def __repr__(self) -> str:
        resolved = self._resolved
        return (
            f"<fastdata.DataLoader, {resolved.path} path: {resolved.reason}; batch size "
            f"{self.batch_size}, {self.num_workers} "
            f"{'threads' if resolved.native else 'workers'}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_native"], state["_inner"]  # threads and files
        # The description of the dataset depends on modules that may not be there.
        state["_resolved"] = self._resolved.arguments, self._resolved.batching
        state["_latest"] = replace(self._latest)  # a copy's passes are its own
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        arguments, batching = state["_resolved"]
        self._resolved = resolve(arguments, self.dataset, batching)
        self._open()


def current(resolved: Resolved, dataset: Any) -> Resolved:
    """Return ``resolved``, or another one if the dataset or torch's collation has changed."""
    if resolved.images is None:
        return resolved
    with fresh_look():
        unchanged = resolved.collation == resolved.arguments.changed_collation()
        size = next(iter(_sizes(dataset, resolved.batching)), None)
        if unchanged and resolved.images.equals(recognise_any(dataset, size)):
            return resolved
    return resolve(resolved.arguments, dataset, resolved.batching)


def resolve(arguments: Arguments, dataset: Any, batching: Batching | None) -> Resolved:
    """Return the path for a dataset; with a `BySize`, for each size class of the batches.

    Raise UsageError if no path can honour the arguments.
    """
    sizes = _sizes(dataset, batching)
    with fresh_look():
        collation = arguments.changed_collation()
        described = [recognise_any(dataset, size) for size in sizes or (None,)]
        unsized = () if batching is None or sizes else batching.sizes
        if unsized and isinstance(described[0], Readable):
            raise UsageError(
                "the batch_sampler= gives each batch a size, and no transform takes it",
                "Give the dataset transform=fastdata.transforms.BySize(…); or ratios= in the "
                "place of sizes=, for batches of one aspect ratio and images of any size.",
            )
        several = [resolved_path(arguments, one, collation) for one in described]
    # They differ in their sizes alone.
    first = next((one for one in several if not one.native), several[0])
    return replace(first, batching=batching, by_size=tuple(several) if sizes else ())


def _sizes(dataset: Any, batching: Batching | None) -> Sequence[tuple[int, int]]:
    """Return the sizes of batches that a dataset's transform takes."""
    if batching is None or not any(isinstance(one, BySize) for one in transforms_of(dataset)):
        return ()
    return batching.sizes
