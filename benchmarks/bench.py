"""Throughput of loaders alone: fastdata's, and those that people would use instead.

    fastdata bench imagenet-train-lmdb
    python -m fastdata.benchmarks --tree imagenet/train --threads 1,2 --out bench.json

Each contender runs in a fresh process each round, and rounds are interleaved (A B C A B C), so
that a drift of the machine hits all. A contender's pixels and labels are checked first. A recipe
of augmentation is measured beside the same crop without; as it is random, what is checked is how
far it takes images from the plain ones on average: about as far as torchvision.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.benchmarks import pixels, warming
from fastdata.benchmarks.adapters._recipes import RECIPES
from fastdata.benchmarks.adapters._serve import Request
from fastdata.benchmarks.contender_process import ContenderError, run_contender
from fastdata.benchmarks.contenders import Contender
from fastdata.benchmarks.measure import machine
from fastdata.benchmarks.prepare import listing, prepare, repeat_tree, small_tree
from PIL import Image

from fastdata import _native
from fastdata.dataset import ImageDataset
from fastdata.errors import UsageError
from fastdata.machine import usable_cpus
from fastdata.staging.stage import stage, unstage
from fastdata.text import human_count

#: Images of the tree that is made to check contenders with, and of a tree itself.
_CHECKED = 48
#: Images of a dataset, and of anything where augmentation is compared: the mean change of so many
#: varies by some 10%.
_AUGMENTED = 192
_SIZE = 224


class Case(NamedTuple):
    """What is timed of each contender.

    Attributes:
        recipe: Of `RECIPES`; "" for the crop alone, in the dtype of the options.
        size: Side of the crop.
    """

    recipe: str = ""
    size: int = _SIZE


@dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
        threads: Numbers of threads or workers, each measured.
        seconds: Steady state of a round.
        warmup: Seconds before it.
        rounds: Fresh processes of each contender and number of threads.
        batch_size: Samples a batch.
        crop: "train" or "val".
        recipes: Of `RECIPES`, each beside "none" at its size; none for the crop alone.
        dtype: "uint8" or "float32", for contenders that do not say it themselves; recipes are
            float32.
        order: "random" or "sequential".
        cold: Whether to drop the page cache before each process.
        timeout: Seconds that a process may take beyond warm-up and steady state.
        seed: Seed of order and crops; the same for all.
    """

    threads: tuple[int, ...] = (1,)
    seconds: float = 10.0
    warmup: float = 3.0
    rounds: int = 3
    batch_size: int = 64
    crop: str = "train"
    recipes: tuple[str, ...] = ()
    dtype: str = "uint8"
    order: str = "random"
    cold: bool = False
    timeout: float = 300.0
    seed: int = 0

    @property
    def cases(self) -> list[Case]:
        """What is timed, ceilings first."""
        if not self.recipes:
            return [Case()]
        wanted = [Case(name, RECIPES[name].size) for name in self.recipes]
        return list(dict.fromkeys([*(Case("none", case.size) for case in wanted), *wanted]))


@dataclass(frozen=True)
class Data:
    """What there is to read.

    Attributes:
        work: Where prepared data lies.
        dataset: A dataset of fastdata's; read by the contenders that ``dataset_readers`` names.
        tree: An ImageFolder tree; read or converted for all others.
        images: How many images the tree is repeated to; None for as many as it has.
    """

    work: Path
    dataset: Path | None = None
    tree: Path | None = None
    images: int | None = None


def default_threads() -> tuple[int, ...]:
    """1, 2, 4, … and the number of CPUs that this process may use."""
    cpus = usable_cpus()
    doubled = (1 << bit for bit in range(cpus.bit_length()))
    return tuple(sorted({cpus, *(number for number in doubled if number <= cpus)}))


