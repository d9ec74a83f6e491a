"""Shared by all benchmarks: interleaved rounds, medians and spreads, memory, the machine."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sized
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
import psutil

from fastdata import __version__, _native
from fastdata.machine import usable_cpus
from fastdata.text import aligned


class Spread(NamedTuple):
    """Median, smallest and largest of some measurements."""

    median: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        return "{:{form}} ({:{form}} to {:{form}})".format(*self, form=form or ".2f")

    def __str__(self) -> str:
        return format(self, ".2f")

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    @classmethod
    def of_ratios(cls, these: Iterable[float], those: Iterable[float]) -> Spread:
        """Return the spread of ratios by round: a machine's mood lasts longer than a round."""
        return cls.of([one / other for one, other in zip(these, those, strict=True)])


Name = TypeVar("Name", bound=Hashable)
Measured = TypeVar("Measured")


def interleave(
    contenders: Mapping[Name, Callable[[], Measured]], rounds: int
) -> dict[Name, list[Measured]]:
    """Run contenders in turn (A B C, A B C, …); return the measurements of each, in order.

    So a drift of the machine hits all.
    """
    results: dict[Name, list[Measured]] = {name: [] for name in contenders}
    for results in each_round(contenders, rounds):  # noqa: B007, the last is all of them
        pass
    return results


def each_round(
    contenders: Mapping[Name, Callable[[], Measured]], rounds: int
) -> Iterator[dict[Name, list[Measured]]]:
    """Run contenders as `interleave`; yield the measurements so far after each round."""
    results: dict[Name, list[Measured]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, run in contenders.items():
            results[name].append(run())
            print(f"round {number + 1}/{rounds} {name}: {results[name][-1]}", file=sys.stderr)
        yield results


def epoch_rate(loader: Iterable[tuple[Any, Sized]]) -> float:
    """Return images a second of an epoch of (images, labels), its beginning included.

    Without the first batch, loaders that work on several batches at once would look faster: when
    the first arrives, each of torch's workers has one ready.
    """
    began = time.perf_counter()
    count = sum(len(labels) for _, labels in loader)
    return count / (time.perf_counter() - began)


def cpu_seconds() -> float:
    """Return the CPU time of this process and all below it so far."""
    # The kernel tells that of other processes in hundredths of a second only.
    times = [one.cpu_times() for one in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(float(each.user + each.system) for each in times)


class Run(NamedTuple):
    """Result of a command.

    Attributes:
        seconds: Wall time.
        private_bytes: Largest sum of `private_memory` of it and its children; 0 if not sampled.
    """

    seconds: float
    private_bytes: int


def run_command(command: list[str], cwd: Path | None = None, *, sample_memory: bool = False) -> Run:
    """Run a command.

    Sampling its memory, 20 times a second, slows it down: do not time it then.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peak = 0
    done = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, private_memory(process.pid))

    sampler = threading.Thread(target=sample)
    if sample_memory:
        sampler.start()
    out, err = process.communicate()
    seconds = time.perf_counter() - begun
    done.set()
    if sample_memory:
        sampler.join()
    if process.returncode:
        print(err, file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, command, out, err)
    return Run(seconds, peak)


def private_memory(pid: int) -> int:
    """Return the anonymous memory of a process and all below it, in bytes.

    USS would include pages of the page cache and of /dev/shm that one process alone maps. Memory
    that a fork shares is counted once.
    """
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += _anonymous(process)
    except psutil.NoSuchProcess:
        pass
    return total


def _anonymous(process: psutil.Process) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        lines = []
    for line in lines:
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) << 10
    # Not Linux, or before 5.3; or the process has ended, which raises NoSuchProcess.
    uss: int = process.memory_full_info().uss
    return uss


class Figures(NamedTuple):
    """A table of results, for a terminal or a page.

    Attributes:
        title: The measurement.
        columns: Headings; the first column is text, the others are numbers.
        rows: Cells as text.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]

    def show(self) -> None:
        """Print the table to standard output."""
        click.secho(self.title, bold=True)
        for line in aligned([self.columns, *self.rows], right=range(1, len(self.columns))):
            click.echo(line)

    def __str__(self) -> str:
        """Return the table as Markdown."""
        rule = ["---"] + ["---:"] * (len(self.columns) - 1)
        lines = (" | ".join(cells) for cells in (self.columns, rule, *self.rows))
        return "".join(f"| {line} |\n" for line in lines)


#: The option of every benchmark that keeps its figures.
out_option = click.option(
    "--out", "out_path", type=click.Path(path_type=Path), help="Write the figures here."
)


def save(result: dict[str, Any], path: Path | None) -> None:
    """Write a benchmark's figures as JSON; do nothing without a path."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")


def report(result: dict[str, Any], out_path: Path | None, *tables: Figures) -> None:
    """Save a benchmark's figures, and show its tables."""
    save(result, out_path)
    for table in tables:
        table.show()


#: Packages that count if a benchmark has imported them.
_LARGE = ("torch", "torchvision")


def machine() -> dict[str, Any]:
    """Return the machine, and the versions of packages that are installed or imported."""
    names = ("numpy", "pillow", "pyarrow", "lmdb", *(n for n in _LARGE if n in sys.modules))
    return {
        "cpu": _cpu_name(),
        "cpus": usable_cpus(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {
            "fastdata": __version__,
            **{name: version_of(name) for name in names},
        },
        "simd": _native.simd(),
    }


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
