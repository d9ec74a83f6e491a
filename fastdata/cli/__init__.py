"""The command line: parse, one library call, print.

Results go to standard output, progress and errors to standard error. Exit codes: 0 done,
1 something is wrong with the data, 2 something is wrong with the command, 130 interrupted, 143
terminated.

This module imports almost nothing, so that Ctrl-C works from the start. The commands are in
`fastdata.cli.commands`.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastdata.cli.commands import cli as cli


def main() -> None:
    """Entry point of the ``fastdata`` command."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as in a shell's background
            signal.signal(number, _end)
    from fastdata.cli.commands import run

    run()


def _end(number: int, frame: object) -> None:
    """End the process while modules are imported, before any work."""
    # Raise no exception: an import may replace it, or print it and continue.
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def imports_end(terminate: Callable[[int, object], None]) -> None:
    """Let Ctrl-C raise KeyboardInterrupt from now on, and SIGTERM call ``terminate``."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: terminate}
    for number, handler in handlers.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, handler)


def __getattr__(name: str) -> Any:
    if name != "cli":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fastdata.cli.commands import cli

    return cli
