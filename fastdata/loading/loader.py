"""`DataLoader`: torch's, with images decoded natively by threads where it can be done.

Three ways: *native* (threads of this process decode), *workers* (torch's worker processes, in
which fastdata decodes and the rest of the transform runs) and *torch* (torch's loader as it is).
`DataLoader.explain` says which one was taken, and why.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, SupportsIndex, TypeVar

import torch
import torch.utils.data
from torch import distributed as dist
from torch.utils.data import Sampler, SequentialSampler

from fastdata.dataset import ImageDataset
from fastdata.device.ahead import DeviceIterator, Tracker, destination
from fastdata.errors import UsageError
from fastdata.loading.arguments import (
    NATIVE_ONLY,
    ON_DEVICE,
    check_backend,
    check_device,
    check_native,
    find_ranks,
    own_sampler,
)
from fastdata.loading.choice import Choice, choose
from fastdata.loading.head import HeadDataset
from fastdata.loading.images import reads_remotely
from fastdata.loading.iterator import Delivery, Progress, ProgressTracker
from fastdata.loading.native import NativePath, Resources
from fastdata.loading.pipeline import Settings
from fastdata.loading.sampler import ShardedSampler, draws_once, process_rank
from fastdata.loading.seek_cache import DEFAULT_BYTES
from fastdata.loading.stats import Stats
from fastdata.machine import cpus_for_this_rank
from fastdata.plan.draws import epoch_key, rank_key
from fastdata.plan.order import make_order
from fastdata.plan.schedule import Indices, ordered, sampled
from fastdata.plan.sharding import Epoch, State

T = TypeVar("T", covariant=True)

_TORCH_HAS_IN_ORDER = "in_order" in inspect.signature(torch.utils.data.DataLoader).parameters


class DataLoader(torch.utils.data.DataLoader[T], Generic[T]):
    """``torch.utils.data.DataLoader``, with the same arguments, several times faster for images.

    The native path is taken for an `ImageDataset`, and for torchvision's ``ImageFolder``,
    ``DatasetFolder`` and ``ImageNet``, if the transform is made of what fastdata knows
    (`fastdata.transforms`, or torchvision's RandomResizedCrop, Resize, CenterCrop, RandomCrop,
    RandomHorizontalFlip and conversions to tensors). Everything else is torch's own path.

    On the native path a batch is a list: images, uint8, N x 3 x H x W in channels-last memory
    (or what the torchvision transforms would have made: shape, dtype, layout), and labels,
    int64, shape (N,). ``num_workers`` is the number of decode threads in this process, 0 for the
    caller's own; ``prefetch_factor`` batches are prepared ahead, whatever their number.
    A batch's memory is used again when nothing refers to it any more.

    Args:
        dataset: As torch's.
        batch_size: As torch's; on one rank.
        shuffle: As torch's: the same as ``order="random"``; for a remote dataset, as
            ``order="quasi-random"``.
        sampler: As torch's; a ``DistributedSampler`` shards.
        batch_sampler: As torch's.
        num_workers: Decode threads, or torch's worker processes; "auto" for the CPUs that this
            process may use (affinity, cgroup) divided by the ranks on this machine.
        collate_fn: As torch's. `fastdata.fast_collate` keeps the native path.
        pin_memory: As torch's: page-locked memory where there is a GPU.
        drop_last: As torch's. Over several ranks: whether samples that do not fill a batch on
            every rank are dropped; else some are repeated, and every rank has as many batches.
        timeout: As torch's: seconds to wait for a batch; 0 for ever.
        worker_init_fn: As torch's. Needs worker processes, so takes torch's workers.
        multiprocessing_context: As torch's, for worker processes.
        generator: As torch's: where the seed of each epoch is drawn from, unless ``seed`` is given.
        prefetch_factor: As torch's; on the native path for all threads together.
        persistent_workers: As torch's: threads and batch memory stay from epoch to epoch.
        pin_memory_device: As torch's.
        in_order: As torch's. Native batches are always in order.
        order: "random", "quasi-random" (neighbours stay near each other: for disks and object
            stores; "quasi-random:512" for windows of 512 blocks instead of 128) or "sequential",
            in constant memory.
        seed: Seed of order, crops and flips, which are then functions of (seed, epoch, sample)
            (with a sampler given: of crops and flips; in torch's workers: of the order);
            None to draw one from ``generator`` at each epoch's beginning (with several ranks: 0).
            The epoch counts up by itself; `set_epoch` sets it.
        distributed: Shard by torch.distributed's rank and world size.
        rank: Shard by this rank, with ``world_size``.
        world_size: Number of ranks.
        dtype: "uint8", "float32", "float16" or "bfloat16", or torch's of that name; None for what
            the transform says.
        mean: Three values in units of 0 to 1, subtracted from float images.
        std: Three values in units of 0 to 1, which float images are divided by.
        views: Crops of each sample; with more than one, images are a list of tensors.
        on_error: What to do about a sample that cannot be read or decoded: "raise" in the batch's
            place; "skip", its place taken by the order's next sample; "zero" it, batches having a
            bool mask of the whole ones, shape (N,), as their last element.
        return_index: Add sample numbers, int64, shape (N,).
        return_key: Add a list of sample names.
        batch_transform: Called with a batch's elements; what it returns is the batch (CutMix,
            MixUp, transforms on the GPU).
        dct_scaling: Decode at 1/2, 1/4 or 1/8 where the crop is so much larger than the target:
            faster, other pixels.
        check: Whether checksums are checked on every read.
        seek_cache_bytes: Memory for the seek points that a folder of images gains in its first
            epoch, which make the next ones faster; 0 for none.
        seek_cache_file: Where they are saved at an epoch's end, and read from.
        device: Where batches go: "cuda" (or "cuda:1", …) or "cpu"; None to leave them on the host,
            as torch does. They are sent ahead, from page-locked memory, on a stream of their own,
            as `fastdata.DeviceLoader` says. ``dtype``, ``mean`` and ``std`` are then applied to
            uint8 images there, on every path; images come in channels-last memory, and
            ``batch_transform`` is given what is on the device.
        backend: "native", or "dali" to have NVIDIA DALI decode in its place, on the CPU;
            `fastdata.dali.DALILoader` has DALI's own settings, and GPUs.

    Raises:
        UsageError: Arguments contradict each other, or cannot be honoured on the path taken.
        ValueError: What torch finds wrong with its arguments.
    """

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
        order: str | None = None,
        seed: int | None = None,
        distributed: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        dtype: str | torch.dtype | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        views: int = 1,
        on_error: str = "raise",
        return_index: bool = False,
        return_key: bool = False,
        batch_transform: Callable[..., Any] | None = None,
        dct_scaling: bool = False,
        check: bool = True,
        seek_cache_bytes: int = DEFAULT_BYTES,
        seek_cache_file: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
        backend: str = "native",
    ) -> None:
        if num_workers == "auto":
            num_workers = cpus_for_this_rank()
        elif not isinstance(num_workers, SupportsIndex):
            raise UsageError(f"num_workers={num_workers!r}", 'Give a whole number, or "auto".')
        # Under the names of the parameters: frameworks make loaders anew from these.
        self.order, self.seed = order, seed
        self.distributed, self.rank, self.world_size = distributed, rank, world_size
        self.dtype, self.mean, self.std = dtype, mean, std
        self.views, self.on_error = views, on_error
        self.return_index, self.return_key = return_index, return_key
        self.batch_transform = batch_transform
        self.dct_scaling, self.check = dct_scaling, check
        self.seek_cache_bytes, self.seek_cache_file = seek_cache_bytes, seek_cache_file
        self.device = device
        self._where = None if device is None else destination(device, dtype, mean, std)
        if self._where is not None and self._where.device.type == "cuda":
            pin_memory = True
        self.backend = backend

        # Before torch's constructor, which warns of too many workers: threads are none.
        batched = batch_size is not None or batch_sampler is not None
        choice = self._choose(dataset, batched, collate_fn, worker_init_fn)
        self._own_order = sampler is None and batch_sampler is None
        self._ranks = find_ranks(distributed, rank, world_size)
        # Accelerate would shard what is sharded already; what has this mark it leaves alone.
        self._is_accelerate_prepared = self._ranks is not None
        if seed is not None and not self._own_order and choice.path != "native":
            raise UsageError(
                f"seed={seed} with a sampler is for crops on the native path, which is not taken: "
                f"{choice.reason}",
                "Seed the sampler, and torch.manual_seed for the crops.",
            )
        self._by_default = None
        if order is None and shuffle and self._own_order and reads_remotely(dataset):
            self._by_default = order = "quasi-random"
        seeds_order = seed is not None and self._own_order
        if order is not None or seeds_order or self._ranks is not None:
            sampler = own_sampler(
                dataset,
                batch_size,
                shuffle,
                drop_last,
                order,
                seed,
                self._ranks,
                (sampler, batch_sampler),
            )
            shuffle = None
        options: dict[str, Any] = {"in_order": in_order} if _TORCH_HAS_IN_ORDER else {}
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **options,
        )
        self._epoch = 0
        self._resume: State | None = None
        self._resume_ahead = 0
        self._progress: Progress | None = None
        self._warned_unsharded = False
        self._open()

    def _choose(
        self,
        dataset: Any,
        batched: bool,
        collate_fn: Callable[[list[Any]], Any] | None,
        worker_init_fn: Callable[[int], None] | None,
    ) -> Choice:
        choice = choose(
            dataset, batched=batched, collate_fn=collate_fn, worker_init_fn=worker_init_fn
        )
        given = {name: getattr(self, name) for name in NATIVE_ONLY}
        if self._where is not None:
            check_device(choice, self._where)
            # The device does these, on whichever path batches come.
            given |= {name: NATIVE_ONLY[name] for name in ON_DEVICE}
        self._choice = check_native(choice, given)
        check_backend(self._choice, self.backend)
        return choice

    def _choose_again(self) -> None:
        batched = self.batch_sampler is not None
        self._choose(self.dataset, batched, self.collate_fn, self.worker_init_fn)
        self._open()

    def _open(self) -> None:
        """Makes what the path needs. Nothing is read before the first ``iter``."""
        choice = self._choice
        self._native: NativePath | None = None
        self._inner: torch.utils.data.DataLoader[Any] | None = None
        if choice.path != "native":
            return
        assert choice.images is not None
        assert choice.recipe is not None
        self._native = self._native_path(
            choice.images,
            Settings(
                replace(choice.recipe, programs=choice.recipe.programs * self.views),
                self.check,
                self.dct_scaling,
            ),
            Delivery(
                on_error=self.on_error,
                target_transform=choice.images.target_transform,
                batch_transform=None if self._where is not None else self.batch_transform,
                return_index=self.return_index,
                return_key=self.return_key,
                timeout=self.timeout,
                ahead=0 if self.num_workers == 0 else (self.prefetch_factor or 1),
            ),
            Resources(
                threads=self.num_workers,
                keep=self.persistent_workers,
                pin_memory=self.pin_memory,
                seek_cache_bytes=self.seek_cache_bytes,
                seek_cache_file=None
                if self.seek_cache_file is None
                else Path(self.seek_cache_file),
            ),
        )

    def _native_path(self, *parts: Any) -> NativePath:
        if self.backend == "native":
            return NativePath(*parts)
        from fastdata.dali.path import DALIPath

        options = {"options": self._dali_options(), "batch_size": self.batch_size or 1}
        return DALIPath(*parts, **options)

    def _dali_options(self) -> Any:
        """How DALI runs."""
        from fastdata.dali.options import DALIOptions

        return DALIOptions()

    def check_worker_number_rationality(self) -> None:
        """Torch's warning about too many worker processes; threads are none."""
        if self._choice.path != "native":
            super().check_worker_number_rationality()

    # Iteration.

    def __iter__(self) -> Any:
        """One pass over the samples: on the native path an iterator of its own each time."""
        self._warn_unsharded()
        if isinstance(self.sampler, ShardedSampler) and self.sampler.asked:
            self._begin_epoch(self.sampler.epoch)  # frameworks call the sampler's set_epoch
        images = self._choice.images
        if images is not None and not images.is_current():
            before = self._native
            self._choose_again()  # its transform is another one now
            if self._native is not None and before is not None:
                self._native.take_source(before)
        if self._native is not None:
            return self._native_iterator(self._native)
        self._advance_sampler()
        # An ImageDataset decodes natively by itself, where it is asked for whole batches.
        direct = isinstance(self.dataset, ImageDataset) and self.batch_sampler is not None
        if self._choice.path == "workers" and not direct:
            return self._on_device(iter(self._with_head()), Tracker())
        return self._on_device(super().__iter__(), Tracker())

    def _on_device(self, batches: Iterator[Any], tracker: Tracker) -> Iterator[Any]:
        """The batches where they are to be."""
        if self._where is None:
            return batches
        return DeviceIterator(batches, self._where, tracker, self.batch_transform)

    def _native_iterator(self, native: NativePath) -> Iterator[Any]:
        resume, self._resume = self._resume, None
        samples = len(native)
        if resume is None:
            resume = State(samples, self._epoch_seed(), self._epoch, 0, self._order)
            self._resume_ahead = 0
        # Frameworks and users may look at the epoch, or set another one, from now on.
        self._epoch = resume.epoch + 1
        key = epoch_key(resume.seed, self._numbered(resume.epoch))
        batches: Iterator[tuple[Indices, int]]
        length: int | None
        if self._own_order:
            assert self.batch_size is not None
            rank, world_size = self._ranks or (0, 1)
            plan = Epoch(
                samples, self.batch_size, rank, world_size, self.drop_last, resume.position
            )
            order = make_order(resume.order, samples, resume.seed, self._numbered(resume.epoch))
            batches, length = ordered(plan, order), len(plan)
        else:
            assert self.batch_sampler is not None
            once = draws_once(self.batch_sampler, samples)
            batches = sampled(self.batch_sampler, samples, replacing=not once)
            if not once:
                key = rank_key(key, process_rank())
            try:
                length = len(self.batch_sampler)  # type: ignore[arg-type]
            except TypeError:  # nobody knows
                length = None
        self._progress = Progress(resume.seed, resume.epoch, resume.position, self._resume_ahead)
        # On a device, a state must not count what was only sent ahead.
        sent = replace(self._progress) if self._where is not None else self._progress
        started = native.start(batches, key, sent, length)
        return self._on_device(started, ProgressTracker(sent, self._progress))

    def _numbered(self, epoch: int) -> int:
        """The epoch as it goes into random numbers: a seed that is drawn is for one epoch alone."""
        return epoch if self.seed is not None or self._ranks is not None else 0

    def _epoch_seed(self) -> int:
        """The seed of an epoch that begins: given, or drawn as torch draws its own."""
        drawn = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        if self.seed is not None:
            return self.seed
        # Ranks must agree, and their generators need not.
        return drawn if self._ranks is None else 0

    def _with_head(self) -> torch.utils.data.DataLoader[Any]:
        """Torch's loader over the same dataset, decoded natively in its workers."""
        if self._inner is None:
            options: dict[str, Any] = {"in_order": self.in_order} if _TORCH_HAS_IN_ORDER else {}
            if self.batch_sampler is not None:
                options["batch_sampler"] = self.batch_sampler
            else:
                options |= {"sampler": self.sampler, "batch_size": None}
            self._inner = torch.utils.data.DataLoader(
                HeadDataset(self.dataset),
                num_workers=self.num_workers,
                collate_fn=self.collate_fn,
                pin_memory=self.pin_memory,
                timeout=self.timeout,
                worker_init_fn=self.worker_init_fn,
                multiprocessing_context=self.multiprocessing_context,
                generator=self.generator,
                prefetch_factor=self.prefetch_factor,
                persistent_workers=self.persistent_workers,
                pin_memory_device=self.pin_memory_device,
                **options,
            )
        return self._inner

    def _advance_sampler(self) -> None:
        """On torch's paths: an order of ours goes on to its next epoch, as on the native path."""
        if isinstance(self.sampler, ShardedSampler) and self._own_order:
            self.sampler.seed = self._epoch_seed()
            self.sampler.epoch = self._numbered(self._epoch)
            self._epoch += 1

    def _warn_unsharded(self) -> None:
        if (
            self._warned_unsharded
            or isinstance(self.dataset, torch.utils.data.IterableDataset)
            or not self._own_order
            or self._ranks is not None
            or not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
        ):
            return
        self._warned_unsharded = True
        warnings.warn(
            f"each of the {dist.get_world_size()} ranks of this job loads all samples: give the "
            "DataLoader distributed=True or a DistributedSampler, so that each loads its share",
            stacklevel=3,
        )

    # Epochs and state.

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch that the next ``iter`` begins; tells the sampler, if it has one.

        The epoch of a state that was loaded goes on where it was; another one begins anew.
        """
        _set_epoch(self.batch_sampler, epoch)
        _set_epoch(self.sampler, epoch)
        self._begin_epoch(epoch)

    def _begin_epoch(self, epoch: int) -> None:
        if self._resume is None or self._resume.epoch != epoch:
            self._resume = None
            if self._progress is not None:
                # The iterator of the epoch before may still be going on with the old one.
                self._progress = replace(self._progress, ended=True)
        self._epoch = epoch
        if isinstance(self.sampler, ShardedSampler):
            self.sampler.asked = False

    def state_dict(self) -> dict[str, Any]:
        """Where iteration is, after the last batch that was delivered: a handful of integers.

        Every sample of the epoch is delivered exactly once in total, also when it goes on with
        another number of ranks, threads or another batch size. (With ``on_error="skip"`` each
        rank has a state of its own; with another number of ranks, samples that took the place of
        bad ones may come twice.)

        Where torch's path is taken, or a sampler whose order cannot be had again, there is no
        state: that is a warning, and an empty dict. Lightning asks any loader that has this
        method, whenever it saves a checkpoint.
        """
        why = self._why_no_state()
        if why is not None:
            warnings.warn(
                f"where this loader is cannot be saved, the epoch would begin anew: {why.what}",
                stacklevel=2,
            )
            return {}
        assert self._native is not None
        progress = self._progress
        samples = len(self._native)
        if self._resume is None and progress is not None and not progress.ended:
            state = State(samples, progress.seed, progress.epoch, progress.position, self._order)
            return {**state.to_dict(), "ahead": progress.ahead}
        if self._resume is None:
            # Its seed is drawn now, so that this loader and one that resumes go the same way.
            self._resume = State(samples, self._epoch_seed(), self._epoch, 0, self._order)
            self._resume_ahead = 0
        return {**self._resume.to_dict(), "ahead": self._resume_ahead}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state with the next ``iter``.

        Raises:
            UsageError: It is not of this dataset, or of this order; or this loader can have none.
        """
        why = self._why_no_state()
        if why is not None:
            if state == {}:
                return  # what this loader's own state_dict() says
            raise why
        native = self._native
        assert native is not None
        if not isinstance(state, Mapping):
            State.from_dict(state)  # says what is wrong
        values = dict(state)
        ahead = values.pop("ahead", 0)
        found = State.from_dict(values, len(native))
        if isinstance(ahead, bool) or not isinstance(ahead, int) or ahead < 0:
            raise UsageError(
                f"The state's ahead is {ahead!r}, not a number of samples.",
                "Give what state_dict() returned, unchanged.",
            )
        if found.order != self._order:
            raise UsageError(
                f"the state is of order {found.order!r}, this loader's is {self._order!r}",
                "Make the loader with the same order or shuffle as then.",
            )
        if self.seed is not None and found.seed != self.seed:
            raise UsageError(
                f"the state is of seed {found.seed}, this loader's is {self.seed}",
                "Make the loader with the same seed as then.",
            )
        self._epoch = found.epoch
        self._resume, self._resume_ahead = found, ahead
        self._progress = Progress(found.seed, found.epoch, found.position, ahead)

    @property
    def can_resume(self) -> bool:
        """Whether `state_dict` says where this loader is."""
        return self._why_no_state() is None

    @property
    def _order(self) -> str:
        """The order's name."""
        if isinstance(self.sampler, ShardedSampler):
            return self.sampler.order
        return "sequential" if isinstance(self.sampler, SequentialSampler) else "random"

    def _why_no_state(self) -> UsageError | None:
        if self._native is None:
            return UsageError(
                f"a state needs the native path, which is not taken: {self._choice.reason}",
                "Change what stands in the way.",
            )
        if not self._own_order:
            return UsageError(
                "a state needs an order of fastdata's; this loader was given a sampler",
                "Give shuffle=True or order=, and distributed=True instead of DistributedSampler.",
            )
        return None

    # What users see.

    def stats(self) -> Stats:
        """What was done since the last ``iter``, and where the time went.

        Raises:
            UsageError: The native path is not taken, or nothing was iterated yet.
        """
        if self._native is None:
            raise UsageError(
                "statistics need the native path, which is not taken: " + self._choice.reason,
                "Change what stands in the way.",
            )
        if self._native.counters is None:
            raise UsageError("there are no statistics before the first iter(loader)", "Iterate it.")
        return self._native.counters.stats()

    def explain(self) -> str:
        """Which path is taken and why, in words."""
        choice = self._choice
        words = {
            "native": f"native: {self.num_workers or 'no'} decode threads in this process",
            "workers": "workers: fastdata decodes in torch's worker processes",
            "torch": "torch: torch's own loader, unchanged",
        }[choice.path]
        if self.backend == "dali":
            words = f"dali, on {self._dali_options().device}: {max(self.num_workers, 1)} threads"
        lines = [words, f"because: {choice.reason}"]
        if choice.path == "native":
            lines.append(
                f"order: {self._order if self._own_order else 'that of the sampler given'}"
            )
        if self._by_default is not None:
            lines.append(
                f"which is {self._by_default}, the default where a remote dataset is shuffled: "
                'neighbours are fetched together (order="random" for a full shuffle)'
            )
        if self._ranks is not None:
            lines.append("sharding: rank {} of {}".format(*self._ranks))
        if self._where is not None:
            lines.append(f"device: {self._where.describe()}")
        return "\n".join(lines)

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
        for name in ("_native", "_inner", "_choice"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._choose_again()


def _set_epoch(sampler: Any, epoch: int) -> None:
    for one in (sampler, getattr(sampler, "sampler", None)):
        set_epoch = getattr(one, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
