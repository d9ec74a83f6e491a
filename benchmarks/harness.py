"""Throughput of contenders in fresh processes: `fastdata bench`, and the workloads of a checkout.

Rounds are interleaved (A B C A B C), so that a drift of the machine hits all.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from fastdata.benchmarks import data as data_of
from fastdata.benchmarks.adapters._serve import ContenderRequest
from fastdata.benchmarks.contenders import Contender, has_gpu
from fastdata.benchmarks.pixels import CHECKED, SIZE, Check, PillowCheck
from fastdata.benchmarks.processes import ContenderError, run_contender

from fastdata import _native
from fastdata.dataset import ImageDataset
from fastdata.errors import UsageError
from fastdata.machine import usable_cpus
from fastdata.staging.stage import stage, unstage
from fastdata.text import human_count
from fastdata.version import __version__

#: Bytes that are read in seconds, also from a disk of moderate speed.
_QUICKLY = 2 << 30


@dataclass(frozen=True)
class MeasureOptions:
    """Options of a measurement; `ContenderRequest` says what contenders make of them.

    A process may take ``timeout`` seconds beyond warm-up and steady state. No round begins that
    would not end ``within`` seconds, if there is such a limit.
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
    within: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class BenchmarkData:
    """Data to read: the user's dataset, and a tree, repeated to a number of ``images``.

    ``work`` is the folder of data prepared for contenders.
    """

    work: Path
    dataset: Path | None = None
    tree: Path | None = None
    images: int | None = None

    @property
    def small(self) -> Path:
        """Tree of the images to check with."""
        return self.work.absolute() / "check" / "tree"


def default_threads() -> tuple[int, ...]:
    """Return 1, 2, 4, … and the number of CPUs that this process may use."""
    cpus = usable_cpus()
    doubled = (1 << bit for bit in range(cpus.bit_length()))
    return tuple(sorted({cpus, *(number for number in doubled if number <= cpus)}))


def measure(
    contenders: Sequence[Contender],
    data: BenchmarkData,
    options: MeasureOptions,
    check: Check,
    *,
    workload: str = "loaders",
    cases: Sequence[str] = ("",),
    keep: Callable[[dict[str, Any]], object] = lambda result: None,
) -> dict[str, Any]:
    """Check contenders, and measure each in all cases.

    ``keep`` is called with the results so far after each round, and by a Ctrl-C.

    Returns:
        Contents of the JSON file: "workload", "date", "machine", "options", and "contenders", each
        with its "runs", or with the "error" for which it was left out. A run has its "case",
        "threads" and "round", and figures.
    """
    results: dict[str, dict[str, Any]] = {}
    begun = time.monotonic()
    for contender in contenders:
        shown = ("name", "note", "dtype", "tolerance", "mean_tolerance", "why")
        settings = {name: getattr(contender, name) for name in shown}
        results[contender.name] = settings | {"error": "", "checks": {}, "versions": {}, "runs": []}
    runs = len(contenders) * options.rounds * len(cases) * len(options.threads)
    length = f"{human_count(runs, 'run')} of {options.seconds:g} s"
    _say(f"{workload}: check {human_count(len(contenders), 'contender')}, then measure {length}")
    if data.tree is not None:
        tree = data.tree.absolute()
        if data.images:
            tree = data_of.repeat_tree(tree, data.work / "tree", data.images)
        data_of.small_tree(tree, data.small, CHECKED)
        data = replace(data, tree=tree)
    whole = {
        "workload": workload,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": machine(),
        "options": asdict(options) | {"images": data.images},
        "contenders": list(results.values()),
    }
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastdata-bench-")))
        this = _Measurement(data, options, check, scratch, stack)
        paths: dict[str, dict[str, Path]] = {}
        for contender in contenders:
            result = results[contender.name]
            try:
                paths[contender.name] = this.get_ready(contender, cases, result)
            except (ContenderError, OSError, ValueError) as error:
                _fail(result, str(error))
            else:
                _say(f"{contender.name}: {_passed(result['checks'])}")
        try:
            for number in range(options.rounds):
                taken = time.monotonic() - begun
                if number and options.within and taken * (number + 1) / number > options.within:
                    break
                for threads, case in product(options.threads, cases):
                    for contender in contenders:
                        result = results[contender.name]
                        if not result["error"]:
                            run = {"case": case, "threads": threads, "round": number}
                            this.measure(contender, paths[contender.name][case], result, run)
                keep(whole)
        except KeyboardInterrupt:
            keep(whole)
            raise
    return whole


def _passed(checks: dict[str, Any]) -> str:
    """Return the result of a contender's check as a sentence."""
    most = [check["difference"] for check in checks.values() if "difference" in check]
    if not most:
        return "what it loads is right"
    return f"labels are right, and pixels within {max(most):.2g} of 255 of Pillow's on average"


