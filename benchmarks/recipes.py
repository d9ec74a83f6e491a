"""Users' own transforms: `fastdata.DataLoader` beside torch's, each with the same objects.

    python -m fastdata.benchmarks.recipes imagenet-train-lmdb imagenet/train --out recipes.json

DATASET was packed from TREE, whose images torch's workers decode and transform as PIL images. The
contenders take turns within one run. Images a second count wall time; CPU time, of all processes,
depends less on other work of the machine. Before anything is timed, the means and spreads of each
view's images are compared. A recipe that fails says why in its row, and the others continue.
"""

from __future__ import annotations

import gc
import importlib
import json
import pkgutil
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.measure import Figures, Spread, cpu_seconds, interleave, machine, save

import fastdata
from fastdata import DataLoader, ImageDataset, transforms
from fastdata.errors import UsageError
from fastdata.transforms.compile import compile_recipe

#: In a checkout alone.
_RECIPES = Path(__file__).resolve().parents[1] / "tests" / "recipe_makers.py"
#: Most standard errors between images' means and spreads and torch's.
_ERRORS = 4.5
#: Arguments that are no settings.
_PATHS = ("dataset", "tree")
#: Resolution of processes' CPU clocks, in seconds: prefetching may have done all of a short turn.
_TICK = 0.01
#: Most CPU seconds that idle processes take in a fifth of a second.
_IDLE = 0.02
#: The class that a warning's hint is for, and the line for it; or the class alone.
_LINE = re.compile(r"Add this method to (\S+): def __fastdata__\(self\): return (.+?)  #")
_CLASS = re.compile(r"Add a method __fastdata__ to (\S+),()")


def makers_of(path: Path) -> dict[str, Callable[[], Any]]:
    """Return what ``recipes()`` of a Python file returns: the maker of each recipe, by its name.

    Raises:
        UsageError: The file has no such function.
    """
    sys.path.insert(0, str(path.parent))  # for its imports, here and in worker processes
    module = importlib.import_module(path.stem)
    if not callable(getattr(module, "recipes", None)):
        raise UsageError(
            f"{path}: has no function recipes()",
            "Define it: it returns a dict of functions that make transforms, by name.",
        )
    makers: dict[str, Callable[[], Any]] = module.recipes()
    return makers


@contextmanager
def lines_added(transform: Any, others: Mapping[str, str] | None = None) -> Iterator[list[str]]:
    """Add the methods that warnings show to the classes of a script, and remove them at the end.

    Args:
        transform: The script's transform.
        others: What the methods return of classes that no warning has a line for, by their names.

    Yields:
        What the added methods return.
    """
    lines: list[str] = []
    with ExitStack() as added:
        pending = True
        while pending:
            pending = False
            for unknown in compile_recipe(transform).unknown:
                found = _LINE.match(unknown.hint) or _CLASS.match(unknown.hint)
                if found is None:
                    continue
                kind: Any = pkgutil.resolve_name(found[1])
                line = found[2] or (others or {}).get(kind.__name__, "")
                if line and "__fastdata__" not in vars(kind):
                    names = {**vars(transforms), "fastdata": fastdata}
                    exec(f"def __fastdata__(self): return {line}", names)
                    kind.__fastdata__ = names["__fastdata__"]
                    added.callback(delattr, kind, "__fastdata__")
                    lines.append(line)
                    pending = True
        yield lines


class Turn(NamedTuple):
    """One turn of a contender."""

    images: int
    seconds: float
    cpu: float


class FailedError(Exception):
    """A contender raised an exception."""


class Contender:
    """Loader whose turns continue one endless stream of batches.

    Its first ``ahead`` batches were prefetched before the turn, and do not count.
    """

    def __init__(self, name: str, loader: Any, batches: int, ahead: int) -> None:
        self._name, self._loader, self._batches, self._ahead = name, loader, batches, ahead
        self._stream = self._endless()

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def take(self, batches: int) -> list[Any]:
        """Return the next batches.

        Raises:
            FailedError: The loader, or a transform in it, raised an exception.
        """
        try:
            return list(islice(self._stream, batches))
        except Exception as error:
            # The message of a worker's error is a whole traceback.
            last = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise FailedError(f"{self._name} fails: {last}") from error

    def turn(self) -> Turn:
        """Skip the prefetched batches, and time a turn."""
        _settle()
        self.take(self._ahead)
        cpu, begun, images = cpu_seconds(), time.perf_counter(), 0
        for _ in range(self._batches):
            ((_, labels),) = self.take(1)
            images += len(labels)
        return Turn(images, time.perf_counter() - begun, cpu_seconds() - cpu)


def _settle() -> None:
    """Wait until the previous loader has finished prefetching."""
    before = -1.0
    while (now := cpu_seconds()) - before > _IDLE:
        before = now
        time.sleep(0.2)


