"""Throughput of loaders alone: fastdata's, and those that people would use instead.

    fastdata bench imagenet-train-lmdb
    python -m fastdata.benchmarks --tree imagenet/train --threads 1,2 --out bench.json

Each contender runs in a fresh process each round, and rounds are interleaved (A B C A B C), so
that a drift of the machine hits all. A contender's pixels and labels are checked first. A recipe
of augmentation is measured beside the same crop without. Its pixels are random, so the check
compares their mean distance from the plain pixels with torchvision's.
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

from fastdata.dataset import ImageDataset
from fastdata.errors import UsageError
from fastdata.machine import usable_cpus
from fastdata.staging.stage import stage, unstage
from fastdata.text import human_count

#: Images of the small tree and of a whole tree to check contenders with.
_CHECKED = 48
#: Images of a dataset, and wherever augmentation is compared: their mean change varies by some 10%.
_AUGMENTED = 192
_SIZE = 224


class Case(NamedTuple):
    """Output that is timed.

    Attributes:
        recipe: A name in `RECIPES`; "" for the crop alone, in the dtype of the options.
        size: Side of the crop.
    """

    recipe: str = ""
    size: int = _SIZE

    def __str__(self) -> str:
        return f", {self.recipe} at {self.size}" if self.recipe else ""


@dataclass(frozen=True)
class Options:
    """Options of a measurement.

    Attributes:
        threads: Numbers of threads or workers, each measured.
        seconds: Steady state of a round.
        warmup: Seconds before it.
        rounds: Fresh processes of each contender and number of threads.
        batch_size: Samples a batch.
        crop: "train" or "val".
        recipes: Names in `RECIPES`, each measured beside "none" at its size; none for the crop
            alone.
        dtype: "uint8" or "float32", for contenders without a dtype of their own; recipes are
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
        """Cases to time, ceilings first."""
        if not self.recipes:
            return [Case()]
        wanted = [Case(name, RECIPES[name].size) for name in self.recipes]
        return list(dict.fromkeys([*(Case("none", case.size) for case in wanted), *wanted]))


@dataclass(frozen=True)
class Data:
    """Data to read.

    Attributes:
        work: Folder of prepared data.
        dataset: A dataset of fastdata's, for the contender without a folder.
        tree: An ImageFolder tree, read or converted for all others.
        images: Number of images to repeat the tree to; None for its own number.
    """

    work: Path
    dataset: Path | None = None
    tree: Path | None = None
    images: int | None = None


def default_threads() -> tuple[int, ...]:
    """Return 1, 2, 4, … and the number of CPUs that this process may use."""
    cpus = usable_cpus()
    doubled = (1 << bit for bit in range(cpus.bit_length()))
    return tuple(sorted({cpus, *(number for number in doubled if number <= cpus)}))


def container_contender(dataset: Path, among: Iterable[Contender]) -> Contender:
    """Return the contender that reads a dataset: by its container, or as raw pixels."""
    manifest = ImageDataset(dataset).manifest
    raw = manifest.options.get("encoding") == "raw"
    name = f"fastdata-{'raw' if raw else manifest.container}"
    ours = {contender.name: contender for contender in among}
    # The reference is decoded from the dataset itself, so its images keep their size.
    found = ours.get(name) or replace(ours["fastdata-lmdb"], name=name, note="an index in place")
    return replace(found, max_side=None, folder="")


