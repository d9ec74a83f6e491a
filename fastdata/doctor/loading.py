"""How fast the loader is as a whole: `fastdata.DataLoader`, as a script would use it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from itertools import chain, cycle
from typing import Any

import numpy as np

from fastdata.dataset import ImageDataset
from fastdata.doctor.opening import Opened
from fastdata.loading.seek_cache import DEFAULT_BYTES


def rate(
    opened: Opened,
    samples: list[int],
    transform: Any,
    *,
    batch_size: int,
    num_workers: int,
    learns: bool,
    seconds: float,
) -> tuple[float | None, str]:
    """Images/s that the loader delivers to a consumer that does nothing.

    Args:
        opened: The dataset.
        samples: Numbers of the samples to load, over and over.
        transform: What becomes of them.
        batch_size: Images in a batch.
        num_workers: As `fastdata.DataLoader` has it.
        learns: Whether seek points are kept that a tree's first epoch builds.
        seconds: How long.

    Returns:
        The rate, None if it cannot be measured here; and the path that was taken, or why not.
    """
    try:
        from fastdata.loading.loader import DataLoader
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None, "torch is not installed"
    dataset = _dataset(opened, transform, learns)
    if isinstance(dataset, str):
        return None, dataset
    # The first passes of a tree build seek points, which later ones use.
    warmup = 3 + (len(samples) // batch_size + 1 if learns else 0)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size,
        sampler=_Endless(samples),
        num_workers=num_workers,
    )
    path = loader.explain().partition(":")[0]
    images = batches = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        iterator = iter(loader)
        begun = time.perf_counter()
        while batches < warmup and time.perf_counter() - begun < seconds / 2:
            next(iterator)
            batches += 1
        started = now = time.perf_counter()
        while not images or now - started < seconds / 2:
            next(iterator)
            images += batch_size
            now = time.perf_counter()
    del iterator
    return images / (now - started), f"{path} path"


def _dataset(opened: Opened, transform: Any, learns: bool) -> Any:
    """What a script gives the loader; or in words, why that cannot be had."""
    if opened.dataset is not None:
        # With its transform, and the copy or original that was opened.
        return ImageDataset(opened.dataset.location, transform, staged=False)
    try:
        from torchvision.datasets import ImageFolder
    except (ImportError, AttributeError, RuntimeError):  # one of another torch fails in its own way
        return "torchvision, whose ImageFolder reads trees, cannot be imported"
    files = list(opened.files)

    class Listed(ImageFolder):  # type: ignore[misc]
        """The images that are listed already."""

        def find_classes(self, directory: Any) -> tuple[list[str], dict[str, int]]:
            """One name for each label."""
            names = [str(label) for label in range(max(label for _, label in files) + 1)]
            return names, {name: label for label, name in enumerate(names)}

        @staticmethod
        def make_dataset(*_: Any, **__: Any) -> list[tuple[str, int]]:
            """As `Opened` has them."""
            return files

    listed = Listed(str(opened.path), transform)
    return ImageDataset(listed, seek_cache_bytes=None if learns else 0)


class _Endless:
    """Numbers of samples in random order, without an end."""

    def __init__(self, samples: list[int]) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng(0)
        return chain.from_iterable(
            generator.permutation(self._samples).tolist() for _ in cycle((None,))
        )


def learnt_share(samples: int, seek_bytes: float) -> float:
    """The part of a tree whose seek points fit into the loader's memory for them.

    Args:
        samples: Number of the tree's images.
        seek_bytes: Mean bytes of an image's seek points.
    """
    return min(1.0, DEFAULT_BYTES / max(samples * (seek_bytes + _OVERHEAD), 1))


_OVERHEAD = 500  # what an entry takes beside its table
