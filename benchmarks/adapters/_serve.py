"""Contender's end of the benchmark's pipe, in its own process and environment.

Adapters import this, their peer, numpy and nothing else: their interpreter may not have fastdata.
A request is one line of JSON on stdin. Events go to stdout, one line of JSON each. Output of the
peer itself is redirected to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: How long the loader continues after it was timed, while its memory is measured.
_MEMORY_SECONDS = 1.0
_MEMORY_EVERY = 0.1
_NO_BATCH = "the loader gave no batch in a whole epoch: give more images, or a smaller batch"
#: Packages whose versions go into the results if they were imported.
_COMMON_PACKAGES = ("numpy", "pillow", "torch", "torchvision")


@dataclass(frozen=True)
class ContenderRequest:
    """Work of a contender.

    Attributes:
        data: Folder (or file) with the data prepared for this contender.
        variant: One of the adapter's ways to load.
        threads: Decode threads, or worker processes, as the peer's documentation recommends.
        crop: "train" for RandomResizedCrop(size) and a horizontal flip of every other image;
            "val" for Resize(size * 256 / 224) and CenterCrop(size).
        dtype: "uint8", or "float32" from 0 to 1 as torchvision's ToTensor.
        case: One of the workload's cases.
        order: "random" for a new order each epoch; "sequential" for the order of the data.
        check: 0 to measure; n to write batches of the first n samples to ``out`` and do no more.
        out: Path of that ``.npz``, with the arrays of each batch in order.
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
    open_loader: Callable[[ContenderRequest], Any] | None = None,
    prepare: Callable[[str, str, str], None] | None = None,
    *,
    figures: Callable[[ContenderRequest], dict[str, Any]] | None = None,
    packages: Sequence[str] = (),
    end_at_once: bool = False,
) -> None:
    """Run an adapter.

    Args:
        open_loader: Opens a loader of batches, which can be iterated again, a pass an epoch; or
            returns a function that returns an epoch's batches. The second part of a batch has the
            length of its number of samples. Loaders of images yield (images, labels): uint8 of
            shape (N, 3, H, W) or (N, H, W, 3), or float32 from 0 to 1 of shape (N, 3, H, W); ints
            of shape (N,). A loader may have methods ``use``, which takes each batch, and
            ``finish``, which waits for what ``use`` began.
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
        request = ContenderRequest(**json.loads(sys.stdin.readline()))
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
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(**fields: Any) -> None:
        pipe.write(json.dumps(fields) + "\n")
        pipe.flush()

    return emit


def _age() -> float:
    """Return the seconds since this process started."""
    stat = Path("/proc/self/stat").read_text()
    started = int(_fields(stat)[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def _batches(loader: Any) -> Iterator[Sequence[Any]]:
    """Yield epoch after epoch."""
    while True:
        batch = None
        for batch in loader() if callable(loader) else loader:
            yield batch
        if batch is None:
            raise RuntimeError(_NO_BATCH)


def _hand_over(request: ContenderRequest, loader: Any) -> None:
    """Write batches of the first samples, which the benchmark compares."""
    import numpy as np

    arrays: list[Any] = []
    count = 0
    for batch in loader() if callable(loader) else loader:
        arrays += _arrays(batch)
        count += len(batch[1])
        if count >= request.check:
            break
    if not arrays:
        raise RuntimeError(_NO_BATCH)
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


def _measure(request: ContenderRequest, loader: Any, emit: Callable[..., None]) -> None:
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
    cpu, read = total(*CPU), total(*READ)
    begun = now = time.perf_counter()
    while not count or now - begun < request.seconds:
        batch = next(batches)
        waited += time.perf_counter() - now
        use(batch)
        count += len(batch[1])
        now = time.perf_counter()
    finish()
    result = {"images": count, "seconds": time.perf_counter() - begun, "waited_s": waited}
    result |= {"cpu_s": total(*CPU) - cpu, "bytes_read": total(*READ) - read}

    # Looking at memory takes time, so the clock has stopped.
    peak = total(*PRIVATE)
    begun = looked = time.perf_counter()
    while (now := time.perf_counter()) - begun < min(_MEMORY_SECONDS, request.seconds):
        use(next(batches))
        if now - looked >= _MEMORY_EVERY:
            looked = now
            peak = max(peak, total(*PRIVATE))
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


def _fields(stat: str) -> list[str]:
    """Fields of /proc/PID/stat from the third on: the second may hold anything."""
    return stat.rpartition(")")[2].split()


#: Figures of a process: a file of /proc, and the number in it. Memory maps are not in what read
#: calls returned, and mapped files are no private memory: they belong to the page cache.
CPU = "stat", lambda text: sum(map(int, _fields(text)[11:15])) / os.sysconf("SC_CLK_TCK")
READ = "io", lambda text: sum(map(int, re.findall(r"rchar: (\d+)", text)))
PRIVATE = (
    "smaps_rollup",
    lambda text: 1024 * sum(map(int, re.findall(r"Private_Dirty: +(\d+)", text))),
)


def total(file: str, value: Callable[[str], Any]) -> Any:
    """Return the sum of a figure of this process and all below it."""
    below: dict[str, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            below.setdefault(_fields((path / "stat").read_text())[1], []).append(path.name)
    processes, total = [str(os.getpid())], 0
    for process in processes:
        processes += below.get(process, [])
        with suppress(OSError):
            total += value(Path("/proc", process, file).read_text())
    return total
