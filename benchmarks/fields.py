"""Measure fields: opening, columns that are read and that are not, and a user's collate_fn.

    python -m fastdata.benchmarks.fields imagenet/train --out fields.json

Four measurements, whose contenders take turns. The photographs of ROOT are packed with 20 columns
and without any. A dataset of many rows is the same one with holes in its indexes. The rows that a
measurement reads are real, and files are as large as those of so many rows.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from fastdata.benchmarks.measure import (
    Figures,
    Spread,
    interleave,
    machine,
    out_option,
    private_memory,
    report,
)
from fastdata.benchmarks.prepare import listing
from fastdata.converters.packing import pack
from fastdata.converters.parquet import ParquetImages
from torch.utils.data import default_collate

from fastdata import DataLoader, ImageDataset
from fastdata.plan.order import make_order
from fastdata.storage.manifest import MANIFEST_NAME, FileEntry, Manifest
from fastdata.storage.records import INDEX_NAME, RECORD, RECORDS_AT, pack_header
from fastdata.transforms import RandomResizedCrop

#: Columns of a dataset; numbers and captions take turns.
_COLUMNS = [f"column{number:02}" for number in range(20)]
#: A column of numbers, and one of captions.
_TWO = ("column02", "column03")
#: Rows of the smaller dataset: whole pieces, so that more of them may follow.
_ROWS = 8192
_STEPS = ("open", "open for two fields", "make a loader", "first batch", "plan a shuffled batch")


def _values(name: str, rows: int) -> pa.Array:
    """Return the values of one column: float32, or captions of 60 characters."""
    number = _COLUMNS.index(name)
    if number % 2:
        return pa.array([f"caption {row * 20 + number:052}" for row in range(rows)])
    return pa.array(np.random.default_rng(number).random(rows, np.float32))


def _pack(images: list[bytes], columns: list[str], out: Path, container: str = "shards") -> Path:
    """Pack images, and columns beside them, in the order given."""
    table = {"image": pa.array(images, pa.binary())}
    table |= {name: _values(name, len(images)) for name in columns}
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        pq.write_table(pa.table(table), Path(folder, "rows.parquet"), row_group_size=4096)
        pack(ParquetImages(Path(folder)), out, container=container, workers=1, order="source")
    return out


def enlarge(dataset: Path, out: Path, rows: int, files: int) -> None:
    """Copy a dataset, with holes for further rows in all indexes, and further files listed."""
    shutil.copytree(dataset, out)
    manifest = Manifest.load(out)
    size = _stretch(out / INDEX_NAME, manifest.samples, rows, manifest.generation)
    entries = {entry.name: entry for entry in manifest.files}
    for stored in manifest.fields:
        if stored.index is not None:
            pieces = -(-manifest.samples // stored.rows), -(-rows // stored.rows)
            grown = _stretch(out / stored.index, *pieces, manifest.generation)
            entries[stored.index] = replace(entries[stored.index], size=grown)
    more = [FileEntry(f"more-{number:06}.tar", 1 << 30, "0" * 8) for number in range(files)]
    text = replace(
        manifest,
        samples=rows,
        index=replace(manifest.index, size=size),
        files=[*entries.values(), *more],
    ).to_json()
    (out / MANIFEST_NAME).write_text(text)


def _stretch(index: Path, before: int, rows: int, generation: str) -> int:
    """Put a hole for further rows between an index's records and its heap; return its size."""
    data = index.read_bytes()
    at = RECORDS_AT + before * RECORD.itemsize
    heap = data[at:]
    with index.open("r+b") as file:
        file.write(pack_header(rows, len(heap), generation))
        file.truncate(at)
        file.seek(RECORDS_AT + rows * RECORD.itemsize)
        file.write(heap)
        return file.truncate(RECORDS_AT + rows * RECORD.itemsize + len(heap))


