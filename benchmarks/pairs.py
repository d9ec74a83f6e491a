"""Images and captions, as open_clip loads them: `fastdata.DataLoader` beside webdataset's.

    python -m fastdata.benchmarks.pairs imagenet/train --out pairs.json

Photographs and made captions are written to tars, which open_clip's ``get_wds_dataset`` reads, and
packed from these. Both loaders have open_clip's transform for training and its tokenizer. Before
anything is timed, every image is compared after open_clip's transform for evaluation, and every
caption's tokens. The loaders take turns within one run. Pairs a second count wall time; CPU time,
of all processes, depends less on other work of the machine.
"""

from __future__ import annotations

import io
import os
import random
import tarfile
import tempfile
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision
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
from fastdata.converters.packing import pack
from fastdata.converters.webdataset import WebDataset

from fastdata import DataLoader, ImageDataset

#: A level of 255 divided by open_clip's smallest standard deviation, and a little.
_LEVEL = 1.001 / 255 / 0.26130258
#: What captions are made of.
_WORDS = (
    *("a", "the", "photo", "of", "dog", "cat", "red", "small", "large", "house", "tree", "river"),
    *("on", "in", "with", "beside", "old", "man", "woman", "child", "standing", "sitting", "green"),
    *("blue", "white", "black", "car", "street", "beach", "mountain", "snow", "painting", "night"),
    *("vintage", "portrait", "close-up", "market", "flowers", "kitchen", "wooden", "table"),
)