def bench(
    contenders: Sequence[Contender],
    data: Data,
    options: Options,
    environments: Path,
    keep: Callable[[dict[str, Any]], object] = lambda result: None,
) -> dict[str, Any]:
    """Check and measure.

    Args:
        contenders: The contenders; the one that reads ``data.dataset`` has no folder ("").
        data: The data that they read.
        options: Options of the measurement.
        environments: Folder of the peers' environments.
        keep: Called with the results so far after each round, so that a stopped run keeps them.

    Returns:
        Contents of the JSON file: "machine", "options", and "contenders", each with its "runs",
        or with the "error" for which it was left out. With recipes, runs have "recipe" and "size",
        and contenders "changes": mean absolute change of a pixel by recipe, in levels of 255.
    """
    results: dict[str, dict[str, Any]] = {c.name: _about(c) for c in contenders}
    runs = options.rounds * len(options.threads) * len(options.cases) * len(contenders)
    _say(
        f"checking the pixels of {human_count(len(contenders), 'contender')}, then "
        f"{human_count(runs, 'process', 'processes')} of {options.warmup + options.seconds:g} s "
        "and the time to start each"
    )
    tree = data.tree
    if tree is not None and data.images:
        tree = repeat_tree(tree.absolute(), data.work / "tree", data.images)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastdata-bench-")))
        data = replace(data, tree=tree)
        wanted = cache(partial(_wanted, data))
        this = _Bench(data, options, environments, scratch, stack, wanted)
        paths: dict[str, Path] = {}
        for contender in contenders:
            result = results[contender.name]
            try:
                paths[contender.name] = this.get_ready(contender, result)
                worst, mean = result["difference"], result["mean_difference"]
                _say(f"{contender.name}: pixels and labels are right ({mean:.2f}, {worst:.2f})")
            except (ContenderError, OSError, ValueError) as error:
                _fail(result, error)
        whole = {
            "benchmark": "loader",
            "machine": machine(),
            "options": asdict(options) | {"images": data.images},
            "contenders": list(results.values()),
        }
        for number in range(options.rounds):
            for threads, case in product(options.threads, options.cases):
                for contender in contenders:
                    result = results[contender.name]
                    if not result["error"]:
                        this.measure(
                            contender, paths[contender.name], result, threads, case, number
                        )
            keep(whole)
    return whole


@dataclass(frozen=True)
class _Bench:
    """One run of the benchmark.

    Attributes:
        data: The data, its tree repeated.
        options: Options of the measurement.
        environments: Folder of the peers' environments.
        scratch: Temporary folder.
        stack: Removes staged copies in the end.
        wanted: Cached `_wanted`.
    """

    data: Data
    options: Options
    environments: Path
    scratch: Path
    stack: ExitStack
    wanted: Callable[..., tuple[pixels.Reference, float]]

    def get_ready(self, contender: Contender, result: dict[str, Any]) -> Path:
        """Prepare a contender's data, and check the pixels that it makes of them."""
        data, tree = self.data, self.data.tree
        if contender.folder == "":
            assert data.dataset is not None
            path, samples = data.dataset, len(ImageDataset(data.dataset))
        else:
            assert tree is not None
            # Few images of several classes: the first of the data may all have one label.
            sample = data.work.absolute() / "check" / "tree"
            small_tree(tree, sample, _CHECKED)
            checked = self._prepare(contender, sample, sample.parent)
            few = _of_tree(sample, None, contender.max_side, contender.area)
            small = pixels.reference(few, _SIZE, area=contender.area)
            with self._handed_over(contender, checked, small, Case()) as given:
                pixels.check(given, small, contender.tolerance, contender.mean_tolerance)
            path = self._prepare(contender, tree.absolute(), data.work.absolute())
            samples = len(listing(tree))
        for case in self.options.cases:
            own = contender.folder == ""
            reference, change = self.wanted(own, contender.max_side, contender.area, case)
            try:
                with self._handed_over(contender, path, reference, case) as given:
                    if change:
                        found = pixels.check_change(given, reference, change)
                        result["changes"][case.recipe] = found
                    else:
                        result["difference"], result["mean_difference"] = pixels.check(
                            given, reference, contender.tolerance, contender.mean_tolerance
                        )
            except ContenderError as error:
                raise ContenderError(f"{error}{case}") from None
        result["data_bytes"] = warming.size(path)
        result["samples"] = samples
        return path

    def _prepare(self, contender: Contender, tree: Path, work: Path) -> Path:
        path = prepare(contender, tree, work, self.environments)
        if contender.staged and not stage(path).reused:
            self.stack.callback(unstage, path)
        return path

    def measure(
        self,
        contender: Contender,
        path: Path,
        result: dict[str, Any],
        threads: int,
        case: Case,
        number: int,
    ) -> None:
        """Add a run to a contender's result, or the error with which it failed."""
        # Other work of the machine, for readers.
        load = os.getloadavg()[0]
        run: dict[str, Any] = {"threads": threads, "round": number, "load": load}
        if case.recipe:
            run |= case._asdict()
        if self.options.cold:
            run["dropped"] = warming.drop(path)
            if not run["dropped"]:
                _say("the page cache could not be dropped: this is not a cold start")
        else:
            run["filled"] = warming.fill(path)
            if not run["filled"]:
                _say("the data is larger than the free memory: this is not a warm start")
        try:
            events = self._run(contender, self._request(contender, path, threads, case))
        except ContenderError as error:
            _fail(result, ContenderError(f"{error} (threads={threads}{case})"))
            return
        run |= {key: events["ready"].get(key) for key in ("import_s", "open_s", "versions")}
        run |= {"first_s": events["first"]["seconds"], **events["round"]}
        result["runs"].append(run)
        rate = run["images"] / run["seconds"]
        turn = f"round {number + 1}/{self.options.rounds}"
        several = human_count(threads, "thread")
        _say(f"{turn} {contender.name}, {several}{case}: {rate:,.0f} images/s")

    @contextmanager
    def _handed_over(
        self, contender: Contender, path: Path, wanted: pixels.Reference, case: Case
    ) -> Iterator[pixels.Given]:
        """Yield the first samples as the contender loads them."""
        out = self.scratch / f"{contender.name}.npz"
        count = len(wanted.labels)
        request = replace(
            self._request(contender, path, threads=1, case=case),
            crop="val",
            order="sequential",
            check=count,
            batch_size=min(self.options.batch_size, count),
            out=str(out),
        )
        self._run(contender, request)
        try:
            yield pixels.Given(out, request.dtype, normalised=bool(case.recipe))
        finally:
            out.unlink()

    def _request(self, contender: Contender, path: Path, threads: int, case: Case) -> Request:
        options = self.options
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

    def _run(self, contender: Contender, request: Request) -> dict[str, Any]:
        options = self.options
        timeout = options.timeout + (0 if request.check else options.warmup + options.seconds)
        interpreter = contender.interpreter(self.environments)
        events = run_contender(interpreter, contender.path, request, timeout)
        needed = {"ready"} if request.check else {"ready", "first", "round"}
        if missing := needed - set(events):
            raise ContenderError(f"did not report {', '.join(sorted(missing))}")
        if request.check and not Path(request.out).exists():
            raise ContenderError("handed over no samples to check")
        if first := events.get("first"):
            _check_batches(first, request)
        return events