def bytes_read() -> int:
    """Return the bytes that this process has read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def steps(path: str) -> None:
    """Print seconds and bytes of each of `_STEPS`, and the memory that they took, as JSON."""
    transform = RandomResizedCrop(32)
    DataLoader([(torch.zeros(1), 0)])  # what only the first one loads
    fields = ("image", *_TWO)
    made: list[Any] = []
    plan: list[Callable[[], Any]] = [
        lambda: ImageDataset(path, transform),
        lambda: ImageDataset(path, transform, fields=fields),
        lambda: DataLoader(made[1], 64),
        lambda: next(iter(made[2])),
        lambda: next(iter(_order(len(made[1])))),
    ]
    before, found = private_memory(os.getpid()), []
    for step in plan:
        read, began = bytes_read(), time.perf_counter()
        made.append(step())
        found.append([time.perf_counter() - began, bytes_read() - read])
    memory = private_memory(os.getpid()) - before
    print(json.dumps({"steps": found, "memory": memory}))


def _order(rows: int) -> Iterator[Any]:
    yield make_order("random", rows, 0, 0)(np.arange(256))


def opening(small: Path, folder: Path, rows: int, files: int, rounds: int) -> dict[str, Any]:
    """Measure opening a dataset of few rows and of many, each time in a new process."""
    datasets = {"few": small, "many": folder / "many", "files": folder / "files"}
    enlarge(small, datasets["many"], rows, 0)
    enlarge(small, datasets["files"], rows, files)

    def turn(path: Path) -> Any:
        code = f"from fastdata.benchmarks.fields import steps; steps({str(path)!r})"
        return json.loads(subprocess.check_output([sys.executable, "-W", "ignore", "-c", code]))

    contenders = {name: partial(turn, path) for name, path in datasets.items()}
    interleave(contenders, 1)  # fills the page cache
    return {"rows": rows, "files": files, "turns": interleave(contenders, rounds)}


def _epoch(dataset: Callable[[], ImageDataset], epochs: int = 1, **options: Any) -> list[float]:
    """Return CPU seconds and bytes read of opening a dataset and of some epochs."""
    read, began = bytes_read(), time.process_time()
    loader: DataLoader[Any] = DataLoader(dataset(), 128, shuffle=True, seed=1, **options)
    for _ in range(epochs):
        for _ in loader:
            pass
    return [time.process_time() - began, bytes_read() - read]


def columns(wide: Path, narrow: Path, rounds: int) -> dict[str, Any]:
    """Measure two columns of 20, and the same two columns alone."""
    contenders = {
        name: partial(_epoch, partial(ImageDataset, path, fields=_TWO), 4)
        for name, path in (("two of 20", wide), ("two", narrow))
    }
    interleave(contenders, 1)
    return {"turns": interleave(contenders, rounds)}


def unread(wide: Path, bare: Path, rounds: int) -> dict[str, Any]:
    """Measure photographs with columns that are not asked for, and without columns.

    Which of both is the first of a round is drawn.
    """
    transform = RandomResizedCrop(224)
    datasets = {"20 columns": wide, "none": bare}
    turns: dict[str, list[list[float]]] = {name: [] for name in datasets}
    drawn = random.Random(0)
    for number in range(-1, rounds):
        for name in drawn.sample(sorted(datasets), len(datasets)):
            one = partial(ImageDataset, datasets[name], transform, fields=("image",))
            found = _epoch(one, num_workers=1)
            if number >= 0:
                turns[name].append(found)
    return {"turns": turns}


def _padded(batch: list[Any]) -> Any:
    images, texts = zip(*batch, strict=True)
    tokens = [torch.tensor(list(text.encode())) for text in texts]
    return torch.stack(images), torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)


def _zipped(batch: list[Any]) -> Any:
    return tuple(zip(*batch, strict=True))


def _python(seconds: float) -> None:
    """Hold the interpreter's lock."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


_COLLATES: dict[str, Callable[[list[Any]], Any]] = {
    "default_collate": lambda batch: default_collate(batch),
    "tuple(zip(*b))": _zipped,
    "pads": _padded,
}
#: A step of training: on the GPU meanwhile, or in Python.
_CONSUMERS: dict[str, Callable[[float], None]] = {
    "none": lambda seconds: None,
    "waits": time.sleep,
    "Python": _python,
}


