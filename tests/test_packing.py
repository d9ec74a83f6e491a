"""Packing writes the same bytes after any interruption, and touches no other files."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from containers import PACK_MODULE, digests, jpeg, originals, pack_tree, repeat_tree
from fastdata.converters import Encoding, ImageFolder
from fastdata.converters.options import PackOptions
from fastdata.converters.packing import PackingProgress
from hangs import HANG
from tiers import first_of, slow

from fastdata import verify
from fastdata.errors import BadSamplesError, BusyError, DataError, UsageError
from fastdata.executors import InProcess, Processes

CONTAINERS = ["lmdb", "parquet", "shards", "folder"]


@pytest.fixture(scope="module")
def tree(made_tree: Path) -> Path:
    return made_tree / "train"


@pytest.fixture
def copy(made_tree: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made_tree / "val", tmp_path / "tree")


class Stop(PackingProgress):
    def __init__(self, images: int) -> None:
        self._images = images

    def advance(self, images: int, size: int) -> None:
        if images >= self._images:
            raise KeyboardInterrupt


def times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.mark.parametrize("container", first_of(["parquet", "lmdb"]))
def test_pandas_is_not_imported(tree: Path, tmp_path: Path, container: str) -> None:
    # pyarrow imports it for some calls where it is installed, which takes a second.
    (tmp_path / "pandas.py").write_text("raise RuntimeError('pandas was imported')")
    words = ["convert", "imagefolder", "--root", str(tree), "--out", str(tmp_path / "packed")]
    words += ["--to", container, "--shuffle", "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "fastdata", *words],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("container", first_of(["lmdb", "shards", "parquet", "folder"], 2))
@pytest.mark.parametrize(("workers", "shuffle"), [(1, False), slow(2, False), slow(2, True)])
def test_interrupted_and_resumed(
    tree: Path, tmp_path: Path, container: str, workers: int, shuffle: bool
) -> None:
    options: dict[str, Any] = {"unit_size": 400_000, "shuffle": shuffle}
    pack_tree(tree, tmp_path / "whole", container, **options)
    out = tmp_path / "out"
    for images in (10, 40):
        # The process executor looks ten times a second: packing may be done before.
        with suppress(KeyboardInterrupt):
            pack_tree(tree, out, container, workers=workers, progress=Stop(images), **options)
        assert workers > 1 or not (out / "_dataset.json").exists()
    packed = pack_tree(tree, out, container, workers=workers, **options)
    assert container == "folder" or packed.resumed > 0
    assert digests(out) == digests(tmp_path / "whole")


@pytest.mark.parametrize("container", first_of(CONTAINERS, 2))
def test_a_complete_dataset_is_left_as_it_is(tree: Path, tmp_path: Path, container: str) -> None:
    out = tmp_path / "out"
    pack_tree(tree, out, container)
    before = times(out)
    packed = pack_tree(tree, out, container, workers=2)
    assert packed.resumed == packed.manifest.samples == len(originals(tree))
    assert times(out) == before
    with pytest.raises(UsageError, match="with other options") as caught:
        pack_tree(tree, out, "shards" if container != "shards" else "parquet", unit_size=777)
    assert "--force" in caught.value.hint
    assert times(out) == before


def test_force_replaces_all_but_foreign_files(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack_tree(tree, out, "shards", unit_size=1_000_000)
    for name in ("notes.txt", "shard.tar", "shard-1.tar", "my-data.mdb", "_index.rows.bak"):
        (out / name).write_text("mine")
    (out / "folder").mkdir()
    (out / "folder" / "data.mdb").write_text("mine")
    pack_tree(tree, out, "lmdb", force=True)
    pack_tree(tree, tmp_path / "fresh", "lmdb")
    found = digests(out)
    for name, digest in digests(tmp_path / "fresh").items():
        assert found.pop(name) == digest
    assert sorted(found) == [
        "_index.rows.bak", "folder/data.mdb", "my-data.mdb", "notes.txt", "shard-1.tar",
        "shard.tar",
    ]  # fmt: skip


def test_other_options_do_not_throw_unfinished_work_away(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        pack_tree(tree, out, "shards", unit_size=400_000, progress=Stop(20))
    (out / "notes.txt").write_text("mine")
    before = {name: time for name, time in times(out).items() if name != ".packing"}
    with pytest.raises(UsageError, match="unfinished packing") as raised:
        pack_tree(tree, out, "parquet", unit_size=500_000)
    assert "--force" in raised.value.hint
    assert before.items() <= times(out).items()
    pack_tree(tree, out, "parquet", unit_size=500_000, force=True)
    pack_tree(tree, tmp_path / "fresh", "parquet", unit_size=500_000)
    (out / "notes.txt").unlink()
    assert digests(out) == digests(tmp_path / "fresh")


@pytest.mark.parametrize("container", first_of(["lmdb", "shards", "parquet"], 2))
def test_a_changed_image_redoes_its_file_alone(copy: Path, tmp_path: Path, container: str) -> None:
    out = tmp_path / "out"
    bad = originals(copy)[-1].path
    bad.write_bytes(b"not an image")
    with pytest.raises(BadSamplesError):
        pack_tree(copy, out, container, unit_size=500_000)
    before = times(out)
    changed = originals(copy)[25].path
    changed.write_bytes(jpeg(300, 200))
    bad.write_bytes(jpeg(64, 48))
    pack_tree(copy, out, container, unit_size=500_000)
    pack_tree(copy, tmp_path / "fresh", container, unit_size=500_000)
    assert digests(out) == digests(tmp_path / "fresh")
    files = sorted(name for name in before if name.endswith((".tar", ".parquet")))
    kept = [name for name in files if times(out).get(name) == before[name]]
    # The changed file is packed again, and those after it whose borders have moved.
    assert container == "lmdb" or 2 <= len(kept) < len(files)


@pytest.mark.parametrize("container", first_of(["lmdb", "shards", "parquet", "folder"], 2))
@pytest.mark.parametrize("workers", first_of([1, 2]))
def test_bad_images_stop_nothing(copy: Path, tmp_path: Path, container: str, workers: int) -> None:
    images = originals(copy)
    images[3].path.write_bytes(b"")
    images[20].path.write_text("not an image")
    whole = images[30].path.read_bytes()
    images[30].path.write_bytes(whole[: len(whole) // 2])
    out = tmp_path / "out"
    with pytest.raises(BadSamplesError, match="3 of 50 images cannot be packed") as caught:
        pack_tree(copy, out, container, unit_size=500_000, workers=workers)
    assert "--skip-bad" in caught.value.hint
    assert not (out / "_dataset.json").exists()
    lines = (out / "_bad-samples.jsonl").read_text("utf-8").splitlines()
    bad = [json.loads(line) for line in lines]
    assert [entry["key"] for entry in bad] == [images[i].key for i in (3, 20, 30)]
    assert [entry["path"] for entry in bad] == [str(images[i].path) for i in (3, 20, 30)]
    assert "empty" in bad[0]["reason"]
    assert "not an image" in bad[1]["reason"]
    packed = pack_tree(copy, out, container, unit_size=500_000, workers=workers, skip_bad=True)
    assert packed.resumed == packed.manifest.samples == 47
    assert packed.manifest.skipped == 3
    assert (out / "_bad-samples.jsonl").exists()
    assert verify(out, workers=1).problems == []


def test_only_one_packs_at_a_time(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    started, go_on = threading.Event(), threading.Event()

    class Wait(PackingProgress):
        def start(self, images: int, size: int, done_images: int, done_size: int) -> None:
            started.set()
            go_on.wait(30)

    first = threading.Thread(target=pack_tree, args=(tree, out, "shards"),
                             kwargs={"progress": Wait()})  # fmt: skip
    first.start()
    try:
        assert started.wait(30)
        for force in (False, True):
            with pytest.raises(BusyError, match="another process is packing to it"):
                pack_tree(tree, out, "shards", force=force)
    finally:
        go_on.set()
        first.join()
    pack_tree(tree, tmp_path / "alone", "shards")
    assert digests(out) == digests(tmp_path / "alone")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"container": "zip"}, "unknown container zip"),
        ({"workers": 0}, "--workers 0"),
        (
            {"container": "lmdb", "options": PackOptions(shard_size=5)},
            "--shard-size has no effect with --to lmdb",
        ),
        (
            {"container": "shards", "options": PackOptions(shard_size=0)},
            "--shard-size 0 is not a size",
        ),
    ],
    ids=str,
)
def test_options_that_mean_nothing(
    tree: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        PACK_MODULE.pack(ImageFolder(tree), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


# --- executors ------------------------------------------------------------------------------


def double(number: int) -> int:
    return 2 * number


def fail_at_seven(number: int) -> int:
    if number == 7:
        raise DataError("seven")
    return number


class LockedError(Exception):
    def __init__(self) -> None:
        super().__init__("of a library")
        self.lock = threading.Lock()


class TwoArgumentsError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def fail_foreignly(number: int) -> int:
    raise TwoArgumentsError("of a", "library") if number else LockedError


def die_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("executor", first_of([InProcess, lambda: Processes(2)]))
def test_results_come_in_order(executor: Callable[[], Any]) -> None:
    with executor() as running:
        assert list(running.run(double, range(40))) == list(range(0, 80, 2))
    with executor() as running:
        results = running.run(fail_at_seven, iter(range(40)))
        assert [next(results) for _ in range(7)] == list(range(7))
        with pytest.raises(DataError, match="seven"):
            next(results)


@pytest.mark.slow
def test_exceptions_that_cannot_be_sent_have_their_text() -> None:
    with Processes(2) as executor:
        for number, name in enumerate(("LockedError", "TwoArgumentsError")):
            with pytest.raises(RuntimeError, match=f"^{name}: of a library$") as caught:
                next(executor.run(fail_foreignly, [number]))
            assert "in fail_foreignly" in str(caught.value.__cause__)


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.5], ids=["waiting", "consuming"])
def test_a_worker_that_dies_is_an_error(pause: float) -> None:
    """Whether it dies while results are awaited, or while the consumer is at work."""

    def consume() -> None:
        with Processes(2) as executor:
            for _ in executor.run(die_at_three, range(100)):
                time.sleep(pause)

    with pytest.raises(DataError, match="a worker process died") as caught:
        consume()
    assert "resumes" in caught.value.hint


def test_a_script_that_workers_cannot_import(tree: Path, tmp_path: Path) -> None:
    """Without the usual guard; its error names the cause, and what it left is not in the way."""
    # Several files, so workers are needed.
    more = "container='shards', options=PackOptions(shard_size=1000), workers=2"
    call = f"pack(ImageFolder({str(tree)!r}), {str(tmp_path / 'out')!r}, {more})"
    script = tmp_path / "script.py"
    for guard in ("", 'if __name__ == "__main__":\n    '):
        script.write_text(
            f"from fastdata.converters import ImageFolder, PackOptions, pack\n{guard}{call}\n"
        )
        done = subprocess.run([sys.executable, script], capture_output=True, text=True)
        assert (done.returncode == 0) == bool(guard), done.stderr
        assert ("UsageError: worker processes cannot start" in done.stderr) != bool(guard)


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """The worker processes; not multiprocessing's resource tracker."""
    found = []
    for child in process.children(recursive=True):
        with suppress(psutil.Error):  # it may just have ended
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.mark.slow
def test_a_worker_killed_from_outside(tree: Path, tmp_path: Path) -> None:
    class KillOne(PackingProgress):
        def advance(self, images: int, size: int) -> None:
            for worker in workers_of(psutil.Process())[:1]:
                worker.kill()

    out = tmp_path / "out"
    options: dict[str, Any] = {"unit_size": 400_000, "encoding": Encoding("jpeg", max_side=200)}
    with pytest.raises(DataError, match="a worker process died"):
        pack_tree(tree, out, "shards", workers=2, progress=KillOne(), **options)
    pack_tree(tree, out, "shards", workers=2, **options)
    pack_tree(tree, tmp_path / "alone", "shards", **options)
    assert digests(out) == digests(tmp_path / "alone")
    assert workers_of(psutil.Process()) == []


