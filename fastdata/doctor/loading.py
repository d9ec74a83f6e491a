"""Rate of the loader as a whole: `fastdata.DataLoader`, as in a script."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdata import machine
from fastdata.dataset import ImageDataset
from fastdata.doctor.findings import Speed
from fastdata.storage.cache import Cache

if TYPE_CHECKING:
    from fastdata.doctor.opening import Opened


def rate(
    opened: Opened,
    samples: list[int],
    transform: Any,
    *,
    batch_size: int,
    num_workers: int,
    learns: bool,
    seconds: float,
) -> tuple[Speed | None, str]:
    """Measure how fast the loader feeds a consumer that does nothing.

    ``learns`` keeps the seek points that a tree's first epoch builds.

    Returns:
        The speed, None if it cannot be measured here; and the path that was taken, or why not.
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
    sampler = _endless(samples)
    loader: Any = DataLoader(dataset, batch_size, sampler=sampler, num_workers=num_workers)
    path = loader.explain().partition(":")[0]
    images = batches = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        iterator = iter(loader)
        begun = time.perf_counter()
        while batches < warmup and time.perf_counter() - begun < seconds / 2:
            next(iterator)
            batches += 1
        before, stolen = machine.process_times(), machine.stolen_share()
        started = now = time.perf_counter()
        while not images or now - started < seconds / 2:
            next(iterator)
            images += batch_size
            now = time.perf_counter()
        spent = machine.process_times() - before
    del iterator
    lost = 1 - (1 - spent.lost(max(num_workers, 1))) * (1 - stolen())
    return Speed(images / (now - started), lost), f"{path} path"


def _dataset(opened: Opened, transform: Any, learns: bool) -> Any:
    """Return the dataset of a script; or why it cannot be made, as text."""
    if opened.dataset is not None:
        return ImageDataset(
            opened.dataset.location,  # the copy or original that was opened
            transform,
            staged=False,
            check=opened.dataset.check,
            cache=Cache(bytes=0),  # a diagnosis writes nothing into the dataset
        )
    try:
        from torchvision.datasets import ImageFolder
    except (ImportError, AttributeError, RuntimeError):  # one of another torch fails in its own way
        return "torchvision, whose ImageFolder reads trees, cannot be imported"

    class Listed(ImageFolder):  # type: ignore[misc]
        """Dataset of images that are already listed."""

        def find_classes(self, directory: Any) -> tuple[list[str], dict[str, int]]:
            """Return one class."""
            return [""], {"": 0}

        @staticmethod
        def make_dataset(*_: Any, **__: Any) -> list[tuple[str, int]]:
            """Return the listed files."""
            return [(file, 0) for file in opened.files]

    listed = Listed(str(opened.data.path), transform)
    return ImageDataset(listed, cache=None if learns else Cache(bytes=0))


def _endless(samples: list[int]) -> Iterator[int]:
    """Yield sample numbers in random order, endlessly."""
    generator = np.random.default_rng(0)
    while True:
        yield from generator.permutation(samples).tolist()
