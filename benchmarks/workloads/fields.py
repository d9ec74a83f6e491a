"""Columns of a dataset that are read, and that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _workload import Workload, caption, contenders, crops, fastdata_loader, few, twice
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve

_COLUMNS = [f"column{number:02}" for number in range(20)]

WORKLOAD = Workload(
    "What fields cost",
    contenders(
        __file__,
        {
            "no columns": "a dataset of images alone",
            "20 columns, none read": "",
            "20 columns, two read": "a number and a caption",
        },
    ),
    columns=("images/s", "CPU ms an image", "by CPU time", "read, kB an image"),
    against="no columns",
    options={"threads": (1,), "rounds": 9},
)


def prepare(tree: str, out: str, variant: str) -> None:
    """Pack photographs with columns and without."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from fastdata.converters import PackOptions, ParquetImages, pack

    images = [Path(path).read_bytes() for path, _ in few(tree, 400)]
    rows = len(images)
    columns: dict[str, Any] = {"image": pa.array(images, pa.binary())}
    for name, number in zip(_COLUMNS, range(20), strict=True):
        columns[name] = np.random.default_rng(number).random(rows, np.float32)
        if number % 2:
            columns[name] = [caption(row * 20 + number) for row in range(rows)]
    for kind, names in (("bare", ["image"]), ("wide", list(columns))):
        folder = Path(out, f"{kind}.rows")
        folder.mkdir(parents=True)
        pq.write_table(pa.table({name: columns[name] for name in names}), folder / "rows.parquet")
        pack(
            ParquetImages(folder),
            Path(out, kind),
            container="shards",
            options=PackOptions(shuffle=False),
        )


def open_loader(request: ContenderRequest) -> Any:
    """Open a loader of the images, and of two columns."""
    from fastdata import ImageDataset

    name = "bare" if request.variant == "no columns" else "wide"
    more = ("column02", "column03") if "two" in request.variant else ()
    fields = ("image", *more)
    dataset = ImageDataset(Path(request.data, name), crops(request, "PILToTensor"), fields=fields)
    return twice(fastdata_loader(dataset, request))


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["fastdata"])
