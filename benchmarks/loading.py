"""Cost of the loader: `fastdata.DataLoader` beside the core alone.

    python -m fastdata.benchmarks.loading imagenet-train-lmdb --out loading.json

RandomResizedCrop(224) and a coin-tossed flip to uint8, from a packed dataset in the page cache.
Contenders take turns within one run, pixels are compared with Pillow's before anything is
timed, and figures are medians with the spread (smallest to largest) beside them. Other loaders
are measured by ``fastdata bench``.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.measure import (
    Figures,
    Spread,
    epoch_rate,
    interleave,
    machine,
    out_option,
    report,
)

from fastdata import DataLoader, ImageDataset
from fastdata.decode import Engine, PendingBatch
from fastdata.once import once
from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop
from fastdata.transforms.compile import Recipe, compile_recipe
from fastdata.transforms.geometry import Cuts, render

SIZE = 224
SEED = 7
_FIRST_EPOCH = epoch_key(SEED, 0)


class Loading:
    """Contenders on one dataset, with the same crops."""

    def __init__(self, path: Path, batch: int) -> None:
        crops = Compose((RandomResizedCrop(SIZE), RandomHorizontalFlip()))
        self.dataset = ImageDataset(path, transform=crops)
        recipe = compile_recipe(crops)
        assert isinstance(recipe, Recipe)
        self.program = recipe.programs[0]
        self._batch = batch
        if len(self.dataset) < 2 * batch:  # one batch tells nothing of a rate
            raise click.UsageError(
                f"{path} has too few samples for batches of {batch}: use a smaller --batch"
            )

    def loader(self, threads: int) -> Callable[[], float]:
        """Return a function that measures images a second of an epoch of fastdata's loader."""
        loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_size=self._batch,
            shuffle=True,
            num_workers=threads,
            persistent_workers=True,
            seed=SEED,
            drop_last=True,
        )
        return partial(epoch_rate, loader)

    def core(self, threads: int) -> Callable[[], float]:
        """Return a function that measures the core alone, on images and crops in memory."""
        plans = self._plans
        outs = [np.empty((self._batch, SIZE, SIZE, 3), np.uint8) for _ in range(4)]
        engine = Engine(threads)

        def run() -> float:
            under_way: list[PendingBatch] = []
            began = time.perf_counter()
            for number, (samples, tables, cuts) in enumerate(plans):
                if len(under_way) == len(outs):
                    under_way.pop(0).collect()
                under_way.append(
                    engine.submit(
                        samples,
                        outs[number % len(outs)],
                        cuts=cuts,
                        seek_points=tables,
                        fallback="never",
                    )
                )
            for pending in under_way:
                pending.collect()
            return len(plans) * self._batch / (time.perf_counter() - began)

        return run

    @once
    def _plans(self) -> list[tuple[list[bytes], list[bytes | None], Cuts]]:
        """Images, seek points and crops of each batch."""
        plans = []
        for end in range(self._batch, len(self.dataset) + 1, self._batch):
            numbers = range(end - self._batch, end)
            tables = [self.dataset.row(number).seek_points for number in numbers]
            plans.append((self.dataset.read(numbers), tables, self.geometry(np.array(numbers))))
        return plans

    def geometry(self, numbers: Any) -> Cuts:
        """Return the crops of some samples in the first epoch."""
        rows = [self.dataset.row(int(number)) for number in numbers]
        widths = np.array([row.width for row in rows])
        heights = np.array([row.height for row in rows])
        return self.program.draw(widths, heights, sample_keys(_FIRST_EPOCH, numbers, 0))


def torch_loader(tree: Path, workers: int, batch: int, **options: Any) -> Any:
    """Return torch's loader of the same crops, from a tree of images, with Pillow."""
    torchvision = import_torchvision()
    tv = torchvision.transforms
    crops = tv.Compose([tv.RandomResizedCrop(SIZE), tv.RandomHorizontalFlip(), tv.PILToTensor()])
    return torch.utils.data.DataLoader(
        torchvision.datasets.ImageFolder(str(tree), crops, is_valid_file=lambda path: True),
        batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        drop_last=True,
        **options,
    )


def verify(loading: Loading, batches: int = 4) -> None:
    """Compare some batches with Pillow's pixels, before anything is timed."""
    dataset = loading.dataset
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=64, num_workers=2, seed=SEED, fields=("image", "label", "index")
    )
    for batch in islice(loader, batches):
        numbers = batch["index"].numpy()
        cuts = loading.geometry(numbers)
        for at, number in enumerate(numbers.tolist()):
            right = render(dataset.open_image(number), cuts[at])
            found = batch["image"][at].permute(1, 2, 0).numpy()
            worst = int(np.abs(found.astype(np.int16) - right).max())
            if worst > 1 or int(batch["label"][at]) != dataset.row(number).label:
                sys.exit(
                    f"sample {number} has another label, or pixels that differ from Pillow's by "
                    f"{worst}: nothing was timed"
                )


def measure(path: Path, threads: int, batch: int, rounds: int) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    loading = Loading(path, batch)
    verify(loading)
    contenders = {
        "loader": loading.loader(threads),
        "core": loading.core(threads),
        "loader, one thread": loading.loader(1),
        "core, one thread": loading.core(1),
    }
    for run in contenders.values():
        run()  # the page cache, the index, the threads' own memory
    gc.collect()
    rates = interleave(contenders, rounds)
    return {
        "benchmark": "loading",
        "machine": machine(),
        "container": loading.dataset.manifest.container,
        "samples": len(loading.dataset),
        "threads": threads,
        "batch": batch,
        "images_per_second": rates,
    }


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--threads", default=2, show_default=True)
@click.option("--batch", default=128, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@out_option
def main(dataset: Path, threads: int, batch: int, rounds: int, out_path: Path | None) -> None:
    """Measure fastdata.DataLoader on the packed DATASET."""
    result = measure(dataset, threads, batch, rounds)
    report(result, out_path, *figures(result))


def figures(result: dict[str, Any]) -> list[Figures]:
    """Return the table of results; ratios are computed per round."""
    rates = result["images_per_second"]
    speeds = [
        [name.format(**result), f"{Spread.of(rates[key]):,.0f}"] for key, name in _NAMES.items()
    ]
    ratios = []
    for name, by, one, other in _RATIOS:
        ratio = Spread.of_ratios((by * rate for rate in rates[one]), rates[other])
        ratios.append([name, str(ratio)])
    title = (
        f"Loading {result['samples']:,} images, {result['container']}, batches of {result['batch']}"
    )
    return [
        Figures(title, ["", "images a second"], speeds),
        Figures("Ratios", ["", "measured"], ratios),
    ]


_NAMES = {
    "loader": "fastdata.DataLoader, {threads} threads",
    "core": "the core alone, images in memory, {threads} threads",
    "loader, one thread": "fastdata.DataLoader, 1 thread",
    "core, one thread": "the core alone, images in memory, 1 thread",
}
_RATIOS = (
    ("% of the core's speed", 100, "loader", "core"),
    ("% of the core's, one thread", 100, "loader, one thread", "core, one thread"),
    ("two threads by one", 1, "loader", "loader, one thread"),
)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