def verify(ours: Contender, theirs: Contender, batches: int) -> str:
    """Compare the means and spreads of each view's images.

    Returns:
        A difference larger than chance, as text; "" without any.
    """
    both = []
    # Start their workers first: after a fork, the system copies each page of our batches that is
    # written to, and the first turns would pay for that.
    for contender in (theirs, ours):
        found = (_as_views(images) for images, _ in contender.take(batches))
        both.append([torch.cat(view) for view in zip(*found, strict=True)])
    for number, pair in enumerate(zip(*reversed(both), strict=True)):
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
    """Image processor of transformers as a function from an image to a tensor."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(self, image: Any) -> Any:
        return self._processor(image, return_tensors="pt")["pixel_values"][0]


def _compare(
    dataset: Path, tree: Path, transform: Any, threads: int, batch: int, batches: int, rounds: int
) -> dict[str, Any]:
    """Return the turns of both loaders; or an "error", and no turns."""
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
        "fastdata": Contender("fastdata", loader, 8 * batches, 2),
        "torch": Contender(
            "the original", torch.utils.data.DataLoader(folder, **options), batches, 2 * threads
        ),
    }
    try:
        if wrong := verify(contenders["fastdata"], contenders["torch"], batches):
            return {"error": f"not the original's images: {wrong}"}
        turns = interleave({name: one.turn for name, one in contenders.items()}, rounds)
    except FailedError as failed:
        return {"error": str(failed)}
    return {"turns": turns, "error": ""}


def measure(
    makers: Mapping[str, Callable[[], Any]],
    dataset: Path,
    tree: Path,
    keep: Callable[[dict[str, Any]], object] = lambda result: None,
    done: dict[str, Any] | None = None,
    **settings: int,
) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values.

    Skips recipes in ``done``, and calls ``keep`` with the results so far after each other one.
    """
    done = {} if done is None else done
    result = {
        "benchmark": "recipes",
        "machine": machine(),
        "samples": len(ImageDataset(dataset)),
        "settings": settings,
        "recipes": done,
    }
    for name in [name for name in makers if name not in done]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries, on their own transforms
            try:
                transform = makers[name]()
            except Exception as error:  # not installed, or not with these versions of libraries
                done[name] = {"error": f"it cannot be made: {type(error).__name__}: {error}"}
            else:
                with lines_added(transform):
                    done[name] = _compare(dataset, tree, transform, **settings)
        gc.collect()  # ends its workers
        print(name, done[name]["error"] or "", file=sys.stderr, flush=True)
        keep(result)
    return result


def ratio(result: dict[str, Any], name: str, value: Callable[[Turn], float]) -> Spread | None:
    """Return fastdata's value divided by the original's, by round; None if it was not timed."""
    turns = result["recipes"].get(name, {}).get("turns")
    if turns is None:
        return None
    ours, theirs = ([value(Turn(*turn)) for turn in turns[who]] for who in ("fastdata", "torch"))
    return Spread.of_ratios(ours, theirs)


def speed(turn: Turn) -> float:
    """Return images a second of wall time."""
    return turn.images / turn.seconds


def thrift(turn: Turn) -> float:
    """Return images a second of CPU time."""
    return turn.images / max(turn.cpu, _TICK)


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results; ratios are computed per round."""
    rows = []
    for name, of in result["recipes"].items():
        if of["error"]:
            rows.append([name, of["error"], "", "", ""])
            continue
        speeds = (
            Spread.of([speed(Turn(*turn)) for turn in of["turns"][who]])
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
@click.option(
    "--recipes",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=_RECIPES,
    help="A Python file whose function recipes() returns a dict of functions that make transforms. "
    "[default: those of docs/recipes.md, in a checkout]",
)
@click.option("--recipe", "names", multiple=True, help="By name, or several; all by default.")
@click.option("--threads", default=2, show_default=True)
@click.option("--batch", default=32, show_default=True)
@click.option("--batches", default=4, show_default=True, help="Batches of one of torch's turns.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--about", default="", help="A sentence for the page: how this was run.")
@click.option(
    "--out",
    "out_path",
    type=click.Path(path_type=Path),
    help="Write the figures here; if the file exists, measure the recipes that it lacks.",
)
def main(
    file: Path, names: tuple[str, ...], about: str, out_path: Path | None, **options: Any
) -> None:
    """Measure recipes on the packed DATASET and the TREE that it was made of."""
    makers = makers_of(file)
    if unknown := set(names) - set(makers):
        raise click.UsageError(f"no recipe {unknown.pop()!r}; there are: {'; '.join(makers)}")
    torch.set_num_threads(1)  # so that no thread of torch's spins beside the loaders'
    done: dict[str, Any] = {}
    if out_path is not None and out_path.exists():
        before = json.loads(out_path.read_text())
        settings = {name: value for name, value in options.items() if name not in _PATHS}
        if (before["machine"], before["settings"]) != (machine(), settings):
            raise click.UsageError(
                f"{out_path} has figures of another machine or other settings: name another file"
            )
        done, about = before["recipes"], about or before.get("about", "")

    def keep(result: dict[str, Any]) -> None:
        save({"about": about, **result}, out_path)

    for name in names:
        done.pop(name, None)
    chosen = {name: makers[name] for name in names or makers}
    figures(measure(chosen, done=done, keep=keep, **options)).show()


if __name__ == "__main__":
    main()