def container_contender(dataset: Path, among: Iterable[Contender]) -> Contender:
    """The contender that reads a dataset: by its container, or as raw pixels."""
    manifest = ImageDataset(dataset, staged=False).manifest
    raw = manifest.options.get("encoding") == "raw"
    name = f"fastdata-{'raw' if raw else manifest.container}"
    found = next(contender for contender in among if contender.name == name)
    # What was stored is what is compared with: the reference is decoded from the dataset itself.
    return replace(found, max_side=None)


def bench(
    contenders: Sequence[Contender],
    data: Data,
    options: Options,
    environments: Path,
    keep: Callable[[dict[str, Any]], object] = lambda result: None,
) -> dict[str, Any]:
    """Checks and measures.

    Args:
        contenders: Who takes part; the one that reads ``data.dataset`` has no folder ("").
        data: What they read.
        options: How to measure.
        environments: Folder of the peers' environments.
        keep: Called with what there is after each round, so that a long run that is stopped has
            not been for nothing.

    Returns:
        What the JSON file holds: "machine", "options", and "contenders", each with its "runs",
        or with the "error" for which it was left out. Of recipes, runs have "recipe" and "size",
        contenders "changes" (mean absolute change of a pixel by each recipe, in levels of 255) and
        "lacks" (why it has none of this recipe).
    """
    results: dict[str, dict[str, Any]] = {c.name: _about(c) for c in contenders}
    runs = options.rounds * len(options.threads) * len(options.cases) * len(contenders)
    _say(
        f"checking the pixels of {human_count(len(contenders), 'contender')}, then "
        f"{human_count(runs, 'process', 'processes')} of {options.warmup + options.seconds:g} s "
        "and what it takes to start each"
    )
    tree = data.tree
    if tree is not None and data.images:
        tree = repeat_tree(tree.absolute(), data.work / "tree", data.images)
    known = cache(partial(_wanted, data, tree))

    def wanted(contender: Contender, case: Case) -> tuple[pixels.Reference, float]:
        return known(contender.folder == "", contender.max_side, contender.area, case)

    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastdata-bench-")))
        paths: dict[str, Path] = {}
        for contender in contenders:
            result = results[contender.name]
            try:
                paths[contender.name] = _get_ready(
                    contender, data, tree, options, environments, scratch, stack, result, wanted
                )
                worst, mean = result["difference"], result["mean_difference"]
                _say(f"{contender.name}: pixels and labels are right ({mean:.2f}, {worst:.2f})")
            except (ContenderError, OSError, ValueError) as error:
                _fail(result, error)
        whole = {
            "benchmark": "loader",
            "machine": machine() | {"simd": _native.simd()},
            "options": asdict(options) | {"images": data.images},
            "contenders": list(results.values()),
        }
        for number in range(options.rounds):
            _measure(contenders, paths, options, environments, results, number)
            keep(whole)
    return whole


def _measure(
    contenders: Sequence[Contender],
    paths: dict[str, Path],
    options: Options,
    environments: Path,
    results: dict[str, dict[str, Any]],
    number: int,
) -> None:
    """One round."""
    for threads, case in product(options.threads, options.cases):
        for contender in contenders:
            result = results[contender.name]
            if result["error"] or not _takes_part(result, options, case):
                continue
            path = paths[contender.name]
            # What else the machine has to do, so that readers can tell a quiet one.
            load = os.getloadavg()[0]
            run: dict[str, Any] = {"threads": threads, "round": number, "load": load}
            if case.recipe:
                run |= case._asdict()
            if options.cold:
                run["dropped"] = warming.drop(path)
                if not run["dropped"]:
                    _say("the page cache could not be dropped: this is not a cold start")
            else:
                run["filled"] = warming.fill(path)
                if not run["filled"]:
                    _say("the data is larger than the free memory: this is not a warm start")
            request = _request(contender, path, options, threads, case)
            try:
                run |= _flat(_run(contender, request, options, environments))
            except ContenderError as error:
                _fail(result, ContenderError(f"{error} (threads={threads}{_named(case)})"))
                continue
            result["runs"].append(run)
            rate = run["images"] / run["seconds"]
            turn = f"round {number + 1}/{options.rounds}"
            several = human_count(threads, "thread")
            _say(f"{turn} {contender.name}, {several}{_named(case)}: {rate:,.0f} images/s")


