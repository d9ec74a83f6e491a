"""Loading from a server: what its client takes of the CPU, and the rate of a slow link."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
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
#: Options of the driver. The second are its defaults, but the obstore client does not know them.
_CLIENTS: dict[str, dict[str, Any]] = {"local": {}, "obstore": {}, "fsspec": {"same_scheme": True}}
_PREPARE = partial(pack_tree, container="shards")
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


def _packed(request: ContenderRequest) -> Path:
    return Path(request.data, "packed")


def _serve(request: ContenderRequest) -> str:
    """Serve the dataset until this process ends; return its URL."""
    _, latency, rate = _CASES[request.case]
    url: str = _KEPT.enter_context(range_server(_packed(request), latency, rate))
    return url


def _open(request: ContenderRequest, where: str) -> Any:
    """Return a loader of the dataset."""
    from fastdata import ImageDataset, transforms

    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    steps = [transforms.CenterCrop(224)] if request.check else steps
    about: dict[str, Any] = {"transform": transforms.Compose(tuple(steps))}
    if where.startswith("http"):
        about["storage_options"] = _CLIENTS[request.variant]
    order = {} if request.check else {"order": _CASES[request.case][0], "seed": 0}
    return fastdata_loader(ImageDataset(where, **about), request, **order)


def open_loader(request: ContenderRequest) -> Any:
    """Open a loader to check."""
    return _open(request, str(_packed(request)) if request.variant == "local" else _serve(request))


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
    packed = _packed(request)
    loader = local = _open(request, str(packed))
    about: dict[str, float] = {}
    if request.variant != "local":
        url = _serve(request)
        loader = _open(request, url)
        shards = {path.name: path.stat().st_size for path in packed.glob("*.tar")}
        name, size = max(shards.items(), key=lambda item: item[1])
        mean = sum(shards.values()) / len(loader.dataset)
        about["sockets alone, images/s"] = bytes_a_second(f"{url}/{name}", size) / mean
    for each in (loader, local):
        _epoch(each)
    sums: Counter[str] = Counter()
    while sums["seconds"] < request.seconds:
        epoch, beside = _epoch(loader), _epoch(local)
        epoch["client_cpu_s"] = epoch["cpu_s"] - beside["cpu_s"]
        if (remote := loader.stats().remote) is not None:
            epoch["requests"] = remote.requests
            about["held, MB"] = remote.memory_peak / 1e6
        sums.update(epoch)
    return {**sums, **about, "first_s": sums["first_s"] / sums["epochs"]}


if __name__ == "__main__":
    serve(open_loader, _PREPARE, figures=figures, packages=["fastdata"], end_at_once=True)
