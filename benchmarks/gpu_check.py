"""Check of an installed fastdata on a machine with a GPU, in eight minutes, without network.

    python -m fastdata.benchmarks.gpu_check --tree photographs --tests tests --out gpu-check

It needs torch, DALI and fastdata; pytest for the tests. Each step is a process with a limit of
seconds, and its output and figures stay in the folder OUT when a later step fails. In the end,
OUT/summary.txt says in some lines what was found.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
from fastdata.benchmarks import gpu_decoding, training
from fastdata.benchmarks.measure import Figures, version_of
from fastdata.benchmarks.prepare import repeat_tree

from fastdata.errors import SourceError
from fastdata.text import aligned

#: Files of tests that need a GPU.
TESTS = ("test_device_gpu.py", "test_dali.py")
#: Packages whose versions the summary gives.
PACKAGES = (
    "fastdata-torch",
    "torch",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
    "nvidia-nvimgcodec-cu12",
    "nvidia-nvimgcodec-cu13",
)
#: With two threads: images a second, CPU ms an image, and the share of the rate of a pipeline by
#: hand, that `DALILoader` reaches on a GPU with a JPEG engine; and the share of the step's rate.
RATE, CPU, OF_HAND, OF_STEP = 15_000, 0.2, 0.9, 0.98


class Step(NamedTuple):
    """A process.

    Attributes:
        name: Of its files in the folder of results.
        limit: Seconds after which it is ended.
        command: Arguments of Python.
    """

    name: str
    limit: float
    command: list[str]


def steps(
    tree: Path | None, images: int, tests: Path | None, out: Path, model: str, shared: list[str]
) -> Iterator[Step]:
    """Yield processes to run, of at most eight minutes together.

    Args:
        tree: Class folders of JPEGs; None to make some.
        images: Number to which the JPEGs are repeated.
        tests: The folder of the tests; None to leave them out.
        out: The folder of results.
        model: The network to train.
        shared: Options of both benchmarks.

    Raises:
        SourceError: There are no images in ``tree``.
    """
    if tree is None:
        sample = ["sample", "--out", str(out / "sample"), "--images=160", "--val-images=0"]
        yield Step("photographs", 20, ["-m", "fastdata", *sample])
        tree = out / "sample" / "train"
    tree, dataset = repeat_tree(tree, out / "tree", images), out / "dataset"
    packing = ["convert", "imagefolder", "--root", str(tree), "--to", "lmdb", "--out", str(dataset)]
    yield Step("packing", 40, ["-m", "fastdata", *packing])
    if tests is not None:
        # The project's settings ask for plugins.
        options = ["-q", "-n0"] if find_spec("xdist") else ["-q"]
        options += ["-c", "/dev/null", "-p", "no:cacheprovider", "-m", "gpu"]
        yield Step("tests", 130, ["-m", "pytest", *options, *(str(tests / one) for one in TESTS)])
    decoding = [str(dataset), str(tree), *shared, "--threads=2", "--threads=8"]
    kept = f"--out={out / 'decoding.json'}"
    yield Step("decoding", 110, ["-m", "fastdata.benchmarks.gpu_decoding", *decoding, kept])
    fed = [str(dataset), *shared, f"--models={model}", "--threads=2,4"]
    kept = f"--out={out / 'training.json'}"
    yield Step("training", 180, ["-m", "fastdata.benchmarks.training", *fed, kept])


def run(step: Step, out: Path) -> str:
    """Run a step; return how it ended."""
    begun, path = time.perf_counter(), out / f"{step.name}.log"
    command = [sys.executable, *step.command]
    with (
        path.open("w") as log,
        subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            ended = process.wait(step.limit)
        except subprocess.TimeoutExpired:
            return f"not done after {step.limit:.0f} s, see {path.name}"
        finally:
            with suppress(ProcessLookupError):  # its workers would slow the next step down
                os.killpg(process.pid, signal.SIGKILL)
    lines = path.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    status = "done" if ended == 0 else f"failed (exit status {ended}), see {path.name}"
    shown = f": {last[:120]}" if ended or step.name == "tests" else ""
    return f"{status} in {time.perf_counter() - begun:.0f} s{shown}"


def summary(statuses: dict[str, str], out: Path) -> list[str]:
    """Return the lines of the summary, at most 40."""
    versions = {name: version_of(name) for name in PACKAGES}
    lines = [f"{name} {found}" for name, found in versions.items() if found != "absent"]
    lines = [", ".join(lines), *(f"{name}: {status}" for name, status in statuses.items())]
    if found := _read(out / "decoding.json"):
        machine = found["machine"]
        lines.insert(0, f"{machine.get('gpu', 'no GPU')}, {machine['cpus']} CPUs: {machine['cpu']}")
        lines += [
            f"pixels, {name}: {each['mean']:.3f} levels, worst image {each['worst image']:.2f}; "
            f"decoders of JPEGs: {each['decoders'].get('jpeg')}"
            for name, each in found["pixels"].items()
        ]
        lines += _lines(gpu_decoding.figures(found))
        lines += _judge_decoding(found["windows"])
    if found := _read(out / "training.json"):
        for workload in found["workloads"].values():
            lines += _lines(training.figures(workload)[0])
            lines += _judge_feeding(workload["turns"])
    return lines


def _judge_decoding(windows: dict[str, list[list[float]]]) -> list[str]:
    ours, theirs = windows.get("DALILoader, 2 threads"), windows.get("by hand, 2 threads")
    if not ours or not theirs:
        return []
    rate = median(images / seconds for images, seconds, _ in ours)
    cpu = median(1000 * cpu / images for images, _, cpu in ours)
    share = rate / median(images / seconds for images, seconds, _ in theirs)
    return [
        _judged("DALILoader, 2 threads, images/s", rate, RATE, rate >= RATE),
        _judged("DALILoader, 2 threads, CPU ms an image", cpu, CPU, cpu <= CPU),
        _judged("DALILoader, 2 threads, share of by hand", share, OF_HAND, share >= OF_HAND),
    ]


def _judge_feeding(turns: dict[str, dict[str, list[list[float]]]]) -> list[str]:
    fed, alone = turns.get("DALI", {}).get("2"), turns["step"]["0"]
    if not fed:
        return []
    share = median(
        (one[0] / one[1]) / (other[0] / other[1]) for one, other in zip(fed, alone, strict=True)
    )
    return [_judged("fed by DALILoader, 2 threads, share", share, OF_STEP, share >= OF_STEP)]


def _judged(name: str, value: float, wanted: float, good: bool) -> str:
    return f"{'good' if good else 'SHORT'}: {name}: {value:,.2f}, where {wanted:,} is wanted"


def _lines(table: Figures) -> list[str]:
    rows = aligned([table.columns, *table.rows], right=range(1, len(table.columns)))
    return [f"{table.title}:", *(f"  {row}" for row in rows)]


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


@click.command()
@click.option(
    "--tree",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="Class folders of JPEGs. [default: synthetic photographs]",
)
@click.option(
    "--tests",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="The folder of the tests. [default: run none]",
)
@click.option("--images", default=3200, show_default=True, help="Repeat the photographs to this.")
@click.option("--seconds", default=2.0, show_default=True, help="Length of a window.")
@click.option("--batch", default=256, show_default=True)
@click.option("--model", default="resnet50", show_default=True)
@click.option("--device", default="cuda", show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    default=Path("gpu-check"),
    show_default=True,
    help="A new or empty folder for results.",
)
def main(
    tree: Path | None,
    tests: Path | None,
    images: int,
    seconds: float,
    batch: int,
    model: str,
    device: str,
    out: Path,
) -> None:
    """Test and measure fastdata on a GPU."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise click.UsageError(f"{out} is not empty")
    statuses: dict[str, str] = {}
    shared = [f"--device={device}", f"--batch={batch}", f"--seconds={seconds}", "--rounds=2"]
    try:
        for step in steps(tree, images, tests, out, model, shared):
            click.echo(f"{step.name}: at most {step.limit:.0f} s")
            statuses[step.name] = run(step, out)
            click.echo(f"{step.name}: {statuses[step.name]}")
    except SourceError as error:
        raise click.ClickException(str(error)) from None
    lines = summary(statuses, out)
    (out / "summary.txt").write_text("\n".join(lines) + "\n")
    click.echo("\n".join(lines))
    if any(not status.startswith("done") for status in statuses.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
