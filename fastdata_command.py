"""Entry point of the ``fastdata`` command: answers Ctrl-C from its first import on.

Outside the package, whose import (NumPy, pyarrow) takes most of a short command's time: interrupted
there, Python would print a traceback.
"""

import os
import signal
from typing import NoReturn


def _interrupted(number: int, frame: object) -> NoReturn:
    # No exception: modules that are being imported may turn it into another. Nothing has begun.
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def main() -> None:
    """Imports the command line, and runs it."""
    # Otherwise SIGINT is ignored, as in a shell's background: that stays.
    python_s = signal.getsignal(signal.SIGINT)
    if python_s is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    from fastdata.cli import main as command

    signal.signal(signal.SIGINT, python_s)
    command()
