"""Contender's end of the benchmark's pipe, in its own process and environment.

Adapters import this, their peer, numpy and nothing else: their interpreter may not have fastdata.
A request is one line of JSON on stdin. Events go to stdout, one line of JSON each. Output of the
peer itself is redirected to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Batches = Iterable[Sequence[Any]]

#: How long the loader goes on after it was timed, while its memory is measured.
_MEMORY_SECONDS = 1.0
_MEMORY_EVERY = 0.1
#: Packages whose versions go into the results if they were imported.
_COMMON_PACKAGES = ("numpy", "pillow", "torch", "torchvision")


@dataclass(frozen=True)
class Request:
    """Work of a contender.

    Attributes:
        data: Folder (or file) with the data prepared for this contender.
        variant: One of the adapter's ways to load.
        batch_size: Samples a batch.
        threads: Decode threads, or worker processes, as the peer's documentation recommends.
        crop: "train" for RandomResizedCrop(size) and a horizontal flip of every other image;
            "val" for Resize(size * 256 / 224) and CenterCrop(size).
        size: Side of the crop, in pixels.
        dtype: "uint8", or "float32" from 0 to 1 as torchvision's ToTensor.
        case: One of the workload's cases.
        device: Where batches are needed.
        order: "random" for a new order each epoch; "sequential" for the order of the data.
        seconds: Steady state to be timed, after the warm-up.
        warmup: Seconds before that, from the first batch on.
        check: 0 to measure; n to write batches of the first n samples to ``out`` and do no more.
        out: Path of that ``.npz``, with the arrays of each batch in order.
        seed: Seed of order and crops.
    """

    data: str
    variant: str = ""
    batch_size: int = 64
    threads: int = 1
    crop: str = "train"
    size: int = 224
    dtype: str = "uint8"
    case: str = ""
    device: str = "cpu"
    order: str = "random"
    seconds: float = 10.0
    warmup: float = 2.0
    check: int = 0
    out: str = ""
    seed: int = 0


def serve(
    open_loader: Callable[[Request], Batches] | None = None,
    prepare: Callable[[str, str, str], None] | None = None,
    *,
    figures: Callable[[Request], dict[str, Any]] | None = None,
    packages: Sequence[str] = (),
    end_at_once: bool = False,
) -> None:
    """Run an adapter.

    Args:
        open_loader: Opens a loader of batches, which can be iterated again, a pass an epoch. The
            second part of a batch has the length of its number of samples. Loaders of images yield
            (images, labels): uint8 of shape (N, 3, H, W) or (N, H, W, 3), or float32 from 0 to 1
            of shape (N, 3, H, W); ints of shape (N,). A loader may have methods ``use``, which
            takes each batch, and ``finish``, which waits for what ``use`` began.
        prepare: Called as (tree, out, variant) for ``adapter.py prepare TREE OUT VARIANT``. It
            converts the ImageFolder tree to the folder ``out``, which ``variant`` reads.
        figures: Measures something else than the loader, and returns the figures of a round.
        packages: Distributions whose versions go into the results.
        end_at_once: Whether to end the process without closing the loader.
    """
    if sys.argv[1:2] == ["prepare"]:
        if prepare is None:
            sys.exit(f"{sys.argv[0]} has nothing to prepare")
        prepare(*sys.argv[2:5])
        return
    emit = _events()
    try:
        request = Request(**json.loads(sys.stdin.readline()))
        loader: Any = ()
        if open_loader is not None and (request.check or figures is None):
            loader = open_loader(request)
        if request.check:
            _hand_over(request, loader)
        elif figures is None:
            _measure(request, loader, emit)
        else:
            emit(event="round", **figures(request))
        emit(event="done", versions=_versions(packages))
        if end_at_once:
            os._exit(0)
    except BaseException as error:
        traceback.print_exc()
        last = traceback.format_exception_only(type(error), error)[-1].strip()
        emit(event="error", what=last)
        sys.exit(1)


def _events() -> Callable[..., None]:
    """Keep the real stdout for events; send other output to stderr from now on."""
    sys.stdout.flush()
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(**fields: Any) -> None:
        pipe.write(json.dumps(fields) + "\n")
        pipe.flush()

    return emit


def _age() -> float:
    """Return the seconds since this process started."""
    try:
        started = int(_stat("self")[19]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return time.process_time()
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def _batches(loader: Batches) -> Iterator[Sequence[Any]]:
    """Yield epoch after epoch."""
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise RuntimeError("the loader gave no batch in a whole epoch")


def _hand_over(request: Request, loader: Batches) -> None:
    """Write batches of the first samples, which the benchmark compares."""
    import numpy as np

    arrays: list[Any] = []
    count = 0
    for batch in loader:
        arrays += _arrays(batch)
        count += len(batch[1])
        if count >= request.check:
            break
    if not arrays:
        raise RuntimeError("the loader gave no batch in a whole epoch")
    np.savez(request.out, *arrays)


def _arrays(value: Any) -> Iterator[Any]:
    """Yield copies of all arrays in a batch: a loader may fill the same memory again."""
    import numpy as np

    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _arrays(part)
        return
    if hasattr(value, "cpu"):
        value = value.cpu()
        value = value.float() if value.dtype.is_floating_point else value
    if isinstance(value, bytes):
        value = np.frombuffer(value, np.uint8)
    yield np.array(value)


def _measure(request: Request, loader: Any, emit: Callable[..., None]) -> None:
    use = getattr(loader, "use", _touch)
    finish = getattr(loader, "finish", lambda: None)
    batches = _batches(loader)
    first = next(batches)
    _touch(first)
    seconds, shown = _age(), {}
    if hasattr(images := first[0], "shape"):
        shown = {"shape": list(images.shape), "dtype": str(images.dtype).rpartition(".")[2]}
    emit(event="first", seconds=seconds, **shown)
    use(first)
    finish()

    end = time.perf_counter() + request.warmup
    while time.perf_counter() < end:
        use(next(batches))
    finish()

    count, waited = 0, 0.0
    tree = _Tree()
    cpu, read = tree.cpu_seconds(), tree.bytes_read()
    begun = now = time.perf_counter()
    while not count or now - begun < request.seconds:
        batch = next(batches)
        waited += time.perf_counter() - now
        use(batch)
        count += len(batch[1])
        now = time.perf_counter()
    finish()
    result = {"images": count, "seconds": time.perf_counter() - begun, "waited_s": waited}
    tree = _Tree()
    result["cpu_s"] = _difference(tree.cpu_seconds(), cpu)
    result["bytes_read"] = _difference(tree.bytes_read(), read)

    # Looking at memory takes time, so the clock has stopped.
    peak = _Tree().private_bytes()
    begun = looked = time.perf_counter()
    while (now := time.perf_counter()) - begun < min(_MEMORY_SECONDS, request.seconds):
        use(next(batches))
        if now - looked >= _MEMORY_EVERY:
            looked = now
            peak = max(peak or 0, _Tree().private_bytes() or 0) or None
    emit(event="round", **result, peak_private_bytes=peak)


def _touch(batch: Sequence[Any]) -> None:
    """Wait for a batch, also on a GPU, by reading the last value of its images.

    One value: torch would copy a channels-last image with a thread pool that spins afterwards.
    """
    last = batch[0]
    if hasattr(last, "shape") and len(last) != len(batch[1]):
        raise RuntimeError(f"a batch of {len(last)} images and {len(batch[1])} labels")
    while isinstance(last, (list, tuple)):
        last = last[-1]
    if hasattr(last, "ndim"):
        float(last[(-1,) * last.ndim])


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    modules = {"pillow": "PIL"}
    common = [name for name in _COMMON_PACKAGES if modules.get(name, name) in sys.modules]
    for name in (*packages, *common):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a module whose distribution has another name: fastdata-torch
            if hasattr(module := sys.modules.get(name), "__version__"):
                found[name] = module.__version__
    return found


def _stat(process: str) -> list[str]:
    """Fields of /proc/PID/stat from the third on: the second may hold anything."""
    return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()


class _Tree:
    """This process and all below it, as /proc shows them; figures are None where it cannot."""

    def __init__(self) -> None:
        parents: dict[str, list[str]] = {}
        try:
            names = [name for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            names = []
        for name in names:
            try:
                parents.setdefault(_stat(name)[1], []).append(name)
            except OSError:
                continue  # it has ended
        self.processes = [str(os.getpid())] if names else []
        for process in self.processes:
            self.processes += parents.get(process, [])

    def cpu_seconds(self) -> float | None:
        """User and system time, of children that have ended too."""
        ticks = 0
        for process in self.processes:
            try:
                ticks += sum(map(int, _stat(process)[11:15]))
            except OSError:
                continue
        return ticks / os.sysconf("SC_CLK_TCK") if self.processes else None

    def bytes_read(self) -> int | None:
        """Return the bytes that read calls returned, memory maps left out."""
        total = None
        for process in self.processes:
            try:
                lines = Path("/proc", process, "io").read_text().splitlines()
            except OSError:
                continue
            total = (total or 0) + next(int(x[7:]) for x in lines if x.startswith("rchar: "))
        return total

    def private_bytes(self) -> int | None:
        """Return the private bytes of all processes together. Mapped files are left out: they
        belong to the page cache.
        """
        total = None
        for process in self.processes:
            try:
                lines = Path("/proc", process, "smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            private = [int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")]
            total = (total or 0) + 1024 * sum(private)
        return total
