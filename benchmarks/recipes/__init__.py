"""People's own recipes: `fastdata.DataLoader` beside torch's with the original transforms.

    python -m fastdata.benchmarks.recipes imagenet-train-lmdb imagenet/train --out recipes.json

DATASET was packed from TREE, whose images torch's workers decode and augment with the library's
own transform on PIL images; fastdata is given the same objects, several views in
`transforms.Views`. Contenders take turns within one run; images a second are of wall time, and the
CPU time is that of all processes, which other work on the machine disturbs less. Before anything is
timed, the means and spreads of each view's images are compared. A recipe that fails says why in its
row, and the others go on.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.measure import Figures, Spread, cpu_seconds, machine
from fastdata.benchmarks.recipes._libraries import libraries
from fastdata.benchmarks.recipes._published import recipes as published

from fastdata import DataLoader, ImageDataset
from fastdata.errors import UsageError

#: Standard errors by which images' means and spreads may be from torch's.
_ERRORS = 4.5
#: Parameters that are no settings.
_PATHS = ("dataset", "tree")
#: Of the processes' clocks, in seconds: all may have been done before a short turn.
_TICK = 0.01
#: CPU seconds that idle processes take in a fifth of a second, at most.
_IDLE = 0.02


def known() -> dict[str, Callable[[], Any]]:
    """Return the maker of each recipe; one whose library is missing raises ImportError."""
    tv = import_torchvision().transforms
    importlib.import_module("torchvision.transforms.v2")
    return libraries() | published(tv)


class _Turn(NamedTuple):
    """What a contender did in one turn."""

    images: int
    seconds: float
    cpu: float


class _FailedError(Exception):
    """A contender that raised, and what."""


class _Contender:
    """A loader that goes on where its last turn has ended.

    Args:
        name: Of the contender.
        loader: Gives (views, labels), and can be iterated again and again.
        batches: Of a turn.
        ahead: How many it had prepared when the turn before ended.
    """

    def __init__(self, name: str, loader: Any, batches: int, ahead: int) -> None:
        self._name, self._loader, self._batches, self._ahead = name, loader, batches, ahead
        self._stream = self._endless()

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def take(self, batches: int) -> list[Any]:
        """So many batches.

        Raises:
            _FailedError: The loader, or a transform in it, raised.
        """
        try:
            return list(islice(self._stream, batches))
        except Exception as error:
            # Of a worker's error, the message is a whole traceback.
            last = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise _FailedError(f"{self._name} fails: {last}") from error

    def turn(self) -> _Turn:
        """One turn, after what was prepared before it."""
        _settle()
        self.take(self._ahead)
        cpu, begun, images = cpu_seconds(), time.perf_counter(), 0
        for _ in range(self._batches):
            ((_, labels),) = self.take(1)
            images += len(labels)
        return _Turn(images, time.perf_counter() - begun, cpu_seconds() - cpu)


def _settle() -> None:
    """Waits until the loader whose turn it was has prepared all that it does ahead."""
    before = -1.0
    while (now := cpu_seconds()) - before > _IDLE:
        before = now
        time.sleep(0.2)


def _verify(ours: _Contender, theirs: _Contender, batches: int) -> str:
    """Compares the images of each view, of so many batches: their means, and their spreads.

    Returns:
        How they differ by more than chance; "" if they do not.
    """
    both = []
    for contender in (ours, theirs):
        found = (_as_views(images) for images, _ in contender.take(batches))
        both.append([torch.cat(view) for view in zip(*found, strict=True)])
    for number, pair in enumerate(zip(*both, strict=True)):
        if len({(view.shape, view.dtype) for view in pair}) > 1:
            got, wanted = (f"{tuple(view.shape)} {view.dtype}" for view in pair)
            return f"view {number} is {got}, not {wanted}"
        for name in ("mean", "std"):
            values = [getattr(view.flatten(1).float(), name)(1) for view in pair]
            error = torch.stack([one.var() / len(one) for one in values]).sum().sqrt()
            apart = float((values[0].mean() - values[1].mean()).abs() / error)
            if apart > _ERRORS:
                return f"view {number}: the images' {name} is {apart:.1f} standard errors off"
    return ""


def _as_views(images: Any) -> list[torch.Tensor]:
    return images if isinstance(images, list) else [images]


class _Tensor:
    """The tensor in what a processor of transformers makes of an image."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(self, image: Any) -> Any:
        return self._processor(image, return_tensors="pt")["pixel_values"][0]


