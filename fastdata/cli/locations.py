"""Types and options that several commands share: folders, URLs, drivers, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from fastdata.errors import UsageError, printable
from fastdata.remote.drivers import parse_storage_options
from fastdata.remote.urls import is_url, redact

Function = TypeVar("Function", bound=Callable[..., Any])


class Location(click.ParamType):  # type: ignore[type-arg]
    """Type of a local path, as ``pathlib.Path``, or a URL, as text."""

    name = "path"
    #: What the shell completes. A source may be a file: a tar, Parquet.
    _completes = "file"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        """Return a URL as text, else a path; UsageError if empty, like an unset shell variable."""
        if is_url(value):
            return str(value)
        if not str(value):  # Path("") is the working folder
            where = "the path" if param is None else param.opts[0]
            raise UsageError(f"{where} is empty", "Name a file or folder; . is this one.")
        return Path(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete paths."""
        return [CompletionItem(incomplete, type=self._completes)]


class LocalFolder(Location):
    """Type of a local folder; rejects a URL, which would become a folder named ``gs:``."""

    _completes = "dir"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; UsageError if it is a URL, or empty."""
        if is_url(value):
            option = "" if param is None else param.opts[0] + " "
            raise UsageError(f"{option}{redact(value)} is a URL", "Name a folder of this machine.")
        return Path(super().convert(value, param, ctx))


def named(location: Path | str) -> str:
    """Return a location for messages: a URL without credentials."""
    return redact(location) if isinstance(location, str) else str(location)


def require_url(options: dict[str, Any] | None, *locations: Path | str | None) -> None:
    """Raise UsageError for driver options that no location, being no URL, uses."""
    if options and not any(isinstance(location, str) for location in locations):
        raise UsageError(
            "--storage-option has no effect without a URL", "Leave it out, or give a URL."
        )


def _parse(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, Any] | None:
    return parse_storage_options(value) if value else None


#: ``--json`` of every command: standard output holds one JSON object a result, nothing else.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def say(text: str, err: bool = False) -> None:
    """Print a line that may contain any names."""
    click.echo(printable(text), err=err)


def print_json(value: Any) -> None:
    """Print a result as one line of JSON; in ASCII, so that names cannot steer a terminal."""
    click.echo(json.dumps(value, default=str))


#: ``--storage-option key=value``, as a dictionary or None.
storage_options = click.option(
    "--storage-option",
    "storage_options",
    multiple=True,
    callback=_parse,
    metavar="KEY=VALUE",
    help="Option of the driver of a URL (token, key, endpoint_url, …); JSON values are parsed. "
    "Repeat it for several.",
)


def numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """Return different numbers from 1, in the order in which an option names them."""
    if value is None:
        return None
    chosen = dict.fromkeys(int(part) if part.isdecimal() else 0 for part in value.split(","))
    if not all(chosen):
        raise click.BadParameter(f"{value!r}: numbers from 1, by commas: 1,2,4", ctx, param)
    return tuple(chosen)