def _ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches that a helper thread has taken, one ahead."""
    with ThreadPoolExecutor(1) as helper:
        coming = helper.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = helper.submit(next, batches, None)
            yield batch


def collating(wide: Path, rounds: int, step: float) -> dict[str, Any]:
    """Measure a user's collate_fn in the consumer's thread, and in a helper thread."""
    pairs = ImageDataset(wide, RandomResizedCrop(224), fields=("image", _TWO[1]))

    def turn(collate: str, consumer: str, helper: bool) -> list[float]:
        loader: DataLoader[Any] = DataLoader(
            pairs, 64, num_workers=1, collate_fn=_COLLATES[collate], require_native=True
        )
        began, cpu = time.perf_counter(), time.process_time()
        batches = iter(loader)
        for _ in _ahead(batches) if helper else batches:
            _CONSUMERS[consumer](step)
        return [time.perf_counter() - began, time.process_time() - cpu]

    contenders = {
        f"{collate}|{consumer}|{where}": (
            lambda one=(collate, consumer, where == "helper"): turn(*one)
        )
        for collate in _COLLATES
        for consumer in _CONSUMERS
        for where in ("consumer", "helper")
    }
    interleave(contenders, 1)
    return {"step": step, "turns": interleave(contenders, rounds)}


def measure(root: Path, images: int, rows: int, files: int, rounds: int) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    paths = [path for path, _ in listing(root)]
    photographs = [Path(path).read_bytes() for path in paths[:: max(1, len(paths) // images)]]
    photographs = photographs[:images]
    small = min(photographs, key=len)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wide = _pack(photographs, _COLUMNS, folder / "wide")
        bare = _pack(photographs, [], folder / "bare")
        many = _pack([small] * _ROWS, _COLUMNS, folder / "many-wide", "parquet")
        narrow = _pack([small] * _ROWS, list(_TWO), folder / "many-narrow", "parquet")
        found = {
            "benchmark": "fields",
            "machine": machine(),
            "images": len(photographs),
            "few": _ROWS,
            "rounds": rounds,
            "opening": opening(many, folder, rows, files, rounds),
            "columns": columns(many, narrow, rounds),
            "unread": unread(wide, bare, 6 * rounds),
            "collating": collating(wide, rounds, 0.03),
        }
        return {**found, "load": os.getloadavg()[0]}


def figures(result: Mapping[str, Any]) -> list[Figures]:
    """Return the tables of the four measurements; ratios are computed per round."""
    return [_opening(result), _reading(result), _collating(result["collating"])]


def _opening(result: Mapping[str, Any]) -> Figures:
    turns, rows = result["opening"]["turns"], []
    for number, step in enumerate(_STEPS):
        for unit, place, factor in (("ms", 0, 1e3), ("kB", 1, 1e-3)):
            if not any(one["steps"][number][place] for of in turns.values() for one in of):
                continue
            found = [
                f"{Spread.of([one['steps'][number][place] * factor for one in of]):.1f}"
                for of in turns.values()
            ]
            rows.append([f"{step}, {unit}", *found])
    memory = [f"{Spread.of([one['memory'] / 1e6 for one in of]):.1f}" for of in turns.values()]
    many = f"{result['opening']['rows']:,} rows"
    heads = [f"{result['few']:,} rows", many, f"{many}, {result['opening']['files']:,} files"]
    return Figures("Opening", ["", *heads], [*rows, ["memory, MB", *memory]])


def _reading(result: Mapping[str, Any]) -> Figures:
    rows = []
    for part in ("columns", "unread"):
        (name, these), (other, those) = result[part]["turns"].items()
        for unit, place, factor in (("CPU ms", 0, 1e3), ("kB read", 1, 1e-3)):
            ours, theirs = ([turn[place] * factor for turn in of] for of in (these, those))
            title = f"{name} beside {other}, {unit}"
            ratio = f"{Spread.of_ratios(ours, theirs):.3f}"
            of_medians = f"{Spread.of(ours).median / Spread.of(theirs).median:.3f}"
            both = [f"{Spread.of(one):,.0f}" for one in (ours, theirs)]
            rows.append([title, *both, ratio, of_medians])
    heads = ["", "first", "second", "ratio by round", "ratio of medians"]
    return Figures("Columns that are read, and that are not", heads, rows)


def _collating(result: Mapping[str, Any]) -> Figures:
    turns, rows = result["turns"], []
    for collate in _COLLATES:
        for consumer in _CONSUMERS:
            own, helper = (
                turns[f"{collate}|{consumer}|{where}"] for where in ("consumer", "helper")
            )
            walls = ([one[0] for one in of] for of in (helper, own))
            cpus = ([one[1] for one in of] for of in (helper, own))
            ratios = [f"{Spread.of_ratios(*of):.2f}" for of in (walls, cpus)]
            rows.append([f"{collate}, consumer: {consumer}", *ratios])
    return Figures(
        "A collate_fn in a helper thread beside the consumer's thread",
        ["", "wall time", "CPU time"],
        rows,
    )


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--images", default=400, show_default=True, help="Photographs, evenly from ROOT.")
@click.option("--rows", default=100_000_000, show_default=True, help="Rows of the large dataset.")
@click.option("--files", default=5000, show_default=True, help="Files of its container.")
@click.option("--rounds", default=9, show_default=True, help="Turns of each contender.")
@out_option
def main(root: Path, out_path: Path | None, **options: int) -> None:
    """Measure what the fields of a dataset cost.

    ROOT is a folder with a folder of photographs for each class. Progress goes to standard error,
    tables to standard output; it takes some minutes.

    Example: python -m fastdata.benchmarks.fields imagenet/train
    """
    torch.set_num_threads(1)  # so that no thread of torch's spins beside the loaders'
    result = measure(root, **options)
    report(result, out_path, *figures(result))


if __name__ == "__main__":
    main()
