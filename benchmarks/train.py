"""The training ladder: a plain training loop, and what each change to it gives.

    python -m fastdata.benchmarks.train --tree imagenet/train --json ladder.json --plot ladder.svg
    python -m fastdata.benchmarks.train --tree imagenet/train --steps 3 --warmup 1 \
        --batch-size 8 --large-batch 16 --width 16 --image-size 64 --device cpu --without compile

Each rung is a fresh process; with several rounds they take turns. What a machine cannot do is
listed with what it needs.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch
from fastdata.benchmarks import page_cache, train_figures
from fastdata.benchmarks.measure import machine
from fastdata.benchmarks.prepare import listing, repeat_tree
from fastdata.benchmarks.train_rungs import Machine, Planned, Setting, check_names, plan
from fastdata.converters import ImageFolder, pack
from fastdata.examples.training.resnet import MODELS

from fastdata.doctor import plotting
from fastdata.errors import FastdataError, UsageError
from fastdata.machine import usable_cpus
from fastdata.staging.staged import default_place
from fastdata.storage.files import free_space, human_bytes

#: Characters of what a failed process said that are kept.
_QUOTED = 600


@dataclass(frozen=True)
class Options:
    """How to climb.

    Attributes:
        model: Name of the network.
        width: Channels of its first stage.
        image_size: Side of the crops.
        batch_size: Images a step on the lowest rungs.
        large_batch: From the "batch" rung on.
        workers: From the "workers" rung on.
        steps: Measured of each rung.
        warmup: Before them.
        rounds: Fresh processes of each rung.
        timeout: Seconds that a process may take.
        device: "cuda" or "cpu".
        images: How many images the tree is repeated to; None for as many as it has.
        launcher: Command that starts processes on several nodes; "" for none.
    """

    model: str = "resnet18"
    width: int = 64
    image_size: int = 224
    batch_size: int = 256
    large_batch: int = 512
    workers: int = 2
    steps: int = 300
    warmup: int = 10
    rounds: int = 1
    timeout: float = 3600.0
    device: str = "cpu"
    images: int | None = None
    launcher: str = ""


def climb(
    tree: Path,
    work: Path,
    options: Options,
    only: frozenset[str] | None = None,
    without: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Measures the rungs.

    Args:
        tree: Class folders of JPEGs.
        work: Where they are packed, once.
        options: How.
        only: Names of the rungs to measure, with all changes below them; None for all.
        without: Names of rungs that are left out with their changes.

    Returns:
        What the JSON file holds: "machine", "on", "options", and "rungs", each with its "runs",
        or what it "needs", or the "error" for which it has none.

    Raises:
        UsageError: An option is wrong.
        SourceError: There are no images.
    """
    listing(tree)  # says what is wrong with it
    work.mkdir(parents=True, exist_ok=True)
    tree = tree.absolute()
    if options.images:
        tree = repeat_tree(tree, work.absolute() / "tree", options.images)
    lmdb = work.absolute() / "train-lmdb"
    _say(f"packing {lmdb}")
    pack(ImageFolder(tree), lmdb, container="lmdb")
    base = Setting(
        tree=str(tree),
        lmdb=str(lmdb),
        batch=options.batch_size,
        model=options.model,
        width=options.width,
        size=options.image_size,
        steps=options.steps,
        warmup=options.warmup,
        device=options.device,
    )
    gpus = torch.cuda.device_count() if options.device == "cuda" else 0
    stands_on = Machine(
        gpus, options.workers, options.large_batch, _no_room(tree, lmdb), options.launcher
    )
    planned = plan(base, stands_on, without)
    wanted = [p for p in planned if only is None or p.rung.name in only]
    results = {p.rung.name: _about(p) for p in wanted}
    with _in_memory(tree, lmdb, any(p.setting.shm for p in wanted if not p.needs)) as copies:
        for number in range(options.rounds):
            for one in wanted:
                result = results[one.rung.name]
                if one.needs or result["error"]:
                    continue
                _say(f"round {number + 1}/{options.rounds} {one.rung.name}: {one.rung.change}")
                try:
                    run = _run(_with(one, copies), options.timeout, work.absolute())
                except _FailedError as error:
                    result["error"] = str(error)
                    _say(f"FAILED {one.rung.name}: {error}")
                    continue
                result["runs"].append(run)
                _say(f"  {train_figures.rate(run):,.0f} images/s, waiting {run['wait_share']:.0%}")
    return {
        "benchmark": train_figures.NAME,
        "machine": machine() | {"torch": torch.__version__},
        "on": _hardware(gpus),
        "options": asdict(options),
        "rungs": list(results.values()),
    }


def _about(planned: Planned) -> dict[str, Any]:
    return {
        "name": planned.rung.name,
        "change": planned.rung.change,
        "setting": planned.setting.to_dict(),
        "needs": planned.needs,
        "error": "",
        "runs": [],
    }


def _hardware(gpus: int) -> str:
    if gpus:
        return f"{gpus} x {torch.cuda.get_device_name(0)}"
    return f"{usable_cpus()} CPUs ({machine()['cpu']})"


class _FailedError(Exception):
    """A rung's process failed; says how."""