@dataclass(frozen=True)
class _Measurement:
    """One run of the benchmark; ``stack`` removes staged copies in the end."""

    data: BenchmarkData
    options: MeasureOptions
    check: Check
    scratch: Path
    stack: ExitStack

    def get_ready(
        self, contender: Contender, cases: Sequence[str], result: dict[str, Any]
    ) -> dict[str, Path]:
        """Prepare a contender's data, and check what it loads; return the data's path by case."""
        paths: dict[str, Path] = {}
        for case in cases:
            if contender.folder == "":
                assert self.data.dataset is not None
                checked = paths[case] = self.data.dataset
                result["samples"] = len(ImageDataset(checked))
            else:
                assert self.data.tree is not None
                # Few images of several classes: the first of the data may all have one label.
                checked = self._prepare(contender, self.data.small, case)
                paths[case] = self._prepare(contender, self.data.tree, case)
                result["samples"] = len(data_of.listing(self.data.tree))
            try:
                hand_over = partial(self._handed_over, contender, checked, case)
                if figures := self.check(contender, case, hand_over):
                    result["checks"][case] = figures
            except ContenderError as error:
                raise ContenderError(f"{error}{_of(case)}") from None
            result["data_bytes"] = data_of.size(paths[case])
        return paths

    def _prepare(self, contender: Contender, tree: Path, case: str) -> Path:
        work = tree.parent if tree == self.data.small else self.data.work.absolute()
        path = data_of.prepare(contender, tree, work, case)
        if contender.staged and not stage(path).reused:
            self.stack.callback(unstage, path)
        return path

    def measure(
        self, contender: Contender, path: Path, result: dict[str, Any], run: dict[str, Any]
    ) -> None:
        """Add a run to a contender's result, or the error with which it failed."""
        most = _QUICKLY if self.options.within else sys.maxsize
        # Other work of the machine, for readers.
        run |= {"load": os.getloadavg()[0], "filled": data_of.fill(path, most)}
        if not run["filled"]:
            _say("the data is too large to be read into memory first: this is not a warm start")
        request = self._request(contender, path, run["threads"], run["case"])
        of_run = f"{human_count(run['threads'], 'thread')}{_of(run['case'])}"
        try:
            events = self._run(contender, request)
            first = events.get("first", {})
            if isinstance(self.check, PillowCheck):
                _check_batches(first, request)
        except ContenderError as error:
            _fail(result, f"{error} ({of_run})")
            return
        run |= {"first_s": first["seconds"]} if first else {}
        run |= events["round"]
        result["versions"] = events["done"]["versions"]
        result["runs"].append(run)
        said = f"{run['images'] / run['seconds']:,.0f} samples/s" if "images" in run else "done"
        turn = f"round {run['round'] + 1}/{self.options.rounds}"
        _say(f"{turn} {contender.name}, {of_run}: {said}")

    def _handed_over(self, contender: Contender, path: Path, case: str, count: int) -> list[Any]:
        """Return the arrays of the first batches, as the contender loads them."""
        out = self.scratch / f"{contender.name}.npz"
        small = min(self.options.batch_size, count)
        request = replace(
            self._request(contender, path, 1, case), check=count, batch_size=small, out=str(out)
        )
        request = replace(request, crop="val", order="sequential")
        self._run(contender, request)
        if not out.exists():
            raise ContenderError("handed over no samples to check")
        with np.load(out) as file:
            arrays = [file[name] for name in file]
        out.unlink()
        return arrays

    def _request(
        self, contender: Contender, path: Path, threads: int, case: str
    ) -> ContenderRequest:
        shared = ("batch_size", "crop", "order", "seconds", "warmup", "seed")
        return ContenderRequest(
            data=str(path.absolute()),
            variant=contender.variant,
            threads=threads,
            size=SIZE,
            dtype=contender.dtype or self.options.dtype,
            case=case,
            device=contender.device,
            **{name: getattr(self.options, name) for name in shared},
        )

    def _run(self, contender: Contender, request: ContenderRequest) -> dict[str, Any]:
        options = self.options
        timeout = options.timeout + (0 if request.check else options.warmup + options.seconds)
        events = run_contender(contender.interpreter, contender.path, request, timeout)
        if not request.check and "round" not in events:
            raise ContenderError("did not report a round")
        return events


def _check_batches(first: dict[str, Any], request: ContenderRequest) -> None:
    """Check that timed batches are of the checked kind."""
    count, *shape = first.get("shape", [0])
    size = request.size
    if first.get("dtype") != request.dtype or shape not in ([3, size, size], [size, size, 3]):
        raise ContenderError(f"gave batches of {[count, *shape]} {first.get('dtype')} when timed")
    if not 0 < count <= request.batch_size:
        raise ContenderError(f"gave a batch of {count}, not {request.batch_size}, when timed")


def _of(case: str) -> str:
    return f", {case}" if case else ""


def _fail(result: dict[str, Any], error: str) -> None:
    result["error"] = error
    _say(f"FAILED {result['name']}: {error}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def save(result: dict[str, Any], path: Path | None) -> None:
    """Write results as JSON; do nothing without a path."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")


def load(path: Path) -> dict[str, Any]:
    """Read the results that ``--out`` wrote; raise a UsageError if there are none."""
    with suppress(ValueError):
        result = json.loads(path.read_text())
        if isinstance(result, dict) and "workload" in result:
            return result
    raise UsageError(f"{path}: no results of a benchmark", "Give a file of --out.")


def machine() -> dict[str, Any]:
    """Return the machine, and the versions of packages."""
    packages = {"fastdata": __version__}
    for name in ("numpy", "pillow", "pyarrow", "lmdb"):
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    facts = {
        "cpu": _cpu_name(),
        "cpus": usable_cpus(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": packages,
        "simd": _native.simd(),
    }
    if has_gpu():
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        with suppress(OSError):
            facts["gpu"] = subprocess.check_output(command, text=True).strip()
    return facts


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
