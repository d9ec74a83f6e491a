"""Runs one contender in a fresh process, and kills it when it takes too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastdata.benchmarks.adapters._serve import Request

#: How long a process may take to end after it has said that it is done.
_GRACE = 5.0
#: Characters of what it printed that a failure quotes.
_QUOTED = 600


class ContenderError(Exception):
    """A contender crashed, hung, or gave something else than it should."""


def run_contender(
    interpreter: Path, adapter: Path, request: Request, timeout: float
) -> dict[str, Any]:
    """Runs one request.

    Args:
        interpreter: The Python of the contender's environment.
        adapter: Its file.
        request: What to do.
        timeout: Seconds after which it counts as hanging.

    Returns:
        Its events by name: "ready", "first", "round", "done".

    Raises:
        ContenderError: It failed; says why.
    """
    events: dict[str, Any] = {}
    with _process([str(interpreter), str(adapter)], timeout, json.dumps(asdict(request))) as run:
        for line in run:
            try:
                event = json.loads(line)
                name = event.pop("event")
            except (ValueError, AttributeError, KeyError):
                raise ContenderError(f"printed {line.strip()[:_QUOTED]!r} for an event") from None
            if name == "error":
                raise ContenderError(event["what"])
            events[name] = event
            if name == "done":
                return events
        raise ContenderError(f"ended with {run.ending()} before it was done")


def run_preparation(
    interpreter: Path, adapter: Path, tree: Path, out: Path, variant: str, timeout: float
) -> None:
    """Has an adapter convert a tree.

    Raises:
        ContenderError: It failed; says why.
    """
    arguments = [str(interpreter), str(adapter), "prepare", str(tree), str(out), variant]
    with _process(arguments, timeout) as run:
        for _ in run:
            pass
        if ending := run.ending():
            raise ContenderError(f"preparing {out.name} ended with {ending}")


class _process:  # noqa: N801 - used like a function
    """A process in a group of its own, whose output is iterated until the deadline."""

    def __init__(self, command: list[str], timeout: float, text: str = "") -> None:
        self._command = command
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._text = text

    def __enter__(self) -> _process:
        self._errors = tempfile.TemporaryFile()
        try:
            self._run = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise ContenderError(f"cannot be started: {error}") from error
        assert self._run.stdin is not None
        with suppress(BrokenPipeError):
            self._run.stdin.write(self._text.encode() + b"\n")
            self._run.stdin.flush()
        return self

    def __iter__(self) -> Iterator[str]:
        import selectors

        assert self._run.stdout is not None
        descriptor = self._run.stdout.fileno()
        waiting = selectors.DefaultSelector()
        waiting.register(descriptor, selectors.EVENT_READ)
        rest = b""
        with waiting:
            while True:
                if not waiting.select(max(0.0, self._deadline - time.monotonic())):
                    raise ContenderError(f"hung: not done after {self._timeout:.0f} s")
                some = os.read(descriptor, 65536)
                if not some:
                    return
                *lines, rest = (rest + some).split(b"\n")
                yield from (line.decode() for line in lines)

    def ending(self) -> str:
        """How it ended and what it said last; empty if all is well."""
        try:
            code = self._run.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return "its output closed, but still running"
        if not code:
            return ""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()[-_QUOTED:]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{how}: {said}" if said else how

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with suppress(subprocess.TimeoutExpired):
                self._run.wait(_GRACE)
        with suppress(ProcessLookupError):
            os.killpg(self._run.pid, signal.SIGKILL)
        self._run.wait()
        for stream in (self._run.stdin, self._run.stdout, self._errors):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]
