"""Processes that fork, die, and have no memory left: the right result, or an error, in time."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from containers import digests, pack_tree
from hangs import HANG
from loader_data import CONTAINERS, dataset, images, same, tree

from fastdata import DataLoader

pytestmark = pytest.mark.slow

FORKS = int(os.environ.get("FASTDATA_CAMPAIGN_FORKS", "12"))
RANKS = int(os.environ.get("FASTDATA_CAMPAIGN_RANKS", "1"))
SHORTAGES = int(os.environ.get("FASTDATA_CAMPAIGN_SHORTAGES", "1"))
SEED = os.environ.get("FASTDATA_CAMPAIGN_SEED", "0")
#: Seconds after which something hangs.
LIMIT = int(HANG)


def epoch(opened: Any, threads: int) -> list[Any]:
    return list(DataLoader(opened, 8, shuffle=True, seed=3, num_workers=threads))


def in_a_spawned_process(opened: Any, threads: int, expected: list[Any]) -> None:
    assert same(epoch(opened, threads), expected)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forks_and_spawns_at_any_moment() -> None:
    """A thread forks while others iterate: parent and child both have whole epochs."""
    draw = random.Random(f"{SEED} forks")
    expected = epoch(images(), 1)
    ended: Counter[str] = Counter()
    for number in range(FORKS):
        threads, opened = draw.choice([0, 1, 3]), images(container=draw.choice(CONTAINERS))
        loader = DataLoader(opened, 8, shuffle=True, seed=3, num_workers=threads,
                            persistent_workers=draw.random() < 0.5 and threads > 0)  # fmt: skip
        first = list(loader) if draw.random() < 0.3 else expected
        children: list[int] = []
        spawned = number % 40 == 39

        def fork(
            loader: Any = loader, opened: Any = opened, threads: int = threads,
            pause: float = draw.uniform(0, 0.03), again: bool = draw.random() < 0.5,
        ) -> None:  # fmt: skip
            time.sleep(pause)
            child = os.fork()
            if child == 0:
                signal.alarm(LIMIT)
                try:
                    if again:
                        loader.set_epoch(0)
                        right = same(list(loader), expected)
                    else:
                        right = same(epoch(opened, threads), expected)
                    os._exit(not right)
                except BaseException as error:
                    os.write(2, f"{type(error)}: {error}\n".encode())
                    os._exit(2)
            children.append(child)

        forking = threading.Thread(target=fork)
        forking.start()
        if spawned:
            process = multiprocessing.get_context("spawn").Process(
                target=in_a_spawned_process, args=(opened, threads, expected)
            )
            process.start()
        loader.set_epoch(0)
        assert same(list(loader), first)
        forking.join()
        assert os.waitpid(children[0], 0)[1] == 0
        ended["forks"] += 1
        if spawned:
            process.join(LIMIT)
            assert process.exitcode == 0
            ended["spawns"] += 1
    print(dict(ended))


_RANK = """
import os, random, signal, sys, datetime
import torch
from torch import distributed
from fastdata import DataLoader, ImageDataset
from fastdata.transforms import RandomResizedCrop

folder, store, rank, dies_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2,
                               timeout=datetime.timedelta(seconds=60))
dataset = ImageDataset(folder, RandomResizedCrop(24))
loader = DataLoader(dataset, 2, shuffle=True, seed=1, num_workers=2, shard="auto")
for epoch in range(2):
    for step, (images, labels) in enumerate(loader):
        if rank == 1 and epoch * len(loader) + step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.all_reduce(images.float().mean())