# --- the command, interrupted or killed ----------------------------------------------------


@pytest.fixture(scope="module")
def long_tree(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough work for several seconds, where images are re-encoded."""
    return repeat_tree(tree, tmp_path_factory.mktemp("long") / "tree", 40)


@pytest.fixture
def running(long_tree: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = ["convert", "imagefolder", "--root", long_tree, "--to", "shards", "--out",
                 tmp_path / "out", "--encoding", "jpeg", "--shard-size", "200kB",
                 "--workers", "2"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "fastdata", *map(str, arguments)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + HANG
        while not list(tmp_path.glob("out/.packing/*.part")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(("whom", "number"), [("group", signal.SIGINT), ("parent", signal.SIGTERM)])
def test_ctrl_c_and_sigterm_end_at_once(
    running: subprocess.Popen[str], tmp_path: Path, whom: str, number: signal.Signals
) -> None:
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) >= 2
    for worker in workers_of(psutil.Process(running.pid)):
        # Else a worker that is starting, or waits for a task, would print a traceback.
        blocked = re.findall(r"SigBlk:\s+(\w+)", Path(f"/proc/{worker.pid}/status").read_text())
        assert int(blocked[0], 16) >> (signal.SIGINT - 1) & 1
    # A terminal sends it to the whole group, `kill -INT` to one process.
    (os.killpg if whom == "group" else os.kill)(running.pid, number)
    _, errors = running.communicate(timeout=HANG)
    assert running.returncode == 128 + number
    assert "Traceback" not in errors
    assert "leaked" not in errors  # semaphores, as multiprocessing's resource tracker says
    assert "run the same command again to resume" in errors
    assert psutil.wait_procs(children, timeout=HANG)[1] == []
    assert not (tmp_path / "out" / "_dataset.json").exists()


@pytest.mark.slow
def test_workers_die_with_their_parent(running: subprocess.Popen[str]) -> None:
    parent = psutil.Process(running.pid)
    children, workers = parent.children(recursive=True), workers_of(parent)
    assert len(workers) == 2
    for process in [parent, *workers]:  # a name in shared memory would stay
        assert "/dev/shm" not in Path(f"/proc/{process.pid}/maps").read_text()
    running.kill()
    assert psutil.wait_procs(children, timeout=HANG)[1] == []


# --- memory --------------------------------------------------------------------------------


def private_memory(process: psutil.Process) -> int:
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().uss
        except psutil.Error:
            continue  # it has just ended
    return total


def peak_memory(tree: Path, out: Path, container: str) -> int:
    arguments = ["convert", "imagefolder", "--root", tree, "--to", container, "--out", out,
                 "--workers", "2"]  # fmt: skip
    if container != "lmdb":
        arguments += ["--shard-size", "32MiB"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fastdata", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    peak = 0
    while process.poll() is None:
        try:
            peak = max(peak, private_memory(psutil.Process(process.pid)))
        except psutil.Error:
            continue
        time.sleep(0.02)
    assert process.returncode == 0
    return peak


@pytest.mark.slow
@pytest.mark.parametrize("container", ["lmdb", "parquet", "shards"])
def test_memory_stays_flat(imagenet_sample: Path, tmp_path: Path, container: str) -> None:
    once = repeat_tree(imagenet_sample / "train", tmp_path / "once", 3)
    often = repeat_tree(imagenet_sample / "train", tmp_path / "often", 6)
    little = peak_memory(once, tmp_path / "little", container)
    much = peak_memory(often, tmp_path / "much", container)
    assert much < 500e6
    if much >= little + 50e6:
        # A busy machine may hide the little peak, or have a writer wait once. Memory
        # that grows with the images does so each time.
        little = max(little, *(peak_memory(once, tmp_path / f"{n}", container) for n in range(2)))
        shutil.rmtree(tmp_path / "much")
        much = min(much, peak_memory(often, tmp_path / "much", container))
    assert much < little + 50e6
