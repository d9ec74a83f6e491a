"""Contender's end of the benchmark's pipe, in its own process and environment.

Adapters import this, their peer, numpy and nothing else: their interpreter may not have fastdata.
A request is one line of JSON on stdin. Events go to stdout, one line of JSON each. Output of the
peer itself is redirected to stderr.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Batches = Iterable[tuple[Any, Any]]

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
        recipe: A name in `_recipes`. Its augmentations follow the crop, and float32 is normalised
            by ImageNet's mean and standard deviation; "" for neither.
        order: "random" for a new order each epoch; "sequential" for the order of the data.
        seconds: Steady state to be timed, after the warm-up.
        warmup: Seconds before that, from the first batch on.
        check: 0 to measure; n to write the first n samples to ``out`` and do no more.
        out: Path of that ``.npz``, with arrays ``images`` and ``labels``.
        seed: Seed of order and crops.
    """

    data: str
    variant: str = ""
    batch_size: int = 64
    threads: int = 1
    crop: str = "train"
    size: int = 224
    dtype: str = "uint8"
    recipe: str = ""
    order: str = "random"
    seconds: float = 10.0
    warmup: float = 2.0
    check: int = 0
    out: str = ""
    seed: int = 0


def serve(
    open_loader: Callable[[Request], Batches],
    prepare: Callable[[str, str, str], None] | None = None,
    *,
    packages: Sequence[str] = (),
    end_at_once: bool = False,
) -> None:
    """Run an adapter.

    Args:
        open_loader: Opens a loader, which yields (images, labels) and can be iterated again, a
            pass an epoch. Images are uint8 of shape (N, 3, H, W) or (N, H, W, 3), or float32 from 0
            to 1 of shape (N, 3, H, W); labels are ints of shape (N,).
        prepare: Called as (tree, out, variant) for ``adapter.py prepare TREE OUT VARIANT``. It
            converts the ImageFolder tree to the folder ``out``, which ``variant`` reads.
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
        imports = _ImportClock()
        since_start = _age()
        begun = time.perf_counter()
        with imports:
            loader = open_loader(request)
        opened = time.perf_counter() - begun - imports.seconds
        emit(
            event="ready",
            import_s=since_start + imports.seconds,
            open_s=opened,
            versions=_versions(packages),
        )
        if request.check:
            _hand_over(request, loader)
        else:
            _measure(request, loader, opened, emit)
        emit(event="done")
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


class _ImportClock:
    """Clock of this thread's imports, at any depth of calls."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._thread = threading.get_ident()
        self._import = builtins.__import__

    def __enter__(self) -> None:
        builtins.__import__ = self._timed

    def __exit__(self, *error: object) -> None:
        builtins.__import__ = self._import

    def _timed(self, *args: Any, **options: Any) -> Any:
        if self._depth or threading.get_ident() != self._thread:
            return self._import(*args, **options)
        self._depth += 1
        begun = time.perf_counter()
        try:
            return self._import(*args, **options)
        finally:
            self.seconds += time.perf_counter() - begun
            self._depth -= 1


def _age() -> float:
    """Return the seconds since this process started: Python's start and the adapter's imports."""
    try:
        started = int(_stat("self")[19]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return time.process_time()
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def _batches(loader: Batches) -> Iterator[tuple[Any, Any]]:
    """Yield epoch after epoch."""
    while True:
        empty = True
        for images, labels in loader:
            empty = False
            yield images, labels
        if empty:
            raise RuntimeError("the loader gave no batch in a whole epoch")


def _hand_over(request: Request, loader: Batches) -> None:
    """Write the first samples, which the benchmark compares."""
    import numpy as np

    images: list[Any] = []
    labels: list[Any] = []
    count = 0
    for some, their in loader:
        images.append(np.array(_on_host(some)))  # copied: a loader may fill the same memory again
        labels.append(np.array(_on_host(their)).reshape(-1))
        count += len(images[-1])
        if count >= request.check:
            break
    if not images:
        raise RuntimeError("the loader gave no batch in a whole epoch")
    np.savez(
        request.out,
        images=np.concatenate(images)[: request.check],
        labels=np.concatenate(labels)[: request.check],
    )


def _on_host(array: Any) -> Any:
    return array.cpu() if hasattr(array, "cpu") else array


def _measure(request: Request, loader: Batches, opened: float, emit: Callable[..., None]) -> None:
    begun = time.perf_counter()
    batches = _batches(loader)
    images, labels = next(batches)
    _touch(images, labels)
    emit(
        event="first",
        seconds=opened + time.perf_counter() - begun,
        shape=list(images.shape),
        dtype=str(images.dtype).rpartition(".")[2],
    )
    shape, dtype = tuple(images.shape[1:]), images.dtype

    end = time.perf_counter() + request.warmup
    while time.perf_counter() < end:
        _touch(*next(batches))

    count = 0
    tree = _Tree()
    cpu, read, stored = tree.cpu_seconds(), tree.bytes_read(), tree.bytes_read("read_bytes")
    begun = now = time.perf_counter()
    while not count or now - begun < request.seconds:
        images, labels = next(batches)
        count += _touch(images, labels)
        if tuple(images.shape[1:]) != shape or images.dtype != dtype:
            raise RuntimeError(
                f"a batch of {images.shape} {images.dtype} after one of {shape} {dtype} an image"
            )
        now = time.perf_counter()
    seconds = now - begun
    tree = _Tree()
    result = {
        "images": count,
        "seconds": seconds,
        "cpu_s": _difference(tree.cpu_seconds(), cpu),
        "bytes_read": _difference(tree.bytes_read(), read),
        "bytes_from_storage": _difference(tree.bytes_read("read_bytes"), stored),
    }

    # Looking at memory takes time, so the clock has stopped.
    peak = _Tree().private_bytes()
    begun = looked = time.perf_counter()
    while (now := time.perf_counter()) - begun < min(_MEMORY_SECONDS, request.seconds):
        _touch(*next(batches))
        if now - looked >= _MEMORY_EVERY:
            looked = now
            peak = max(peak or 0, _Tree().private_bytes() or 0) or None
    emit(event="round", **result, peak_private_bytes=peak)


def _touch(images: Any, labels: Any) -> int:
    """Wait for a batch, also on a GPU, by reading its last value.

    One value: torch would copy a channels-last image with a thread pool that spins afterwards.
    """
    count = len(labels)
    if len(images) != count:
        raise RuntimeError(f"a batch of {len(images)} images and {count} labels")
    float(images[-1, -1, -1, -1])
    return count


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

    def bytes_read(self, field: str = "rchar") -> int | None:
        """Return the bytes that read calls returned, memory maps left out; or, for ``read_bytes``,
        those that storage delivered.
        """
        total = None
        for process in self.processes:
            try:
                lines = Path("/proc", process, "io").read_text().splitlines()
            except OSError:
                continue
            values = dict(line.split(": ") for line in lines)
            total = (total or 0) + int(values[field])
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
