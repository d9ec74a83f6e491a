"""Tars of others where they are: `fastdata.DataLoader` over their index beside webdataset.

    python -m fastdata.benchmarks.in_place imagenet/train --out in-place-speed.json

Photographs are written to tars as WebDataset's writers do it: a JPEG, its class and a JSON each.
The tars are indexed by `fastdata index`, which copies nothing, and packed to a dataset for
comparison. Before anything is timed, every image is compared after a transform that draws nothing,
and every label. The loaders take turns within one run. Images a second count wall time; CPU time,
of all processes, depends less on other work of the machine.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.indexing import members
from fastdata.benchmarks.measure import (
    Figures,
    Spread,
    interleave,
    machine,
    out_option,
    report,
    version_of,
)
from fastdata.benchmarks.prepare import listing
from fastdata.benchmarks.recipes import Contender, Turn, speed, thrift, verify
from fastdata.converters.indexing import index
from fastdata.converters.packing import pack
from fastdata.converters.webdataset import WebDataset

from fastdata import DataLoader, ImageDataset

#: Contenders, and what each reads.
CONTENDERS = {
    "webdataset": "the tars, in order, a buffer of 1,000 to shuffle in",
    "packed": "`fastdata convert webdataset`, random access",
    "in place": "`fastdata index`, random access to the tars",
}
#: What ratios are taken to.
AGAINST = ("webdataset", "packed")
#: A level of 255, and a little.
_LEVEL = 1.001 / 255


def write(root: Path, images: int, tars: Path, shards: int) -> None:
    """Write photographs of a tree of classes to tars, evenly."""
    files = listing(root)
    chosen = files[:: max(1, len(files) // images)][:images]
    tars.mkdir()
    for shard in range(shards):
        with (tars / f"{shard:05}.tar").open("wb") as file:
            for number in range(shard, len(chosen), shards):
                path, label = chosen[number]
                file.write(members(f"{number:09}", Path(path).read_bytes(), label))
            file.write(bytes(2 * tarfile.BLOCKSIZE))


class Loaders:
    """The loaders of the same photographs.

    Args:
        tars: The tars.
        indexed: Their index.
        packed: The dataset that was packed from them.
        batch: Images of a batch.
        threads: Decode threads, and worker processes.
    """

    def __init__(self, tars: Path, indexed: Path, packed: Path, batch: int, threads: int) -> None:
        self._transforms = import_torchvision().transforms
        self._tars, self._datasets = tars, {"in place": indexed, "packed": packed}
        self._batch, self._threads = batch, threads

    def _transform(self, train: bool) -> Any:
        t = self._transforms
        steps = [t.RandomResizedCrop(224), t.RandomHorizontalFlip()]
        steps = steps if train else [t.Resize(256), t.CenterCrop(224)]
        return t.Compose([*steps, t.ToTensor()])

    def fastdata(self, name: str, train: bool = True) -> Any:
        """Return a `fastdata.DataLoader`; without ``train``, batches have keys, too."""
        fields = ("image", "label") if train else ("image", "key", "label")
        dataset = ImageDataset(self._datasets[name], self._transform(train), fields=fields)
        return DataLoader(
            dataset,
            self._batch,
            shuffle=train,
            drop_last=train,
            num_workers=self._threads,
            persistent_workers=True,
            require_native=True,
        )

    def webdataset(self, train: bool = True) -> Any:
        """Return webdataset's loader of the tars."""
        import webdataset

        transform = self._transform(train)

        def sample(one: dict[str, Any]) -> tuple[Any, ...]:
            key = () if train else (one["__key__"],)
            return transform(one["jpg"].convert("RGB")), *key, int(one["cls"])

        tars = sorted(map(str, self._tars.glob("*.tar")))
        dataset = webdataset.WebDataset(tars, shardshuffle=len(tars) if train else False, seed=0)
        dataset = dataset.shuffle(1000) if train else dataset
        dataset = dataset.decode("pil").map(sample).batched(self._batch, partial=not train)
        return webdataset.WebLoader(
            dataset, batch_size=None, num_workers=self._threads, persistent_workers=train
        )

    def check(self) -> None:
        """Compare every image and label, without draws.

        Raises:
            SystemExit: They differ; nothing was timed.
        """
        # torch's workers are forked while no thread of fastdata's runs.
        theirs = _samples(self.webdataset(False))
        for name in self._datasets:
            ours = _samples(self.fastdata(name, False))
            if ours.keys() != theirs.keys():
                raise SystemExit(f"{name}: other keys or labels; nothing was timed")
            wrong = [key for key in ours if (ours[key] - theirs[key]).abs().max() > _LEVEL]
            if wrong:
                raise SystemExit(f"{name}: {len(wrong)} images differ; nothing was timed")


