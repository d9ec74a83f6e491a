"""Commands by name, and the display of their errors."""

from __future__ import annotations

import importlib
import io
import signal
import sys
import warnings
from typing import Any, NoReturn, cast

import click

from fastdata.errors import DataError, FastdataError, UsageError, printable
from fastdata.version import __version__


class _Failure(click.ClickException):
    """Error of fastdata for click: shows the cause, then the hint."""

    def __init__(self, error: FastdataError) -> None:
        super().__init__(str(error))
        self.error = error

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """2 for a wrong command, 1 for wrong data."""
        return 2 if isinstance(self.error, UsageError) else 1

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.error.what}", err=True)
        if self.error.hint:
            click.echo(f"  {self.error.hint}", err=True)


def _of_the_system(error: OSError, command: str) -> _Failure:
    what = f"{error.filename or command}: {error.strerror or error}"
    return _Failure(DataError(what, "Check the disk and its permissions."))


class _Commands(click.Group):
    """Group whose commands report fastdata's errors in the same way."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FastdataError as error:
            raise _Failure(error) from error
        except BrokenPipeError:
            # The reader of the output has ended: head, less.
            sys.stderr.close()
            ctx.exit(1)
        except OSError as error:
            raise _of_the_system(error, f"fastdata {ctx.invoked_subcommand}") from error
        except KeyboardInterrupt:
            resumes = ctx.invoked_subcommand in _RESUMABLE
            again = "; run the same command again to resume" if resumes else ""
            click.echo(f"interrupted{again}", err=True)
            ctx.exit(_interrupted)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # Import only the requested command: `fastdata info` needs little of `convert`.
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name]).command
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)


#: Commands that resume where they were interrupted.
_RESUMABLE = ("convert", "index", "stage")
#: The module of each command, by name: no module may import the benchmarks.
_COMMANDS = {
    name: f"fastdata.cli.{name.replace('-', '_')}"
    for name in (
        "convert",
        "index",
        "verify",
        "info",
        "seek-points",
        "stage",
        "sample",
        "doctor",
    )
} | {"bench": "fastdata.benchmarks.command"}


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fastdata")
def cli() -> None:
    """Feeds image data to PyTorch training, faster.

    Pack a dataset once with `convert`, then read it with fastdata.ImageDataset.

    \b
    Examples:
      $ fastdata sample --images 64 --val-images 16 --classes 4
      $ fastdata convert imagenet --to lmdb
      $ fastdata verify imagenet-train-lmdb
    """


# The names that click compares with a wrong one.
cli.commands = cast(Any, dict.fromkeys(_COMMANDS))

#: The exit code of an interrupted command: 128 and the signal's number, as in shells.
_interrupted = 128 + signal.SIGINT


def _terminate(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt, which stops the workers and cleans up.

    By default SIGTERM ends this process alone; multiprocessing's resource tracker then warns of
    leaked semaphores.
    """
    global _interrupted
    _interrupted = 128 + number
    raise KeyboardInterrupt


def _show_warning(message: Warning | str, *_: Any) -> None:
    """Print a warning without the line of click's code that led to it."""
    click.echo(printable(f"warning: {message}", keep="\n"), err=True)


def run() -> NoReturn:
    """Run the command line and exit."""
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, _terminate)
    warnings.showwarning = cast(Any, _show_warning)
    try:
        status = cli.main(prog_name="fastdata", standalone_mode=False)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        # The message repeats the user's words.
        click.echo(printable(shown.getvalue(), keep="\n"), err=True, nl=False)
        status = error.exit_code
    except OSError as error:  # help or the version cannot be written
        failure = _of_the_system(error, "fastdata")
        failure.show()
        status = failure.exit_code
    except (KeyboardInterrupt, click.Abort):
        status = _interrupted
    sys.exit(status if isinstance(status, int) else 0)
