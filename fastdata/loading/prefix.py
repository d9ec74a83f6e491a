"""Native decoding for single samples: what torch's own loader gets from a dataset of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Dataset

from fastdata.dataset import whole_number
from fastdata.loading.batch import Batch, Settings
from fastdata.loading.buffers import BufferPool
from fastdata.loading.helpers import InlineExecutor
from fastdata.loading.images import NotKnown, recognise
from fastdata.loading.pipeline import Pipeline
from fastdata.loading.seeding import reseeding
from fastdata.loading.stats import Counters
from fastdata.plan.draws import epoch_key
from fastdata.plan.schedule import Indices, Numbering, occurrences_within
from fastdata.storage.source import Source
from fastdata.transforms.compile import Refusal


class NativePrefix:
    """Decoder of samples in the calling thread: decodes, crops, applies the rest of the transform.

    Args:
        source: The samples.
        numbering: Maps the dataset's numbers to the source's.
        settings: Settings of decoding; the recipe ends with its tail.
        target: Transforms a label: called with a sample's number in the source and its label.
    """

    def __init__(
        self,
        source: Source,
        numbering: Numbering,
        settings: Settings,
        target: Callable[[int, int], Any],
    ) -> None:
        self._numbering = numbering
        self._settings = settings
        self._recipe = settings.recipe
        self._target = target
        self._source = source
        self._made: tuple[int, Pipeline] | None = None

    @property
    def _pipeline(self) -> Pipeline:
        # What fetches remotely is of one process.
        if self._made is None or self._made[0] != os.getpid():
            remote = self._source.start_pass(iter(()), self._numbering, set())
            pool = BufferPool(1, False)
            helpers, counters = InlineExecutor(), Counters(0)
            made = Pipeline(self._source, self._settings, pool, None, helpers, counters, remote)
            self._made = os.getpid(), made
        return self._made[1]

    def samples(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Samples as the dataset's own ``__getitem__`` returns them: (image, label).

        Crops and flips come from torch's global generator, as torchvision's do.

        Raises:
            IndexError: There is no such sample.
            UsageError: An index is no whole number.
            FastdataError: One of them cannot be read or decoded.
        """
        numbers = np.array([whole_number(index) for index in indices], np.int64)
        n = self._numbering.n
        wrong = numbers[(numbers < -n) | (numbers >= n)]
        if len(wrong):
            raise IndexError(f"sample {wrong[0]} of a dataset of {n}")
        if not len(numbers):
            return []
        numbers %= n
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
        draws = numbers + occurrences_within(numbers) * n
        batch = self._decoded(draws, epoch_key(seed, 0))
        return [self._sample(batch, slot) for slot in range(len(numbers))]

    def drawn(self, draws: Indices, key: int) -> list[tuple[Any, Any]]:
        """Return samples with the crops of the native path; the rest draws from its own keys.

        Args:
            draws: As `fastdata.plan.schedule.Numbering` has them.
            key: Key of the epoch.

        Raises:
            FastdataError: One of them cannot be read or decoded.
        """
        batch = self._decoded(draws, key)
        found = []
        with reseeding() as seed:
            for slot, own in enumerate(batch.planned.call_keys(key)):
                seed(own)
                found.append(self._sample(batch, slot))
        return found

    def _decoded(self, draws: Indices, key: int) -> Batch:
        batch = self._pipeline.begin(self._numbering.plan(draws), key)
        for error in self._pipeline.finish(batch).values():
            raise error
        return batch

    def _sample(self, batch: Batch, slot: int) -> tuple[Any, Any]:
        """Return one sample of a decoded batch, after the rest of the transform."""
        views = [
            _pil_image(view.memory.array[slot])
            if program.output.as_pil
            else view.memory.tensor[slot]
            for program, view in zip(self._recipe.programs, batch.views, strict=True)
        ]
        image = self._recipe.finish(views)
        index, label = batch.planned.indices[slot], batch.columns["label"][slot]
        return image, self._target(index.item(), label.item())


def _pil_image(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """Return an image of mode RGB; or L, if it has one channel."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def native_prefix(dataset: Any) -> NativePrefix | None:
    """Return the native prefix of a dataset; None if fastdata does not know even the crop."""
    images = recognise(dataset)
    if isinstance(images, NotKnown):
        return None
    if isinstance(images.recipe, Refusal):
        return None
    options = images.options
    settings = Settings(
        images.recipe, options.check, options.dct_scaling, options.limits, tells_fallback=False
    )
    source = images.open(False)
    return NativePrefix(source, images.numbering(source), settings, images.target)


class PrefixDataset(Dataset[tuple[Any, Any]]):
    """Dataset that is decoded natively, for torch's worker processes.

    Args:
        dataset: The dataset; `native_prefix` must know it.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._prefix: NativePrefix | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset, "_prefix": None}

    def __getattr__(self, name: str) -> Any:
        # A worker_init_fn may look at the dataset by get_worker_info().
        if name in ("_dataset", "_prefix"):  # not there yet
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Return samples by number, for torch's fetcher."""
        return self.prefix.samples(indices)

    @property
    def prefix(self) -> NativePrefix:
        """Decoder of the dataset, made on first use."""
        if self._prefix is None:
            self._prefix = native_prefix(self._dataset)
            assert self._prefix is not None
        return self._prefix
