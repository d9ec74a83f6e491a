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
        self._running = 0
        self._work: deque[tuple[Callable[[], Any], Group]] = deque()
        #: What idle threads wait for. The last one goes first: the processor knows its memory.
        self._idle: list[threading.Event] = []
        self._lock = threading.Lock()

    @property
    def idle(self) -> bool:
        """Whether a thread waits for work, or may be started."""
        return len(self._idle) > 0 or self._running < self._most

    @property
    def waiting(self) -> int:
        """How many functions wait for a thread."""
        return len(self._work)

    def submit(self, work: Callable[[], Any], group: Group) -> None:
        """Run a function, which must not raise, in a thread of a group."""
        with self._lock:
            self._work.append((work, group))
            if self._idle:
                self._idle.pop().set()
            elif self._running < self._most:
                thread = threading.Thread(target=self._run, name="fastdata-remote", daemon=True)
                try:
                    thread.start()
                    self._running += 1
                except RuntimeError:  # the machine allows no more: those that run do the work
                    if not self._running:
                        raise

    def _run(self) -> None:
        called = threading.Event()
        while (work := self._next(called)) is not None:
            work()
            del work  # it may hold the last reference to a pass

    def _next(self, called: threading.Event) -> Callable[[], Any] | None:
        """Return what to run next; None after a while without any."""
        while True:
            with self._lock:
                if self._work:
                    work, group = self._work.popleft()
                    group.join()
                    return work
                called.clear()
                self._idle.append(called)
            if not called.wait(_IDLE):
                with self._lock:
                    if called in self._idle:
                        self._idle.remove(called)
                        self._running -= 1
                        return None
