"""Native decoding of single samples, for torch's own loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastdata import _native
from fastdata.executors import InProcess
from fastdata.loading.fields.buffers import BufferPool
from fastdata.loading.fields.columns import ColumnField
from fastdata.loading.fields.draw import Draw
from fastdata.loading.fields.field import Batch, BatchField, Context, Jobs
from fastdata.loading.fields.names import row_number
from fastdata.loading.fields.pipeline import Pipeline, blobs_among, open_pipeline
from fastdata.loading.fields.stats import Counters
from fastdata.loading.fields.targets import TargetReader
from fastdata.plan.draws import epoch_key
from fastdata.plan.schedule import BatchSchedule, Indices, occurrences_within
from fastdata.storage.source import PassRequest, Source
from fastdata.transforms.outcomes import Output
from fastdata.transforms.recipe import Program, Recipe

if TYPE_CHECKING:
    from fastdata.loading.fields.readable import Readable
    from fastdata.transforms.joint import Joint


class SampleDecoder:
    """Decoder of samples in the calling thread: decodes, crops, applies the rest of transforms.

    ``options`` are those of `open_pipeline`.
    """

    def __init__(self, readable: Readable, recipe: Recipe, **options: Any) -> None:
        self._readable, self._recipe, self._options = readable, recipe, options
        self._source = readable.open(False)
        self._numbering = readable.numbering(self._source)
        self._made: tuple[int, Pipeline] | None = None

    @property
    def _pipeline(self) -> Pipeline:
        # What fetches remotely is of one process.
        if self._made is None or self._made[0] != os.getpid():
            source, pool = self._source, BufferPool(1, False)
            blobs = blobs_among(source, self._readable.fields)
            none_ahead = BatchSchedule(iter(()), self._numbering, 0)
            request = PassRequest(none_ahead, self._numbering, set(), fields=blobs)
            remote = source.start_pass(request)
            run, counters = _native.Work.run, Counters(0)
            context = Context(
                self._readable, source, run, pool, InProcess(), counters, remote, single=True
            )
            context.warned_fallback.set()
            of_sizes = [self._recipe], [self._readable]
            self._made = os.getpid(), open_pipeline(context, *of_sizes, **self._options)
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
        batch, errors = self._pipeline.decode(self._numbering.plan(draws), key)
        for error in errors.values():
            raise error
        return batch


#: Transform that leaves images as they are.
_AS_STORED = Recipe((Program((0, 0), "bilinear", Output("uint8", None, None, True, True), ()),))


class StoredImages(BatchField):
    """Field of images that Pillow decodes, as they are stored; other fields follow them.

    ``open_image`` returns the image of a field and a row; other arguments are as of `ImageField`.
    """

    def __init__(
        self,
        open_image: Callable[[str, int], Any],
        name: str,
        context: Context,
        source: Source,
        recipes: Sequence[Recipe],
        reader: TargetReader | None = None,
        moved: Sequence[ColumnField] = (),
    ) -> None:
        super().__init__(name, context)
        self._open, self._reader, self._moved = partial(open_image, name), reader, moved

    def deliver(self, batch: Batch) -> Any:
        """Return a list of images."""
        return batch.states[self].samples

    def begin(self, batch: Batch, state: Any) -> None:
        state.samples = list(map(self._open, batch.planned.indices.tolist()))
        if self._reader is not None:
            parts: Any = [(_AS_STORED, slice(None))]
            batch.draw = Draw(
                batch.planned, batch.key, _AS_STORED, parts, state.failed, self._reader
            )
            state.after(Jobs([one.reading(batch) for one in self._moved]), self._draw)

    def _draw(self, batch: Batch, state: Any) -> None:
        draw: Any = batch.draw
        widths, heights = np.array([image.size for image in state.samples], np.int32).T
        columns = {one.name: one.column(batch) for one in self._moved}
        draw.make(widths, heights, columns, self._context.source)


def stored_decoder(
    readable: Readable, joint: Joint, open_image: Callable[[str, int], Any]
) -> SampleDecoder:
    """Return the decoder of samples as they are stored, in the form of a joint transform."""
    reader = TargetReader(readable.schema, joint)
    images = partial(StoredImages, open_image)
    return SampleDecoder(readable, _AS_STORED, image_field=images, reader=reader)
