"""Loading speed: DataLoader against torch's with Pillow, and what the loader itself costs.

    python -m fastdata.benchmarks.loading imagenet-train-lmdb --json loading.json

RandomResizedCrop(224) and a coin-tossed flip to uint8, from a packed dataset in the page cache.
Contenders take turns within one run, pixels are compared with Pillow's before anything is
timed, and figures are medians with the spread (smallest to largest) beside them.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
import torch.utils.data
from fastdata.benchmarks.adapters._transforms import train_crop
from fastdata.benchmarks.measure import Figures, Spread, interleave, machine
from PIL import Image

from fastdata import DataLoader, ImageDataset
from fastdata.decode import Engine, PendingBatch
from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop
from fastdata.transforms.compile import Recipe, compile_recipe

SIZE = 224
SEED = 7


def pillow_crop(image: Image.Image) -> torch.Tensor:
    """RandomResizedCrop(224), RandomHorizontalFlip and PILToTensor by Pillow, as torchvision has
    them: one image to uint8, (3, 224, 224).
    """
    return torch.from_numpy(np.array(train_crop(image, SIZE))).permute(2, 0, 1).contiguous()


def native_dataset(path: Path) -> ImageDataset:
    """The dataset with the transforms that fastdata knows."""
    return ImageDataset(path, transform=Compose((RandomResizedCrop(SIZE), RandomHorizontalFlip())))


class Options(NamedTuple):
    """What is measured how often.

    Attributes:
        dataset: A packed dataset.
        threads: Decode threads, and worker processes of torch's.
        batch: Images a batch.
        rounds: How often everything takes its turn.
        samples: Samples of a round for torch's loader, which is so much slower.
    """

    dataset: Path
    threads: int
    batch: int
    rounds: int
    samples: int


class Loading:
    """Everything that takes turns; each call returns images a second."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.dataset = native_dataset(options.dataset)
        self.pillow = ImageDataset(options.dataset, transform=pillow_crop)
        recipe = compile_recipe(self.dataset.transform)
        assert isinstance(recipe, Recipe)
        self.program = recipe.programs[0]
        self._blobs: list[bytes] | None = None

    def loader(self, threads: int) -> DataLoader[Any]:
        """Fastdata's."""
        return DataLoader(
            self.dataset,
            batch_size=self.options.batch,
            shuffle=True,
            num_workers=threads,
            persistent_workers=True,
            seed=SEED,
            drop_last=True,
        )

    def native(self, loader: DataLoader[Any]) -> float:
        """One epoch; the first batch, when nothing is ahead yet, is not counted."""
        return self._rate(iter(loader))

    def torch_loader(self) -> float:
        """Torch's loader with worker processes, some batches, likewise."""
        options = self.options
        # Every worker makes as many batches, so that none is without work at the end.
        turn = options.threads * options.batch
        chosen = range(min(options.samples, len(self.pillow)) // turn * turn)
        images: Any = self.pillow
        loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            torch.utils.data.Subset(images, chosen),
            batch_size=options.batch,
            shuffle=True,
            num_workers=options.threads,
            drop_last=True,
        )
        # The clock starts when every worker has made its first batch, and begins its second.
        return self._rate(iter(loader), options.threads)

    def _rate(self, iterator: Iterator[Any], first: int = 1) -> float:
        for _ in range(first):
            next(iterator)
        count = 0
        began = time.perf_counter()
        for batch in iterator:
            count += len(batch[1])
        if not count:
            raise StopIteration
        return count / (time.perf_counter() - began)

    def core(self, threads: int) -> Callable[[], float]:
        """The core alone: the same images and crops from memory, batches submitted at once."""
        dataset, batch = self.dataset, self.options.batch
        if self._blobs is None:
            self._blobs = dataset.read(range(len(dataset)))
        blobs = self._blobs
        whole = len(dataset) // batch * batch
        key = epoch_key(SEED, 0)
        plans = []
        for begin in range(0, whole, batch):
            numbers = np.arange(begin, begin + batch)
            rows = [dataset.row(i) for i in numbers.tolist()]
            widths = np.array([row.width for row in rows])
            heights = np.array([row.height for row in rows])
            geometry = self.program.draw(widths, heights, sample_keys(key, numbers, 0))
            tables = [row.seek_points for row in rows]
            plans.append((blobs[begin : begin + batch], tables, geometry))
        outs = [np.empty((batch, SIZE, SIZE, 3), np.uint8) for _ in range(4)]
        engine = Engine(threads)

        def run() -> float:
            under_way: list[PendingBatch] = []
            began = time.perf_counter()
            for number, (samples, tables, geometry) in enumerate(plans):
                if len(under_way) == len(outs):
                    under_way.pop(0).raw_failures()
                under_way.append(
                    engine.submit(
                        samples,
                        outs[number % len(outs)],
                        regions=geometry.boxes,
                        flips=geometry.flips,
                        seek_points=tables,
                        fallback="never",
                    )
                )
            for pending in under_way:
                pending.raw_failures()
            return whole / (time.perf_counter() - began)

        return run


