"""Kills commands and a training loop at random moments, then compares with an undisturbed run.

``kills.py FOLDER URL KILLS SEED OPERATION...``; prints counts as JSON. A program, so that what it
forks has imported everything.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import archives
import target_data
import torch
from containers import PACK_MODULE, digests
from hangs import HANG

from fastdata import DataLoader, ImageDataset
from fastdata.cli import main
from fastdata.remote import RemoteOptions
from fastdata.storage.files import PARTIAL_SUFFIX
from fastdata.transforms import (
    Compose,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    Resize,
    SanitizeBoundingBoxes,
)

SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
#: Seconds after which a process counts as hanging, on a machine that others use as well.
LIMIT = HANG
SMALL = RemoteOptions(concurrency=4, piece_bytes=8 << 10)
CONTAINERS = ["shards", "lmdb", "parquet", "folder"]

SHM = Path("/dev/shm")


def own_shared_memory() -> bool:
    """Gives this process a ``/dev/shm`` of its own, so that all that is left there is found."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, recursive, private = 0x20000, 0x4000, 1 << 18
    return (
        libc.unshare(new_namespace) == 0
        and libc.mount(b"none", b"/", None, recursive | private, None) == 0
        and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None) == 0
    )


def start(run: Callable[[], Any]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setsid()
        log = os.open(Path(sys.argv[1]) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
        status = 0
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait_for(child: int) -> int:
    """A process's exit code, negative for a signal; an error if it hangs."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.killpg(child, signal.SIGABRT)  # with its tracebacks
    raise AssertionError(f"process {child} hangs")


def command(*arguments: object) -> None:
    sys.argv = ["fastdata", *map(str, arguments)]
    main()


CROPS = Compose([RandomResizedCrop(32), RandomHorizontalFlip()])
MOVES = Compose(
    [RandomIoUCrop(), RandomHorizontalFlip(), Resize((32, 32)), SanitizeBoundingBoxes()]
)


class Operation:
    """Something that is killed."""

    def __init__(self, site: Site, state: Path, draw: random.Random) -> None:
        self.site, self.state = site, state
        self.kind = type(self).__name__.lower()

    def vary(self, draw: random.Random) -> None:
        """Draws how the next run goes about it, where that changes nothing in the result."""

    def run(self) -> None:
        raise NotImplementedError

    def result(self) -> Any:
        raise NotImplementedError

    def check_between(self) -> None:
        """Check what must hold after a kill, too."""


class Convert(Operation):
    def __init__(self, site: Site, state: Path, draw: random.Random) -> None:
        super().__init__(site, state, draw)
        self.container = draw.choice(CONTAINERS)
        self.kind = f"convert to {self.container}"
        self.workers = 1

    def vary(self, draw: random.Random) -> None:
        self.workers = 2 if draw.randrange(5) == 0 else 1

    def run(self) -> None:
        size = ["--shard-size", "20kB"] if self.container in ("shards", "parquet") else []
        command("convert", "imagefolder", "--root", self.site.tree, "--to", self.container,
                "--out", self.state / "out", "--workers", self.workers, *size)  # fmt: skip

    def result(self) -> Any:
        return digests(self.state / "out")

    def check_between(self) -> None:
        # Under its final name, a file is whole.
        final = {
            name: digest
            for name, digest in self.result().items()
            if not name.startswith(".") and not name.endswith(PARTIAL_SUFFIX)
        }
        others = final.items() - self.site.expected[self.kind].items()
        assert not others, (self.kind, others)
        if (self.state / "out" / "_dataset.json").exists():
            found = ImageDataset(self.state / "out")
            # In an order of its own: shards and Parquet files are shuffled.
            assert sorted(found.read(range(len(found)))) == sorted(self.site.images)


class Index(Convert):
    def __init__(self, site: Site, state: Path, draw: random.Random) -> None:
        super().__init__(site, state, draw)
        self.container = draw.choice(archives.KINDS)
        self.kind = f"index {self.container}"

    def run(self) -> None:
        command("index", self.site.folder / "archives" / self.container,
                "--out", self.state / "out", "--workers", self.workers)  # fmt: skip


class SeekPoints(Operation):
    def __init__(self, site: Site, state: Path, draw: random.Random) -> None:
        super().__init__(site, state, draw)
        shutil.copytree(site.without_seek_points, state / "set")

    def run(self) -> None:
        command("seek-points", self.state / "set", "--workers", 1)

    def result(self) -> Any:
        assert len(list((self.state / "set").glob("_index*"))) == 1  # the old one is gone
        index = ImageDataset(self.state / "set").source.index
        return [index[number] for number in range(len(index))]

    def check_between(self) -> None:
        found = ImageDataset(self.state / "set")
        assert found.read(range(len(found))) == self.site.images


class Stage(Operation):
    def __init__(self, site: Site, state: Path, draw: random.Random) -> None:
        super().__init__(site, state, draw)
        self.place = SHM / state.name

    def run(self) -> None:
        os.environ["FASTDATA_STAGE_ROOT"] = str(self.place)
        command("stage", self.site.dataset)

    def result(self) -> Any:
        (copy,) = self.place.glob("*/*")  # no partial copy, and no lock
        found = ImageDataset(copy)
        assert found.read(range(len(found))) == self.site.images
        return copy.name

    def check_between(self) -> None:
        os.environ["FASTDATA_STAGE_ROOT"] = str(self.place)
        found = ImageDataset(self.site.dataset)
        assert found.read(range(len(found))) == self.site.images


class Cache(Operation):
    def run(self) -> None:
        os.environ["FASTDATA_STAGE_ROOT"] = str(self.state)  # a copy would be read instead
        of = ImageDataset(self.site.url, CROPS, cache=self.state / "cache", remote=SMALL)
        loader = DataLoader(of, 4, seed=5, num_workers=2, order="quasi-random")
        digest = hashlib.sha256()
        for images, labels in loader:
            digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
        (self.state / f"found-{os.getpid()}").write_text(digest.hexdigest())

    def result(self) -> Any:
        assert list((self.state / "cache").rglob("*.partial")) == []
        (found,) = {path.read_text() for path in self.state.glob("found-*")}
        return found


class Train(Operation):
    """A loop on targets that saves where it is, with what it has seen, and goes on from there."""

    def run(self) -> None:
        fields = (*target_data.FIELDS, "index")
        of = ImageDataset(self.site.folder / "targets", transforms=MOVES, fields=fields)
        loader = DataLoader(of, 3, seed=9, num_workers=2, order="random", require_native=True)
        saved, new = self.state / "checkpoint", self.state / f"new-{os.getpid()}"
        seen: list[Any] = []
        if saved.exists():
            state = torch.load(saved, weights_only=True)
            seen = state["seen"]
            loader.load_state_dict(state["loader"])
        while len(seen) < 2 * len(loader):
            for batch in loader:
                digest = hashlib.sha256(repr(target_data.plain(batch)).encode()).hexdigest()
                seen.append([batch[1]["index"].tolist(), digest])
                torch.save({"seen": seen, "loader": loader.state_dict()}, new)
                os.replace(new, saved)

    def result(self) -> Any:
        seen = torch.load(self.state / "checkpoint", weights_only=True)["seen"]
        numbers = Counter(number for batch in seen for number in batch[0])
        assert numbers == dict.fromkeys(range(target_data.ROWS), 2)
        return seen


OPERATIONS = {
    each.__name__.lower(): each for each in (Convert, Index, SeekPoints, Stage, Cache, Train)
}


class Site:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.tree, self.dataset = folder / "tree", folder / "set"
        self.without_seek_points = folder / "plain"
        opened = ImageDataset(self.dataset)
        self.images = opened.read(range(len(opened)))
        self.expected: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}

    def learn(self, operation: Operation) -> None:
        begun = time.monotonic()
        assert wait_for(start(operation.run)) == 0, operation.kind
        self.seconds[operation.kind] = time.monotonic() - begun
        self.expected[operation.kind] = operation.result()
        remove(operation)


def remove(operation: Operation) -> None:
    shutil.rmtree(operation.state)
    shutil.rmtree(SHM / operation.state.name, ignore_errors=True)


def trial(site: Site, name: str, number: int, draw: random.Random, counts: Counter[str]) -> None:
    seed = draw.random()

    def make(which: str) -> Operation:
        state = site.folder / f"{name}-{number}-{which}"
        state.mkdir()
        return OPERATIONS[name](site, state, random.Random(seed))

    operation = make("killed")
    if operation.kind not in site.expected:
        site.learn(make("whole"))
    for _ in range(draw.randint(1, 4)):
        operation.vary(draw)
        children = [start(operation.run) for _ in range(draw.choice([1, 1, 2]))]
        time.sleep(draw.uniform(0, 1.1) * site.seconds[operation.kind])
        sent = draw.choice(SIGNALS)
        with contextlib.suppress(ProcessLookupError):  # it may be done
            (os.killpg if draw.random() < 0.7 else os.kill)(children[0], sent)
        statuses = [wait_for(child) for child in children]
        counts["kills"] += 1
        counts["in the middle"] += statuses[0] != 0
        counts["of two"] += len(children) == 2
        assert statuses[0] in (0, 1, -sent, 128 + sent), statuses
        assert all(status in (0, 1) for status in statuses[1:]), statuses  # 1: it was told to wait
        operation.check_between()
    for path in operation.state.glob("found-*"):
        path.unlink()
    operation.vary(draw)
    assert wait_for(start(operation.run)) == 0, operation.kind
    assert operation.result() == site.expected[operation.kind], operation.kind
    remove(operation)
    counts[operation.kind] += 1


def run() -> None:
    folder, url, kills, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    names = sys.argv[5:] or list(OPERATIONS)
    warnings.simplefilter("ignore")
    faulthandler.enable()
    for name in ("convert", "index", "seek_points", "stage"):
        importlib.import_module(f"fastdata.cli.{name}")
    PACK_MODULE._UNIT_ROWS = 5  # several units, which a run that is killed may have finished
    alone = own_shared_memory()
    draw = random.Random(seed)
    site = Site(folder, url)
    counts: Counter[str] = Counter(kills=0)
    number = 0
    while counts["kills"] < kills:
        try:
            trial(site, names[number % len(names)], number, draw, counts)
        except BaseException:
            print((folder / "log").read_text(errors="replace")[-5000:], file=sys.stderr)
            raise
        number += 1
        if alone:
            assert os.listdir(SHM) == [], os.listdir(SHM)
            counts["left nothing in /dev/shm"] += 1
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    run()
