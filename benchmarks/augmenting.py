"""Augmented loading: torchvision's pipelines by fastdata.DataLoader and by torch's with Pillow.

    python -m fastdata.benchmarks.augmenting imagenet-train-lmdb --json augmenting.json

The same torchvision objects go to both. Contenders take turns within one run; "none" is the
ceiling: the same crop, flip and normalisation without augmentation. Pixels of single
operations, and what is drawn, are compared by tests/test_augmentations.py and
tests/test_pixel_programs.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
import torch.utils.data
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.measure import Figures, Spread, interleave, machine

from fastdata import DataLoader, ImageDataset, _native

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def pipelines() -> dict[str, Any]:
    """The recipes, by name."""
    tv = import_torchvision().transforms
    end = [tv.ToTensor(), tv.Normalize(MEAN, STD)]

    def recipe(size: int, *steps: Any, last: tuple[Any, ...] = ()) -> Any:
        start = [tv.RandomResizedCrop(size), tv.RandomHorizontalFlip()]
        return tv.Compose([*start, *steps, *end, *last])

    simclr = (
        tv.RandomApply([tv.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        tv.RandomGrayscale(0.2),
        tv.RandomApply([tv.GaussianBlur(23, (0.1, 2.0))], p=0.5),
        tv.RandomSolarize(128, 0.2),
    )
    return {
        "none, 176": recipe(176),
        "none, 224": recipe(224),
        "TrivialAugmentWide, RandomErasing, 176": recipe(
            176, tv.TrivialAugmentWide(), last=(tv.RandomErasing(0.1),)
        ),
        "RandAugment": recipe(224, tv.RandAugment()),
        "AutoAugment": recipe(224, tv.AutoAugment()),
        "ColorJitter": recipe(224, tv.ColorJitter(0.4, 0.4, 0.4)),
        "ColorJitter with hue": recipe(224, tv.ColorJitter(0.4, 0.4, 0.4, 0.1)),
        "SimCLR": recipe(224, *simclr),
    }


def rate(loader: Any, first: int, images: int) -> float:
    """Images a second of a pass that is begun anew until so many images came.

    The clock starts behind the first batches.
    """
    iterator, count, spent = iter(loader), 0, 0.0
    while count < images:
        for _ in range(first):
            next(iterator)
        began = time.perf_counter()
        for batch in iterator:
            count += len(batch[1])
        spent += time.perf_counter() - began
        iterator = iter(loader)
    return count / spent


def measure(
    dataset: Path, threads: int, batch: int, rounds: int, samples: int, names: tuple[str, ...]
) -> dict[str, Any]:
    """Runs the benchmark; returns all figures as JSON values."""
    contenders: dict[str, Callable[[], float]] = {}
    for name, pipeline in pipelines().items():
        if names and name not in names:
            continue
        images: Any = ImageDataset(dataset, transform=pipeline)
        options: dict[str, Any] = {"shuffle": True, "num_workers": threads, "drop_last": True}
        mine: Any = DataLoader(
            images, batch, persistent_workers=True, seed=7, require_native=True, **options
        )
        # A plain torch dataset of Pillow's images.
        theirs: Any = torch.utils.data.DataLoader(_Pillow(images, pipeline), batch, **options)
        contenders[name] = lambda loader=mine: rate(loader, 1, 4 * samples)  # type: ignore[misc]
        contenders[f"torch: {name}"] = lambda loader=theirs: rate(loader, threads, samples)  # type: ignore[misc]
    for run in list(contenders.values())[::2]:
        run()
    return {
        "benchmark": "augmenting",
        "machine": {**machine(), "torch": torch.__version__, "simd": _native.simd()},
        "samples": len(ImageDataset(dataset)),
        "threads": threads,
        "batch": batch,
        "images_per_second": interleave(contenders, rounds),
    }


class _Pillow(torch.utils.data.Dataset[Any]):
    """The same images by Pillow and torchvision, as its ImageFolder has them."""

    def __init__(self, images: ImageDataset, pipeline: Any) -> None:
        self._images, self._pipeline = images, pipeline

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._pipeline(self._images.open_image(index)), int(self._images.labels[index])


def figures(result: dict[str, Any]) -> Figures:
    """The table of a result."""
    rates = result["images_per_second"]
    rows = []
    for name in rates:
        if f"torch: {name}" in rates:
            mine, theirs = rates[name], rates[f"torch: {name}"]
            ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
            medians = (f"{Spread.of(values).median:,.0f}" for values in (mine, theirs))
            rows.append([name, *medians, str(Spread.of(ratios))])
    head = ["recipe", "fastdata, images/s", "torch, images/s", "times (from, to)"]
    return Figures("augmented loading", head, rows)


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--threads", default=2, show_default=True)
@click.option("--batch", default=50, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--samples", default=400, show_default=True, help="Of a round of torch's loader.")
@click.option("--recipe", "names", multiple=True, help="One of the recipes; default: all.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here."
)
def main(
    dataset: Path,
    threads: int,
    batch: int,
    rounds: int,
    samples: int,
    names: tuple[str, ...],
    json_path: Path | None,
) -> None:
    """Measure augmented loading of the packed DATASET."""
    result = measure(dataset, threads, batch, rounds, samples, names)
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1) + "\n")
    figures(result).show()


if __name__ == "__main__":
    main()
