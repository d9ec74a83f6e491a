"""Properties that are computed once: no lock that a fork could copy."""

from __future__ import annotations

import os
import signal
import threading

from hangs import HANG

from fastdata.once import once


class Slow:
    def __init__(self, begun: threading.Event, wanted: threading.Event) -> None:
        self.begun, self.wanted, self.calls = begun, wanted, 0

    @once
    def value(self) -> int:
        self.calls += 1
        self.begun.set()
        assert self.wanted.wait(HANG)
        return 7


def test_a_fork_while_another_thread_computes_it() -> None:
    begun, wanted = threading.Event(), threading.Event()
    slow = Slow(begun, wanted)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert begun.wait(HANG)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(HANG))
            now = threading.Event()
            now.set()
            os._exit(Slow(threading.Event(), now).value)
        finally:
            os._exit(1)
    wanted.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert (slow.value, slow.calls) == (7, 1)
