"""Ctrl-C and SIGTERM while the command's modules are imported, and afterwards."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable


def imports_begin() -> None:
    """Let Ctrl-C and SIGTERM end the process: modules are imported now."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as in a shell's background
            signal.signal(number, _end)


def imports_end(terminate: Callable[[int, object], None]) -> None:
    """Let Ctrl-C raise KeyboardInterrupt from now on, and SIGTERM call ``terminate``."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: terminate}
    for number, handler in handlers.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, handler)


def _end(number: int, frame: object) -> None:
    """End the process while modules are imported, before any work."""
    # Raise no exception: an import may replace it, or print it and continue.
    os.write(2, b"interrupted\n")
    os._exit(128 + number)
