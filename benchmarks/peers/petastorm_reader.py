"""petastorm: make_batch_reader over plain Parquet, images decoded by a TransformSpec.

Its pools are of threads (Pillow holds no lock while it decodes) or processes. Workers transform
and shuffle whole row groups, so these are small. Batches are cut from the workers' results.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _serve import ContenderRequest, serve
from _transforms import ToArray, image_folder

_ROWS = 64


def prepare(tree: str, out: str, variant: str) -> None:
    """Write out/data.parquet by pyarrow, the files' bytes unchanged, 64 a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    Path(out).mkdir(parents=True, exist_ok=True)
    samples = image_folder(tree)
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    with pq.ParquetWriter(
        f"{out}/data.parquet", schema, compression="none", use_dictionary=False
    ) as writer:
        for begin in range(0, len(samples), _ROWS):
            part = samples[begin : begin + _ROWS]
            images = [Path(path).read_bytes() for path, _ in part]
            labels = [label for _, label in part]
            writer.write_table(pa.table([images, labels], schema=schema))


class _Transform:
    """Function that decodes and crops the images of a row group; pickles into workers."""

    def __init__(self, request: ContenderRequest) -> None:
        self._array = ToArray(request.crop, request.size, request.dtype)

    def __call__(self, frame: Any) -> Any:
        # A worker process gets this class without this file's imports.
        import io

        from PIL import Image

        # petastorm stacks a column of flat arrays, and takes no others.
        frame["image"] = [
            self._array(Image.open(io.BytesIO(image))).reshape(-1) for image in frame["image"]
        ]
        return frame


def open_loader(request: ContenderRequest) -> Any:
    """Return a function that opens a reader, which continues over epochs: opening takes time."""
    import petastorm.transform  # noqa: F401

    warnings.simplefilter("ignore")
    # Its worker processes unpickle classes of this file.
    os.environ["PYTHONPATH"] += os.pathsep + str(Path(__file__).resolve().parent)
    return partial(_epoch, request)


def _epoch(request: ContenderRequest) -> Iterator[Any]:
    from petastorm import make_batch_reader
    from petastorm.transform import TransformSpec

    shape = (request.size, request.size, 3)
    shape = (3, *shape[:2]) if request.dtype == "float32" else shape
    dtype, size = np.dtype(request.dtype), request.batch_size
    images, labels = np.empty((0, *shape), dtype), np.empty(0, np.int64)
    edited = [("image", dtype.type, (int(np.prod(shape)),), False)]
    # Workers change the order of the data, so a check uses none.
    with make_batch_reader(
        "file://" + str(Path(request.data).resolve()),
        schema_fields=["image", "label"],
        reader_pool_type="dummy" if request.check else request.variant,
        workers_count=request.threads,
        shuffle_row_groups=request.order == "random",
        shuffle_rows=request.order == "random",
        seed=request.seed + 1,  # with 0, its reader polls without waiting and starves workers
        num_epochs=1 if request.check else None,
        transform_spec=TransformSpec(_Transform(request), edit_fields=edited),
    ) as reader:
        for rows in reader:
            these = rows.image.reshape(-1, *shape)
            images = np.concatenate([images, these]) if len(images) else these
            labels = np.concatenate([labels, rows.label])
            while len(labels) >= size:
                yield images[:size], labels[:size]
                images, labels = images[size:], labels[size:]
        if len(labels):
            yield images, labels


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["petastorm", "pyarrow"])
