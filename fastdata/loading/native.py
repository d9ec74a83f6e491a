"""The native path of one loader: keeps threads and files open, and starts epochs."""

from __future__ import annotations

from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import default_collate

from fastdata import _native
from fastdata.device.transfer import is_asynchronous
from fastdata.errors import warn
from fastdata.executors import helper_threads
from fastdata.loading.fields.buffers import BufferPool
from fastdata.loading.fields.field import Context
from fastdata.loading.fields.image import ImageField
from fastdata.loading.fields.pipeline import Pipeline, blobs_among, open_pipeline
from fastdata.loading.fields.stats import Counters
from fastdata.loading.iterator import OpenedPass
from fastdata.plan.position import PassProgress, Position
from fastdata.plan.schedule import BatchSchedule, Numbering
from fastdata.storage.source import PassRequest, Source

if TYPE_CHECKING:
    from fastdata.loading.fields.readable import Readable
    from fastdata.loading.resolved import Resolved


def _refuse(job: _native.Work) -> NoReturn:
    raise RuntimeError("the pass is closed")


class NativePath:
    """Native path of a loader: opens the dataset on first use, and starts passes.

    ``counters`` are those of the latest pass; None before the first.
    """

    #: Whether files gain seek points in the first epoch, if the dataset keeps them.
    learns = True
    #: Whether the core decodes all JPEGs, so that no more of them is fetched than it needs.
    in_part = True

    def __init__(self, resolved: Resolved) -> None:
        config = self._config = resolved.arguments
        # The dataset and its transform, for each size class of batches.
        sized = resolved.by_size or (resolved,)
        self._readables: list[Any] = [one.images for one in sized]
        self._recipes: list[Any] = [one.recipe for one in sized]
        self._readable: Readable = self._readables[0]
        self._fields = config.fields or self._readable.fields
        assert resolved.batching is not None
        self._batching = resolved.batching
        self._source: Source | None = None
        self._threads: _native.ThreadPool | None = None
        self._pool: BufferPool | None = None
        self._bad: set[int] = set()
        self._warned_fallback = Event()
        self.counters: Counters | None = None

    @property
    def source(self) -> Source:
        """Source of the samples."""
        if self._source is None:
            self._source = self._readable.open(self.learns)
        return self._source

    @property
    def _numbering(self) -> Numbering:
        return self._readable.numbering(self.source)

    def take_over(self, other: NativePath) -> None:
        """Take over another path's threads and memory; its source, too, if files are the same."""
        self._threads, self._pool = other._threads, other._pool
        if other._readable.opens_as(self._readable):
            self._source, self._bad = other._source, other._bad
            self._warned_fallback = other._warned_fallback

    def prepare(self, start: Position) -> None:
        """Count a pass to come from 0; raise the errors of its order and of opening the dataset."""
        self.length(start)
        self.counters = Counters(max(self._config.num_workers, 1))

    def length(self, start: Position) -> int | None:
        """Return the number of batches of a pass that begins at ``start``; None if unknown."""
        return self._batching.draw(start, self._numbering.n).length

    def start(self, start: Position) -> OpenedPass:
        """Start a pass: draw its batches, open what they need."""
        config, numbering, drops = self._config, self._numbering, self._config.on_error == "drop"
        batches, key, length, among = self._batching.draw(start, numbering.n)
        progress = PassProgress(start, -1 if length is None else length)
        bad = self._bad if config.on_error in ("skip", "drop") else set()
        threads, pool = self._threads, self._pool
        if threads is None and config.num_workers:
            threads = _native.ThreadPool(config.num_workers)
        if pool is None:
            # One that is filled, those ahead, and the one that the consumer still has.
            pool = BufferPool(config.prefetch + 2, self._pins())
        if config.persistent_workers:
            self._threads, self._pool = threads, pool
        helpers = helper_threads(config.num_workers)
        counters = self.counters = Counters(max(config.num_workers, 1))
        # A user who asks for torch's function gets what that makes of a sample's fields.
        context = Context(
            self._readable,
            self.source,
            _native.Work.run if threads is None else threads.submit,
            pool,
            helpers,
            counters,
            single=config.own_collate(self._readable) is not None,
            as_torch=config.collate_fn is default_collate and config.fields is None,
            warned_fallback=self._warned_fallback,
        )
        pipeline = self._pipeline(context)
        images, fetches = pipeline.delivered.get("image"), None
        if self.in_part and isinstance(images, ImageField):
            fetches = partial(images.plan_fetches, numbering, key)
        blobs = blobs_among(self.source, self._fields)
        schedule = BatchSchedule(batches, numbering, key, bad, among=among, drops=drops)
        remote = self.source.start_pass(PassRequest(schedule, numbering, bad, fetches, blobs))
        context.remote = counters.remote = remote

        def close() -> None:
            if remote is not None:
                remote.close()
            helpers.end()
            if config.persistent_workers:
                return
            pipeline.close()
            pool.close()
            context.start = _refuse  # the threads end with the last reference to them

        return OpenedPass(pipeline, schedule, key, config, progress, length, close)

    def _pipeline(self, context: Context) -> Pipeline:
        """Return the pipeline of a pass's fields."""
        return open_pipeline(context, self._recipes, self._readables, self._config.fields)

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
