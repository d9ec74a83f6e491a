"""Files written past the page cache: the same bytes, wherever they are written."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hangs import HANG
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.storage.direct import DirectFile

_BUFFER = 4 << 20


def write(path: Path, pieces: list[bytes]) -> None:
    file = DirectFile(path)
    for piece in pieces:
        file.write(piece)
    file.close()


@pytest.fixture(params=["disk", "shm"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder of a file system that takes direct writes, if any here does; and one of memory."""
    if request.param == "disk":
        yield tmp_path
        return
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        pytest.skip("no /dev/shm here")
    with tempfile.TemporaryDirectory(prefix="fastdata-test-", dir=shm) as folder:
        yield Path(folder)


SIZES = st.one_of(
    st.integers(0, 20_000),
    st.sampled_from([_BUFFER - 1, _BUFFER, _BUFFER + 1, 2 * _BUFFER, 2 * _BUFFER + 4097]),
)


DATA = os.urandom(2 * _BUFFER + 5000)


@settings(max_examples=25)
@given(sizes=st.lists(SIZES, max_size=4))
def test_holds_what_was_written(sizes: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "direct"
    pieces = [DATA[i : i + size] for i, size in enumerate(sizes)]
    write(path, pieces)
    assert path.read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, _BUFFER, 3 * _BUFFER + 5])
def test_any_size_on_any_file_system(folder: Path, size: int) -> None:
    data = os.urandom(size)
    (folder / "file").write_bytes(b"older and longer" * 1000)
    write(folder / "file", [data])
    assert (folder / "file").read_bytes() == data


def test_an_error_of_the_disk_is_raised(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = DirectFile(tmp_path / "file")
    resource.setrlimit(resource.RLIMIT_FSIZE, (_BUFFER, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.write(bytes(4 * _BUFFER))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        file.abandon()
    file.close()  # once more does nothing


def test_an_error_of_the_last_write_is_raised_on_closing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = DirectFile(tmp_path / "file")
    file.write(bytes(100_000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_ctrl_c_while_a_file_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until Python 3.13, a join that it interrupts makes the next one return at once."""
    reached, go_on = threading.Event(), threading.Event()
    real = os.pwrite

    def slowly(*args: Any) -> int:
        reached.set()
        go_on.wait(HANG)
        return real(*args)

    monkeypatch.setattr(os, "pwrite", slowly)
    file = DirectFile(tmp_path / "file")
    file.write(bytes(_BUFFER + 1))
    reached.wait(HANG)
    main = threading.main_thread().ident
    threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        file.abandon()
    threading.Timer(0.2, go_on.set).start()
    file.abandon()
    assert go_on.is_set()  # it has waited for the write
    assert (tmp_path / "file").stat().st_size > 0


def test_leaves_no_thread_and_no_open_file(tmp_path: Path) -> None:
    before = set(threading.enumerate()), os.listdir("/proc/self/fd")
    for finish in (DirectFile.close, DirectFile.abandon):
        file = DirectFile(tmp_path / "file")
        file.write(bytes(3 * _BUFFER))
        finish(file)
    assert (set(threading.enumerate()), os.listdir("/proc/self/fd")) == before
