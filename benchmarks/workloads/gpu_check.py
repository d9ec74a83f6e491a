"""Check of an installed fastdata on a machine with a GPU, in eight minutes, without network.

    python benchmarks/workloads/gpu_check.py --tree photographs --tests tests --out gpu-check

It needs torch, DALI and fastdata; pytest for the tests. OUT keeps the output of each step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click

_BENCH = "lmdb,gpu", "dali-mixed,dali-fastdata-mixed,dali-torchvision"


def steps(
    tree: Path | None, tests: Path | None, out: Path, images: int, seconds: float, batch: int
) -> Iterator[tuple[str, float, list[str]]]:
    """Yield the name, the limit of seconds and the arguments of Python of each process."""
    if tree is None:
        sample = ["sample", "--out", str(out / "sample"), "--images=160", "--val-images=0"]
        yield "photographs", 20, ["-m", "fastdata", *sample]
        tree = out / "sample" / "train"
    if tests is not None:
        # The project's settings ask for plugins.
        options = ["-q", *(["-n0"] if find_spec("xdist") else []), "-c", "/dev/null", "-m", "gpu"]
        files = [str(tests / name) for name in ("test_device_gpu.py", "test_dali.py")]
        yield "tests", 100, ["-m", "pytest", *options, "-p", "no:cacheprovider", *files]
    about = [f"--tree={tree}", f"--images={images}", f"--batch-size={batch}", "--rounds=2"]
    about += [f"--work={out / 'work'}", f"--seconds={seconds}", "--warmup=1"]
    gpu = os.environ.get("FASTDATA_DEVICE", "cuda") != "cpu"
    ways, peers = _BENCH if gpu else ("lmdb", "dali-fastdata")
    loaders = [*about, f"--ways={ways}", f"--against={peers}", f"--out={out / 'loaders.json'}"]
    yield "decoding", 130, ["-m", "fastdata", "bench", *loaders, "--threads=2"]
    training = [str(Path(__file__).parent), "training", *about, f"--out={out}"]
    fed = [f"--contender={name}" for name in ("the step alone", "fastdata", "DALI")]
    # Each of its processes compiles the step, for some 25 seconds.
    yield "training", 250, [*training, "--case=ResNet-50", "--threads=2", *fed]


def run(name: str, limit: float, command: list[str], out: Path) -> str:
    """Run a process; return how it ended. After the limit, its workers are killed, too."""
    path = out / f"{name}.log"
    arguments = ["timeout", "-s", "KILL", str(limit), sys.executable, *command]
    with path.open("w") as log:
        status = subprocess.run(arguments, stdout=log, stderr=log, check=False).returncode
    if status in (-9, 137):
        return f"not done after {limit:.0f} s, see {path.name}"
    return f"failed (exit status {status}), see {path.name}" if status else "done"


_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True)


@click.command()
@click.option("--tree", type=_FOLDER, help="Class folders of JPEGs. [default: made ones]")
@click.option("--tests", type=_FOLDER, help="The folder of the tests. [default: run none]")
@click.option("--images", default=3200, show_default=True, help="Repeat the photographs to this.")
@click.option("--seconds", default=2.0, show_default=True)
@click.option("--batch", default=256, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, resolve_path=True), default="gpu-check")
def main(out: Path, **options: object) -> None:
    """Test and measure fastdata on a GPU."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise click.UsageError(f"{out} is not empty")
    statuses, tables = [], []
    for name, limit, command in steps(out=out, **options):  # type: ignore[arg-type]
        click.echo(f"{name}: at most {limit:.0f} s")
        statuses.append(f"{name}: {run(name, limit, command, out)}")
        lines = (out / f"{name}.log").read_text(errors="replace").strip().splitlines()
        tables += ["", f"{name}:", *lines[-16:]]
    text = "\n".join([*statuses, *tables]) + "\n"
    (out / "summary.txt").write_text(text)
    click.echo(text)
    if any(not status.endswith("done") for status in statuses):
        sys.exit(1)


if __name__ == "__main__":
    main()
