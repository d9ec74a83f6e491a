"""Packing on Ray writes the local executor's bytes, also where workers die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from containers import digests, pack_tree, repeat_tree
from fastdata.converters import Encoding, packing
from fastdata.converters.ray_executor import RayExecutor
from hangs import HANG

from fastdata import verify
from fastdata.errors import DataError, UsageError

ray: Any = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    inherited = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONPATH": str(Path(__file__).parent),  # workers import the functions of this module
    }
    # To the end, since Ray puts there how other processes may connect.
    with mock.patch.dict(os.environ, inherited):
        context = ray.init(
            "local",
            num_cpus=2,
            object_store_memory=100 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield context.address_info["address"]
        ray.shutdown()


@pytest.fixture(scope="module")
def tree(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repeat_tree(made_tree / "train", tmp_path_factory.mktemp("ray") / "tree", 2)


class Counts(packing.PackingProgress):
    def __init__(self) -> None:
        self.total = 0
        self.seen: list[int] = []

    def start(self, images: int, size: int, done_images: int, done_size: int) -> None:
        self.total = images

    def advance(self, images: int, size: int) -> None:
        self.seen.append(images)


def ray_workers(out: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            if "ray::" in process.info["name"] and any(
                Path(file.path).parent == out for file in process.open_files()
            ):
                found.append(process)
    return found


@pytest.mark.parametrize("container", ["lmdb", "parquet", "shards"])
def test_the_same_bytes_as_the_local_executor(
    cluster: str, tree: Path, tmp_path: Path, container: str
) -> None:
    progress = Counts()
    packed = pack_tree(tree, tmp_path / "ray", container, executor="ray", workers=3,
                       progress=progress)  # fmt: skip
    pack_tree(tree, tmp_path / "local", container)
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")
    assert packed.resumed == 0
    assert progress.seen == sorted(progress.seen)
    assert progress.seen[-1] == progress.total == packed.manifest.samples
    verify(tmp_path / "ray")


def test_a_worker_killed_while_it_writes(cluster: str, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "ray"
    killed: list[int] = []
    over = threading.Event()

    def kill_one() -> None:
        while not over.is_set() and not killed:
            for process in ray_workers(out)[:1]:
                process.send_signal(signal.SIGKILL)
                killed.append(process.pid)
            time.sleep(0.02)

    options: dict[str, Any] = {"encoding": Encoding("jpeg", max_side=300), "unit_size": 200_000}
    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        packed = pack_tree(tree, out, "shards", executor="ray", **options)
    finally:
        over.set()
        killer.join()
    assert killed
    assert packed.resumed == 0
    pack_tree(tree, tmp_path / "local", "shards", **options)
    assert digests(out) == digests(tmp_path / "local")


def test_a_driver_killed(cluster: str, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "ray"
    command = ["-m", "fastdata", "convert", "imagefolder", "--root", tree, "--to", "shards",
               "--encoding", "jpeg", "--max-side", "300", "--shard-size", "200kB",
               "--executor", "ray", "--address", cluster, "--out", out]  # fmt: skip
    process = subprocess.Popen([sys.executable, *map(str, command)], stderr=subprocess.PIPE)
    while process.poll() is None and len(list(out.glob(".packing/*.part"))) < 3:
        time.sleep(0.02)
    process.kill()
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert not (out / "_dataset.json").exists()

    # As the command shuffles by itself.
    options: dict[str, Any] = {"encoding": Encoding("jpeg", max_side=300), "unit_size": 200_000,
                               "shuffle": True}  # fmt: skip
    packed = pack_tree(tree, out, "shards", executor="ray", **options)
    assert packed.resumed > 0
    pack_tree(tree, tmp_path / "local", "shards", **options)
    assert digests(out) == digests(tmp_path / "local")


def _fail_at_seven(number: int) -> int:
    if number == 7:
        raise DataError("seven", "Use eight.")
    return number


def _die_once(path: Path) -> str:
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


def _die(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_engine_itself(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RayExecutor() as executor:
        results = executor.run(_fail_at_seven, range(20))
        assert [next(results) for _ in range(7)] == list(range(7))
        with pytest.raises(DataError, match="seven") as caught:
            next(results)
        assert caught.value.hint == "Use eight."
        assert list(executor.run(_die_once, [tmp_path / "a"])) == ["a"]
        monkeypatch.setattr("fastdata.converters.ray_executor.RETRIES", 0)
        with pytest.raises(DataError, match="task was lost") as caught:
            list(executor.run(_die, [1]))
        assert "resumes" in caught.value.hint
    assert ray.is_initialized(), "a cluster that others began"


def test_options(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--workers 0"):
        pack_tree(tree, tmp_path / "out", "shards", executor="ray", workers=0)
    with pytest.raises(UsageError, match="unknown executor spark"):
        pack_tree(tree, tmp_path / "out", "shards", executor="spark")
    with pytest.raises(UsageError, match="--address auto has no effect with --executor local"):
        pack_tree(tree, tmp_path / "out", "shards", address="auto")


def test_without_ray(tree: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from fastdata.cli import main; sys.argv[1:] = sys.argv[1:]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "convert", "imagefolder", "--root", tree,
         "--out", tmp_path / "out", "--executor", "ray"],
        capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 2
    assert "pip install 'fastdata-torch[ray]'" in done.stderr
    assert not (tmp_path / "out").exists()