def _get_ready(
    contender: Contender,
    data: Data,
    tree: Path | None,
    options: Options,
    environments: Path,
    scratch: Path,
    stack: ExitStack,
    result: dict[str, Any],
    wanted: Callable[[Contender, Case], tuple[pixels.Reference, float]],
) -> Path:
    """Prepares a contender's data and checks what it makes of it."""
    if contender.folder == "":
        assert data.dataset is not None
        path = data.dataset
    else:
        assert tree is not None
        # Few images of several classes: in the data itself, the first may all have one label.
        sample = data.work.absolute() / "check" / "tree"
        small_tree(tree, sample, _CHECKED)
        checked = prepare(contender, sample, sample.parent, environments)
        few = _of_tree(sample, None, contender.max_side, contender.area)
        small = pixels.reference(few, _SIZE, area=contender.area)
        if contender.staged:
            _stage(checked, stack)
        with _handed_over(
            contender, checked, small, options, environments, scratch, Case()
        ) as given:
            pixels.check(given, small, contender.tolerance, contender.mean_tolerance)
        path = prepare(contender, tree.absolute(), data.work.absolute(), environments)
    if contender.staged:
        _stage(path, stack)
    # Ceilings last: what has nothing to be compared with its ceiling is not asked for it.
    for case in reversed(options.cases):
        if not _takes_part(result, options, case):
            continue
        reference, change = wanted(contender, case)
        try:
            with _handed_over(
                contender, path, reference, options, environments, scratch, case
            ) as given:
                if change:
                    result["changes"][case.recipe] = pixels.check_change(given, reference, change)
                else:
                    result["difference"], result["mean_difference"] = pixels.check(
                        given, reference, contender.tolerance, contender.mean_tolerance
                    )
        except _LackError as reason:
            result["lacks"][case.recipe] = str(reason)
        except ContenderError as error:
            raise ContenderError(f"{error}{_named(case)}") from None
    if "difference" not in result:
        raise ContenderError("it has none of the recipes")
    samples = len(listing(tree)) if contender.folder and tree else len(ImageDataset(path))
    result["data_bytes"] = warming.size(path)
    result["samples"] = samples
    return path


def _takes_part(result: dict[str, Any], options: Options, case: Case) -> bool:
    """Whether a contender has a recipe; of a ceiling, whether it has any recipe of that size."""
    if case.recipe not in ("", "none"):
        return case.recipe not in result["lacks"]
    beside = [name for name in options.recipes if RECIPES[name].size == case.size]
    return not beside or any(name not in result["lacks"] for name in beside)


@contextmanager
def _handed_over(
    contender: Contender,
    path: Path,
    wanted: pixels.Reference,
    options: Options,
    environments: Path,
    scratch: Path,
    case: Case,
) -> Iterator[pixels.Given]:
    """What a contender makes of the first samples."""
    out = scratch / f"{contender.name}.npz"
    request = replace(
        _request(contender, path, options, threads=1, case=case),
        crop="val",
        order="sequential",
        check=len(wanted.labels),
        batch_size=min(options.batch_size, len(wanted.labels)),
        out=str(out),
    )
    _run(contender, request, options, environments)
    try:
        yield pixels.Given(out, request.dtype, normalised=bool(case.recipe))
    finally:
        out.unlink()


def _request(
    contender: Contender, path: Path, options: Options, threads: int, case: Case
) -> Request:
    return Request(
        data=str(path.absolute()),
        variant=contender.variant,
        batch_size=options.batch_size,
        threads=threads,
        crop=options.crop,
        size=case.size,
        dtype="float32" if case.recipe else contender.dtype or options.dtype,
        recipe=case.recipe,
        order=options.order,
        seconds=options.seconds,
        warmup=options.warmup,
        seed=options.seed,
    )