def _run(planned: Planned, timeout: float, work: Path) -> dict[str, Any]:
    """One rung in a process of its own, which is killed with all that it started."""
    # Other nodes read it too: they have the disk that --work is on, and not this one's /tmp.
    with tempfile.TemporaryDirectory(prefix="fastdata-ladder-", dir=work) as folder:
        out, setting = Path(folder, "out.json"), Path(folder, "setting.json")
        setting.write_text(json.dumps(replace(planned.setting, out=str(out)).to_dict()))
        launcher = planned.launcher.replace("{python}", shlex.quote(sys.executable))
        command = shlex.split(launcher) or [sys.executable]
        command += ["-m", "fastdata.benchmarks.train_rung", str(setting)]
        with subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                _, said = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                raise _FailedError(f"not done after {timeout:.0f} s") from None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode or not out.exists():
            raise _FailedError(f"exit code {process.returncode}: {said.strip()[-_QUOTED:]}")
        run: dict[str, Any] = json.loads(out.read_text())
        return run


def _no_room(tree: Path, lmdb: Path) -> str:
    """Why there is no room in memory for the images and the packed ones; "" where there is."""
    needed = page_cache.size(tree) + page_cache.size(lmdb)
    there = free_space(default_place())
    if needed <= 0.9 * there:
        return ""
    return f"needs {human_bytes(needed)} in {default_place()}: {human_bytes(there)} are free"


@contextmanager
def _in_memory(tree: Path, lmdb: Path, wanted: bool) -> Iterator[tuple[Path, Path]]:
    """Copies of both where reading is fast; removed in the end."""
    if not wanted:
        yield tree, lmdb
        return
    place = default_place()
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="fastdata-ladder-", dir=place))
    try:
        _say(f"copying to {folder}")
        copies = folder / "tree", folder / "lmdb"
        for source, copy in zip((tree, lmdb), copies, strict=True):
            shutil.copytree(source, copy)
        yield copies
    finally:
        shutil.rmtree(folder)


def _with(planned: Planned, copies: tuple[Path, Path]) -> Planned:
    if not planned.setting.shm:
        return planned
    tree, lmdb = map(str, copies)
    return replace(planned, setting=replace(planned.setting, tree=tree, lmdb=lmdb))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_PATH = click.Path(path_type=Path)
_MANY = click.IntRange(1)


def _names(text: str | None) -> frozenset[str] | None:
    return None if text is None else check_names(filter(None, text.split(",")))


@click.command()
@click.option("--tree", type=_PATH, metavar="FOLDER", help="Class folders of JPEGs.")
@click.option("--work", type=_PATH, default=Path("bench-data/ladder"), show_default=True)
@click.option("--images", type=_MANY, help="Repeat the tree's images to so many.")
@click.option("--model", type=click.Choice(MODELS), default="resnet18", show_default=True)
@click.option("--width", type=_MANY, default=64, show_default=True)
@click.option("--image-size", type=_MANY, default=224, show_default=True)
@click.option("--batch-size", type=_MANY, default=256, show_default=True)
@click.option("--large-batch", type=_MANY, default=512, show_default=True)
@click.option("--workers", type=_MANY, help="[default: the number of CPUs]")
@click.option("--steps", type=_MANY, default=300, show_default=True)
@click.option("--warmup", type=_MANY, default=10, show_default=True, help="Steps.")
@click.option("--rounds", type=_MANY, default=1, show_default=True)
@click.option("--timeout", type=float, default=3600, show_default=True, help="Seconds a process.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: cuda if there]")
@click.option("--rungs", metavar="NAME,…", help="Measure these alone. [default: all]")
@click.option("--without", metavar="NAME,…", help="Leave these out, with their changes.")
@click.option(
    "--launcher",
    default="",
    metavar="COMMAND",
    help='Starts the "two" rung\'s processes: "srun torchrun --nnodes 2 …". {python} is this one.',
)
@click.option("--json", "json_path", type=_PATH, metavar="FILE", help="Write the results here.")
@click.option("--plot", "plot_path", type=_PATH, metavar="FILE", help="An .svg or .png.")
@click.option("--show", type=_PATH, metavar="FILE", help="Measure nothing: show what --json wrote.")
def main(
    tree: Path | None,
    work: Path,
    rungs: str | None,
    without: str | None,
    json_path: Path | None,
    plot_path: Path | None,
    show: Path | None,
    device: str | None,
    workers: int | None,
    **more: Any,
) -> None:
    """Measure what each change to a plain training loop gives. The exit code is 1 if one failed."""
    if (tree is None) == (show is None):
        raise UsageError("--tree or --show, one of them", "Give --tree FOLDER to measure.")
    if plot_path is not None:
        plotting.check(plot_path)
    if show is not None:
        result = train_figures.load(show)
    else:
        assert tree is not None
        gpu = torch.cuda.is_available()
        if device == "cuda" and not gpu:
            raise UsageError("--device cuda: there is no GPU", "Give --device cpu.")
        chosen = device or ("cuda" if gpu else "cpu")
        options = Options(device=chosen, workers=workers or usable_cpus(), **more)
        result = climb(tree, work, options, _names(rungs), _names(without) or frozenset())
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1) + "\n")
    for table in (train_figures.figures(result), *train_figures.published()):
        table.show()
    if plot_path is not None:
        train_figures.plot(result, plot_path)
    failures = train_figures.failures(result)
    for failure in failures:
        _say(f"failed: {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    try:
        main(prog_name="python -m fastdata.benchmarks.train")
    except FastdataError as error:
        click.echo(f"error: {error}", err=True)
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from error
