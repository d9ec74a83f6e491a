"""Tasks on a Ray cluster: the local executor's tasks, on machines that may go away.

A task is a function of the job and of a run of the listing, and what it writes appears under
its name when it is whole. So Ray may run it again, elsewhere, as often as it likes: the output
is the same.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import PIL
import pyarrow as pa

from fastdata import executors
from fastdata.errors import DataError, UsageError
from fastdata.machine import usable_cpus
from fastdata.storage.files import name_process
from fastdata.version import VERSION

Item = TypeVar("Item")
Result = TypeVar("Result")

#: How often a task is run again after its worker, or its machine, was lost.
RETRIES = 5
#: Tasks that are submitted for each CPU: one that runs, and one that waits for it to end.
_TASKS_PER_CPU = 2
#: Seconds between two looks at the progress, and at the cluster's size, which may change.
_TICK, _SIZE_EVERY = 0.1, 10.0
_END: Any = object()
#: Seconds within which a cluster must take a connection.
_CONNECT = 10.0


class RayExecutor:
    """Runs tasks on a Ray cluster; a context manager.

    It connects when the first task is to be run: to the cluster at ``address``; without one,
    to what this process is connected to, else as ``ray.init`` does: to ``RAY_ADDRESS``, to a
    cluster of this machine, or to one of its own that ends with it.

    Args:
        address: The cluster's: ``auto``, ``host:6379`` or ``ray://host:10001``.
        workers: Tasks in flight at most; None for two a CPU of the cluster.

    Raises:
        UsageError: Ray is not installed, or there would be no work done.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise UsageError(f"--workers {workers}: no work would be done", "Use 1 or more.")
        try:
            import ray
        except ImportError:
            raise UsageError(
                "--executor ray: Ray is not installed", "pip install 'fastdata-torch[ray]'."
            ) from None
        self._ray: Any = ray
        self._address = address
        self._workers = workers
        self._connected = False
        self._images = self._bytes = 0
        self._slots, self._slots_known = 0, 0.0
        self._submitted: dict[Any, Any] = {}

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *exception: Any) -> None:
        # Nothing that a task writes counts before it is whole, so none is waited for.
        for reference in self._submitted:
            self._ray.cancel(reference, force=True)
        self._submitted.clear()
        if self._connected:
            self._ray.shutdown()

    def _connect(self) -> None:
        ray = self._ray
        if ray.is_initialized():
            return
        quiet = {"logging_level": "WARNING", "log_to_driver": False}
        address = self._address or os.environ.get("RAY_ADDRESS")
        _require_listener(address)
        try:
            ray.init(address or "auto", **quiet)
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
            if address is not None:
                raise UsageError(
                    f"--executor ray: no connection to a cluster at {address}: {error}",
                    "Check --address, and `ray status` on a machine of the cluster.",
                ) from None
            # Nobody was asked whether Ray may report on its use.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init("local", num_cpus=usable_cpus(), **quiet)
        self._connected = True

    def run(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        tick: Callable[[], None] = lambda: None,
        ahead: int = 0,
    ) -> Iterator[Result]:
        """See `fastdata.executors.Executor.run`.

        Results that are not consumed yet lie in the cluster's memory, not in this process's.
        """
        self._connect()
        ray = self._ray
        task = ray.remote(
            num_cpus=1, num_returns=2, max_retries=RETRIES, retry_exceptions=[OSError]
        )(_call)
        shared = ray.put((function, _versions()))
        remaining = iter(items)
        held: deque[Any] = deque()
        while True:
            slots = self._in_flight()
            while (
                len(self._submitted) < slots
                and len(held) < max(ahead, slots)
                and (item := next(remaining, _END)) is not _END
            ):
                result, counts = task.remote(shared, item)
                self._submitted[counts] = result
                held.append((result, counts))
            if not held:
                return
            self._count_finished()
            tick()
            while held and held[0][1] not in self._submitted:
                result, _ = held.popleft()
                yield self._get(result)
                tick()

    def _in_flight(self) -> int:
        """Tasks that may be submitted and not finished: the back-pressure."""
        if self._workers is not None:
            return self._workers
        now = time.monotonic()
        if not self._slots or now - self._slots_known > _SIZE_EVERY:
            cpus = int(self._ray.cluster_resources().get("CPU", 0))
            self._slots, self._slots_known = max(1, cpus) * _TASKS_PER_CPU, now
        return self._slots

    def _count_finished(self) -> None:
        """Waits a moment for tasks to finish, and counts what they have done."""
        ray = self._ray
        waiting = list(self._submitted)
        if not waiting:
            return
        ready, _ = ray.wait(waiting, num_returns=1, timeout=_TICK)
        if ready:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for reference in ready:
            del self._submitted[reference]
            try:
                images, size = ray.get(reference)
            except ray.exceptions.RayError:  # raised again where its result is asked for
                continue
            self._images += images
            self._bytes += size

    def _get(self, result: Any) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(result)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise error.cause from None
            raise
        except exceptions.RayError as error:
            raise DataError(
                f"a Ray task was lost, and {RETRIES} retries of it too: {error}",
                "Run the same command again, it resumes; look into the cluster's health with "
                "`ray status` and `ray list tasks`.",
            ) from None

    def reported(self) -> tuple[int, int]:
        """See `fastdata.executors.Executor.reported`. Of the tasks that are finished."""
        return self._images, self._bytes


def _versions() -> dict[str, str]:
    """Versions of what the output's bytes depend on."""
    return {
        "fastdata": VERSION,
        "pyarrow": pa.__version__,
        "Pillow": PIL.__version__,
        "numpy": np.__version__,
    }


@lru_cache(maxsize=1)
def _start_worker() -> None:
    import ray

    executors.keep_freed_memory()
    # Process numbers of two machines may be equal, and both write to one folder.
    name_process(int(ray.get_runtime_context().get_worker_id(), 16))


def _call(
    shared: tuple[Callable[[Item], Result], dict[str, str]], item: Item
) -> tuple[Result, tuple[int, int]]:
    """Runs one task in a worker: its result, and the images and bytes that it reported."""
    function, expected = shared
    _start_worker()
    if (found := _versions()) != expected:
        differ = [f"{name} {found[name]} there, {expected[name]} here" for name in expected
                  if found[name] != expected[name]]  # fmt: skip
        raise UsageError(
            f"--executor ray: the workers' environment is another: {', '.join(differ)}",
            "Install the same versions on all machines: the output depends on them.",
        )
    with executors.counted() as counts:
        result = function(item)
    return result, (counts[0], counts[1])


def _require_listener(address: str | None) -> None:
    """Connects to a cluster's port: Ray itself tries for minutes, and logs it.

    Raises:
        UsageError: Nobody listens there.
    """
    found = re.fullmatch(r"(?:ray://)?(?P<host>[^/]+):(?P<port>\d+)", address or "")
    if found is None:  # auto, local
        return
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), _CONNECT).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--executor ray: no connection to a cluster at {address}: {error}",
            "Check --address, and `ray status` on a machine of the cluster.",
        ) from None