print("went on")
"""


def test_a_rank_that_dies(tmp_path: Path) -> None:
    """The other ends with the process group's error, and its decode threads with it."""
    draw = random.Random(f"{SEED} ranks")
    for number in range(RANKS):
        dies_at = draw.randrange(27)
        command = [sys.executable, "-W", "ignore", "-c", _RANK, dataset(), tmp_path / str(number)]
        ranks = [
            subprocess.Popen([*command, str(rank), str(dies_at)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
            for rank in range(2)
        ]  # fmt: skip
        try:
            said, error = ranks[0].communicate(timeout=LIMIT)
            assert (ranks[0].returncode, said) == (1, ""), error
            assert "all_reduce" in error
            assert ranks[1].wait(LIMIT) == -signal.SIGKILL
        finally:
            for process in ranks:
                process.kill()
                process.communicate()


_FULL = """
import json, os, sys, warnings
import torch
from fastdata import DataLoader, ImageDataset, stage
from fastdata.errors import FastdataError
from fastdata.remote import RemoteOptions
from fastdata.transforms import CenterCrop
warnings.simplefilter("ignore")
torch.set_num_threads(1)
folder, memory = sys.argv[1:]

def by_workers():  # torch's worker processes, which give batches through shared memory
    opened = ImageDataset(folder, CenterCrop(400))
    return list(torch.utils.data.DataLoader(opened, 40, num_workers=1, timeout=60))

def from_cache():
    remote = RemoteOptions(concurrency=2, piece_bytes=8 << 10, tries=2)
    opened = ImageDataset(f"file://{folder}", CenterCrop(48), cache=memory + "/cache",
                          remote=remote)
    for found, right in zip(DataLoader(opened, 8, num_workers=2), expected, strict=True):
        assert all(map(torch.equal, found, right))

def staged():
    return stage(folder, memory)

expected = list(DataLoader(ImageDataset(folder, CenterCrop(48)), 8))
outcomes = {}
for use in (by_workers, from_cache, staged):
    try:
        use()
        outcomes[use.__name__] = "done"
    except FastdataError as error:
        outcomes[use.__name__] = "error" if error.hint else "WITHOUT A HINT"
    except (RuntimeError, OSError) as error:  # torch's, of its workers
        assert use is by_workers, error
        outcomes[use.__name__] = "torch's error"
# A worker of torch's that ran out of memory is killed before it has unlinked its batch's.
left = [name for name in os.listdir(memory) if name not in ("cache", "ballast")
        and not name.startswith(("fastdata", "torch_"))]
print(json.dumps([outcomes, left]))
"""


def test_shared_memory_that_is_full(tmp_path: Path) -> None:
    """As in a container whose /dev/shm has a few MB: an error, no hang, and nothing left there."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("a /dev/shm of its own needs root")
    draw = random.Random(f"{SEED} full")
    counts: Counter[str] = Counter()
    for _ in range(SHORTAGES):
        size = draw.choice([16, 64, 128, 512]) << 10
        mounted = f"mount -t tmpfs -o size={size} tmpfs /dev/shm"
        command = ["unshare", "-m", "sh", "-c", f'{mounted} && exec "$@"', "sh"]
        if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
            pytest.skip("a /dev/shm of its own needs the right to mount")
        done = subprocess.run(
            [*command, sys.executable, "-c", _FULL, dataset("shards"), "/dev/shm"],
            capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        outcomes, left = json.loads(done.stdout)
        assert left == [], outcomes
        assert "WITHOUT A HINT" not in outcomes.values()
        counts.update(f"{use}: {how}" for use, how in outcomes.items())
    print(dict(counts))
    assert any("error" in outcome for outcome in counts), "there was room for everything"


@pytest.fixture
def cgroup() -> Iterator[Any]:
    """Limits the memory of processes: a function of their number of bytes, which gives a file."""
    base = Path("/sys/fs/cgroup")
    old = base / "memory"
    folder = (old if old.is_dir() else base) / f"fastdata-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if old.is_dir() else "memory.max"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("memory cgroups cannot be made here")
    try:
        if not (folder / limit).exists():
            pytest.skip("there is no memory controller")

        def limited(size: int) -> Path:
            (folder / limit).write_text(str(size))
            return folder / "cgroup.procs"

        yield limited
    finally:
        folder.rmdir()


def test_memory_that_a_cgroup_limits(cgroup: Any, tmp_path: Path) -> None:
    """Packing that the kernel kills, or that is told: the next run gives the same bytes."""
    draw = random.Random(f"{SEED} cgroup")
    pack_tree(tree(), tmp_path / "expected", "shards", unit_size=100_000)
    expected = digests(tmp_path / "expected")
    counts: Counter[str] = Counter()
    for number in range(SHORTAGES):
        out = tmp_path / f"out-{number}"
        packing = [sys.executable, "-m", "fastdata", "convert", "imagefolder", "--root", tree(),
                   "--to", "shards", "--shard-size", "100kB", "--no-shuffle", "--out", out,
                   "--workers", draw.choice(["1", "2"])]  # fmt: skip
        procs = cgroup(draw.randint(30, 160) << 20)
        done = subprocess.run(
            ["sh", "-c", f'echo $$ > {procs} && exec "$@"', "sh", *packing],
            capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip
        if done.returncode == 1:
            assert "Traceback" not in done.stderr
        assert done.returncode in (0, 1, -signal.SIGKILL), done.stderr
        counts[f"exit {done.returncode}"] += 1
        pack_tree(tree(), out, "shards", unit_size=100_000)
        assert digests(out) == expected
    print(dict(counts))
