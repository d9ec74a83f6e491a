"""DALI on the CPU: fastdata's loader over it beside a pipeline written by hand, and the native one.

    python -m fastdata.benchmarks.dali DATASET TREE [--images N] [--threads N]

DATASET is packed from TREE. All crop at random to 224 x 224, flip, and deliver uint8; the pipeline
by hand is DALI's ResNet-50 example: file reader, fused decode and random crop, resize, flip. They
take turns, each made anew for its turn; its first batch, and the first round, are not counted.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fastdata import DataLoader, ImageDataset
from fastdata.dali import DALILoader
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop


def by_hand(tree: Path, batch_size: int, threads: int) -> Iterator[Any]:
    """Batches of DALI's own pipeline over a tree of JPEGs."""
    import nvidia.dali

    dali: Any = nvidia.dali
    files = sorted(str(path) for path in tree.glob("**/*.[jJ][pP]*[gG]"))
    pipeline = dali.Pipeline(batch_size=batch_size, num_threads=threads, device_id=None, seed=0)
    with pipeline:
        jpegs, _ = dali.fn.readers.file(
            files=files, labels=[0] * len(files), shuffle_after_epoch=True
        )
        images = dali.fn.decoders.image_random_crop(
            jpegs,
            output_type=dali.types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
            num_attempts=10,
            adjust_orientation=False,
        )
        images = dali.fn.resize(images, size=(224, 224), interp_type=dali.types.INTERP_TRIANGULAR)
        mirror = dali.fn.random.coin_flip(probability=0.5)
        pipeline.set_outputs(dali.fn.flip(images, horizontal=mirror))
    pipeline.build()

    while True:
        yield pipeline.run()[0].as_array()


def over(loader: Any) -> Iterator[Any]:
    """A loader's batches, over several epochs if need be."""
    return (batch for _ in itertools.count() for batch in loader)


def main() -> None:
    """Prints images/s: median, least and most."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--images", type=int, default=1280, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = ImageDataset(given.dataset, Compose((RandomResizedCrop(224), RandomHorizontalFlip())))
    options: dict[str, Any] = {
        "batch_size": given.batch_size,
        "shuffle": True,
        "seed": 0,
        "num_workers": given.threads,
        "drop_last": True,
    }
    contenders: dict[str, Callable[[], Iterator[Any]]] = {
        "DALI by hand": lambda: by_hand(given.tree, given.batch_size, given.threads),
        "DALILoader": lambda: over(DALILoader(data, **options)),
        "DataLoader": lambda: over(DataLoader(data, **options)),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    batches = max(given.images // given.batch_size, 1)
    for _ in range(given.rounds + 1):
        for name, make in contenders.items():
            found = make()
            next(found)
            began = time.perf_counter()
            for _ in itertools.islice(found, batches):
                pass
            rates[name].append(batches * given.batch_size / (time.perf_counter() - began))
            del found
    for name, (_, *counted) in rates.items():
        median = statistics.median(counted)
        print(f"{name:14} {median:7.0f} images/s ({min(counted):.0f} to {max(counted):.0f})")


if __name__ == "__main__":
    main()
