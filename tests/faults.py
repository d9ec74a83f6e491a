"""Commands and loaders on disks that fail, and under limits: the right result, or our error.

``faults.py LIBRARY FOLDER TRIALS SEED`` (``faults.c`` is preloaded); prints counts as JSON.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import random
import resource
import shutil
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import archives
from containers import digests, pack_tree
from fastdata.converters import index

from fastdata import DataLoader, ImageDataset, stage, verify
from fastdata.errors import FastdataError
from fastdata.maintenance.seek_points import add_seek_points
from fastdata.remote import RemoteOptions
from fastdata.staging.stage import unstage
from fastdata.transforms import CenterCrop

READ_EIO, READ_SHORT, WRITE_ENOSPC, WRITE_SHORT, SYNC_EIO, CLOCK = (1 << n for n in range(6))
#: What may go wrong at a time, by name. Files, size and memory are resource limits.
FAULTS = {
    "EIO": READ_EIO,
    "short reads": READ_SHORT,
    "ENOSPC": WRITE_ENOSPC,
    "short writes": WRITE_SHORT,
    "fsync": SYNC_EIO,
    "clock": CLOCK,
    "files": 0,
    "size": 0,
    "memory": 0,
}
#: What changes nothing.
HARMLESS = ("short reads", "short writes", "clock")
PACKED = ["shards", "lmdb", "parquet", "folder"]
#: Kinds of archives of others, by the names of their datasets.
IN_PLACE = {f"{kind} in place": kind for kind in archives.KINDS}
CONTAINERS = [*PACKED, *IN_PLACE]
SMALL = RemoteOptions(concurrency=2, piece_bytes=8 << 10, tries=2, timeout=5.0)


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "tree"
        for container in PACKED:
            pack_tree(self.tree, folder / container, container, unit_size=30_000)
        images = [path.read_bytes() for path in sorted(self.tree.rglob("*.jpg"))]
        samples = [archives.Made(one, n % 3, f"{n} ü", one) for n, one in enumerate(images)]
        for container, kind in IN_PLACE.items():
            archives.write(kind, folder / "archives" / kind, samples)
            index(folder / "archives" / kind, folder / container, workers=1)
        pack_tree(self.tree, folder / "plain", "shards", unit_size=30_000, seek_points=None)
        self._outs = 0
        self.clear()

    def clear(self) -> None:
        self._outs += 1
        self.out = self.folder / f"out-{self._outs}"
        self.out.mkdir()
        shutil.copytree(self.folder / "plain", self.out / "plain")


def batches(loader: Any) -> list[Any]:
    several = (batch if isinstance(batch, (list, tuple)) else [batch] for batch in loader)
    return [[part.numpy().tobytes() for part in batch] for batch in several]


def load(site: Site, container: str) -> Any:
    opened = ImageDataset(site.folder / container, CenterCrop(48))
    return batches(DataLoader(opened, 5, num_workers=2))


def load_items(site: Site, container: str) -> Any:
    opened = ImageDataset(site.folder / container)
    return [(opened[n][0].tobytes(), opened.row(n)) for n in range(len(opened))]


def load_from_url(site: Site, container: str) -> Any:
    container = "shards" if container == "folder" or container in IN_PLACE else container
    opened = ImageDataset(f"file://{site.folder / container}", CenterCrop(48), remote=SMALL,
                          cache=site.out / "cache")  # fmt: skip
    return batches(DataLoader(opened, 5, num_workers=2))


def convert(site: Site, container: str) -> Any:
    if container in IN_PLACE:
        index(site.folder / "archives" / IN_PLACE[container], site.out / "set", workers=1)
    else:
        pack_tree(site.tree, site.out / "set", container, unit_size=30_000)
    return digests(site.out / "set")


def seek_points(site: Site, container: str) -> Any:
    add_seek_points(site.out / "plain", workers=1)
    opened = ImageDataset(site.out / "plain").source.index
    return [opened[number] for number in range(len(opened))]


def stage_it(site: Site, container: str) -> Any:
    container = "shards" if container in IN_PLACE else container
    copy = stage(site.folder / container, site.out).path
    found = ImageDataset(copy)
    return found.read(range(len(found))), found.labels.tolist()


def verify_it(site: Site, container: str) -> Any:
    return verify(site.folder / container, workers=1).problems


OPERATIONS = [
    load, load_items, load_from_url, convert, seek_points, stage_it, verify_it,
]  # fmt: skip


def limited(fault: str, draw: random.Random) -> Callable[[], None]:
    which, least, most = {
        "files": (resource.RLIMIT_NOFILE, 0, 12),
        "size": (resource.RLIMIT_FSIZE, 1_000, 60_000),
        "memory": (resource.RLIMIT_AS, 0, 30 << 20),
    }[fault]
    before = resource.getrlimit(which)
    used = 0
    if fault == "files":
        used = max(map(int, os.listdir("/proc/self/fd"))) + 1
    if fault == "memory":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(which, (used + draw.randint(least, most), before[1]))
    return lambda: resource.setrlimit(which, before)


def trial(site: Site, library: Any, draw: random.Random, counts: Counter[str]) -> None:
    operation, container = draw.choice(OPERATIONS), draw.choice(CONTAINERS)
    fault = draw.choice(list(FAULTS))
    what = f"{fault}: {operation.__name__} {container}"
    site.clear()
    expected = operation(site, container)
    unstage(site.folder / container, site.out)
    site.clear()
    rare = draw.choice([2, 10, 50, 200])
    unlimit = limited(fault, draw) if not FAULTS[fault] else lambda: None
    library.set_faults(FAULTS[fault], rare, draw.randrange(1 << 32), os.fsencode(site.folder))
    outcome, trace = "right", ""
    try:
        found = operation(site, container)
        if operation is verify_it:
            outcome = "told" if found else "right"
        elif found != expected:
            outcome = "SILENT"
    except FastdataError as error:
        outcome = "error" if error.what and error.hint else "WITHOUT A HINT"
        trace = traceback.format_exc()
    except BaseException as error:
        written = operation in (convert, seek_points) and isinstance(error, OSError)
        outcome = "error" if written or fault == "memory" else "FOREIGN"
        trace = traceback.format_exc()
    happened = library.faults_happened()
    library.set_faults(0, 1, 0, b"")
    unlimit()
    counts[f"{fault}: {outcome}"] += 1
    counts["faults"] += happened
    # LMDB's own library, which writes, takes a short read or write for an error.
    harmless = fault in HARMLESS and (operation, container) != (convert, "lmdb")
    if outcome.isupper() or (harmless and outcome != "right"):
        print(f"{what}, one in {rare}: {outcome}", trace, file=sys.stderr)
        counts["wrong"] += 1
    if operation(site, container) != expected:  # goes on where it was, or begins anew
        print(f"{what}, one in {rare}: wrong when run again", file=sys.stderr)
        counts["wrong"] += 1
    unstage(site.folder / container, site.out)


def main() -> None:
    library, folder = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2])
    draw = random.Random(sys.argv[4])
    faulthandler.enable()
    warnings.simplefilter("ignore")
    site = Site(folder)
    counts: Counter[str] = Counter(wrong=0)
    for _ in range(int(sys.argv[3])):
        trial(site, library, draw, counts)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
