"""The command line: parse, one library call, print.

Results go to standard output, progress and errors to standard error. Exit codes: 0 done,
1 something is wrong with the data, 2 something is wrong with the command, 130 interrupted, 143
terminated.

This module imports almost nothing, so that Ctrl-C works from the start. The commands are in
`fastdata.cli.commands`.
"""

from fastdata.cli.signals import imports_begin


def main() -> None:
    """Entry point of the ``fastdata`` command."""
    imports_begin()
    from fastdata.cli.commands import run

    run()
