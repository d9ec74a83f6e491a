"""Threads that make requests and wait for their answers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from fastdata.waiting import Group

#: Seconds after which a thread without work ends.
_IDLE = 10.0


class Workers:
    """Daemon threads that run functions, first come, first served; for one process.

    They start when there is work, at most ``most`` of them, and end when there is none for a while.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = self._idle = 0
        self._work: deque[tuple[Callable[[], Any], Group]] = deque()
        self._changed = threading.Condition()

    @property
    def idle(self) -> bool:
        """Whether a thread waits for work, or may be started."""
        return self._idle > 0 or self._running < self._most

    @property
    def waiting(self) -> int:
        """How many functions wait for a thread."""
        return len(self._work)

    def submit(self, work: Callable[[], Any], group: Group) -> None:
        """Run a function, which must not raise, in a thread of a group."""
        with self._changed:
            self._work.append((work, group))
            if self._idle >= len(self._work):
                self._changed.notify()
            elif self._running < self._most:
                threading.Thread(target=self._run, name="fastdata-remote", daemon=True).start()
                self._running += 1

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException:
                with self._changed:
                    self._running -= 1
                raise
            del work  # it may hold the last reference to a pass

    def _next(self) -> Callable[[], Any] | None:
        """Return what to run next; None after a while without any."""
        with self._changed:
            self._idle += 1
            found = self._changed.wait_for(lambda: len(self._work) > 0, _IDLE)
            self._idle -= 1
            if not found:
                self._running -= 1
                return None
            work, group = self._work.popleft()
            group.join()
            return work
