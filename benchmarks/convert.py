"""How long packing takes, against ``tar -cf`` and ``sync`` over the same tree.

Contenders take turns, each as a fresh process run as a user would run it. Start-up is
measured by packing a single image, and taken off. Before anything is timed, each packed
dataset is verified against the source's bytes.

    python -m fastdata.benchmarks.convert --root imagenet/train --images 4000
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from fastdata.benchmarks.measure import Spread, interleave, machine, run_command
from rich.console import Console
from rich.table import Table

from fastdata import ImageDataset, verify
from fastdata.sample import make_sample

_CONTAINERS = ("lmdb", "parquet", "shards")


@click.command()
@click.option(
    "--root", type=click.Path(path_type=Path), help="A tree <class>/<image>; made if absent."
)
@click.option("--images", default=4000, show_default=True, help="Repeat the tree to so many.")
@click.option("--workers", default=2, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option(
    "--work", type=click.Path(path_type=Path), help="Where to write. [default: a temporary folder]"
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here."
)
def main(
    root: Path | None,
    images: int,
    workers: int,
    rounds: int,
    work: Path | None,
    json_path: Path | None,
) -> None:
    """Measure packing against tar."""
    with tempfile.TemporaryDirectory(dir=work, prefix="fastdata-bench-") as folder:
        result = measure(Path(folder), root, images, workers, rounds)
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1) + "\n")
    Console().print(table(result))


def measure(
    work: Path, root: Path | None, images: int, workers: int, rounds: int
) -> dict[str, object]:
    """Runs the benchmark in a folder; returns all figures as JSON values."""
    tree, count, size = _make_tree(work, root, images)
    one = work / "one" / "class"
    one.mkdir(parents=True)
    shutil.copy(next(path for path in tree.rglob("*") if path.is_file()), one)
    memory: dict[str, int] = {}

    def tar() -> float:
        out = work / "out.tar"
        seconds = run_command(["sh", "-c", f"tar -cf {out} . && sync"], cwd=tree).seconds
        out.unlink()
        return seconds

    def pack(source: Path, container: str) -> float:
        out = work / f"out-{container}"
        command = [sys.executable, "-m", "fastdata", "convert", "imagefolder"]
        command += ["--root", str(source), "--to", container, "--out", str(out)]
        command += ["--workers", str(workers)]
        subprocess.run(["sync"], check=True)
        run = run_command(command)
        if source == tree:
            memory[container] = max(memory.get(container, 0), run.private_bytes)
        return run.seconds

    def timed(source: Path, container: str) -> float:
        seconds = pack(source, container)
        shutil.rmtree(work / f"out-{container}")
        return seconds

    for container in _CONTAINERS:  # verified first; this also warms the page cache
        pack(tree, container)
        _require_same(work / f"out-{container}", tree)
        shutil.rmtree(work / f"out-{container}")
    contenders: dict[str, Callable[[], float]] = {"tar": tar}
    for container in _CONTAINERS:
        contenders[container] = partial(timed, tree, container)
        contenders[f"{container} start-up"] = partial(timed, one, container)
    seconds = interleave(contenders, rounds)
    return {
        "benchmark": "convert",
        "machine": machine(),
        "images": count,
        "bytes": size,
        "workers": workers,
        "seconds": seconds,
        "peak_private_bytes": memory,
    }


def _make_tree(work: Path, root: Path | None, images: int) -> tuple[Path, int, int]:
    """A tree of at least so many images, from copies of another: <copy>/<class>/<image>."""
    if root is None:
        root = work / "made"
        make_sample(root, images=1000, val_images=0, workers=2)
        root /= "train"
    files = [path for path in root.rglob("*") if path.is_file()]
    tree = work / "tree"
    for copy in range(-(-images // len(files))):
        for path in files:
            target = tree / f"copy-{copy:03d}" / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    copied = [path.stat().st_size for path in tree.rglob("*") if path.is_file()]
    return tree, len(copied), sum(copied)


def _require_same(out: Path, tree: Path) -> None:
    """Stops the benchmark where a dataset is not the tree, byte for byte."""
    problems = verify(out, fast=True).problems
    dataset = ImageDataset(out, staged=False)
    for number, blob in enumerate(dataset.read([i]) for i in range(len(dataset))):
        files = list(
            (tree / dataset.row(number).key).parent.glob(f"{Path(dataset.row(number).key).name}.*")
        )
        if len(files) != 1 or files[0].read_bytes() != blob[0]:
            raise SystemExit(f"{out}: sample {number} is not its source's bytes")
    if problems:
        raise SystemExit(f"{out}: {problems[0]}")


def table(result: dict[str, object]) -> Table:
    """The figures as people read them."""
    seconds: dict[str, list[float]] = result["seconds"]  # type: ignore[assignment]
    memory: dict[str, int] = result["peak_private_bytes"]  # type: ignore[assignment]
    images: int = result["images"]  # type: ignore[assignment]
    tar = Spread.of(seconds["tar"])
    out = Table(title=f"packing {images:,} images, {result['workers']} workers")
    for column in ("", "seconds (low to high)", "start-up", "images/s", "times tar", "private MB"):
        out.add_column(column, justify="left" if not column else "right")
    out.add_row(
        "tar, sync",
        f"{tar.median:.2f} ({tar.low:.2f} to {tar.high:.2f})",
        "",
        f"{images / tar.median:,.0f}",
        "1.0",
        "",
    )
    for container in _CONTAINERS:
        whole = Spread.of(seconds[container])
        start = Spread.of(seconds[f"{container} start-up"]).median
        net = whole.median - start
        # Ratios round by round, since the disk's mood lasts longer than a round.
        ratio = Spread.of(
            [(a - start) / b for a, b in zip(seconds[container], seconds["tar"], strict=True)]
        )
        out.add_row(
            container,
            f"{whole.median:.2f} ({whole.low:.2f} to {whole.high:.2f})",
            f"{start:.2f}",
            f"{images / net:,.0f}",
            f"{ratio.median:.1f} ({ratio.low:.1f} to {ratio.high:.1f})",
            f"{memory[container] / 1e6:,.0f}",
        )
    return out


if __name__ == "__main__":
    main()
