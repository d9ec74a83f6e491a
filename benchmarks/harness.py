"""Throughput of contenders in fresh processes: `fastdata bench`, and the workloads of a checkout.

Each contender runs in a fresh process each round, and rounds are interleaved (A B C A B C), so
that a drift of the machine hits all. What a contender loads is checked first.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psutil
from fastdata.benchmarks import data as data_of
from fastdata.benchmarks.adapters._serve import Request
from fastdata.benchmarks.contenders import Contender, has_gpu
from fastdata.benchmarks.pixels import SIZE, HandOver
from fastdata.benchmarks.processes import ContenderError, run_contender

from fastdata import __version__, _native
from fastdata.dataset import ImageDataset
from fastdata.errors import UsageError
from fastdata.machine import usable_cpus
from fastdata.staging.stage import stage, unstage
from fastdata.text import human_count

#: Images to check contenders with, of several classes.
CHECKED = 48

#: Called with a contender, a case, and a function that returns its first batches' arrays. Returns
#: figures for the results, or raises a ContenderError.
Check: TypeAlias = Callable[[Contender, str, HandOver], dict[str, Any]]


@dataclass(frozen=True)
class Options:
    """Options of a measurement.

    Attributes:
        threads: Numbers of threads or workers, each measured.
        seconds: Steady state of a round.
        warmup: Seconds before it.
        rounds: Fresh processes of each contender, case and number of threads.
        batch_size: Samples a batch.
        crop: "train" or "val".
        dtype: "uint8" or "float32", for contenders without a dtype of their own.
        order: "random" or "sequential".
        timeout: Seconds that a process may take beyond warm-up and steady state.
        seed: Seed of order and crops; the same for all.
    """

    threads: tuple[int, ...] = (1,)
    seconds: float = 10.0
    warmup: float = 3.0
    rounds: int = 3
    batch_size: int = 64
    crop: str = "train"
    dtype: str = "uint8"
    order: str = "random"
    timeout: float = 300.0
    seed: int = 0


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

    @property
    def small(self) -> Path | None:
        """Tree of the images to check with."""
        return None if self.tree is None else self.work.absolute() / "check" / "tree"


def default_threads() -> tuple[int, ...]:
    """Return 1, 2, 4, … and the number of CPUs that this process may use."""
    cpus = usable_cpus()
    doubled = (1 << bit for bit in range(cpus.bit_length()))
    return tuple(sorted({cpus, *(number for number in doubled if number <= cpus)}))


def measure(
    contenders: Sequence[Contender],
    data: Data,
    options: Options,
    environments: Path,
    check: Check,
    *,
    workload: str = "loaders",
    cases: Sequence[str] = ("",),
    fixed: bool = True,
    keep: Callable[[dict[str, Any]], object] = lambda result: None,
) -> dict[str, Any]:
    """Check and measure.

    Args:
        contenders: The contenders; the one that reads ``data.dataset`` has no folder ("").
        data: The data that they read.
        options: Options of the measurement.
        environments: Folder of the peers' environments.
        check: Checks what contenders load.
        workload: Name for the results.
        cases: Cases that each contender is measured in.
        fixed: Whether all batches are images of the size that is asked for.
        keep: Called with the results so far after each round, so that a stopped run keeps them.

    Returns:
        Contents of the JSON file: "workload", "date", "machine", "options", and "contenders", each
        with its "runs", or with the "error" for which it was left out. A run has its "case",
        "threads" and "round", and figures.
    """
    results: dict[str, dict[str, Any]] = {c.name: _about(c) for c in contenders}
    _say(
        f"{workload}: checking {human_count(len(contenders), 'contender')}, then "
        f"{human_count(len(contenders) * options.rounds * len(cases), 'process', 'processes')} of "
        f"{options.warmup + options.seconds:g} s, for each number of threads"
    )
    tree, small = data.tree, data.small
    if tree is not None and data.images:
        tree = data_of.repeat_tree(tree.absolute(), data.work / "tree", data.images)
    if tree is not None and small is not None:
        data_of.small_tree(tree, small, CHECKED)
    whole = {
        "workload": workload,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": machine(),
        "options": asdict(options) | {"images": data.images},
        "contenders": list(results.values()),
    }
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastdata-bench-")))
        this = _Measurement(data, tree, options, environments, scratch, stack, fixed)
        paths: dict[str, dict[str, Path]] = {}
        for contender in contenders:
            result = results[contender.name]
            try:
                paths[contender.name] = this.get_ready(contender, cases, check, result)
            except (ContenderError, OSError, ValueError) as error:
                _fail(result, error)
            else:
                _say(f"{contender.name}: what it loads is right {result['checks'] or ''}")
        for number in range(options.rounds):
            for threads, case in product(options.threads, cases):
                for contender in contenders:
                    result, only = results[contender.name], contender.threads
                    skipped = only is not None and threads != options.threads[0]
                    if not result["error"] and not skipped:
                        path, about = paths[contender.name][case], (case, only or threads, number)
                        this.measure(contender, path, result, *about)
            keep(whole)
    return whole


@dataclass(frozen=True)
class _Measurement:
    """One run of the benchmark.

    Attributes:
        data: The data.
        tree: Its tree, repeated.
        options: Options of the measurement.
        environments: Folder of the peers' environments.
        scratch: Temporary folder.
        stack: Removes staged copies in the end.
        fixed: Whether all batches are images of the size that is asked for.
    """

    data: Data
    tree: Path | None
    options: Options
    environments: Path
    scratch: Path
    stack: ExitStack
    fixed: bool

    def get_ready(
        self, contender: Contender, cases: Sequence[str], check: Check, result: dict[str, Any]
    ) -> dict[str, Path]:
        """Prepare a contender's data, and check what it loads; return the data's path by case."""
        paths: dict[str, Path] = {}
        for case in cases:
            if contender.folder == "":
                assert self.data.dataset is not None
                checked = paths[case] = self.data.dataset
                result["samples"] = len(ImageDataset(checked))
            else:
                assert self.tree is not None
                assert self.data.small is not None
                # Few images of several classes: the first of the data may all have one label.
                small, work = self.data.small, self.data.work.absolute()
                checked = self._prepare(contender, small, small.parent, case)
                paths[case] = self._prepare(contender, self.tree.absolute(), work, case)
                result["samples"] = len(data_of.listing(self.tree))

            def hand_over(count: int, case: str = case, path: Path = checked) -> list[Any]:
                return self._handed_over(contender, path, count, case)

            try:
                if found := check(contender, case, hand_over):
                    result["checks"][case] = found
            except ContenderError as error:
                raise ContenderError(f"{error}{_of(case)}") from None
            result["data_bytes"] = data_of.size(paths[case])
        return paths

    def _prepare(self, contender: Contender, tree: Path, work: Path, case: str) -> Path:
        path = data_of.prepare(contender, tree, work, self.environments, case)
        if contender.staged and not stage(path).reused:
            self.stack.callback(unstage, path)
        return path

    def measure(
        self,
        contender: Contender,
        path: Path,
        result: dict[str, Any],
        case: str,
        threads: int,
        number: int,
    ) -> None:
        """Add a run to a contender's result, or the error with which it failed."""
        # Other work of the machine, for readers.
        load = os.getloadavg()[0]
        run: dict[str, Any] = {"case": case, "threads": threads, "round": number, "load": load}
        run["filled"] = data_of.fill(path)
        if not run["filled"]:
            _say("the data is larger than the free memory: this is not a warm start")
        request = self._request(contender, path, threads, case)
        try:
            events = self._run(contender, request)
            first = events.get("first")
            if self.fixed:
                _check_batches(first or {}, request)
        except ContenderError as error:
            _fail(result, ContenderError(f"{error} (threads={threads}{_of(case)})"))
            return
        if first:
            run["first_s"] = first["seconds"]
        run |= events["round"]
        result["versions"] = events["done"]["versions"]
        result["runs"].append(run)
        said = f"{run['images'] / run['seconds']:,.0f} samples/s" if "images" in run else "done"
        turn = f"round {number + 1}/{self.options.rounds}"
        _say(f"{turn} {contender.name}, {human_count(threads, 'thread')}{_of(case)}: {said}")

    def _handed_over(self, contender: Contender, path: Path, count: int, case: str) -> list[Any]:
        """Return the arrays of the first batches, as the contender loads them."""
        out = self.scratch / f"{contender.name}.npz"
        request = replace(
            self._request(contender, path, threads=1, case=case),
            crop="val",
            order="sequential",
            check=count,
            batch_size=min(self.options.batch_size, count),
            out=str(out),
        )
        self._run(contender, request)
        if not out.exists():
            raise ContenderError("handed over no samples to check")
        with np.load(out) as file:
            arrays = [file[name] for name in file]
        out.unlink()
        return arrays

    def _request(self, contender: Contender, path: Path, threads: int, case: str) -> Request:
        options = self.options
        return Request(
            data=str(path.absolute()),
            variant=contender.variant,
            batch_size=options.batch_size,
            threads=threads,
            crop=options.crop,
            size=SIZE,
            dtype=contender.dtype or options.dtype,
            case=case,
            device=contender.device,
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
        if not request.check and "round" not in events:
            raise ContenderError("did not report a round")
        return events


def _check_batches(first: dict[str, Any], request: Request) -> None:
    """Check that timed batches are of the checked kind."""
    count, *shape = first.get("shape", [0])
    size = request.size
    if first.get("dtype") != request.dtype or shape not in ([3, size, size], [size, size, 3]):
        raise ContenderError(f"gave batches of {[count, *shape]} {first.get('dtype')} when timed")
    if not 0 < count <= request.batch_size:
        raise ContenderError(f"gave a batch of {count}, not {request.batch_size}, when timed")


def _of(case: str) -> str:
    return f", {case}" if case else ""


def _about(contender: Contender) -> dict[str, Any]:
    shown = ("name", "note", "dtype", "tolerance", "mean_tolerance", "why")
    about = {name: getattr(contender, name) for name in shown}
    return about | {"error": "", "checks": {}, "versions": {}, "runs": []}


def _fail(result: dict[str, Any], error: Exception) -> None:
    result["error"] = str(error)
    _say(f"FAILED {result['name']}: {error}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def save(result: dict[str, Any], path: Path | None) -> None:
    """Write results as JSON; do nothing without a path."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")


def load(path: Path) -> dict[str, Any]:
    """Read the results that ``--out`` wrote.

    Raises:
        UsageError: The file has something else.
    """
    try:
        result: dict[str, Any] = json.loads(path.read_text())
        if result["workload"]:
            return result
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"{path}: no results of a benchmark", "Give a file of --out.")


def machine() -> dict[str, Any]:
    """Return the machine, and the versions of packages."""
    names = ("numpy", "pillow", "pyarrow", "lmdb")
    found = {
        "cpu": _cpu_name(),
        "cpus": usable_cpus(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {"fastdata": __version__, **{name: version_of(name) for name in names}},
        "simd": _native.simd(),
    }
    if has_gpu():
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        with suppress(OSError):
            found["gpu"] = subprocess.run(
                command, capture_output=True, text=True, check=False
            ).stdout.strip()
    return found


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def version_of(name: str) -> str:
    """Return the version of an installed package; "absent" without it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
