"""``python -m fastdata.benchmarks`` is ``fastdata bench``."""

import click
from fastdata.benchmarks.command import command

from fastdata.errors import FastdataError, UsageError

if __name__ == "__main__":
    try:
        command(prog_name="python -m fastdata.benchmarks")
    except FastdataError as error:
        click.echo(f"error: {error}", err=True)
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from error