def _check_batches(first: dict[str, Any], request: Request) -> None:
    """Check that timed batches are of the checked kind."""
    count, *shape = first["shape"]
    size = request.size
    if first["dtype"] != request.dtype or shape not in ([3, size, size], [size, size, 3]):
        raise ContenderError(f"gave batches of {first['shape']} {first['dtype']} when timed")
    if not 0 < count <= request.batch_size:
        raise ContenderError(f"gave a batch of {count}, not {request.batch_size}, when timed")


def _wanted(
    data: Data, own: bool, max_side: int | None, area: bool, case: Case
) -> tuple[pixels.Reference, float]:
    """Return the first samples' plain pixels, and their mean change by torchvision's recipe."""
    count = _AUGMENTED if own or case.recipe else _CHECKED
    if own:
        assert data.dataset is not None
        samples = _of_dataset(data.dataset, count)
    else:
        assert data.tree is not None
        samples = _of_tree(data.tree, count, max_side, area)
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
    dataset = ImageDataset(path)
    # As the adapter: without labels, numbers of samples are compared.
    dataset.fields = ("image", "label" if "label" in dataset.fields else "index")
    for index in range(min(count, len(dataset))):
        yield dataset[index]


def _about(contender: Contender) -> dict[str, Any]:
    shown = ("name", "note", "dtype", "tolerance", "mean_tolerance", "why")
    about = {name: getattr(contender, name) for name in shown}
    return about | {"error": "", "changes": {}, "runs": []}


def _fail(result: dict[str, Any], error: Exception) -> None:
    result["error"] = str(error)
    _say(f"FAILED {result['name']}: {error}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def load(path: Path) -> dict[str, Any]:
    """Read the results that ``--out`` wrote.

    Raises:
        UsageError: The file has something else.
    """
    try:
        result: dict[str, Any] = json.loads(path.read_text())
        if result["benchmark"] == "loader":
            return result
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"{path}: no results of the loader benchmark", "Give a file of --out.")
