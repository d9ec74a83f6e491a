"""The command line: parse, one library call, print.

Results go to standard output, progress and errors to standard error. Exit codes: 0 done,
1 something is wrong with the data, 2 something is wrong with the command, 130 interrupted, 143
terminated.

The commands are in `fastdata.cli.commands`.
"""

import sys


def main() -> None:
    """Entry point of the ``fastdata`` command."""
    try:
        from fastdata.cli.commands import run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
