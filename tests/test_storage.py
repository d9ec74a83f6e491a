"""Extents read by many at once, and files that appear only when whole."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastdata.errors import BusyError, SpaceError, is_no_space
from fastdata.storage.files import (
    ExtentReader,
    file_lock,
    free_space,
    human_bytes,
    no_space,
    publish,
    read_exactly,
    whole_file,
    written_behind,
)

#: More than a reader keeps open.
FILES = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(FILES):
        (tmp_path / str(number)).write_bytes(b"%06d" % number * 10)
    return tmp_path


def open_files(folder: Path) -> int:
    """How many files of a folder are open in this process."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{folder}/")
    return found


def test_extents_of_more_files_than_are_kept_open(folder: Path) -> None:
    reader = ExtentReader()
    for _ in range(2):
        for number in range(FILES):
            assert reader.read(folder / str(number), 6, 6) == b"%06d" % number
            assert reader.size(folder / str(number)) == 60
    assert 0 < open_files(folder) <= 128
    del reader
    assert open_files(folder) == 0


def test_threads_read_while_files_are_closed(folder: Path) -> None:
    reader = ExtentReader()
    wrong: list[str] = []

    def read(start: int) -> None:
        try:
            for step in range(2_000):
                number = (start + 7 * step) % FILES
                if reader.read(folder / str(number), 0, 6) != b"%06d" % number:
                    wrong.append(f"file {number}")
        except OSError as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=read, args=(start,)) for start in range(0, FILES, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_reader_goes_on_after_a_fork(folder: Path) -> None:
    reader = ExtentReader()
    reader.read(folder / "0", 0, 6)
    child = os.fork()
    if child == 0:
        good = all(reader.read(folder / str(i), 0, 6) == b"%06d" % i for i in range(FILES))
        os._exit(0 if good else 1)
    assert all(reader.read(folder / str(i), 0, 6) == b"%06d" % i for i in range(FILES))
    assert os.waitpid(child, 0)[1] == 0


def test_a_lock_does_not_stay_with_a_process_forked_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with file_lock(path):
        waiting = path.open()  # as who waits for it has it open
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        with pytest.raises(BlockingIOError):
            fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        waiting.close()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[int]:
    """A process that holds a lock, and says every 0.1 s that it makes progress, until stopped."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with file_lock(tmp_path / "lock") as advance:
            os.write(tell, b"x")
            while True:
                advance()
                time.sleep(0.1)
    os.read(ready, 1)
    try:
        yield child
    finally:
        os.close(ready)
        os.close(tell)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_who_makes_progress_is_waited_for(holder: int, tmp_path: Path) -> None:
    threading.Timer(2.0, os.kill, (holder, signal.SIGKILL)).start()
    with file_lock(tmp_path / "lock", patience=1.0):
        assert os.waitid(os.P_PID, holder, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def test_who_makes_no_progress_is_not_waited_for(holder: int, tmp_path: Path) -> None:
    """As a process that was stopped by Ctrl-Z, or hangs on a disk."""
    os.kill(holder, signal.SIGSTOP)
    with (
        pytest.raises(BusyError, match=f"lock: process {holder} holds the lock") as caught,
        file_lock(tmp_path / "lock", patience=0.2),
    ):
        pass
    assert "End that process" in caught.value.hint


def test_an_extent_beyond_the_end_is_short(folder: Path) -> None:
    reader = ExtentReader()
    assert reader.read(folder / "0", 50, 100) == b"00000000000"[:10]
    assert reader.read(folder / "0", 100, 5) == b""
    with pytest.raises(FileNotFoundError):
        reader.read(folder / "missing", 0, 1)


def test_short_preads_are_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))
    with (folder / "12").open("rb") as file:
        assert read_exactly(file.fileno(), 0, 60) == b"000012" * 10
        assert read_exactly(file.fileno(), 30, 60) == b"000012" * 5


def test_a_whole_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with whole_file(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
        assert temporary.name == f"file.{os.getpid()}.partial"
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("exception", [ValueError, KeyboardInterrupt])
def test_a_failed_file_does_not_appear(tmp_path: Path, exception: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with whole_file(path) as temporary:
            temporary.write_text("half")
            raise exception

    with pytest.raises(exception):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def logged_fsync(descriptor: int) -> None:
        done.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def logged_replace(source: Path, target: Path) -> None:
        done.append(f"rename {source.name} {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    (tmp_path / "new.partial").write_text("new")
    publish(tmp_path / "new.partial", tmp_path / "new")
    assert done == ["fsync new.partial", "rename new.partial new", f"fsync {tmp_path.name}"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2.5e6, "2.5 MB"), (1e9, "1.0 GB"),
     (7.25e12, "7.2 TB"), (3e15, "3000.0 TB")],
)  # fmt: skip
def test_human_bytes(count: float, text: str) -> None:
    assert human_bytes(count) == text


def test_free_space_of_a_folder_to_be_made(tmp_path: Path) -> None:
    there = free_space(tmp_path)
    assert there > 0
    # Others write to this disk as well.
    assert abs(free_space(tmp_path / "a" / "b") - there) < 1 << 30


def test_a_full_disk_is_recognised_and_mended(tmp_path: Path) -> None:
    assert is_no_space(OSError(errno.ENOSPC, "full"))
    assert is_no_space(OSError(errno.EDQUOT, "quota"))
    assert is_no_space(RuntimeError("wrapped: No space left on device"))
    assert not is_no_space(OSError(errno.EACCES, "denied"))
    error = no_space(tmp_path, OSError(errno.ENOSPC, "full"), "Make room.")
    assert isinstance(error, SpaceError)
    assert str(tmp_path) in error.what
    assert error.hint == "Make room."


def test_written_behind_lets_go_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = os.urandom(1 << 20)
    before = set(os.listdir("/proc/self/fd"))
    with path.open("wb") as file, written_behind(path):
        for _ in range(20):
            file.write(data)
            time.sleep(0.005)
    with pytest.raises(RuntimeError, match="stop"), written_behind(path):
        raise RuntimeError("stop")
    assert path.read_bytes() == 20 * data
    assert set(os.listdir("/proc/self/fd")) == before
    assert not [t for t in threading.enumerate() if t.name == "fastdata-write-behind"]


def dirty_pages(path: Path) -> int:
    """Pages of a file that the kernel has yet to write, by cachestat(2)."""
    span, found = (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 5)()
    with path.open("rb") as file:
        failed = ctypes.CDLL(None).syscall(451, file.fileno(), span, found, 0)
    if failed:
        pytest.skip("needs Linux 6.5")
    return found[1]


@pytest.mark.skipif(sys.platform != "linux", reason="sync_file_range is Linux's")
def test_written_behind_writes_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb", buffering=0) as file:
        file.write(os.urandom(8 << 20))
    if not dirty_pages(path):
        pytest.skip("this file system has no dirty pages")
    with written_behind(path):
        time.sleep(0.2)
        deadline = time.monotonic() + 5  # the kernel's own timer would take 30 s
        while dirty_pages(path) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not dirty_pages(path)
