"""Photographs in a ``datasets.Dataset``: `fastdata.DataLoader` beside torch's loader.

    python -m fastdata.benchmarks.hugging_face imagenet/train --out hugging-face-speed.json

A dataset of photographs, some of them with an EXIF orientation, is saved to disk and loaded again,
so that ``datasets`` maps its Arrow files. torch's loader takes it ``with_transform``; fastdata the
same dataset, in the order in which it was saved and after ``shuffle()``, and the very object
that torch's loader takes. Before anything is timed, every image is compared after a transform that
draws nothing, and every label. The loaders take turns within one run.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
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
from PIL import Image

from fastdata import DataLoader, ImageDataset

#: Contenders, and what each loads.
CONTENDERS = {
    "torch": "torch's loader, `with_transform`",
    "torch, shuffled": "the same after `shuffle()`",
    "fastdata": "`ImageDataset(dataset)`",
    "fastdata, shuffled": "the same after `shuffle()`",
    "fastdata, with_transform": "the dataset `with_transform` itself",
}
#: One in so many photographs gets an EXIF orientation.
_TURNED = 7
#: A level of 255, and a little.
_LEVEL = 1.001 / 255


def write(root: Path, images: int, folder: Path) -> Any:
    """Write photographs of a tree of classes to a dataset; return it, mapped from its files."""
    import datasets

    datasets.disable_progress_bars()
    files = listing(root)
    chosen = files[:: max(1, len(files) // images)][:images]
    names = [str(label) for label in sorted({label for _, label in chosen})]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    cells = [
        {"bytes": _oriented(Path(path).read_bytes(), number), "path": Path(path).name}
        for number, (path, _) in enumerate(chosen)
    ]
    labels = [names.index(str(label)) for _, label in chosen]
    made = datasets.Dataset.from_dict(
        {"image": cells, "label": labels}, datasets.Features(features)
    )
    made.save_to_disk(folder, num_shards=4)
    return datasets.load_from_disk(folder)


def _oriented(jpeg: bytes, number: int) -> bytes:
    """Return a JPEG, some with an EXIF orientation put behind their first marker."""
    if (number + 1) % _TURNED or not jpeg.startswith(b"\xff\xd8"):
        return jpeg
    exif = Image.Exif()
    exif[0x0112] = 2 + number // _TURNED % 7
    data = exif.tobytes()
    return jpeg[:2] + b"\xff\xe1" + (len(data) + 2).to_bytes(2, "big") + data + jpeg[2:]


class _Pairs:
    """Loader of (images, labels), of one of dicts.

    Args:
        loader: The loader.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield batch["image"], batch["label"]


