"""Packing that is killed and resumed gives the bytes of packing that was not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from containers import digests, repeat_tree
from PIL import Image

CONTAINERS = ["lmdb", "parquet", "shards"]
#: In each container, at least 5; FASTDATA_KILLS for more.
KILLS = int(os.environ.get("FASTDATA_KILLS", 5))

# The command, with LMDB commits as small as the other containers' files are made here.
_COMMAND = """
import importlib
importlib.import_module("fastdata.converters.packing")._COMMIT_SIZE = 200_000
from fastdata.cli import main
main()
"""


def start(tree: Path, out: Path, container: str) -> subprocess.Popen[bytes]:
    arguments = ["convert", "imagefolder", "--root", tree, "--to", container, "--out", out,
                 "--workers", "2"]  # fmt: skip
    if container != "lmdb":
        arguments += ["--shard-size", "200kB"]
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def parts(out: Path) -> int:
    """How many units are packed in an unfinished dataset."""
    return len(list(out.glob(".packing/*.part")))


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()


@pytest.fixture(scope="module")
def tree(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 500 units of packing."""
    return repeat_tree(made_tree / "train", tmp_path_factory.mktemp("kill") / "tree", 12)


@pytest.mark.parametrize("container", CONTAINERS)
def test_killed_at_random_moments_again_and_again(
    tree: Path, tmp_path: Path, container: str
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    begun = time.monotonic()
    process = start(tree, whole, container)
    while not parts(whole) and process.poll() is None:
        time.sleep(0.005)
    to_first = time.monotonic() - begun
    finish(process)
    to_last = time.monotonic() - begun

    # Random moments of the undisturbed run, but none so late that all runs together
    # would get to the end; what happens there is the next test's business.
    draw = random.Random(container)
    latest = to_first + (to_last - to_first) * 2 / KILLS
    in_the_middle = 0
    for number in range(KILLS):
        before = parts(out)
        process = start(tree, out, container)
        if number % 2 == 0:  # a few in the middle, however slow the machine is by now
            while parts(out) == before and process.poll() is None:
                time.sleep(0.005)
        else:
            time.sleep(draw.uniform(0.5 * to_first, latest))
        # As `kill -9` does it, and as an out-of-memory killer or a lost terminal does.
        (os.kill if number // 2 % 2 else os.killpg)(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL)
        in_the_middle += process.returncode != 0 and parts(out) != before
        if (out / "_dataset.json").exists():
            # It was done, or all but clearing up.
            finish(start(tree, out, container))
            assert digests(out) == digests(whole)
            out = tmp_path / f"out{number}"
    assert in_the_middle >= 3

    finish(start(tree, out, container))
    assert digests(out) == digests(whole)


# Ends the process before its n-th step that changes what is on the disk, for every n; a
# child of its own for each, since nothing of a killed process may help the next.
_EVERY_STEP = """
import importlib, os, shutil, sys
from pathlib import Path

from containers import digests, pack_tree
from fastdata.storage.formats.lmdb import LmdbWriter

tree, folder, container = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
KILLED = 9


def pack_until(step, out):
    taken = 0

    def counted(function):
        def call(*args, **options):
            nonlocal taken
            if taken == step:
                os._exit(KILLED)
            taken += 1
            return function(*args, **options)

        return call

    os.fsync, os.replace, os.unlink = map(counted, (os.fsync, os.replace, os.unlink))
    os.mkdir, os.rmdir = map(counted, (os.mkdir, os.rmdir))
    LmdbWriter.finish = counted(LmdbWriter.finish)
    pack_tree(tree, out, container, unit_size=8_000)


def in_a_child(step, out):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pack_until(step, out)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


assert in_a_child(-1, folder / "whole") == 0
expected = digests(folder / "whole")
step = 0
while True:
    out = folder / f"out-{step}"
    status = in_a_child(step, out)
    if status == 0:
        break
    assert status == KILLED, (step, status)
    assert in_a_child(-1, out) == 0, step
    assert digests(out) == expected, step
    shutil.rmtree(out)
    step += 1
print(step)
"""


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten small images: as many steps as of large ones, each of less work."""
    tree = tmp_path_factory.mktemp("few")
    for number in range(10):
        path = tree / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.effect_noise((64, 48), 40 + number).convert("RGB").save(path)
    return tree


@pytest.mark.parametrize("container", [*CONTAINERS, "folder"])
def test_killed_before_every_step(few: Path, tmp_path: Path, container: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EVERY_STEP, few, tmp_path, container],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > (10 if container == "folder" else 20)
