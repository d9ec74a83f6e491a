"""Cost of an index of many parts: opening, planning, the first batch, bytes read.

    python -m fastdata.benchmarks.scale /data/scale --out scale.json

Makes indexes of a billion and of five billion rows, and loads from them: the loader, the order and
the index are the real ones. All parts of an index are links to one, so it takes the disk space of
one part, and all tars are links to one of small images. Each measurement is a process of its own.
"""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pyarrow as pa
from fastdata.benchmarks.measure import Figures, machine, out_option, report
from PIL import Image

from fastdata.storage.checksum import crc32c, crc32c_file
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.files import human_bytes
from fastdata.storage.formats.tars import members
from fastdata.storage.manifest import MANIFEST_NAME, PART_NAME, FileEntry, Manifest
from fastdata.storage.parted import Part, Parts
from fastdata.storage.records import INDEX_NAME, NO_GENERATION, SCHEMA, write_index

BATCH = 256
#: Batches that a measurement takes, after the first.
BATCHES = 40
#: Most links to one file: ext4 allows 65,000.
_LINKS = 50_000
_CLASSES = 1000
_ORDERS = ("random", "quasi-random")


class Shape(NamedTuple):
    """Size of an index.

    Attributes:
        parts: Number of parts; 1 for an index that has none.
        tars: Tars of a part.
        rows: Samples of a tar.
    """

    parts: int
    tars: int
    rows: int

    @property
    def samples(self) -> int:
        """All samples."""
        return self.parts * self.tars * self.rows

    def __str__(self) -> str:
        rows, tars = f"{self.samples:,} samples", f"{self.parts * self.tars:,} tars"
        return f"{rows}, {tars}, " + ("1 part" if self.parts == 1 else f"{self.parts:,} parts")


SHAPES = {
    "one part": Shape(1, 100, 10_000),
    "a billion": Shape(1000, 100, 10_000),
    "five billion": Shape(500, 1000, 10_000),
}


def make(folder: Path, shape: Shape) -> Path:
    """Make an index, unless it is there."""
    out = folder / "-".join(map(str, shape))
    if (out / MANIFEST_NAME).exists():
        return out
    shutil.rmtree(out, ignore_errors=True)
    tars = folder / f"tars-{shape.rows}"
    extents = _make_tars(tars, shape)
    if shape.parts == 1:
        _make_part(out, shape, tars, 0, extents, None)
        return out
    manifests = []
    for number in range(shape.parts):
        first = out / PART_NAME.format(0) if number else None
        part = out / PART_NAME.format(number)
        manifests.append(_make_part(part, shape, tars, number, extents, first))
    parts = [Part.of(PART_NAME.format(n), one) for n, one in enumerate(manifests)]
    (out / MANIFEST_NAME).write_text(Parts.of(parts, manifests[0]).to_json())
    return out


def _make_tars(folder: Path, shape: Shape) -> list[tuple[int, int]]:
    """Make the tars; return the extents of the images of one."""
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "written.tar"
    if not written.exists():
        _write_tar(written, shape.rows)
    for number in range(shape.parts * shape.tars):
        path = folder / _tar(number)
        if not path.exists():
            if number % _LINKS == 0:
                shutil.copyfile(written, path)
            else:
                os.link(folder / _tar(number - number % _LINKS), path)
    return [(one.offset, one.size) for one in members(written)]


def _tar(number: int) -> str:
    return f"{number:06d}.tar"


def _write_tar(path: Path, rows: int) -> None:
    data = _image()
    with tarfile.open(path, "w") as tar:
        for row in range(rows):
            info = tarfile.TarInfo(f"{row:08}.jpg")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _image() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), (90, 120, 30)).save(file, "JPEG")
    return file.getvalue()