def verify(loading: Loading, images: int = 256) -> None:
    """Compares some batches with Pillow's pixels, before anything is timed."""
    dataset, program = loading.dataset, loading.program
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=64, num_workers=2, seed=SEED, fields=("image", "label", "index")
    )
    key = epoch_key(SEED, 0)
    worst = seen = 0
    for batch in loader:
        pixels, labels, indices = batch["image"], batch["label"], batch["index"].numpy()
        pictures = [dataset.open_image(int(i)) for i in indices]
        widths = np.array([picture.width for picture in pictures])
        heights = np.array([picture.height for picture in pictures])
        geometry = program.draw(widths, heights, sample_keys(key, indices, 0))
        for place, picture in enumerate(pictures):
            left, upper, right_, lower = map(int, geometry.boxes[place])
            crop = picture.crop((left, upper, right_, lower))
            crop = crop.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
            if geometry.flips[place]:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            right = np.asarray(crop).astype(np.int16)
            found = pixels[place].permute(1, 2, 0).numpy().astype(np.int16)
            worst = max(worst, int(np.abs(found - right).max()))
            if int(labels[place]) != dataset.row(int(indices[place])).label:
                sys.exit(f"sample {indices[place]} has another label: nothing was timed")
        seen += len(indices)
        if seen >= images:
            break
    if worst > 1:
        sys.exit(f"pixels differ from Pillow's by {worst}: nothing was timed")


def measure(options: Options) -> dict[str, Any]:
    """Runs the benchmark; returns all figures as JSON values."""
    loading = Loading(options)
    verify(loading)
    both, one = loading.loader(options.threads), loading.loader(1)
    contenders: dict[str, Callable[[], float]] = {
        "loader": lambda: loading.native(both),
        "core": loading.core(options.threads),
        "loader, one thread": lambda: loading.native(one),
        "core, one thread": loading.core(1),
        "torch": loading.torch_loader,
    }
    for name in ("loader", "loader, one thread", "core", "core, one thread"):
        contenders[name]()  # the page cache, the index, the threads' own memory
    gc.collect()
    rates = interleave(contenders, options.rounds)
    return {
        "benchmark": "loading",
        "machine": {**machine(), "torch": torch.__version__, "simd": _simd()},
        "container": loading.dataset.manifest.container,
        "samples": len(loading.dataset),
        "threads": options.threads,
        "batch": options.batch,
        "images_per_second": rates,
    }


def _simd() -> str:
    from fastdata import _native

    return _native.simd()


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--threads", default=2, show_default=True)
@click.option("--batch", default=128, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option(
    "--samples", default=1536, show_default=True, help="Samples of a round of torch's loader."
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here."
)
def main(
    dataset: Path,
    threads: int,
    batch: int,
    rounds: int,
    samples: int,
    json_path: Path | None,
) -> None:
    """Measure fastdata.DataLoader on the packed DATASET."""
    options = Options(dataset, threads, batch, rounds, samples)
    try:
        result = measure(options)
    except StopIteration:
        raise click.UsageError(
            f"{dataset} has too few samples for batches of {batch}: use a smaller --batch"
        ) from None
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1) + "\n")
    for table in figures(result):
        table.show()


def derived(result: dict[str, Any]) -> dict[str, list[float]]:
    """What follows from the measurements, round by round where contenders took turns."""
    rates = result["images_per_second"]

    def ratio(above: str, below: str) -> list[float]:
        return [a / b for a, b in zip(rates[above], rates[below], strict=True)]

    return {
        "times torch's speed": ratio("loader", "torch"),
        "% of the core's speed": [100 * x for x in ratio("loader", "core")],
        "% of the core's, one thread": [
            100 * x for x in ratio("loader, one thread", "core, one thread")
        ],
        "two threads by one": ratio("loader", "loader, one thread"),
    }


def figures(result: dict[str, Any]) -> list[Figures]:
    """The results as people read them."""
    speeds = [
        [_NAMES[name].format(**result), _shown(values, 0)]
        for name, values in result["images_per_second"].items()
    ]
    ratios = [[name, _shown(values, 2)] for name, values in derived(result).items()]
    return [
        Figures(
            f"Loading {result['samples']:,} images, {result['container']}, "
            f"batches of {result['batch']}",
            ["", "images a second"],
            speeds,
        ),
        Figures("Ratios", ["", "measured"], ratios),
    ]


_NAMES = {
    "loader": "fastdata.DataLoader, {threads} threads",
    "core": "the core alone, images in memory, {threads} threads",
    "loader, one thread": "fastdata.DataLoader, 1 thread",
    "core, one thread": "the core alone, images in memory, 1 thread",
    "torch": "torch's DataLoader, Pillow, {threads} workers",
}


def _shown(values: list[float], digits: int) -> str:
    spread = Spread.of(values)
    return f"{spread.median:,.{digits}f} ({spread.low:,.{digits}f} to {spread.high:,.{digits}f})"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
