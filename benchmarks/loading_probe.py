"""What `loading` measures in fresh processes: start, the consumer's thread, memory, a soak.

    python -m fastdata.benchmarks.loading_probe consumer imagenet-train-lmdb 2 256

Prints JSON: seconds and bytes.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psutil
import torch  # noqa: F401 - private memory counts from here
from fastdata.benchmarks.memory import private_memory


def start(path: Path, threads: int, batch: int) -> dict[str, float]:
    """Seconds to the first batch; imports are done before."""
    from fastdata.benchmarks.loading import native_dataset

    from fastdata import DataLoader

    began = time.perf_counter()
    dataset = native_dataset(path)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=batch, shuffle=True, num_workers=threads
    )
    made = time.perf_counter()
    next(iter(loader))
    first = time.perf_counter()
    return {"open_to_batch": first - began, "iter_to_batch": first - made}


def consumer(path: Path, threads: int, batch: int) -> dict[str, float]:
    """The CPU time that a batch costs the consumer's thread.

    The consumer sleeps between two batches, as if it waited for a GPU, so that they are ready
    when it asks for them: no waiting is in the figure, and no decoding. Decoding needs no GIL,
    so this is also the longest that the GIL can be held for a batch.
    """
    from fastdata.benchmarks.loading import native_dataset

    from fastdata import DataLoader

    dataset = native_dataset(path)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=batch, shuffle=True, num_workers=threads, persistent_workers=True
    )
    began = time.perf_counter()
    for _ in loader:
        pass
    pause = 1.5 * (time.perf_counter() - began) / len(loader)
    used: list[float] = []
    iterator = iter(loader)
    next(iterator)
    # The last ones begin no others.
    for _ in range(len(loader) - 1 - (loader.prefetch_factor or 1)):
        time.sleep(pause)
        began = time.thread_time()
        _images, _labels = next(iterator)
        used.append(time.thread_time() - began)
    return {"cpu": sum(used) / len(used)}


def memory(path: Path, threads: int, batch: int) -> dict[str, float]:
    """Most private memory above that of a bare ``import torch``, over two epochs.

    Pages of the dataset's files are not private; those in use are counted by themselves.
    """
    bare = private_memory(os.getpid())
    from fastdata.benchmarks.loading import native_dataset

    from fastdata import DataLoader

    loader: DataLoader[Any] = DataLoader(
        native_dataset(path), batch_size=batch, shuffle=True, num_workers=threads
    )
    private = shared = 0
    for _ in range(2):
        for _images, _labels in loader:
            private = max(private, private_memory(os.getpid()))
            shared = max(shared, psutil.Process().memory_info().shared)
    return {"private": private - bare, "shared": shared}


def soak(path: Path, threads: int, batch: int, seconds: float) -> dict[str, Any]:
    """Epochs and early ends; what is in use after a tenth of the time, and at the end."""
    from fastdata.benchmarks.loading import native_dataset

    from fastdata import DataLoader

    loaders: list[DataLoader[Any]] = [
        DataLoader(
            native_dataset(path),
            batch_size=batch,
            shuffle=True,
            num_workers=threads,
            persistent_workers=keep,
        )
        for keep in (True, False)
    ]
    process = psutil.Process()
    images = 0

    def run(limit: float) -> dict[str, float]:
        nonlocal images
        _images = _labels = None
        while time.perf_counter() < limit:
            for loader in loaders:
                for _images, labels in loader:
                    images += len(labels)
                for _images, _labels in loader:
                    break
        del _images, _labels
        gc.collect()
        return {
            "private MB": private_memory(os.getpid()) / 1e6,
            "threads": process.num_threads(),
            "file descriptors": process.num_fds(),
        }

    began = time.perf_counter()
    first = run(began + seconds / 10)
    last = run(began + seconds)
    return {
        "seconds": time.perf_counter() - began,
        "images": images,
        "left": {name: [first[name], last[name]] for name in first},
    }


_PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "start": start,
    "consumer": consumer,
    "memory": memory,
    "soak": soak,
}


@click.command()
@click.argument("what", type=click.Choice(list(_PROBES)))
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("threads", type=int)
@click.argument("batch", type=int)
@click.argument("seconds", type=float, required=False)
def main(what: str, dataset: Path, threads: int, batch: int, seconds: float | None) -> None:
    """Measure WHAT."""
    more = () if seconds is None else (seconds,)
    click.echo(json.dumps(_PROBES[what](dataset, threads, batch, *more)))


if __name__ == "__main__":
    main()
