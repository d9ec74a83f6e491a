"""Batches by the core alone, of samples or extents, as tests place them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata import _native
from fastdata.decode import DecodeError

_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


def cuts_of(count: int, out: tuple[int, int], by: str = "bilinear", /, **fields: Any) -> Any:
    """The geometry of samples; ``fields`` of `_native.CUT` are one a sample, or None."""
    cuts = np.zeros(count, _native.CUT)
    cuts["size"] = cuts["canvas"] = out
    cuts["filter"], cuts["whole"] = _native.FILTERS.index(by), fields.get("box") is None
    for name, values in fields.items():
        if values is not None:
            cuts[name] = values
    return cuts


def job_of(
    samples: Any,
    out: Any,
    *,
    regions: Any = None,
    sizes: Any = None,
    windows: Any = None,
    flips: Any = None,
    cuts: Any = None,
    **options: Any,
) -> _native.DecodeJob:
    """A job that has not begun."""
    if cuts is None:
        places = {"box": regions, "size": sizes, "window": windows, "flip": flips}
        by = options.pop("filter", "bilinear")
        cuts = cuts_of(len(samples), out.shape[2:0:-1], by, **places)
    names = ("seek_points", "skip", "stride", "check", "max_scans", "orientations")
    reading = {name: options.pop(name) for name in names if name in options}
    return _native.DecodeJob(samples, [_native.Rendering(out, cuts=cuts, **options)], **reading)


def decode_batch(
    samples: Any, size: tuple[int, int], *, out: Any = None, threads: int = 0, **options: Any
) -> Any:
    """The pixels, of ``size`` each; raise DecodeError for the first sample that failed."""
    if out is None:
        kind = _DTYPES.get(options.get("dtype", "uint8"), np.uint8)
        out = np.empty((len(samples), size[1], size[0], 3), kind)
    job = job_of(samples, out, **options)
    pool = _native.ThreadPool(threads) if threads else None
    if pool is None:
        job.run()
    else:
        pool.submit(job)
    for _, code, detail, offset in job.collect()[0]:
        raise DecodeError(code, detail, offset)
    return out
