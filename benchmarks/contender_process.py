"""Contenders in fresh processes, killed after a timeout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastdata.benchmarks.adapters._serve import Request
from fastdata.benchmarks.contenders import ADAPTERS

#: Seconds that a process may take to end after its last event.
_GRACE = 5.0
#: Seconds after which converting a tree counts as hanging.
_PREPARATION = 24 * 3600.0
#: Most characters of its output that a failure quotes.
_QUOTED = 600


class ContenderError(Exception):
    """A contender crashed, hung, or gave wrong output."""


def run_contender(
    interpreter: Path, adapter: Path, request: Request, timeout: float
) -> dict[str, Any]:
    """Run one request; return its events by name: "ready", "first", "round", "done".

    Raises:
        ContenderError: It failed; says why.
    """
    events: dict[str, Any] = {}
    command = [str(interpreter), str(adapter)]
    with _process(command, timeout, json.dumps(asdict(request))) as (lines, ending):
        for line in lines:
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
        raise ContenderError(f"ended with {ending()} before it was done")


def run_preparation(interpreter: Path, adapter: Path, tree: Path, out: Path, variant: str) -> None:
    """Convert a tree by an adapter.

    Raises:
        ContenderError: It failed; says why.
    """
    arguments = [str(interpreter), str(adapter), "prepare", str(tree), str(out), variant]
    with _process(arguments, _PREPARATION) as (lines, ending):
        for _ in lines:
            pass
        if how := ending():
            raise ContenderError(f"preparing {out.name} ended with {how}")


def environment() -> dict[str, str]:
    """Return the environment of an adapter's process, which finds there what adapters share."""
    path = [str(ADAPTERS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


@contextmanager
def _process(
    command: list[str], timeout: float, text: str = ""
) -> Iterator[tuple[Iterator[str], Callable[[], str]]]:
    """Run a process in its own group, and kill the group after a timeout and in the end.

    Yields:
        The lines that it prints, and a function that returns how it ended and its last output,
        as text; "" if all is well.
    """
    with tempfile.TemporaryFile() as errors, ExitStack() as stack:
        try:
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                    text=True,
                    env=environment(),
                )
            )
        except OSError as error:
            raise ContenderError(f"cannot be started: {error}") from error

        def kill() -> None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        hung = threading.Event()

        def give_up() -> None:
            hung.set()
            kill()

        timer = threading.Timer(timeout, give_up)
        timer.start()
        stack.callback(kill)
        stack.callback(timer.cancel)

        def lines() -> Iterator[str]:
            assert process.stdout is not None
            yield from process.stdout
            if hung.is_set():
                raise ContenderError(f"hung: not done after {timeout:.0f} s")

        def ending() -> str:
            try:
                code = process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                return "its output closed, but still running"
            if not code:
                return ""
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()[-_QUOTED:]
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return f"{how}: {said}" if said else how

        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(text + "\n")
            process.stdin.flush()
        yield lines(), ending
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
