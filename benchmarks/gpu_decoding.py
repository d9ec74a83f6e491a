"""Speed and pixels of `fastdata.dali.DALILoader` beside a pipeline of DALI's written by hand.

    python -m fastdata.benchmarks.gpu_decoding imagenet-lmdb imagenet/train --out gpu-decoding.json

The pipeline by hand decodes the tree's files whole, fed from memory, and resizes them. Others
differ from it in one thing that `DALILoader` does, so that a difference can be traced to its cause.
All take turns in one run. Figures are kept after each round.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from fastdata.benchmarks.measure import (
    Figures,
    Spread,
    cpu_seconds,
    each_round,
    machine,
    out_option,
    save,
)

import fastdata.transforms as transforms
from fastdata import DataLoader, ImageDataset, _native
from fastdata.dali.decoders import example

_SIZE = 224
_TRANSFORM = transforms.Compose(
    (transforms.RandomResizedCrop(_SIZE), transforms.RandomHorizontalFlip())
)
#: Changes of a pipeline by hand to what `DALILoader` does, by names for the table.
_CHANGES: dict[str, dict[str, Any]] = {
    "as DALILoader's decoder": {"adjust_orientation": False, "jpeg_fancy_upsampling": True},
    "regions by fn.slice": {"regions": True},
    "a first batch of one image of 8 x 8": {"first": 8},
    "a first batch of one image of 512 x 512": {"first": 512},
    "DALI's default share of the engine": {"hw_decoder_load": None},
}


class Window(NamedTuple):
    """Images of a contender, and the wall and CPU seconds that they took."""

    images: int
    seconds: float
    cpu: float


def by_hand(
    files: list[Any],
    device: torch.device,
    threads: int,
    batch: int,
    *,
    first: int = 0,
    regions: bool = False,
    **decoding: Any,
) -> Iterator[int]:
    """Yield the number of images of each batch of a pipeline as DALI's users write it.

    Args:
        files: uint8 arrays, the bytes of JPEGs.
        device: Where to decode.
        threads: DALI's threads.
        batch: Images of a batch.
        first: Side of the one image of the first batches; 0 for batches as the others.
        regions: Whether to cut a region, which is fed, before resizing.
        **decoding: Arguments of the decoder on a GPU; None for DALI's default.
    """
    # DALI's own type stubs are incomplete.
    dali: Any = importlib.import_module("nvidia.dali")
    fn, types = dali.fn, dali.types
    gpu, depth = device.type == "cuda", 2
    chosen = {"hw_decoder_load": 1.0, **decoding} if gpu else {}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    where = (device.index or 0) if gpu else None
    made = dali.Pipeline(batch, threads, where, prefetch_queue_depth=depth)
    with made:
        data = fn.external_source(name="data", ndim=1, dtype=types.UINT8, no_copy=True)
        images = fn.decoders.image(
            data, device="mixed" if gpu else "cpu", output_type=types.RGB, **chosen
        )
        if regions:
            sides = fn.external_source(name="sides", ndim=1, dtype=types.INT32)
            images = fn.slice(images, (0, 0), sides, axes=[0, 1])
        images = fn.resize(images, size=(_SIZE, _SIZE))
        made.set_outputs(fn.crop_mirror_normalize(images, dtype=types.UINT8, output_layout="CHW"))
    made.build()
    rng = np.random.default_rng(0)
    probed = map(_native.probe, files)
    extents = [np.array([height, width], np.int32) for _, width, height, *_ in probed]

    def feed(images: list[Any], extents: list[Any]) -> None:
        made.feed_input("data", images)
        if regions:
            made.feed_input("sides", extents)

    def feed_drawn() -> None:
        drawn = rng.integers(0, len(files), batch).tolist()
        feed([files[at] for at in drawn], [extents[at] for at in drawn])

    for _ in range(depth):
        if first:
            feed([example("jpeg", first)], [np.array([first, first], np.int32)])
        else:
            feed_drawn()
    made.schedule_run()
    for _ in range(depth):
        made.outputs()
        feed_drawn()
        made.schedule_run()
    while True:
        (found,) = made.outputs()
        yield len(found)
        feed_drawn()
        made.schedule_run()


def by_loader(
    dataset: Path, device: torch.device, threads: int, batch: int, **options: Any
) -> Iterator[int]:
    """Yield the number of images of each batch of a `DALILoader`."""
    from fastdata.dali import DALILoader

    loader: DALILoader[Any] = DALILoader(
        ImageDataset(dataset, _TRANSFORM),
        batch,
        shuffle=True,
        num_workers=threads,
        device=device,
        drop_last=True,
        persistent_workers=True,
        **options,
    )
    while True:
        for images, _ in loader:
            yield len(images)


def measured(batches: Iterator[int], seconds: float, device: torch.device) -> Window:
    """Take batches for some seconds; return the window."""
    _synchronize(device)
    cpu, begun, images = cpu_seconds(), time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        images += next(batches)
    _synchronize(device)
    return Window(images, time.perf_counter() - begun, cpu_seconds() - cpu)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def pixels(dataset: Path, device: torch.device, batches: int, **options: Any) -> dict[str, Any]:
    """Compare a `DALILoader`'s pixels with the core's, in levels of 255; name their decoders.

    Raises:
        AssertionError: They deliver other samples.
    """
    from fastdata.dali import DALILoader

    data = ImageDataset(dataset, _TRANSFORM, fields=("image", "index"))
    shared: dict[str, Any] = {"shuffle": True, "seed": 5, "num_workers": 4}
    theirs: DALILoader[Any] = DALILoader(data, 128, device=device, **shared, **options)
    means = []
    for (ours, one), (found, other), _ in zip(
        DataLoader(data, 128, **shared), theirs, range(batches), strict=False
    ):
        assert torch.equal(one, other.cpu()), "other samples"
        means += (ours.float() - found.cpu().float()).abs().flatten(1).mean(1).tolist()
    return {
        "mean": float(np.mean(means)),
        "worst image": max(means),
        "images": len(means),
        "decoders": theirs.stats().kinds,
    }


def contenders(
    dataset: Path, files: list[Any], device: torch.device, threads: list[int], batch: int
) -> dict[str, Callable[[], Iterator[int]]]:
    """Return the contenders, by their names in the table."""
    found: dict[str, Callable[[], Iterator[int]]] = {}
    for count in threads:
        about = device, count, batch
        found[f"by hand, {count} threads"] = partial(by_hand, files, *about)
        found[f"DALILoader, {count} threads"] = partial(by_loader, dataset, *about)
    about = device, threads[0], batch
    for words, options in _CHANGES.items():
        found[f"by hand, {threads[0]} threads, {words}"] = partial(
            by_hand, files, *about, **options
        )
    return found


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of a result."""
    rows = []
    for name, windows in result["windows"].items():
        rates = Spread.of([images / seconds for images, seconds, _ in windows])
        cpu = Spread.of([1000 * cpu / images for images, _, cpu in windows])
        rows.append([name, format(rates, ",.0f"), format(cpu, ".3f")])
    return Figures("decoding by DALI", ["contender", "images/s", "CPU ms an image"], rows)


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("tree", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--device", default="cuda", show_default=True)
@click.option("--threads", type=int, multiple=True, default=[2, 8], show_default=True)
@click.option("--batch", default=256, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="Of each window.")
@click.option("--rounds", default=2, show_default=True)
@out_option
def main(
    dataset: Path,
    tree: Path,
    device: str,
    threads: tuple[int, ...],
    batch: int,
    seconds: float,
    rounds: int,
    out_path: Path | None,
) -> None:
    """Measure decoding of DATASET, which was packed from the JPEGs of TREE, by DALI."""
    where = torch.device(device)
    files = [np.fromfile(path, np.uint8) for path in sorted(tree.rglob("*.*"))]
    # Others than baseline JPEGs of one or three components could end a pipeline.
    about = [_native.probe(one) for one in files]
    files = [
        one
        for one, (kind, _, _, components, *_) in zip(files, about, strict=True)
        if kind == "jpeg" and components in (1, 3)
    ]
    if not files:
        raise click.UsageError(f"{tree} has no baseline JPEGs")
    if (there := len(ImageDataset(dataset))) < batch:  # a loader would have no batch
        raise click.UsageError(f"{dataset} has {there} samples, fewer than a batch of {batch}")
    result: dict[str, Any] = {"benchmark": "gpu-decoding", "machine": machine(), "pixels": {}}
    if where.type == "cuda":
        result["machine"]["gpu"] = torch.cuda.get_device_name(where)
    chosen: dict[str, dict[str, Any]] = {"defaults": {}}
    if where.type == "cuda":
        chosen["chroma repeated"] = {"decoder_options": {"jpeg_fancy_upsampling": False}}
    for name, options in chosen.items():
        result["pixels"][name] = pixels(dataset, where, 4, **options)
        click.echo(f"pixels, {name}: {result['pixels'][name]}")
    running: dict[str, Callable[[], Window]] = {}
    for name, make in contenders(dataset, files, where, list(threads), batch).items():
        batches = make()
        measured(batches, seconds / 4, where)  # start-up
        running[name] = partial(measured, batches, seconds, where)
    for windows in each_round(running, rounds):
        result["windows"] = windows
        save(result, out_path)
    figures(result).show()


if __name__ == "__main__":
    main()
