"""Photographs in batches of aspect ratios: `fastdata.DataLoader` beside torch's loader and Pillow.

    python -m fastdata.benchmarks.buckets imagenet/train --out buckets-speed.json

Both load the same batches, of `AspectRatioBatches` at one area: each image is resized to
cover its batch's size, cropped at random and mirrored at random. torch's loader opens files of a
tree with Pillow; fastdata reads the same files, packed. Before anything is timed, every image
is compared after a centre crop, which draws nothing. The loaders take turns within one run.
"""

from __future__ import annotations

import os
import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from fastdata.benchmarks.measure import Figures, Spread, interleave, machine, out_option, report
from fastdata.benchmarks.prepare import listing
from fastdata.benchmarks.recipes import Contender, Turn, speed, thrift
from fastdata.converters import ImageFolder, pack
from PIL import Image

from fastdata import DataLoader, ImageDataset
from fastdata.samplers import AspectRatioBatches
from fastdata.transforms import (
    BySize,
    CenterCrop,
    Compose,
    RandomCrop,
    RandomHorizontalFlip,
    ResizeKeepRatio,
)

#: Pillow's filters by the names of fastdata's.
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


class Files(torch.utils.data.Dataset[torch.Tensor]):
    """Files that Pillow opens, for batches whose sizes come with the rows.

    Args:
        files: The files.
        resampling: Filter of the resize.
        train: Whether crops and flips are random.
    """

    def __init__(self, files: list[str], resampling: str, train: bool) -> None:
        self._files, self._filter, self._train = files, _FILTERS[resampling], train

    def __getitem__(self, about: Any) -> torch.Tensor:
        row, (width, height) = about
        with Image.open(self._files[row]) as file:
            image = file.convert("RGB")
        ratio = min(image.width / width, image.height / height)
        size = round(image.width / ratio), round(image.height / ratio)
        image = image.resize(size, self._filter)
        spare = image.width - width, image.height - height
        if self._train:
            left, top = (random.randint(0, side) for side in spare)
        else:
            left, top = (round(side / 2) for side in spare)
        image = image.crop((left, top, left + width, top + height))
        if self._train and random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


class _WithSizes:
    """Batch sampler whose rows have their batch's size."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        for batch in self._batches:
            yield [(row, batch.size) for row in batch]


class _Alone:
    """Loader of (images, images), whose first images are counted."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Any:
        for batch in self._loader:
            images = batch if isinstance(batch, torch.Tensor) else batch[0]
            yield images, images


def _steps(resampling: str, train: bool) -> Any:
    def transform(size: Any) -> Any:
        resize = ResizeKeepRatio(size, interpolation=resampling)
        if not train:
            return Compose((resize, CenterCrop(size)))
        return Compose((resize, RandomCrop(size), RandomHorizontalFlip()))

    return BySize(transform)


class Loaders:
    """The loaders of one tree of photographs.

    Args:
        packed: The packed tree.
        files: Its files, by row.
        side: Of the square of the batches' area.
        batch: Images of a batch.
        threads: Decode threads, and worker processes.
        resampling: Filter of the resize.
    """

    def __init__(
        self, packed: Path, files: list[str], side: int, batch: int, threads: int, resampling: str
    ) -> None:
        self._packed, self._files, self._resampling = packed, files, resampling
        self._side, self._batch, self._threads = side, batch, threads

    def ours(self, train: bool) -> Any:
        """Return fastdata's loader."""
        dataset = ImageDataset(self._packed, _steps(self._resampling, train), fields=("image",))
        batches = AspectRatioBatches(dataset, self._batch, self._side)
        about: dict[str, Any] = {"num_workers": self._threads, "persistent_workers": True}
        return DataLoader(dataset, batch_sampler=batches, require_native=True, **about)

    def theirs(self, train: bool) -> Any:
        """Return torch's loader, of the same batches."""
        dataset = ImageDataset(self._packed, _steps(self._resampling, train))
        batches = AspectRatioBatches(dataset, self._batch, self._side)
        files = Files(self._files, self._resampling, train)
        about: dict[str, Any] = {"num_workers": self._threads, "persistent_workers": True}
        return torch.utils.data.DataLoader(files, batch_sampler=_WithSizes(batches), **about)

    def check(self) -> float:
        """Compare every image without draws; return the share of equal pixels.

        Raises:
            SystemExit: They differ by more than a level; nothing was timed.
        """
        equal = count = 0
        theirs = list(self.theirs(False))  # workers are forked while no thread of ours runs
        for (images,), wanted in zip(self.ours(False), theirs, strict=True):
            apart = (images.int() - wanted.int()).abs()
            if apart.max() > 1:
                raise SystemExit(f"pixels differ by {apart.max()}; nothing was timed")
            equal, count = equal + int((apart == 0).sum()), count + apart.numel()
        return equal / count


def measure(
    root: Path, side: int, threads: int, batch: int, batches: int, rounds: int, resampling: str
) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of images that Pillow decodes
        packed = Path(folder, "packed")
        pack(ImageFolder(root), packed, workers=1, order="source")
        files = [path for path, _ in listing(root)]
        loaders = Loaders(packed, files, side, batch, threads, resampling)
        equal = loaders.check()
        contenders = {
            "torch": Contender("torch", _Alone(loaders.theirs(True)), batches, 2 * threads),
            "fastdata": Contender("fastdata", _Alone(loaders.ours(True)), 4 * batches, 2),
        }
        for one in contenders.values():
            one.take(2)
        turns = interleave({name: one.turn for name, one in contenders.items()}, rounds)
        return {
            "benchmark": "buckets",
            "machine": machine(),
            "images": len(files),
            "side": side,
            "threads": threads,
            "batch": batch,
            "resampling": resampling,
            "equal": equal,
            "load": os.getloadavg()[0],
            "turns": turns,
        }


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results; ratios are computed per round, with ``torch``."""
    turns = {name: [Turn(*turn) for turn in found] for name, found in result["turns"].items()}
    rows = []
    for name, found in turns.items():
        cells = [name]
        for value in (speed, thrift):
            ours, theirs = ([value(turn) for turn in of] for of in (found, turns["torch"]))
            if value is speed:
                cells.append(f"{Spread.of(ours):,.0f}")
            cells.append(f"{Spread.of_ratios(ours, theirs):.2f}")
        rows.append(cells)
    title = (
        "{images:,} photographs, batches of {batch} at the area of {side} x {side}, {resampling}, "
        "{threads} threads or workers; {equal:.4%} of the pixels equal, others within a level"
    )
    heads = ["", "images/s", "ratio to torch", "ratio of CPU times"]
    return Figures(title.format(**result), heads, rows)


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--side", default=512, show_default=True, help="Of a square of the batches' area.")
@click.option("--threads", default=2, show_default=True, help="Decode threads, and workers.")
@click.option("--batch", default=16, show_default=True, help="Images a batch.")
@click.option("--batches", default=6, show_default=True, help="Batches of a turn of torch's.")
@click.option("--rounds", default=5, show_default=True, help="Turns of each loader.")
@click.option("--resampling", type=click.Choice([*_FILTERS]), default="bicubic", show_default=True)
@out_option
def main(root: Path, out_path: Path | None, **options: Any) -> None:
    """Measure batches of aspect ratios beside torch's loader and Pillow.

    ROOT is a folder with a folder of photographs for each class.
    Progress goes to standard error, the table to standard output; it takes a minute.

    Example: python -m fastdata.benchmarks.buckets imagenet/train
    """
    torch.set_num_threads(1)  # so that no thread of torch's spins beside the loaders'
    result = measure(root, **options)
    report(result, out_path, figures(result))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
