"""Records where a running loader spends its time, by py-spy, native frames included."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from fastdata.errors import DataError, UsageError
from fastdata.storage.files import temporary_name

#: By suffix, what py-spy calls the format.
_FORMATS = {".svg": "flamegraph", ".json": "speedscope"}
#: Samples a second. At more, py-spy falls behind where frames are native.
_RATE = 50
#: Seconds beyond those of recording after which py-spy counts as hanging: it reads the symbols of
#: every library first, torch's among them.
_PATIENCE = 120.0


def record(pid: int, path: Path, seconds: float) -> None:
    """Records a process and those that it has started.

    Every thread has a tree of its own, with what it waits for: a loader's consumer that waits for
    batches is seen as that. Threads that know nothing of Python, as the native decode threads, are
    not seen by py-spy; with ``num_workers=0`` decoding runs in the caller's thread, which is.

    Args:
        pid: The process.
        path: An ``.svg`` (flame graph), or a ``.json`` for speedscope.app.
        seconds: How long, rounded up to whole seconds.

    Raises:
        UsageError: Another suffix, no such process, or py-spy is not installed.
        DataError: The process may not be looked at, is no Python, or ended at once.
    """
    kind = _FORMATS.get(path.suffix)
    if kind is None:
        raise UsageError(
            f"{path}: recordings are .svg (flame graph) or .json (speedscope)",
            "Name one of these.",
        )
    if seconds <= 0:
        raise UsageError(f"--seconds {seconds}", "Give how long to record, for example 10.")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder", "Make it first.")
    program = find()
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        raise UsageError(f"--pid {pid}: no such process", "Find it with ps or pgrep.") from None
    except PermissionError:
        pass  # py-spy says whether it may look
    temporary = temporary_name(path)
    command = [program, "record", "--pid", str(pid), "--duration", str(-int(-seconds // 1))]
    command += ["--rate", str(_RATE), "--native", "--threads", "--idle", "--subprocesses"]
    command += ["--format", kind, "--output", str(temporary)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + _PATIENCE,
        )
        if done.returncode or not temporary.exists() or not temporary.stat().st_size:
            raise _failure(pid, done.stderr + done.stdout)
        os.replace(temporary, path)
    except subprocess.TimeoutExpired:
        raise DataError(
            f"process {pid}: py-spy did not end {_PATIENCE:.0f} s after the recording should have",
            "Try fewer --seconds.",
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def find() -> str:
    """The py-spy program: that of this Python's environment, or on the path.

    Raises:
        UsageError: There is none.
    """
    found = shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")
    if found is None:
        raise UsageError(
            "recording a process needs py-spy, which is not installed",
            "pip install 'fastdata-torch[profile]'",
        )
    return found


def _failure(pid: int, said: str) -> DataError:
    lower = said.lower()
    if "permission denied" in lower or "operation not permitted" in lower:
        return DataError(
            f"process {pid}: this user may not look into it (ptrace)",
            "Run this as root (sudo), as the process's user with sysctl "
            "kernel.yama.ptrace_scope=0, or in a container started with --cap-add SYS_PTRACE.",
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("Error")), " ".join(lines[-2:]))
    return DataError(
        f"process {pid}: py-spy could not record it: {reason}",
        "Is it Python, and did it run long enough?",
    )
