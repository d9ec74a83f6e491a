"""Loading from a server: what its client takes of the CPU, and the rate of a slow link."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from _range_server import bytes_a_second, range_server
from _workload import Workload, contenders, fastdata_loader, pack_tree
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve

#: The order, seconds from a request to its answer, and bytes a second of all answers together.
_CASES: dict[str, tuple[str, float, float]] = {
    "nginx, default order": ("auto", 0.0, 0.0),
    "nginx, random order": ("random", 0.0, 0.0),
    "20 ms away, 1 Gbit/s": ("auto", 0.02, 125e6),
}
#: Options of the driver. The last one is the driver's default, and none that the client knows.
_CLIENTS: dict[str, dict[str, Any]] = {"local": {}, "http": {}, "fsspec": {"size_policy": None}}
_PREPARE = partial(pack_tree, container="shards", shuffle=True)
_COLUMNS = "images/s|sockets alone, images/s|first batch, s|CPU ms an image"
_COLUMNS += "|client CPU ms an image|requests an image|held, MB"

WORKLOAD = Workload(
    "From a server",
    contenders(__file__, dict.fromkeys(_CLIENTS, ""), program="nginx"),
    cases=tuple(_CASES),
    columns=_COLUMNS.split("|"),
    options={"threads": (1, 2)},
)
_KEPT = ExitStack()


def _server(request: ContenderRequest) -> str:
    """Serve the dataset until this process ends; return its URL."""
    _, *link = _CASES[request.case]
    url: str = _KEPT.enter_context(range_server(Path(request.data, "packed"), *link))
    return url


def open_loader(request: ContenderRequest, url: str = "") -> Any:
    """Open a loader of the dataset, from a new server unless there is a URL, or from the disk."""
    from fastdata import ImageDataset, transforms

    where, about = str(Path(request.data, "packed")), dict[str, Any]()
    if request.variant != "local":
        where, about = url or _server(request), {"storage_options": _CLIENTS[request.variant]}
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    steps = [transforms.CenterCrop(224)] if request.check else steps
    dataset = ImageDataset(where, transform=transforms.Compose(tuple(steps)), **about)
    order = {} if request.check else {"order": _CASES[request.case][0], "seed": 0}
    return fastdata_loader(dataset, request, **order)


def _epoch(loader: Any) -> dict[str, float]:
    """Load an epoch; return its figures."""
    begun, cpu, images, first = time.perf_counter(), time.process_time(), 0, 0.0
    for _, labels in loader:
        first = first or time.perf_counter() - begun
        images += len(labels)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return {"epochs": 1, "images": images, "seconds": seconds, "cpu_s": cpu, "first_s": first}


def figures(request: ContenderRequest) -> dict[str, Any]:
    """Load epochs from the server and from the disk in turns; "local" has only the disk."""
    shards = [path.stat().st_size for path in sorted(Path(request.data, "packed").glob("*.tar"))]
    loader = local = open_loader(replace(request, variant="local"))
    about: dict[str, float] = {}
    if request.variant != "local":
        loader = open_loader(request, url := _server(request))
        alone = bytes_a_second(f"{url}/shard-000000.tar", shards[0])
        about["sockets alone, images/s"] = alone * len(loader.dataset) / sum(shards)
    for each in (loader, local):
        _epoch(each)
    sums: Any = Counter()
    while sums["seconds"] < request.seconds:
        sums.update(_epoch(loader))
        remote = loader.stats().remote
        if remote is not None:
            if remote.client != request.variant:
                raise RuntimeError(f"the client is {remote.client}")
            sums["requests"] += remote.requests
            about["held, MB"] = remote.memory_peak / 1e6
        sums["local_s"] += _epoch(local)["cpu_s"]
    about["client_cpu_s"] = sums["cpu_s"] - sums["local_s"]
    return {**sums, **about, "first_s": sums["first_s"] / sums["epochs"]}


if __name__ == "__main__":
    serve(open_loader, _PREPARE, figures=figures, packages=["fastdata"], end_at_once=True)
