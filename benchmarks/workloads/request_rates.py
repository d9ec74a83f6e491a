"""Requests that training on many GPUs makes, by simulation: the real orders, shares and plans."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt
from _workload import Workload, contenders
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve

from fastdata.plan.order import BLOCK, Order, OrderLike, QuasiRandom, make_order
from fastdata.plan.sharding import Epoch
from fastdata.remote.options import RemoteOptions
from fastdata.remote.ranges import FileRef, Ranges, plan

Numbers = npt.NDArray[np.int64]

_GPUS: tuple[int, ...] = (1, 8, 64, 512, 1000, 10_000)
_OF_A_MACHINE, _IMAGES, _BATCH = 8, 14_000_000, 256
if os.environ.get("FASTDATA_SCALE") == "small":
    _GPUS, _IMAGES = (1, 16), 20_000
#: Bytes of an image of ImageNet, without and with what a shard has beside it; and of a shard.
_SIZE, _STRIDE, _SHARD = 110_000, 112_816, 256 << 20
_OF_SHARD = _SHARD // _STRIDE
#: Batches of a rank that are simulated: by ranges, and as its machine's cache folder is empty.
_BATCHES, _FIRST_BATCHES = 200, 16
#: GET requests a second of a prefix of S3; images/s of a GPU that trains a ViT-L, a ResNet-50.
_OF_PREFIX, _RATES = 5500, (1500, 5600)
_COLUMNS = ["requests per 1,000 images", "first batches", "kB an image"]
_COLUMNS += [f"requests/s at {rate:,} images/s a GPU" for rate in _RATES]
_COLUMNS += [f"prefixes of S3 at {_RATES[-1]:,}"]
_WINDOW = _BATCH // BLOCK
_ORDERS: dict[str, OrderLike] = {
    "default order": QuasiRandom(),
    f"windows of {_WINDOW}": QuasiRandom(_WINDOW),
    "random order": "random",
}
_NAMES = [f"{place}, {order}" for place in ("ranges", "cache folder") for order in _ORDERS]

WORKLOAD = Workload(
    "Requests to a bucket",
    contenders(__file__, dict.fromkeys(_NAMES, ""), folder="tree"),
    cases=tuple(f"{gpus:,} GPU{'s' * (gpus > 1)}" for gpus in _GPUS),
    columns=_COLUMNS,
    check="",
    options={"threads": (1,), "rounds": 1},
)


def _places(samples: Numbers) -> tuple[Numbers, Numbers]:
    """Return the file of each sample, and where it begins in it."""
    files, within = np.divmod(samples, _OF_SHARD)
    return files, within * _STRIDE


def _by_ranges(samples: Numbers, options: RemoteOptions) -> tuple[float, float]:
    """Return the requests and bytes per image of a rank that reads samples in this order.

    As a pass does, it plans again whenever an eighth of what it plans for has been read.
    """
    files, starts = _places(samples)
    refs = {file: FileRef(str(file), _SHARD, "", file) for file in set(files.tolist())}
    soon, requests, size = options.memory // 2, 0, 0
    unplanned, end = np.arange(0), 0
    for read in range(0, len(samples), soon // 8 // _SIZE):
        begin, end = end, min(read + options.memory // _SIZE, len(samples))
        unplanned = np.append(unplanned, np.arange(begin, end))
        own, first = files[unplanned], starts[unplanned]
        of = [refs[file] for file in own.tolist()]
        ranges = Ranges(of, own, first, first + _SIZE, np.zeros_like(own))
        distances, left = (unplanned - read) * _SIZE, np.ones(len(own), bool)
        for one in plan(ranges, distances, soon, options.merge_gap, options.max_request):
            requests += 1
            size += int(np.ptp(first[one])) + _SIZE
            left[one] = False
        unplanned = unplanned[left]
    return requests / len(samples), size / len(samples)


def _by_pieces(order: Order, ranks: list[Epoch], batches: int, piece: int) -> float:
    """Return the pieces per image that a machine's ranks add to their empty cache folder."""
    positions = [rank.positions(batch) for rank in ranks for batch in range(batches)]
    files, starts = _places(order(np.concatenate(positions)))
    pieces = [files * _SHARD + byte // piece for byte in (starts, starts + _SIZE - 1)]
    return len(np.unique(pieces)) / len(files)


def figures(request: ContenderRequest) -> dict[str, Any]:
    """Return figures of the first epoch; the requests are those of all GPUs."""
    place, _, name = request.variant.partition(", ")
    order, options = make_order(_ORDERS[name], _IMAGES, 0, 0), RemoteOptions()
    gpus = int(request.case.split()[0].replace(",", ""))
    machine = range(min(gpus, _OF_A_MACHINE))
    ranks = [Epoch(_IMAGES, _BATCH, rank, gpus, drop_last=True) for rank in machine]
    count = len(ranks[0])
    if place == "cache folder":
        requests = _by_pieces(order, ranks, count, options.piece_bytes)
        first = _by_pieces(order, ranks, min(_FIRST_BATCHES, count), options.piece_bytes)
        size = requests * options.piece_bytes
    else:
        positions = [ranks[0].positions(batch) for batch in range(min(_BATCHES, count))]
        first, size = _by_ranges(order(np.concatenate(positions)), options)
        requests = first
    rates = [requests * gpus * rate for rate in _RATES]
    prefixes = math.ceil(rates[-1] / _OF_PREFIX)
    shown = (1e3 * requests, 1e3 * first, size / 1e3, *rates, prefixes)
    return dict(zip(_COLUMNS, shown, strict=True))


if __name__ == "__main__":
    serve(None, figures=figures, packages=["fastdata"])
