"""Executor of tasks on a Ray cluster, whose machines may go away.

A task is a function of the job and a run of the listing. Its files appear only when they are
complete. So Ray may retry it on any machine, and the output is the same.
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
from fastdata.version import __version__

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Most retries of a task whose worker or machine was lost.
RETRIES = 5
#: Tasks submitted per CPU: one that runs and one that waits.
_TASKS_PER_CPU = 2
#: Seconds between two checks of the progress, and of the cluster's size, which may change.
_TICK, _SIZE_EVERY = 0.1, 10.0
_END: Any = object()
#: Seconds within which a cluster must accept a connection.
_CONNECT = 10.0


class RayExecutor(executors.Executor):
    """Executor of tasks on a Ray cluster; it reports finished tasks.

    The first task connects to the cluster at ``address``. Without an address, it uses the
    process's existing connection, or else ``RAY_ADDRESS``, a cluster of this machine, or a new
    local cluster that ends with the executor.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        super().__init__()
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
        self._slots, self._slots_known = 0, 0.0
        self._submitted: dict[Any, Any] = {}

    def __exit__(self, *exception: Any) -> None:
        # Incomplete output of a task never counts, so do not wait for any.
        for reference in self._submitted:
            self._ray.cancel(reference, force=True)
        self._submitted.clear()
        if self._connected:
            self._ray.shutdown()

    def _connect(self) -> None:
        ray, address = self._ray, self._address or os.environ.get("RAY_ADDRESS")
        if ray.is_initialized():
            return
        quiet = {"logging_level": "WARNING", "log_to_driver": False}
        try:
            _require_listener(address)
            ray.init(address or "auto", **quiet)
        except (OSError, OverflowError, RuntimeError, ValueError) as error:
            if address is not None:
                raise UsageError(
                    f"--executor ray: no connection to a cluster at {address}: {error}",
                    "Check --address, and `ray status` on a machine of the cluster.",
                ) from None
            # The user has not agreed to Ray's usage reports.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init("local", num_cpus=usable_cpus(), **quiet)
        self._connected = True

    def run(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        tick: executors.Tick = lambda: None,
        ahead: int = 0,
    ) -> Iterator[Result]:
        """See `Executor.run`. Unconsumed results stay in the cluster's memory."""
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
        """Return the most unfinished tasks that may be submitted: the back-pressure."""
        if self._workers is not None:
            return self._workers
        now = time.monotonic()
        if not self._slots or now - self._slots_known > _SIZE_EVERY:
            cpus = int(self._ray.cluster_resources().get("CPU", 0))
            self._slots, self._slots_known = max(1, cpus) * _TASKS_PER_CPU, now
        return self._slots

    def _count_finished(self) -> None:
        """Wait a moment for tasks to finish, and count their images and bytes."""
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
            except ray.exceptions.RayError:  # getting the task's result raises it again
                continue
            self.reported[0] += images
            self.reported[1] += size

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
                "Run the same command again: it resumes. Check the cluster's health with "
                "`ray status` and `ray list tasks`.",
            ) from None


def _versions() -> dict[str, str]:
    """Return the versions of the packages that the output's bytes depend on."""
    return {
        "fastdata": __version__,
        "pyarrow": pa.__version__,
        "Pillow": PIL.__version__,
        "numpy": np.__version__,
    }


@lru_cache(maxsize=1)
def _start_worker() -> None:
    import ray

    executors.keep_freed_memory()
    # Two machines may have equal process numbers, and both write to one folder.
    name_process(int(ray.get_runtime_context().get_worker_id(), 16))


def _call(
    shared: tuple[Callable[[Item], Result], dict[str, str]], item: Item
) -> tuple[Result, tuple[int, int]]:
    """Run one task in a worker; return its result and the images and bytes it reported."""
    function, expected = shared
    _start_worker()
    if (versions := _versions()) != expected:
        raise UsageError(
            f"--executor ray: the workers have {versions}, and this machine has {expected}",
            "Install the same versions on all machines: the output depends on them.",
        )
    with executors.counted() as counts:
        result = function(item)
    return result, (counts[0], counts[1])


def _require_listener(address: str | None) -> None:
    """Raise OSError if a cluster's port refuses: Ray itself retries for minutes, and logs."""
    match = re.fullmatch(r"(?:ray://)?(?P<host>[^/]+):(?P<port>\d+)", address or "")
    if match is not None:  # neither auto nor local
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), _CONNECT).close()
