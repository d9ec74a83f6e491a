"""Scripts forked with imports done; do not measure memory in them, as forks share pages."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import IO

from hangs import HANG


class Prefork:
    """A process that has run some imports, and is forked for each script; a context manager."""

    def __init__(self, imports: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        begin = f"import sys; sys.path.insert(1, {str(Path(__file__).parent)!r})\n{imports}\n"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{begin}\nimport prefork; exec(prefork.serve())"],
                env={**os.environ, "FASTDATA_PREFORK": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def run(
        self,
        code: str,
        *arguments: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = HANG,
    ) -> subprocess.CompletedProcess[str]:
        call = [
            code,
            [str(one) for one in arguments],
            str(cwd or Path.cwd()),
            {**(env or os.environ)},
        ]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with tempfile.TemporaryFile() as given:
                given.write(json.dumps(call).encode())
                given.flush()
                files = [given.fileno(), out.fileno(), err.fileno()]
                socket.send_fds(self._socket, [b"run"], files)
            child = self._answer(timeout)  # imports may still be under way
            try:
                status = self._answer(timeout)
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                self._answer(HANG)
                raise subprocess.TimeoutExpired(code, timeout, _text(out), _text(err)) from None
            return subprocess.CompletedProcess([], status, _text(out), _text(err))

    def _answer(self, timeout: float) -> int:
        self._socket.settimeout(timeout)
        return int(self._socket.recv(100))

    def __enter__(self) -> Prefork:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def serve() -> CodeType:
    """Forks for each call until there are no more; returns in the child, with what it is to run."""
    calls = socket.socket(fileno=int(os.environ.pop("FASTDATA_PREFORK")))
    while True:
        message, files, *_ = socket.recv_fds(calls, 10, 3)
        if not message:
            os._exit(0)
        child = os.fork()
        if child == 0:
            calls.close()
            return _begin(*files)
        calls.send(str(child).encode())
        for file in files:
            os.close(file)
        _, status = os.waitpid(child, 0)
        calls.send(str(os.waitstatus_to_exitcode(status)).encode())


def _begin(given: int, out: int, err: int) -> CodeType:
    with os.fdopen(given, "rb") as file:
        file.seek(0)
        code, arguments, folder, environment = json.load(file)
    for file, place in ((out, 1), (err, 2)):
        os.dup2(file, place)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # found out anew: the environment is another
    sys.argv = ["-c", *arguments]
    return compile(code, "<string>", "exec")
