"""Extents read by many at once, and files that appear only when whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fastdata import _native
from fastdata.errors import BusyError, is_no_space
from fastdata.storage.files import file_lock, publish, read_extent, whole_file

#: More than a reader keeps open.
FILES = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(FILES):
        (tmp_path / str(number)).write_bytes(b"%06d" % number * 10)
    return tmp_path


def open_files(folder: Path) -> int:
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{folder}/")
    return found


def files_of(folder: Path) -> _native.Files:
    return _native.Files([folder / str(number) for number in range(FILES)], [60] * FILES)


#: Three readers of a folder's files, in a process where nothing else is open, and in its child.
MANY = """
import os, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_storage import FILES, files_of, open_files
folder = Path(sys.argv[1])
several = [files_of(folder) for _ in range(3)]
for limit in (512, 256):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    for number in range(FILES):
        for files in several:
            assert files.read(number, 6, 6) == b"%06d" % number
            assert files.size(number) == 60
    assert open_files(folder) == limit // 4
child = os.fork()
for number in range(FILES):
    for files in several:
        assert files.read(number, 0, 6) == b"%06d" % number
assert open_files(folder) == 64
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
del several[0]
assert 0 < open_files(folder) < 64
del several, files
assert open_files(folder) == 0
"""


def test_more_files_than_are_kept_open(folder: Path) -> None:
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", MANY, str(folder), here], check=True)


@pytest.mark.parametrize("change", ["replaced", "written"])
def test_a_file_that_is_opened_again_must_be_the_same(folder: Path, change: str) -> None:
    files, growing = files_of(folder), _native.Files([folder / "0"], grows=True)
    assert files.read(0, 0, 6) == growing.read(0, 0, 6) == b"000000"
    before = (folder / "0").stat()
    if change == "replaced":
        (folder / "1").replace(folder / "0")
        os.utime(folder / "0", ns=(before.st_atime_ns, before.st_mtime_ns))
        assert files.is_unchanged(0) and files.read(0, 0, 6) == b"000000"
    else:
        (folder / "0").write_bytes(b"000001" * 10)
        os.utime(folder / "0", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        assert not files.is_unchanged(0)
    while _native.close_files():
        pass
    for read in (files.is_unchanged, files.size, lambda number: files.read(number, 0, 6)):
        with pytest.raises(ValueError, match="not the one"):
            read(0)
    if change == "written":
        assert growing.read(0, 0, 6) == b"000001"
    else:
        with pytest.raises(ValueError, match="not the one"):
            growing.read(0, 0, 6)


def test_threads_read_while_files_are_closed(folder: Path, limited: Callable[[int], None]) -> None:
    limited(256)
    files = files_of(folder)
    wrong: list[str] = []

    def read(start: int) -> None:
        try:
            for step in range(2_000):
                number = (start + 7 * step) % FILES
                if files.read(number, 0, 6) != b"%06d" % number:
                    wrong.append(f"file {number}")
                if step % 100 == 0:
                    _native.close_files()
        except (OSError, ValueError) as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=read, args=(start,)) for start in range(0, FILES, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


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
    os.kill(holder, signal.SIGSTOP)
    with (
        pytest.raises(BusyError, match=f"lock: process {holder} holds the lock") as caught,
        file_lock(tmp_path / "lock", patience=0.2),
    ):
        pass
    assert "End that process" in caught.value.hint


def test_an_extent_beyond_the_end_is_short(folder: Path) -> None:
    files = _native.Files([folder / "0", folder / "missing"])
    for read in (partial(files.read, 0), partial(read_extent, folder / "0")):
        assert read(50, 100) == b"00000000000"[:10]
        assert read(100, 5) == b""
    with pytest.raises(FileNotFoundError):
        files.read(1, 0, 1)
    with pytest.raises(FileNotFoundError):
        read_extent(folder / "missing", 0, 1)


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


def test_a_file_is_synced_before_it_is_named(
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
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.EDQUOT, "quota"), True),
        (RuntimeError("mdb_txn_commit: No space left on device"), True),
        (RuntimeError("mdb_put: MDB_MAP_FULL"), False),
        (OSError(errno.EACCES, "denied"), False),
    ],
)
def test_a_full_disk_is_recognised(error: Exception, full: bool) -> None:
    assert is_no_space(error) is full