def write(root: Path, images: int, tars: Path, shards: int) -> None:
    """Write photographs of a tree of classes, and a caption of 5 to 17 words for each, to tars."""
    paths = [path for path, _ in listing(root)]
    chosen = paths[:: max(1, len(paths) // images)][:images]
    tars.mkdir()
    drawn = random.Random(0)
    for shard in range(shards):
        with tarfile.open(tars / f"{shard:05}.tar", "w") as tar:
            for number in range(shard, len(chosen), shards):
                words = " ".join(drawn.choices(_WORDS, k=drawn.randint(5, 17)))
                members = {
                    "jpg": Path(chosen[number]).read_bytes(),
                    "txt": f"{words.capitalize()}, number {number}.".encode(),
                }
                for extension, data in members.items():
                    info = tarfile.TarInfo(f"{number:09}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


class Loaders:
    """Both loaders of the same pairs, as open_clip's training makes and takes them."""

    def __init__(self, dataset: Path, tars: Path, batch: int, threads: int) -> None:
        import_torchvision()
        import open_clip.tokenizer
        import open_clip.transform
        import open_clip_train.data
        from webdataset.tariterators import tar_file_expander

        # Newer versions of webdataset yield an empty sample behind each tar, which open_clip's
        # training does not expect.
        open_clip_train.data.tar_file_expander = partial(tar_file_expander, eof_value=None)
        self._image_transform = open_clip.transform.image_transform
        self._theirs = open_clip_train.data.get_wds_dataset
        self._tokenizer = open_clip.tokenizer.SimpleTokenizer()
        self._dataset, self._tars = dataset, "::".join(sorted(map(str, tars.glob("*.tar"))))
        self._batch, self._threads = batch, threads

    def fastdata(self, train: bool) -> Any:
        """Return a `fastdata.DataLoader`."""
        transform = self._image_transform(224, train)
        pairs = ImageDataset(self._dataset, fields=("image", "txt"), transform=transform)

        def tokenized(batch: list[Any]) -> tuple[Any, Any]:
            images, texts = batch
            return images, self._tokenizer(texts)

        return DataLoader(
            pairs,
            self._batch,
            shuffle=train,
            drop_last=train,
            num_workers=self._threads,
            persistent_workers=True,
            batch_transform=tokenized,
            require_native=True,
        )

    def webdataset(self, train: bool) -> Any:
        """Return open_clip's loader of tars."""
        args = SimpleNamespace(
            train_data=self._tars,
            val_data=self._tars,
            train_num_samples=len(ImageDataset(self._dataset)),
            val_num_samples=None,
            train_data_upsampling_factors=None,
            batch_size=self._batch,
            workers=self._threads,
            world_size=1,
            seed=0,
        )
        transform = self._image_transform(224, train)
        return self._theirs(args, transform, train, tokenizer=self._tokenizer).dataloader

    def check(self) -> None:
        """Compare every image and caption, without augmentations.

        Raises:
            SystemExit: They differ; nothing was timed.
        """
        ours, theirs = (_pairs(one(False)) for one in (self.fastdata, self.webdataset))
        if ours.keys() != theirs.keys():
            raise SystemExit("the captions differ: nothing was timed")
        wrong = [key for key, image in ours.items() if (image - theirs[key]).abs().max() > _LEVEL]
        if wrong:
            raise SystemExit(f"{len(wrong)} images differ: nothing was timed")


def _pairs(batches: Iterable[Any]) -> dict[tuple[int, ...], torch.Tensor]:
    """Return the images of an epoch by their captions' tokens."""
    return {
        tuple(row): image.clone()
        for images, tokens in batches
        for row, image in zip(tokens.tolist(), images, strict=True)
    }


def measure(
    root: Path, images: int, threads: int, batch: int, batches: int, rounds: int
) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        tars, packed = Path(folder, "tars"), Path(folder, "pairs")
        write(root, images, tars, 2 * threads)
        pack(WebDataset(tars), packed, container="shards", workers=1)
        loaders = Loaders(packed, tars, batch, threads)
        loaders.check()
        # Each worker prefetches two batches.
        ours = Contender("fastdata", loaders.fastdata(True), 8 * batches, 2)
        theirs = Contender("webdataset", loaders.webdataset(True), batches, 2 * threads)
        if wrong := verify(ours, theirs, batches):
            raise SystemExit(f"not open_clip's images: {wrong}; nothing was timed")
        turns = interleave({"fastdata": ours.turn, "webdataset": theirs.turn}, rounds)
        about = machine()
        names = ("open_clip_torch", "webdataset")
        about["packages"].update({name: version_of(name) for name in names})
        return {
            "benchmark": "pairs",
            "machine": about,
            "pairs": len(ImageDataset(packed)),
            "threads": threads,
            "batch": batch,
            "batches": batches,
            "load": os.getloadavg()[0],
            "turns": turns,
        }


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results; ratios are computed per round."""
    turns = {name: [Turn(*turn) for turn in found] for name, found in result["turns"].items()}
    rows = []
    for title, value in (("pairs/s", speed), ("pairs per second of CPU time", thrift)):
        ours, theirs = (
            [value(turn) for turn in turns[name]] for name in ("fastdata", "webdataset")
        )
        ratio = f"{Spread.of_ratios(ours, theirs):.1f}"
        rows.append([title, *(f"{Spread.of(one):,.0f}" for one in (theirs, ours)), ratio])
    title = "{pairs:,} pairs, {threads} threads or workers, batches of {batch}".format(**result)
    return Figures(title, ["", "webdataset", "fastdata", "ratio"], rows)


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--images", default=600, show_default=True, help="Photographs, evenly from ROOT.")
@click.option("--threads", default=2, show_default=True, help="Decode threads, and workers.")
@click.option("--batch", default=50, show_default=True, help="Pairs a batch.")
@click.option("--batches", default=8, show_default=True, help="Batches of a turn of webdataset.")
@click.option("--rounds", default=5, show_default=True, help="Turns of each loader.")
@out_option
def main(root: Path, out_path: Path | None, **options: int) -> None:
    """Measure loading of images and captions beside the webdataset package.

    ROOT is a folder with a folder of photographs for each class. They are written to tars with
    made-up captions, and packed from there. It needs open_clip_torch and webdataset.
    Progress goes to standard error, the table to standard output; it takes a minute.

    Example: python -m fastdata.benchmarks.pairs imagenet/train
    """
    torch.set_num_threads(1)  # so that no thread of torch's spins beside the loaders'
    result = measure(root, **options)
    report(result, out_path, figures(result))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
