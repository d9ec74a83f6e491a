"""The training ladder: a plain training loop, and what each change to it gives.

    python -m fastdata.benchmarks.train --tree imagenet/train --json ladder.json
    python -m fastdata.benchmarks.train --tree imagenet/train --steps 3 --warmup 1 \
        --batch-size 8 --large-batch 16 --width 16 --image-size 64 --device cpu --without compile

Each rung is one change to all that stands below it, measured in a fresh process. What a machine
cannot do is listed with what it needs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from fastdata.benchmarks.measure import Figures, machine
from fastdata.benchmarks.prepare import listing, repeat_tree
from fastdata.benchmarks.train_rung import Setting
from fastdata.converters import ImageFolder, pack
from fastdata.examples.training.resnet import MODELS

from fastdata.errors import FastdataError, UsageError
from fastdata.machine import usable_cpus

#: Characters of a failed process's standard error that are kept.
_QUOTED = 600


class Rung(NamedTuple):
    """One change.

    Attributes:
        name: What options and tables call it.
        change: What it is, in words.
        changes: Fields of `Setting`; a value of None is taken from the options.
        needs_gpu: Whether there is nothing to change without one.
    """

    name: str
    change: str
    changes: dict[str, Any]
    needs_gpu: bool = False


RUNGS = (
    Rung("baseline", "JPEG folder, torch's DataLoader without workers, float32", {}),
    Rung("workers", "worker processes", {"workers": None}),
    Rung("pinned", "page-locked batches, copied without waiting", {"pin": True}, needs_gpu=True),
    Rung("batch", "a larger batch", {"batch": None}),
    Rung("uint8", "bytes to the device, normalised there", {"uint8": True}),
    Rung("fastdata", "an LMDB, fastdata's DataLoader and DeviceLoader", {"fastdata": True}),
    Rung("set_to_none", "gradients dropped, not zeroed", {"set_to_none": True}),
    Rung("amp", "mixed precision", {"amp": True}),
    Rung("channels-last", "channels-last memory", {"channels_last": True}),
    Rung("autotune", "cuDNN's autotuning", {"autotune": True}, needs_gpu=True),
    Rung("fused", "fused SGD", {"fused": True}),
    Rung("compile", "torch.compile", {"compile": True}),
    Rung("ddp", "DistributedDataParallel, a process a GPU", {"ddp": True}),
)


def plan(
    base: Setting, workers: int, batch: int, without: Iterable[str] = ()
) -> list[tuple[Rung, Setting, str]]:
    """The rungs, each with its setting and what the machine lacks for it ("" if nothing).

    A rung that cannot be measured changes nothing for those above it.

    Args:
        base: Setting of the lowest rung.
        workers: What the "workers" rung sets.
        batch: What the "batch" rung sets.
        without: Names of rungs to leave out, with their changes.

    Raises:
        UsageError: There is no such rung.
    """
    without = list(without)
    known = [rung.name for rung in RUNGS]
    for name in without:
        if name not in known:
            raise UsageError(f"no rung is called {name!r}", f"Known are {', '.join(known)}.")
    given = {"workers": workers, "batch": batch}
    planned, setting = [], base
    for rung in RUNGS:
        if rung.name in without:
            continue
        changes: dict[str, Any] = {
            name: given[name] if value is None else value for name, value in rung.changes.items()
        }
        changed = replace(setting, **changes)
        needs = "needs a GPU" if rung.needs_gpu and base.device != "cuda" else ""
        planned.append((rung, changed, needs))
        if not needs:
            setting = changed
    return planned


def climb(
    planned: list[tuple[Rung, Setting, str]], gpus: int, work: Path, timeout: float
) -> list[dict[str, Any]]:
    """Measures the rungs.

    Args:
        planned: What `plan` gave.
        gpus: How many processes the "ddp" rung has; 0 for two, on the CPU.
        work: Folder for temporary files.
        timeout: Seconds that a process may take.

    Returns:
        For each rung "name", "change", "setting", what it "needs", the "error" for which it has
        no "run", and the "run": what `fastdata.benchmarks.train_rung.train` returns.
    """
    results = []
    for rung, setting, needs in planned:
        found: dict[str, Any] = {"name": rung.name, "change": rung.change, "needs": needs}
        found |= {"setting": asdict(setting), "error": "", "run": None}
        results.append(found)
        if needs:
            continue
        _say(f"{rung.name}: {rung.change}")
        try:
            found["run"] = run = _run(setting, gpus or 2, work, timeout)
            _say(f"  {run['images'] / run['seconds']:,.0f} images/s")
        except _FailedError as error:
            found["error"] = str(error)
            _say(f"  failed: {error}")
    return results


class _FailedError(Exception):
    """A rung's process failed; says how."""


