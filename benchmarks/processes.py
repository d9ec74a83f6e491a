"""Processes of contenders, killed after a timeout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastdata.benchmarks.adapters._serve import ContenderRequest

#: Modules that adapters share, and adapters that run where fastdata is installed.
ADAPTERS = Path(__file__).resolve().parent / "adapters"
#: Seconds after which converting a tree counts as hanging.
_PREPARATION = 24 * 3600.0
#: Most characters of its output that a failure quotes.
_QUOTED = 600


class ContenderError(Exception):
    """A contender crashed, hung, or gave wrong output."""


def run_contender(
    interpreter: Path, adapter: Path, request: ContenderRequest, timeout: float
) -> dict[str, Any]:
    """Run one request; return its events by name: "ready", "first", "round", "done".

    Raises:
        ContenderError: It failed; says why.
    """
    events: dict[str, Any] = {}
    text = json.dumps(asdict(request)) + "\n"
    out, ended = _run([str(interpreter), str(adapter)], timeout, text)
    for line in out.splitlines():
        try:
            event = json.loads(line)
            name = event.pop("event")
        except (ValueError, AttributeError, KeyError):
            raise ContenderError(f"printed {line.strip()[:_QUOTED]!r} for an event") from None
        if name == "error":
            raise ContenderError(event["what"])
        events[name] = event
    if "done" not in events:
        raise ContenderError(f"ended with {ended} before it was done")
    return events


def run_preparation(interpreter: Path, adapter: Path, tree: Path, out: Path, variant: str) -> None:
    """Convert a tree by an adapter."""
    arguments = [str(interpreter), str(adapter), "prepare", str(tree), str(out), variant]
    _, ended = _run(arguments, _PREPARATION)
    if ended:
        raise ContenderError(f"preparing {out.name} ended with {ended}")


def environment() -> dict[str, str]:
    """Return the environment of an adapter's process, which finds there what adapters share."""
    path = [str(ADAPTERS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _run(command: list[str], timeout: float, text: str = "") -> tuple[str, str]:
    """Run a process in a group of its own, which is killed after a timeout and in the end.

    Returns what it printed; and how it ended with its last output, "" if all is well.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            process = subprocess.Popen(
                command, start_new_session=True, text=True, env=environment(), **pipes
            )
        except OSError as error:
            raise ContenderError(f"cannot be started: {error}") from error
        try:
            out, _ = process.communicate(text, timeout)
        except subprocess.TimeoutExpired:
            raise ContenderError(f"hung: not done after {timeout:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if not (code := process.returncode):
            return out, ""
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()[-_QUOTED:]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return out, f"{how}: {said}" if said else how
