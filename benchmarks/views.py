"""Recipes of several views: `fastdata.DataLoader` beside torch's with the recipe's own code.

    python -m fastdata.benchmarks.views imagenet-train-lmdb imagenet/train --recipe dinov2

DATASET was packed from TREE, whose images torch's workers decode and augment with torchvision on
PIL images, as the recipe was published; fastdata is given the same torchvision objects in
`transforms.Views`. Contenders take turns within one run; images a second are of wall time, and the
CPU time is that of all processes, which other work on the machine disturbs less. Before anything is
timed, the means and spreads of each view's images are compared.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil
import torch
from fastdata.benchmarks.adapters._recipes import MEAN, STD
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.measure import Figures, Spread, machine

from fastdata import DataLoader, ImageDataset
from fastdata.transforms import Views

#: Standard errors by which images' means and spreads may be from torch's.
_ERRORS = 4.5


class _DINO:
    """Two global crops and eight local ones, as DINOv2's ``DataAugmentationDINO`` makes them.

    Its ``GaussianBlur(p)`` blurs with probability 1 - p: with 0, 0.9 and 0.5.
    """

    def __init__(self, tv: Any) -> None:
        bicubic = tv.InterpolationMode.BICUBIC

        def view(size: int, scale: tuple[float, float], blurred: float, *more: Any) -> Any:
            jitter = tv.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
            return tv.Compose(
                [
                    tv.RandomResizedCrop(size, scale=scale, interpolation=bicubic),
                    tv.RandomHorizontalFlip(p=0.5),
                    tv.RandomApply([jitter], p=0.8),
                    tv.RandomGrayscale(p=0.2),
                    tv.RandomApply([tv.GaussianBlur(kernel_size=9, sigma=(0.1, 2.0))], p=blurred),
                    *more,
                    tv.ToTensor(),
                    tv.Normalize(MEAN, STD),
                ]
            )

        solarised = tv.RandomSolarize(threshold=128, p=0.2)
        local = view(98, (0.05, 0.32), 0.5)
        whole = (0.32, 1.0)
        self.views = [view(224, whole, 0.0), view(224, whole, 0.9, solarised), *[local] * 8]

    def __call__(self, image: Any) -> list[Any]:
        return [view(image) for view in self.views]


class _SimCLR(_DINO):
    """Two views of one transform."""

    def __init__(self, tv: Any) -> None:
        steps = [
            tv.RandomResizedCrop(224),
            tv.RandomHorizontalFlip(),
            tv.RandomApply([tv.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            tv.RandomGrayscale(p=0.2),
            tv.RandomApply([tv.GaussianBlur(23, (0.1, 2.0))], p=0.5),
            tv.ToTensor(),
            tv.Normalize(MEAN, STD),
        ]
        self.views = [tv.Compose(steps)] * 2


RECIPES = {"dinov2": _DINO, "simclr": _SimCLR}


class _Turn(NamedTuple):
    """What a contender did in one turn."""

    images: int
    seconds: float
    cpu: float


class _Contender:
    """A loader that goes on where its last turn has ended.

    Args:
        loader: Gives (views, labels), and can be iterated again and again.
        batches: Of a turn.
        ahead: How many it had prepared when the turn before ended.
    """

    def __init__(self, loader: Any, batches: int, ahead: int) -> None:
        self._loader, self._batches, self._ahead = loader, batches, ahead
        self._stream = self._endless()

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def take(self, batches: int) -> list[Any]:
        """So many batches."""
        return list(islice(self._stream, batches))

    def turn(self) -> _Turn:
        """One turn, after what was prepared before it."""
        self.take(self._ahead)
        cpu, begun, images = _cpu(), time.perf_counter(), 0
        for _ in range(self._batches):
            ((_, labels),) = self.take(1)
            images += len(labels)
        return _Turn(images, time.perf_counter() - begun, _cpu() - cpu)


def _cpu() -> float:
    """CPU seconds of this process and its children so far."""
    own = psutil.Process()
    processes = [own, *own.children(recursive=True)]
    return sum(float(t.user + t.system) for t in (p.cpu_times() for p in processes))


def _verify(ours: _Contender, theirs: _Contender, batches: int) -> None:
    """Compares the images of each view, of so many batches: their means, and their spreads."""
    both = []
    for contender in (ours, theirs):
        views = zip(*(batch[0] for batch in contender.take(batches)), strict=True)
        both.append([torch.cat(view) for view in views])
    for number, pair in enumerate(zip(*both, strict=True)):
        if len({(view.shape, view.dtype) for view in pair}) > 1:
            found, wanted = (f"{tuple(view.shape)} {view.dtype}" for view in pair)
            sys.exit(f"view {number} is {found}, not {wanted}: nothing was timed")
        for name in ("mean", "std"):
            values = [getattr(view.flatten(1), name)(1) for view in pair]
            error = torch.stack([one.var() / len(one) for one in values]).sum().sqrt()
            apart = float((values[0].mean() - values[1].mean()).abs() / error)
            if apart > _ERRORS:
                sys.exit(
                    f"view {number}: the images' {name} is {apart:.1f} standard errors from "
                    "torch's: nothing was timed"
                )


def measure(
    dataset: Path, tree: Path, recipe: str, threads: int, batch: int, batches: int, rounds: int
) -> dict[str, Any]:
    """Runs the benchmark; returns all figures as JSON values."""
    torchvision = import_torchvision()
    transform = RECIPES[recipe](torchvision.transforms)
    options: dict[str, Any] = {
        "batch_size": batch,
        "shuffle": True,
        "drop_last": True,
        "num_workers": threads,
        "persistent_workers": True,
    }
    packed = ImageDataset(dataset, transform=Views(*transform.views))
    folder = torchvision.datasets.ImageFolder(str(tree), transform)
    original = torch.utils.data.DataLoader(folder, **options)
    native: DataLoader[Any] = DataLoader(packed, require_native=True, **options)
    contenders = {
        "fastdata": _Contender(native, 8 * batches, 2),
        "torch": _Contender(original, batches, 2 * threads),
    }
    _verify(contenders["fastdata"], contenders["torch"], batches)
    turns: dict[str, list[_Turn]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            turns[name].append(contender.turn())
            rate = turns[name][-1].images / turns[name][-1].seconds
            print(f"round {number + 1}/{rounds} {name}: {rate:.1f}", file=sys.stderr)
    return {
        "benchmark": "views",
        "recipe": recipe,
        "machine": {**machine(), "torch": torch.__version__},
        "samples": len(packed),
        "threads": threads,
        "batch": batch,
        "turns": turns,
    }


def figures(result: dict[str, Any]) -> Figures:
    """The results as people read them; ratios are taken round by round."""
    turns = {name: [_Turn(*turn) for turn in of] for name, of in result["turns"].items()}
    measures: dict[str, Callable[[_Turn], float]] = {
        "images a second": lambda turn: turn.images / turn.seconds,
        "CPU ms an image": lambda turn: 1000 * turn.cpu / turn.images,
    }
    rows = []
    for title, value in measures.items():
        ours, theirs = ([value(turn) for turn in turns[name]] for name in ("fastdata", "torch"))
        pairs = [mine / its for mine, its in zip(ours, theirs, strict=True)]
        ratios = pairs if title == "images a second" else [1 / pair for pair in pairs]
        rows.append([title, *(str(Spread.of(values)) for values in (ours, theirs, ratios))])
    title = f"{result['recipe']}: {result['threads']} threads, batches of {result['batch']}"
    return Figures(title, ["", "fastdata", "torch", "times as fast"], rows)


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("tree", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--recipe", type=click.Choice(list(RECIPES)), default="dinov2", show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--batch", default=32, show_default=True)
@click.option("--batches", default=4, show_default=True, help="Of a turn of torch's.")
@click.option("--rounds", default=5, show_default=True)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here."
)
def main(json_path: Path | None, **options: Any) -> None:
    """Measure recipes of several views, of the packed DATASET and the TREE that it was made of."""
    torch.set_num_threads(1)  # so that no thread of torch's spins beside the loaders'
    result = measure(**options)
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1) + "\n")
    figures(result).show()


if __name__ == "__main__":
    main()
