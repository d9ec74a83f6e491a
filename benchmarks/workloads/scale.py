"""Indexes of a billion rows and more."""

from __future__ import annotations

import io
import os
import shutil
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from _workload import Workload, contenders
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve
from PIL import Image

#: Parts, tars of a part, samples of a tar. FASTDATA_SCALE=small tries it.
SHAPES = {
    "one part, 1,000,000 samples": (1, 100, 10_000),
    "1,000,000,000 samples, 1,000 parts": (1000, 100, 10_000),
    "5,000,000,000 samples, 500 parts": (500, 1000, 10_000),
}
if os.environ.get("FASTDATA_SCALE") == "small":
    SHAPES = {"one part": (1, 3, 40), "five parts": (5, 3, 40)}
BATCH, BATCHES = 256 if len(SHAPES) > 2 else 16, 40 if len(SHAPES) > 2 else 4

_COLUMNS = "open, ms|first batch, ms|first batch, CPU ms|resume, CPU ms|memory, MB|a batch, CPU ms"
_COLUMNS += "|read a batch, kB"

WORKLOAD = Workload(
    "Billions of samples",
    contenders(__file__, {"random": "", "quasi-random": ""}, folder="{case}", needs="webdataset"),
    cases=tuple(SHAPES),
    columns=_COLUMNS.split("|"),
    check="",
    options={"threads": (1,)},
)


def prepare(tree: str, out: str, case: str) -> None:
    """Make an index of a shape: one part by `fastdata index`, and links to it."""
    import webdataset
    from fastdata.converters import index

    from fastdata.storage.manifest import (
        MANIFEST_NAME,
        PART_NAME,
        Manifest,
        PartEntry,
        PartsManifest,
    )

    file, (parts, tars, rows) = io.BytesIO(), SHAPES[case]
    Image.new("RGB", (32, 32), (90, 120, 30)).save(file, "JPEG")
    folder, first, data = Path(out), Path(out, PART_NAME.format(0)), Path(f"{out}.tars")
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    with webdataset.TarWriter(str(data / "000000.tar")) as tar:
        for row in range(rows):
            tar.write({"__key__": f"{row:08}", "jpg": file.getvalue(), "cls": row % 1000})
    for number in range(1, tars):
        os.link(data / "000000.tar", data / f"{number:06}.tar")
    keyed: Any = {"source": {"shard_keys": True}}  # all tars have the same names in them
    index(data, folder if parts == 1 else first, workers=1, **keyed)
    if parts == 1:
        return
    own, made = Manifest.load(first), []
    for number in range(parts):
        part = folder / PART_NAME.format(number)
        if number:
            shutil.copytree(first, part, copy_function=os.link)
            (part / MANIFEST_NAME).unlink()
            text = replace(own, source={**own.source, "fingerprint": str(number)}).to_json()
            (part / MANIFEST_NAME).write_text(text)
        made.append(PartEntry.of(PART_NAME.format(number), Manifest.load(part)))
    (folder / MANIFEST_NAME).write_text(PartsManifest.of(made, own).to_json())


def _now() -> Any:
    """Return wall and CPU milliseconds, kilobytes read so far, and megabytes in memory."""
    read = int(Path("/proc/self/io").read_text().split()[1]) / 1e3
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return np.array([time.perf_counter() * 1e3, time.process_time() * 1e3, read, memory])


def figures(request: ContenderRequest) -> dict[str, Any]:
    """Open an index, and load batches of a shuffled epoch."""
    from fastdata import DataLoader, ImageDataset
    from fastdata.transforms import RandomResizedCrop

    crop, begun = RandomResizedCrop(8), _now()
    dataset = ImageDataset(Path(request.data), transform=crop)
    opened = _now()
    about: dict[str, Any] = {"shuffle": True, "order": request.variant, "seed": 1, "num_workers": 1}
    loader: Any = DataLoader(dataset, BATCH, **about)
    batches = iter(loader)
    next(batches)
    first = _now()
    count = sum(1 for _ in islice(batches, BATCHES))
    done = _now()
    resumed: Any = DataLoader(dataset, BATCH, **about)
    resumed.load_state_dict(loader.state_dict())
    ready = _now()
    next(iter(resumed))
    _, cpu, read, _ = (done - first) / count
    wall, used, *_ = first - opened
    resuming = (_now() - ready)[1]
    values = ((opened - begun)[0], wall, used, resuming, (done - begun)[3], cpu, read)
    return dict(zip(WORKLOAD.columns, values, strict=True))


if __name__ == "__main__":
    serve(None, prepare, figures=figures, packages=["fastdata"])
