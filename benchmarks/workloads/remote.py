"""Loading from a server, beside the rate of the link."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from _range_server import range_server
from _workload import Workload, contenders, fastdata_loader, pack_tree
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve

#: Options of each, and seconds from a request to its answer.
_READERS: dict[str, tuple[dict[str, Any], float]] = {
    "local": ({}, 0.0),
    "ranges": ({}, 0.02),
    "ranges, not merged": ({"max_request": 1}, 0.02),
    "ranges, merged to 8 MiB": ({"max_request": 8 << 20, "memory": 1 << 30}, 0.02),
    "one request at a time": ({"concurrency": 1, "max_request": 1}, 0.02),
    "ranges, 50 ms away": ({}, 0.05),
}
RATE = 125e6
_KEPT = ExitStack()
_PREPARE = partial(pack_tree, container="shards")

WORKLOAD = Workload(
    "From a server",
    contenders(__file__, dict.fromkeys(_READERS, "")),
    columns=("images/s", "first batch, s", "private, MB"),
    options={"threads": (2,)},
)


def open_loader(request: ContenderRequest) -> Any:
    """Open a loader of the dataset, from a server that ends with this process."""
    from fastdata import ImageDataset, transforms
    from fastdata.remote import RemoteOptions

    more, latency = _READERS[request.variant]
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    steps = [transforms.CenterCrop(224)] if request.check else steps
    about: dict[str, Any] = {"transform": transforms.Compose(tuple(steps))}
    where = str(Path(request.data, "packed"))
    if latency:
        where = _KEPT.enter_context(range_server(Path(where), latency, RATE))
        about["remote"] = RemoteOptions(**more)
    order = {} if request.check else {"order": "quasi-random", "seed": 0}
    return fastdata_loader(ImageDataset(where, **about), request, **order)


if __name__ == "__main__":
    serve(open_loader, _PREPARE, packages=["fastdata"], end_at_once=True)