def _compare(
    dataset: Path, tree: Path, transform: Any, threads: int, batch: int, batches: int, rounds: int
) -> dict[str, Any]:
    """The turns of both loaders; or an "error", where nothing is timed."""
    original = _Tensor(transform) if hasattr(transform, "image_mean") else transform
    options: dict[str, Any] = {
        "batch_size": batch,
        "shuffle": True,
        "drop_last": True,
        "num_workers": threads,
        "persistent_workers": True,
    }
    packed = ImageDataset(dataset, transform=transform)
    try:
        loader: DataLoader[Any] = DataLoader(packed, require_native=True, **options)
    except UsageError as error:
        return {"error": error.what}
    folder = import_torchvision().datasets.ImageFolder(str(tree), original)
    contenders = {
        "fastdata": _Contender("fastdata", loader, 8 * batches, 2),
        "torch": _Contender(
            "the original", torch.utils.data.DataLoader(folder, **options), batches, 2 * threads
        ),
    }
    turns: dict[str, list[_Turn]] = {name: [] for name in contenders}
    try:
        if wrong := _verify(contenders["fastdata"], contenders["torch"], batches):
            return {"error": f"not the original's images: {wrong}"}
        for _ in range(rounds):
            for name, contender in contenders.items():
                turns[name].append(contender.turn())
    except _FailedError as failed:
        return {"error": str(failed)}
    return {"turns": turns, "error": ""}


def _machine() -> dict[str, Any]:
    return {**machine(), "torch": torch.__version__}


def measure(
    names: Sequence[str],
    dataset: Path,
    tree: Path,
    keep: Callable[[dict[str, Any]], object] = lambda result: None,
    done: dict[str, Any] | None = None,
    **settings: int,
) -> dict[str, Any]:
    """Runs the benchmark; returns all figures as JSON values.

    Args:
        names: Of recipes; all if empty, but those in ``done``.
        dataset: Packed from ``tree``.
        tree: A folder of images by class.
        keep: Called with what there is, after each recipe.
        done: What an earlier run has measured, by recipe.
        settings: As of the command line.
    """
    makers = known()
    done = {} if done is None else done
    result = {
        "benchmark": "recipes",
        "machine": _machine(),
        "samples": len(ImageDataset(dataset)),
        "settings": settings,
        "recipes": done,
    }
    for name in names or [name for name in makers if name not in done]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries, on their own transforms
            try:
                transform = makers[name]()
            except Exception as error:  # not installed, or not with these versions of libraries
                done[name] = {"error": f"it cannot be made: {type(error).__name__}: {error}"}
            else:
                done[name] = _compare(dataset, tree, transform, **settings)
        gc.collect()  # ends its workers
        print(name, done[name]["error"] or "", file=sys.stderr, flush=True)
        keep(result)
    return result


def ratio(result: dict[str, Any], name: str, value: Callable[[_Turn], float]) -> Spread | None:
    """How many times the original's value fastdata has, round by round; None: not timed."""
    turns = result["recipes"].get(name, {}).get("turns")
    if turns is None:
        return None
    pairs = zip(turns["fastdata"], turns["torch"], strict=True)
    return Spread.of([value(_Turn(*mine)) / value(_Turn(*its)) for mine, its in pairs])


def speed(turn: _Turn) -> float:
    """Images a second."""
    return turn.images / turn.seconds


def thrift(turn: _Turn) -> float:
    """Images for each second of CPU time."""
    return turn.images / max(turn.cpu, _TICK)


def figures(result: dict[str, Any]) -> Figures:
    """The results as people read them; ratios are taken round by round."""
    rows = []
    for name, of in result["recipes"].items():
        if of["error"]:
            rows.append([name, of["error"], "", "", ""])
            continue
        speeds = (
            Spread.of([speed(_Turn(*turn)) for turn in of["turns"][who]])
            for who in ("fastdata", "torch")
        )
        ratios = (ratio(result, name, value) for value in (speed, thrift))
        rows.append([name, *(f"{one.median:,.0f}" for one in speeds), *map(str, ratios)])
    settings = result["settings"]
    title = f"{settings['threads']} threads, batches of {settings['batch']}"
    columns = ["recipe", "fastdata, images/s", "torch, images/s", "times", "times by CPU time"]
    return Figures(title, columns, rows)


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("tree", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--recipe", "names", multiple=True, help="By name, or several; all by default.")
@click.option("--threads", default=2, show_default=True)
@click.option("--batch", default=32, show_default=True)
@click.option("--batches", default=4, show_default=True, help="Of a turn of torch's.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--about", default="", help="What the page should say of how it was run.")
@click.option(
    "--out",
    "out_path",
    type=click.Path(path_type=Path),
    help="Write the figures here; of a file that exists, measure the recipes that it lacks.",
)
def main(names: tuple[str, ...], about: str, out_path: Path | None, **options: Any) -> None:
    """Measure recipes, of the packed DATASET and the TREE that it was made of."""
    if unknown := set(names) - set(known()):
        raise click.UsageError(f"no recipe {unknown.pop()!r}; there are: {'; '.join(known())}")
    torch.set_num_threads(1)  # so that no thread of torch's spins beside the loaders'
    done: dict[str, Any] = {}
    if out_path is not None and out_path.exists():
        before = json.loads(out_path.read_text())
        settings = {name: value for name, value in options.items() if name not in _PATHS}
        if (before["machine"], before["settings"]) != (_machine(), settings):
            raise click.UsageError(
                f"{out_path} has figures of another machine or other settings: name another file"
            )
        done, about = before["recipes"], about or before.get("about", "")

    def keep(result: dict[str, Any]) -> None:
        if out_path is not None:
            out_path.write_text(json.dumps({"about": about, **result}, indent=1) + "\n")

    figures(measure(names, done=done, keep=keep, **options)).show()