def _make_part(
    out: Path,
    shape: Shape,
    tars: Path,
    number: int,
    extents: list[tuple[int, int]],
    first: Path | None,
) -> Manifest:
    """Make a part; its index is a link to that of the first, if there is one."""
    out.mkdir(parents=True)
    index, samples = out / INDEX_NAME, shape.tars * shape.rows
    if first is None:
        write_index(index, _batches(shape, extents), samples)
        checksum = f"{crc32c_file(index):08x}"
    else:
        os.link(first / INDEX_NAME, index)
        checksum = Manifest.load(first).index.crc32c
    size = (tars / _tar(0)).stat().st_size
    names = [_tar(number * shape.tars + n) for n in range(shape.tars)]
    manifest = Manifest(
        container="archives",
        samples=samples,
        skipped=0,
        classes=[str(label) for label in range(_CLASSES)],
        blob_bytes=samples * extents[0][1],
        index=FileEntry(INDEX_NAME, index.stat().st_size, checksum),
        files=[FileEntry(name, size, "") for name in names],
        options={},
        source={"fingerprint": str(number)},
        tool="benchmark",
        generation=NO_GENERATION,
        root=str(tars.absolute()),
    )
    (out / MANIFEST_NAME).write_text(manifest.to_json())
    return manifest


def _batches(shape: Shape, extents: list[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, a tar at a time."""
    offsets, lengths = (pa.array(one, pa.int64()) for one in zip(*extents, strict=True))
    count, checksum = len(extents), crc32c(_image())
    encodings = pa.array(ENCODINGS, pa.string())
    code = list(ENCODINGS).index("jpeg")

    def same(value: object, name: str) -> pa.Array:
        return pa.array(np.full(count, value), SCHEMA.field(name).type)

    for tar in range(shape.tars):
        labels = np.arange(tar * count, (tar + 1) * count) * 2_654_435_761 % _CLASSES
        columns = {
            "key": pa.array([f"{tar:04}/{row:06}" for row in range(count)]),
            "label": pa.array(labels, pa.int32()),
            "file": same(tar, "file"),
            "path": pa.nulls(count, pa.string()),
            "offset": offsets,
            "length": lengths,
            "encoding": pa.DictionaryArray.from_arrays(
                pa.array(np.full(count, code), pa.int8()), encodings
            ),
            "seek_points": pa.nulls(count, pa.binary()),
        }
        values = {"width": 32, "height": 32, "channels": 3, "crc32c": checksum, "orientation": 1}
        columns |= {name: same(value, name) for name, value in values.items()}
        yield pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def load(path: Path, order: str) -> dict[str, float]:
    """Open an index, and load batches of a shuffled epoch; for a process of its own."""
    from fastdata import DataLoader, ImageDataset
    from fastdata.transforms import RandomResizedCrop

    crop = RandomResizedCrop(8)
    gc.collect()
    memory, began = _resident(), _times()
    dataset = ImageDataset(path, transform=crop)
    opened = _times() - began
    began, read = _times(), _read()
    loader: Any = DataLoader(dataset, BATCH, shuffle=True, order=order, seed=1, num_workers=1)
    batches = iter(loader)
    next(batches)
    first, read_first = _times() - began, _read() - read
    processor, read = time.process_time(), _read()
    count = sum(1 for _ in islice(batches, BATCHES))
    used, read = time.process_time() - processor, _read() - read
    state = loader.state_dict()
    del batches
    resumed: Any = DataLoader(dataset, BATCH, shuffle=True, order=order, seed=1, num_workers=1)
    resumed.load_state_dict(state)
    began = _times()
    next(iter(resumed))
    resuming = _times() - began
    return {
        "open_ms": opened[0],
        "open_cpu_ms": opened[1],
        "first_ms": first[0],
        "first_cpu_ms": first[1],
        "first_bytes": read_first,
        "batch_cpu_ms": used / count * 1e3,
        "batch_bytes": read / count,
        "resume_cpu_ms": resuming[1],
        "memory": _resident() - memory,
    }


def _times() -> Any:
    """Return the time, and the CPU time of this process, in milliseconds."""
    return np.array([time.perf_counter(), time.process_time()]) * 1e3


def _resident() -> int:
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _read() -> int:
    """Return the bytes that this process has read so far, from the page cache or not."""
    return int(Path("/proc/self/io").read_text().split()[1])


_PROGRAM = """
import json, sys
from pathlib import Path
from fastdata.benchmarks.scale import load
print(json.dumps(load(Path(sys.argv[1]), sys.argv[2])))
"""


def measure(folder: Path, shapes: dict[str, Shape], rounds: int) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    made = {name: make(folder, shape) for name, shape in shapes.items()}
    cases: dict[str, dict[str, list[dict[str, float]]]] = {
        name: {order: [] for order in _ORDERS} for name in shapes
    }
    for _ in range(rounds):
        for name, path in made.items():
            for order in _ORDERS:
                arguments = [sys.executable, "-c", _PROGRAM, str(path), order]
                done = subprocess.run(arguments, check=True, capture_output=True, text=True)
                cases[name][order].append(json.loads(done.stdout))
    return {
        "benchmark": "scale",
        "machine": machine(),
        "batch": BATCH,
        "batches": BATCHES,
        "shapes": {name: shape._asdict() for name, shape in shapes.items()},
        "index_bytes": {
            name: _index_size(path) * shapes[name].parts for name, path in made.items()
        },
        "manifest_bytes": {
            name: (path / MANIFEST_NAME).stat().st_size for name, path in made.items()
        },
        "image_bytes": len(_image()),
        "cases": cases,
    }


def _index_size(path: Path) -> int:
    index = path / INDEX_NAME
    return (index if index.exists() else path / PART_NAME.format(0) / INDEX_NAME).stat().st_size


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--rounds", default=3, show_default=True)
@click.option("--small", is_flag=True, help="Try it: few parts, tars and samples.")
@out_option
def main(folder: Path, rounds: int, small: bool, out_path: Path | None) -> None:
    """Make indexes of many parts in FOLDER, and measure loading from them."""
    shapes = SHAPES
    if small:
        shapes = {name: Shape(min(shape.parts, 5), 3, 400) for name, shape in SHAPES.items()}
    result = measure(folder, shapes, rounds)
    report(result, out_path, *figures(result))


_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "open_ms": ("open, ms", lambda value: f"{value:.1f}"),
    "open_cpu_ms": ("of CPU", lambda value: f"{value:.1f}"),
    "first_ms": ("first batch, ms", lambda value: f"{value:,.0f}"),
    "first_cpu_ms": ("of CPU", lambda value: f"{value:,.0f}"),
    "resume_cpu_ms": ("resume, ms of CPU", lambda value: f"{value:,.0f}"),
    "memory": ("memory", human_bytes),
    "batch_cpu_ms": ("CPU a batch, ms", lambda value: f"{value:.1f}"),
    "batch_bytes": ("read a batch", human_bytes),
}


def figures(result: dict[str, Any]) -> list[Figures]:
    """Return the tables of results: medians of the rounds."""
    shapes = {name: Shape(**shape) for name, shape in result["shapes"].items()}
    sizes = [
        [str(shape), human_bytes(result["index_bytes"][name]),
         human_bytes(result["manifest_bytes"][name])]
        for name, shape in shapes.items()
    ]  # fmt: skip
    rows = []
    for name, orders in result["cases"].items():
        for order, runs in orders.items():
            medians = {key: statistics.median(run[key] for run in runs) for key in _COLUMNS}
            cells = [shown(medians[key]) for key, (_, shown) in _COLUMNS.items()]
            rows.append([f"{name}, {order}", *cells])
    heads = [head for head, _ in _COLUMNS.values()]
    return [
        Figures("Indexes", ["", "index", "manifest"], sizes),
        Figures(f"Loading batches of {result['batch']}", ["", *heads], rows),
    ]


if __name__ == "__main__":
    main()