def _samples(batches: Iterable[Any]) -> dict[tuple[str, int], torch.Tensor]:
    """Return the images of an epoch by key and label."""
    return {
        (key.rsplit("/", 1)[-1], int(label)): image.clone()
        for images, keys, labels in batches
        for image, key, label in zip(images, keys, labels, strict=True)
    }


def measure(
    root: Path, images: int, threads: int, batch: int, batches: int, rounds: int
) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of webdataset
        tars, indexed, packed = (Path(folder, name) for name in ("tars", "index", "packed"))
        write(root, images, tars, 2 * threads)
        index(tars, indexed, workers=1)
        pack(WebDataset(tars), packed, container="shards", workers=1)
        loaders = Loaders(tars, indexed, packed, batch, threads)
        loaders.check()
        # Each worker prefetches two batches.
        contenders = {
            "webdataset": Contender("webdataset", loaders.webdataset(), batches, 2 * threads)
        }
        contenders["webdataset"].take(1)  # its workers are forked before fastdata has memory
        for name in ("packed", "in place"):
            one = Contender(name, loaders.fastdata(name), 8 * batches, 2)
            one.take(images // batch)  # the first epoch, which learns seek points
            if wrong := verify(one, contenders["webdataset"], batches):
                raise SystemExit(f"{name}: {wrong}; nothing was timed")
            contenders[name] = one
        turns = interleave({name: one.turn for name, one in contenders.items()}, rounds)
        about = machine()
        about["packages"]["webdataset"] = version_of("webdataset")
        return {
            "benchmark": "in_place",
            "machine": about,
            "images": len(ImageDataset(packed)),
            "threads": threads,
            "batch": batch,
            "batches": batches,
            "load": os.getloadavg()[0],
            "turns": turns,
        }


def figures(result: dict[str, Any]) -> list[Figures]:
    """Return the tables of results, by wall time and by CPU time; ratios are taken by round."""
    turns = {name: [Turn(*turn) for turn in found] for name, found in result["turns"].items()}
    title = "{images:,} photographs, {threads} threads or workers, batches of {batch}"
    tables = []
    for unit, value in (("images/s", speed), ("images per second of CPU time", thrift)):
        rows = []
        for name, found in turns.items():
            ours = [value(turn) for turn in found]
            ratios = (
                Spread.of_ratios(ours, [value(turn) for turn in turns[other]]) for other in AGAINST
            )
            cells = [f"{ratio:.2f}" for ratio in ratios]
            rows.append([f"{name}: {CONTENDERS[name]}", f"{Spread.of(ours):,.0f}", *cells])
        heads = ["", unit, *(f"ratio to {name}" for name in AGAINST)]
        tables.append(Figures(title.format(**result), heads, rows))
    return tables


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--images", default=600, show_default=True, help="Photographs, evenly from ROOT.")
@click.option("--threads", default=2, show_default=True, help="Decode threads, and workers.")
@click.option("--batch", default=50, show_default=True, help="Images a batch.")
@click.option("--batches", default=8, show_default=True, help="Batches of a turn of webdataset.")
@click.option("--rounds", default=7, show_default=True, help="Turns of each loader.")
@out_option
def main(root: Path, out_path: Path | None, **options: int) -> None:
    """Measure loading from tars in place beside the webdataset package.

    ROOT is a folder with a folder of photographs for each class. They are written to tars, which
    are indexed, and packed. It needs webdataset. Progress goes to standard error, the
    tables to standard output; it takes two minutes.

    Example: python -m fastdata.benchmarks.in_place imagenet/train
    """
    torch.set_num_threads(1)  # so that no thread of torch's spins beside the loaders'
    result = measure(root, **options)
    report(result, out_path, *figures(result))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
