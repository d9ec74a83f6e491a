"""Native decoding of single samples, for torch's own loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastdata.executors import InProcess
from fastdata.loading.fields.buffers import BufferPool
from fastdata.loading.fields.field import Batch, Context
from fastdata.loading.fields.names import row_number
from fastdata.loading.fields.pipeline import Pipeline, blobs_among, open_pipeline
from fastdata.loading.fields.stats import Counters
from fastdata.plan.draws import epoch_key
from fastdata.plan.schedule import Indices, occurrences_within
from fastdata.storage.source import PassRequest

if TYPE_CHECKING:
    from fastdata.loading.fields.readable import Readable
    from fastdata.transforms.recipe import Recipe


class SampleDecoder:
    """Decoder of samples in the calling thread: decodes, crops, applies the rest of transforms."""

    def __init__(self, readable: Readable, recipe: Recipe) -> None:
        self._readable, self._recipe = readable, recipe
        self._source = readable.open(False)
        self._numbering = readable.numbering(self._source)
        self._made: tuple[int, Pipeline] | None = None

    @property
    def _pipeline(self) -> Pipeline:
        # What fetches remotely is of one process.
        if self._made is None or self._made[0] != os.getpid():
            source, pool = self._source, BufferPool(1, False)
            blobs = blobs_among(source, self._readable.fields)
            request = PassRequest(iter(()), self._numbering, set(), fields=blobs)
            remote = source.start_pass(request)
            context = Context(
                self._readable, source, None, pool, InProcess(), Counters(0), remote, single=True
            )
            context.warned_fallback.set()
            self._made = os.getpid(), open_pipeline(context, [self._recipe], [self._readable])
        return self._made[1]

    def samples(self, indices: Sequence[int]) -> list[Any]:
        """Return samples as the dataset's own ``__getitem__`` does.

        Crops and flips come from torch's global generator, as torchvision's do. Raise IndexError if
        there is no such sample.
        """
        n = self._numbering.n
        numbers = np.array([row_number(index, n) for index in indices], np.int64)
        if not len(numbers):
            return []
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
        draws = numbers + occurrences_within(numbers) * n
        batch = self._decoded(draws, epoch_key(seed, 0))
        return [self._pipeline.sample(batch, slot) for slot in range(len(batch))]

    def drawn(self, draws: Indices, key: int, seed: Callable[[int], None]) -> list[Any]:
        """Return samples with the crops of the native path; the rest draws from its own keys.

        ``draws`` are those of `fastdata.plan.schedule.Numbering`. ``seed`` seeds the global
        generators with a sample's key.
        """
        batch, samples = self._decoded(draws, key), []
        for slot, own in enumerate(batch.planned.call_keys(key)):
            seed(own)
            samples.append(self._pipeline.sample(batch, slot))
        return samples

    def _decoded(self, draws: Indices, key: int) -> Batch:
        """Return a decoded batch."""
        pipeline = self._pipeline
        batch = pipeline.begin(self._numbering.plan(draws), key)
        for error in pipeline.finish(batch).values():
            raise error
        return batch