def _batched(transform: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the function of a batch that ``with_transform`` takes."""

    def apply(batch: dict[str, Any]) -> dict[str, Any]:
        images = [transform(image.convert("RGB")) for image in batch["image"]]
        return {"image": images, "label": batch["label"]}

    return apply


class Loaders:
    """The loaders of one dataset.

    Args:
        dataset: The dataset.
        batch: Images of a batch.
        threads: Decode threads, and worker processes.
    """

    def __init__(self, dataset: Any, batch: int, threads: int) -> None:
        self._transforms = import_torchvision().transforms
        self._dataset, self._batch, self._threads = dataset, batch, threads

    def _transform(self, train: bool) -> Any:
        t = self._transforms
        steps = [t.RandomResizedCrop(224), t.RandomHorizontalFlip()]
        steps = steps if train else [t.Resize(256), t.CenterCrop(224)]
        return t.Compose([*steps, t.ToTensor()])

    def loader(self, name: str, train: bool = True) -> Any:
        """Return the loader of a contender."""
        dataset = self._dataset.shuffle(seed=1) if "shuffled" in name else self._dataset
        transform = self._transform(train)
        given: dict[str, Any] = {
            "batch_size": self._batch,
            "shuffle": train,
            "drop_last": train,
            "num_workers": self._threads,
            "persistent_workers": True,
        }
        if name in ("fastdata", "fastdata, shuffled"):
            return DataLoader(ImageDataset(dataset, transform), require_native=True, **given)
        dataset = dataset.with_transform(_batched(transform))
        if name == "fastdata, with_transform":
            return _Pairs(DataLoader(dataset, require_native=True, **given))
        return _Pairs(torch.utils.data.DataLoader(dataset, **given))

    def check(self) -> None:
        """Compare every image and label, without draws.

        Raises:
            SystemExit: They differ; nothing was timed.
        """
        # torch's workers are forked while no thread of fastdata's runs.
        theirs = {name: list(self.loader(name, False)) for name in CONTENDERS if "torch" in name}
        for name in CONTENDERS.keys() - theirs.keys():
            reference = theirs["torch, shuffled" if "shuffled" in name else "torch"]
            pairs = zip(self.loader(name, False), reference, strict=True)
            for number, ((images, labels), (wanted, known)) in enumerate(pairs):
                if not torch.equal(labels, known) or (images - wanted).abs().max() > _LEVEL:
                    raise SystemExit(f"{name}: batch {number} is another one; nothing was timed")


def measure(
    root: Path, images: int, threads: int, batch: int, batches: int, rounds: int
) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of images that Pillow decodes
        dataset = write(root, images, Path(folder, "saved"))
        loaders = Loaders(dataset, batch, threads)
        loaders.check()
        contenders = {}
        for name in CONTENDERS:
            ours = name.startswith("fastdata")
            # Each worker prefetches two batches.
            about = (8 * batches, 2) if ours else (batches, 2 * threads)
            contenders[name] = Contender(name, loaders.loader(name), *about)
            contenders[name].take(1)  # torch's workers are forked before fastdata has memory
        for name, one in contenders.items():
            if name.startswith("fastdata"):
                one.take(len(dataset) // batch)  # the first epoch, which learns
                if wrong := verify(one, contenders["torch"], batches):
                    raise SystemExit(f"{name}: {wrong}; nothing was timed")
        turns = interleave({name: one.turn for name, one in contenders.items()}, rounds)
        about_machine = machine()
        about_machine["packages"]["datasets"] = version_of("datasets")
        return {
            "benchmark": "hugging_face",
            "machine": about_machine,
            "images": len(dataset),
            "threads": threads,
            "batch": batch,
            "batches": batches,
            "load": os.getloadavg()[0],
            "turns": turns,
        }


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results; ratios are computed per round, with ``torch``."""
    turns = {name: [Turn(*turn) for turn in found] for name, found in result["turns"].items()}
    rows = []
    for name, found in turns.items():
        cells = [f"{name}: {CONTENDERS[name]}"]
        for value in (speed, thrift):
            ours, theirs = ([value(turn) for turn in of] for of in (found, turns["torch"]))
            if value is speed:
                cells.append(f"{Spread.of(ours):,.0f}")
            cells.append(f"{Spread.of_ratios(ours, theirs):.2f}")
        rows.append(cells)
    title = "{images:,} photographs, {threads} threads or workers, batches of {batch}"
    heads = ["", "images/s", "ratio to torch", "ratio of CPU times"]
    return Figures(title.format(**result), heads, rows)


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--images", default=600, show_default=True, help="Photographs, evenly from ROOT.")
@click.option("--threads", default=2, show_default=True, help="Decode threads, and workers.")
@click.option("--batch", default=50, show_default=True, help="Images a batch.")
@click.option("--batches", default=8, show_default=True, help="Batches of a turn of torch's.")
@click.option("--rounds", default=5, show_default=True, help="Turns of each loader.")
@out_option
def main(root: Path, out_path: Path | None, **options: int) -> None:
    """Measure loading of a datasets.Dataset beside torch's loader.

    ROOT is a folder with a folder of photographs for each class. It needs datasets.
    Progress goes to standard error, the table to standard output; it takes a minute.

    Example: python -m fastdata.benchmarks.hugging_face imagenet/train
    """
    torch.set_num_threads(1)  # so that no thread of torch's spins beside the loaders'
    result = measure(root, **options)
    report(result, out_path, figures(result))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
