"""The native path of one loader: keeps threads and files open, and starts epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fastdata.decode.engine import Engine
from fastdata.decode.rows import describe_kinds
from fastdata.device.transfer import is_asynchronous
from fastdata.errors import warn
from fastdata.executors import helper_threads
from fastdata.loading.fields.batch import Settings
from fastdata.loading.fields.buffers import BufferPool
from fastdata.loading.fields.further import (
    Pipelines,
    SizedPipelines,
    blobs_among,
    open_pipelines,
)
from fastdata.loading.fields.masks import MaskPipeline
from fastdata.loading.fields.pipeline import Pipeline, plan_fetches
from fastdata.loading.fields.stats import Counters
from fastdata.loading.fields.targets import reader_of
from fastdata.loading.iterator import NativeIterator
from fastdata.loading.progress import Progress
from fastdata.plan.order import Order
from fastdata.plan.schedule import BatchSchedule, Drawn, Numbering
from fastdata.storage.source import Source
from fastdata.transforms.compile import Recipe
from fastdata.transforms.outcomes import without_fixed_size

if TYPE_CHECKING:
    from fastdata.loading.config import LoaderConfig
    from fastdata.loading.fields.images import Readable
    from fastdata.remote.prefetch import FetchField, RemotePass


class NativePath:
    """Native path of a loader: opens the dataset on first use, and starts passes.

    ``counters`` are those of the latest pass; None before the first.
    """

    #: Whether files gain seek points in the first epoch, if the dataset keeps them.
    learns = True
    #: Whether the core decodes all JPEGs, so that no more of them is fetched than it needs.
    in_part = True

    def __init__(self, images: Readable, recipe: Recipe, config: LoaderConfig) -> None:
        self._images = images
        part_of = images.part_of if recipe.parts else None
        self._settings = Settings(recipe, images.limits, reader=reader_of(images), part_of=part_of)
        self._config = config
        self._fields = config.fields or images.fields
        self._source: Source | None = None
        self._engine: Engine | None = None
        self._pool: BufferPool | None = None
        self._bad: set[int] = set()
        self._by_size: Sequence[NativePath] = ()
        self.counters: Counters | None = None

    @property
    def source(self) -> Source:
        """Source of the samples."""
        if self._source is None:
            self._source = self._images.open(self.learns)
        return self._source

    def __len__(self) -> int:
        """Return the number of samples of the loader's dataset."""
        return self._numbering.n

    def describe_kinds(self) -> str:
        """The share of each kind of image, and what decodes it, in words; "" without images."""
        if "image" not in self._fields:
            return ""
        return describe_kinds(self.source, self._settings.limits, self._images.subset)

    @property
    def _numbering(self) -> Numbering:
        return self._images.numbering(self.source)

    def take_over(self, other: NativePath) -> None:
        """Take over another path's threads and memory; its source, too, if files are the same."""
        self._engine, self._pool = other._engine, other._pool
        if other._images.opens_as(self._images):
            self._source, self._bad = other._source, other._bad
            self._settings.told_fallback = other._settings.told_fallback

    def differ(self, by_size: Sequence[NativePath]) -> None:
        """Decode batches of each size class as another path does, from the same source."""
        self._by_size = by_size
        for one in by_size:
            one._settings.told_fallback = self._settings.told_fallback

    def start(
        self,
        batches: Iterator[Drawn],
        key: int,
        progress: Progress,
        length: int | None,
        *,
        sampler: bool,
        among: Order | None = None,
    ) -> Iterator[Any]:
        """Start a pass, which updates ``progress``; ``length`` is None if unknown.

        ``sampler``: the batches come from a torch sampler. Substitutes for bad samples come from
        the order ``among``, None for all samples.
        """
        config = self._config
        numbering = self._numbering
        bad = self._bad if config.on_error in ("skip", "drop") else set()
        fetches = None
        if self.in_part and not self._by_size:
            fetches = partial(plan_fetches, self._settings, numbering, key)
        blobs = blobs_among(self.source, self._fields)
        remote = self.source.start_pass(batches, numbering, bad, fetches, blobs)
        if remote is not None:
            batches = remote
        drops = config.on_error == "drop"
        schedule = BatchSchedule(
            batches, numbering, key, bad, sampler=sampler, among=among, drops=drops
        )
        engine, pool = self._engine, self._pool
        if engine is None and config.num_workers:
            engine = Engine(config.num_workers)
        if pool is None:
            # One that is filled, those ahead, and the one that the consumer still has.
            pool = BufferPool(config.prefetch + 2, self._pins())
        if config.persistent_workers:
            self._engine, self._pool = engine, pool
        helpers = helper_threads(config.num_workers)
        self.counters = Counters(max(config.num_workers, 1), remote=remote)
        about = pool, engine, helpers, self.counters, remote
        for one in self._by_size:
            one._source = self.source
        several = [one._pipelines(*about) for one in self._by_size or (self,)]
        pipeline = SizedPipelines(several) if self._by_size else several[0]

        def close() -> None:
            if remote is not None:
                remote.close()
            helpers.shutdown(wait=False, cancel_futures=True)
            if config.persistent_workers:
                return
            pipeline.close()
            pool.close()
            if engine is not None:
                engine.close()

        return NativeIterator(
            pipeline,
            schedule,
            key,
            self.source,
            config,
            self._images,
            self.counters,
            progress,
            length,
            self._to_device(pool),
            close,
        )

    def _pipelines(
        self,
        pool: BufferPool,
        engine: Engine | None,
        helpers: Executor,
        counters: Counters,
        remote: RemotePass | None,
    ) -> Pipelines:
        """Return the pipelines of a pass's fields."""

        def decoder(source: Any, name: str, fetch: FetchField | None) -> Pipeline | MaskPipeline:
            if name == "image":
                return self._pipeline(pool, engine, helpers, counters, fetch)
            if name not in self._images.further:
                about = source, self._settings, pool.of(name)
                return MaskPipeline(*about, helpers, counters, fetch)
            recipe = without_fixed_size(self._images.further[name])
            assert isinstance(recipe, Recipe)
            settings = replace(self._settings, recipe=recipe, reader=None)
            own = pool.of(name)
            return Pipeline(source, settings, own, engine, helpers, counters, fetch)

        single = self._config.own_collate(self._images) is not None
        about = remote, single, self._settings.reader
        return open_pipelines(self.source, self._fields, decoder, engine, *about)

    def _pipeline(
        self,
        pool: BufferPool,
        engine: Engine | None,
        helpers: Executor,
        counters: Counters,
        fetch: FetchField | None,
    ) -> Pipeline:
        """Return the pipeline that decodes a pass's images."""
        return Pipeline(self.source, self._settings, pool, engine, helpers, counters, fetch)

    def _to_device(self, pool: BufferPool) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Return the function that moves tensors to where images are; None for plain memory."""
        return torch.Tensor.pin_memory if pool.pinned else None

    def _pins(self) -> bool:
        if not self._config.pin_memory:
            return False
        if torch.accelerator.is_available():
            device = torch.accelerator.current_accelerator()
            return device is not None and is_asynchronous(device)
        warn(
            # torch's own words
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used."
        )
        return False