def _run(
    contender: Contender, request: Request, options: Options, environments: Path
) -> dict[str, Any]:
    timeout = options.timeout + (0 if request.check else options.warmup + options.seconds)
    interpreter = contender.interpreter(environments)
    events = run_contender(interpreter, contender.path, request, timeout)
    if lack := events.get("none"):
        raise _LackError(lack["what"])
    needed = {"ready"} if request.check else {"ready", "first", "round"}
    if missing := needed - set(events):
        raise ContenderError(f"did not tell {', '.join(sorted(missing))}")
    if request.check and not Path(request.out).exists():
        raise ContenderError("handed nothing over to be checked")
    if first := events.get("first"):
        _check_batches(first, request)
    return events


class _LackError(ContenderError):
    """The contender has nothing that does what the recipe asks."""


def _check_batches(first: dict[str, Any], request: Request) -> None:
    """What is timed must be of the kind that was checked."""
    count, *shape = first["shape"]
    size = request.size
    if first["dtype"] != request.dtype or shape not in ([3, size, size], [size, size, 3]):
        raise ContenderError(f"gave batches of {first['shape']} {first['dtype']} when timed")
    if not 0 < count <= request.batch_size:
        raise ContenderError(f"gave a batch of {count}, not {request.batch_size}, when timed")


def _flat(events: dict[str, Any]) -> dict[str, Any]:
    return {
        **{key: events["ready"].get(key) for key in ("import_s", "open_s", "versions")},
        "first_s": events["first"]["seconds"],
        **events["round"],
    }


def _stage(path: Path, stack: ExitStack) -> None:
    if not stage(path).reused:
        stack.callback(unstage, path)


def _wanted(
    data: Data,
    tree: Path | None,
    own: bool,
    max_side: int | None,
    area: bool,
    case: Case,
) -> tuple[pixels.Reference, float]:
    """The plain pixels of the first samples, and how far torchvision's recipe takes them off."""
    count = _AUGMENTED if own or case.recipe else _CHECKED
    if own:
        assert data.dataset is not None
        samples = _of_dataset(data.dataset, count)
    else:
        assert tree is not None
        samples = _of_tree(tree, count, max_side, area)
    reference = pixels.reference(samples, case.size, area=area)
    augmented = case.recipe not in ("", "none")
    return reference, pixels.torchvisions_change(reference, case.recipe) if augmented else 0.0


def _of_tree(
    tree: Path, count: int | None, max_side: int | None, area: bool
) -> Iterator[tuple[Image.Image, int]]:
    for path, label in listing(tree)[:count]:
        with Image.open(path) as image:
            yield pixels.reduced(image, max_side, area=area), label


def _of_dataset(path: Path, count: int) -> Iterator[tuple[Image.Image, int]]:
    dataset = ImageDataset(path, staged=False)
    for index in range(min(count, len(dataset))):
        yield dataset[index]


def _about(contender: Contender) -> dict[str, Any]:
    shown = ("name", "note", "dtype", "tolerance", "mean_tolerance", "why")
    return {name: getattr(contender, name) for name in shown} | {
        "error": "",
        "changes": {},
        "lacks": {},
        "runs": [],
    }


def _named(case: Case) -> str:
    return f", {case.recipe} at {case.size}" if case.recipe else ""


def _fail(result: dict[str, Any], error: Exception) -> None:
    result["error"] = str(error)
    _say(f"FAILED {result['name']}: {error}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def save(result: dict[str, Any], path: Path) -> None:
    """Writes results as JSON."""
    path.write_text(json.dumps(result, indent=1) + "\n")


def load(path: Path) -> dict[str, Any]:
    """Reads what `save` wrote.

    Raises:
        UsageError: It is something else.
    """
    try:
        result: dict[str, Any] = json.loads(path.read_text())
        if result["benchmark"] == "loader":
            return result
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"{path}: no results of the loader benchmark", "It is what --out wrote.")