def _run(setting: Setting, processes: int, work: Path, timeout: float) -> dict[str, Any]:
    """One rung in a process group of its own, which is killed with all that it started."""
    command = [sys.executable]
    if setting.ddp:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(processes)]
    with tempfile.TemporaryDirectory(prefix="fastdata-ladder-", dir=work) as folder:
        out, told = Path(folder, "out.json"), Path(folder, "setting.json")
        told.write_text(json.dumps(asdict(replace(setting, out=str(out)))))
        with subprocess.Popen(
            [*command, "-m", "fastdata.benchmarks.train_rung", str(told)],
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


def figures(result: dict[str, Any]) -> Figures:
    """The ladder as a table; what was not measured says why."""
    rows, before = [], None
    for rung in result["rungs"]:
        name, run = f"{rung['name']}: {rung['change']}", rung["run"]
        if run is None:
            rows.append([name, "", "", "", "", rung["needs"] or "failed"])
            continue
        rate = run["images"] / run["seconds"]
        rows.append(
            [
                name,
                f"{run['batch']}",
                f"{run['seconds'] * 300 / run['steps']:,.1f}",
                f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}",
                "" if before is None else f"x{rate / before:.2f}",
                f"{100 * run['wait_share']:.0f}%",
            ]
        )
        before = rate
    return Figures(
        f"{result['model']} on {result['on']}: 300 batches, scaled from {result['steps']}",
        ["rung", "images a batch", "s for 300 batches", "images/s", "gain", "waiting for data"],
        rows,
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_PATH = click.Path(path_type=Path)
_MANY = click.IntRange(1)


@click.command()
@click.option("--tree", type=_PATH, required=True, metavar="FOLDER", help="Class folders of JPEGs.")
@click.option("--work", type=_PATH, default=Path("bench-data/ladder"), show_default=True)
@click.option("--images", type=_MANY, help="Repeat the tree's images to this number.")
@click.option("--model", type=click.Choice(MODELS), default="resnet18", show_default=True)
@click.option("--width", type=_MANY, default=64, show_default=True, help="Of its first stage.")
@click.option("--image-size", type=_MANY, default=224, show_default=True, help="Pixels.")
@click.option("--batch-size", type=_MANY, default=256, show_default=True)
@click.option("--large-batch", type=_MANY, default=512, show_default=True, help='From "batch" on.')
@click.option("--workers", type=_MANY, help='From "workers" on. [default: the number of CPUs]')
@click.option("--steps", type=_MANY, default=300, show_default=True)
@click.option("--warmup", type=click.IntRange(0), default=10, show_default=True, help="Steps.")
@click.option("--timeout", type=float, default=3600, show_default=True, help="Seconds a process.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: cuda if available]")
@click.option("--without", default="", metavar="NAME,…", help="Leave out, with their changes.")
@click.option("--json", "json_path", type=_PATH, metavar="FILE", help="Write the results here.")
def main(
    tree: Path,
    work: Path,
    images: int | None,
    batch_size: int,
    large_batch: int,
    workers: int | None,
    timeout: float,
    device: str | None,
    without: str,
    json_path: Path | None,
    **setting: Any,
) -> None:
    """Measure what each change to a plain training loop gives. The exit code is 1 if one failed."""
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UsageError("--device cuda: there is no GPU", "Give --device cpu.")
    device = device or ("cuda" if has_gpu else "cpu")
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    listing(tree)  # raises where it has no images
    work.mkdir(parents=True, exist_ok=True)
    tree, work = tree.absolute(), work.absolute()
    if images:
        tree = repeat_tree(tree, work / "tree", images)
    packed = work / "train-lmdb"
    base = Setting(str(tree), str(packed), batch=batch_size, device=device, **setting)
    left_out = [name for name in without.split(",") if name]
    planned = plan(base, workers or usable_cpus(), large_batch, left_out)
    _say(f"packing {packed}")
    pack(ImageFolder(tree), packed, container="lmdb")
    on = f"{gpus} x {torch.cuda.get_device_name(0)}" if gpus else f"{usable_cpus()} CPUs"
    result: dict[str, Any] = {
        "benchmark": "training-ladder",
        "machine": machine() | {"torch": torch.__version__},
        "on": on,
        "model": f"{base.model}, width {base.width}, {base.image_size} x {base.image_size} pixels,",
        "steps": base.steps,
        "rungs": climb(planned, gpus, work, timeout),
    }
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1) + "\n")
    figures(result).show()
    sys.exit(any(rung["error"] for rung in result["rungs"]))


if __name__ == "__main__":
    try:
        main(prog_name="python -m fastdata.benchmarks.train")
    except FastdataError as error:
        click.echo(f"error: {error}", err=True)
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from error
