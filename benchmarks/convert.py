"""Time of packing, against ``tar -cf`` and ``sync`` over the same tree.

Contenders take turns, each as a fresh process run as a user would run it. Start-up is
measured by packing one image a worker, and subtracted. Before anything is timed, each packed
dataset is verified against the source's bytes.

    python -m fastdata.benchmarks.convert --root imagenet/train --images 4000
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from fastdata.benchmarks.measure import (
    Figures,
    Spread,
    interleave,
    machine,
    out_option,
    report,
    run_command,
)
from fastdata.converters.tasks import PIECE_BYTES

from fastdata import ImageDataset, verify
from fastdata.sample import make_sample

#: Options of `fastdata convert` by contender. Those without seek points compare with tar, which
#: copies bytes: building seek points is a full entropy decode of every JPEG.
_PACKINGS = {
    "lmdb": ["--to", "lmdb", "--no-seek-points"],
    "parquet": ["--to", "parquet", "--no-seek-points"],
    "shards": ["--to", "shards", "--no-seek-points"],
    "lmdb, seek points": ["--to", "lmdb"],
    "shards, seek points": ["--to", "shards"],
}


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
@out_option
def main(
    root: Path | None,
    images: int,
    workers: int,
    rounds: int,
    work: Path | None,
    out_path: Path | None,
) -> None:
    """Measure packing against tar."""
    with tempfile.TemporaryDirectory(dir=work, prefix="fastdata-bench-") as folder:
        result = measure(Path(folder), root, images, workers, rounds)
    report(result, out_path, figures(result))


def measure(
    work: Path, root: Path | None, images: int, workers: int, rounds: int
) -> dict[str, Any]:
    """Run the benchmark in a folder; return all figures as JSON values."""
    tree, count, size = _make_tree(work, root, images)
    few = _make_few(work, tree, workers)
    memory: dict[str, int] = {}

    def tar() -> float:
        out = work / "out.tar"
        seconds = run_command(["sh", "-c", f"tar -cf {out} . && sync"], cwd=tree).seconds
        out.unlink()
        return seconds

    out = work / "out"

    def pack(source: Path, name: str, *, sample_memory: bool = False) -> float:
        command = [sys.executable, "-m", "fastdata", "convert", "imagefolder"]
        command += ["--root", str(source), "--out", str(out), "--workers", str(workers)]
        subprocess.run(["sync"], check=True)
        command += _PACKINGS[name]
        if source == few and "lmdb" not in command:
            command += ["--shard-size", "1KiB"]
        run = run_command(command, sample_memory=sample_memory)
        if sample_memory:
            memory[name] = run.private_bytes
        return run.seconds

    def timed(source: Path, name: str) -> float:
        seconds = pack(source, name)
        shutil.rmtree(out)
        return seconds

    for name in _PACKINGS:  # verified first; this also warms the page cache
        pack(tree, name, sample_memory=True)
        _require_same(out, tree)
        shutil.rmtree(out)
    contenders: dict[str, Callable[[], float]] = {"tar": tar}
    for name in _PACKINGS:
        contenders[name] = partial(timed, tree, name)
        contenders[f"{name} start-up"] = partial(timed, few, name)
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


def _make_few(work: Path, tree: Path, workers: int) -> Path:
    """Make a tree with one image for each worker.

    The images end in zeros, which decoders ignore, so that each is a task of its own.
    """
    few = work / "few" / "class"
    few.mkdir(parents=True)
    image = next(path for path in tree.rglob("*") if path.is_file()).read_bytes()
    for number in range(workers):
        (few / f"{number}.jpg").write_bytes(image + bytes(PIECE_BYTES))
    return few.parent


def _make_tree(work: Path, root: Path | None, images: int) -> tuple[Path, int, int]:
    """Make a tree of at least so many images from copies of another: <copy>/<class>/<image>."""
    if root is None:
        root = work / "made"
        make_sample(root, images=1000, val_images=0, workers=2)
        root /= "train"
    tree = work / "tree"
    for copy in range(-(-images // sum(path.is_file() for path in root.rglob("*")))):
        shutil.copytree(root, tree / f"copy-{copy:03d}")
    copied = [path.stat().st_size for path in tree.rglob("*") if path.is_file()]
    return tree, len(copied), sum(copied)


def _require_same(out: Path, tree: Path) -> None:
    """Exit if a dataset differs from the tree's bytes."""
    problems = verify(out, fast=True).problems
    dataset = ImageDataset(out)
    for number, blob in enumerate(dataset.read([i]) for i in range(len(dataset))):
        files = list(
            (tree / dataset.row(number).key).parent.glob(f"{Path(dataset.row(number).key).name}.*")
        )
        if len(files) != 1 or files[0].read_bytes() != blob[0]:
            raise SystemExit(f"{out}: sample {number} is not its source's bytes")
    if problems:
        raise SystemExit(f"{out}: {problems[0]}")


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results."""
    seconds, images = result["seconds"], result["images"]
    tar = Spread.of(seconds["tar"])
    rows = [["tar, sync", str(tar), "", f"{images / tar.median:,.0f}", "1.0", ""]]
    for name in _PACKINGS:
        peak = result["peak_private_bytes"].get(name)
        whole = Spread.of(seconds[name])
        start = Spread.of(seconds[f"{name} start-up"]).median
        # Ratios by round: the disk's speed changes more slowly than a round.
        pairs = zip(seconds[name], seconds["tar"], strict=True)
        ratio = Spread.of([(packing - start) / tarring for packing, tarring in pairs])
        rows.append(
            [
                name,
                str(whole),
                f"{start:.2f}",
                f"{images / (whole.median - start):,.0f}",
                str(ratio),
                "" if peak is None else f"{peak / 1e6:,.0f}",
            ]
        )
    return Figures(
        f"Packing {images:,} images ({result['bytes'] / 1e6:,.0f} MB), {result['workers']} workers",
        ["", "seconds", "of it start-up", "images/s without", "times tar without", "private MB"],
        rows,
    )


if __name__ == "__main__":
    main()
