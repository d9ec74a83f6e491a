"""Forged copies and caches of another user are never opened."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import random
import shutil
import signal
import stat
import struct
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from containers import exchanged, load_manifest, pack_tree
from jpegs import encode, picture

from fastdata import ImageDataset, stage
from fastdata._native import crc32c
from fastdata.errors import FastdataError, UsageError
from fastdata.remote import RemoteOptions
from fastdata.remote.cache import _MAGIC, _TRAILER
from fastdata.staging.stage import unstage
from fastdata.staging.staged import find_staged, own_folder
from fastdata.storage.records import RECORD, RECORDS_AT, SCHEMA, write_index

pytest.importorskip("fsspec")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes two users: needs root"),
]

OPENS = int(os.environ.get("FASTDATA_CAMPAIGN_OPENS", "400"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))
#: Ids of the user who opens, and of the one who attacks; neither needs to exist.
MYSELF, ANOTHER = 4242, 4243
CLASSES = 3
SMALL = RemoteOptions(concurrency=2, piece_bytes=8 << 10)


def forged(data: bytes, patterns: list[bytes], checksum: int) -> bytes:
    """Bytes of a given CRC-32C: XORs some of the patterns to them, of which there are over 32."""
    base = crc32c(data)
    basis: dict[int, tuple[int, set[int]]] = {}  # by highest bit: what it changes, by which
    for number, pattern in enumerate(patterns):
        change, by = crc32c(xor(data, pattern)) ^ base, {number}
        while change and (found := basis.get(change.bit_length())):
            change, by = change ^ found[0], by ^ found[1]
        if change:
            basis[change.bit_length()] = change, by
    missing, chosen = base ^ checksum, set[int]()
    while missing:
        change, by = basis[missing.bit_length()]
        missing, chosen = missing ^ change, chosen ^ by
    for number in chosen:
        data = xor(data, patterns[number])
    assert crc32c(data) == checksum
    return data


def xor(data: bytes, pattern: bytes) -> bytes:
    whole = int.from_bytes(data, "little") ^ int.from_bytes(pattern, "little")
    return whole.to_bytes(len(data), "little")


def bit(size: int, at: int, number: int) -> bytes:
    return bytes(at) + bytes([1 << number]) + bytes(size - at - 1)


class Poison:
    def __init__(self, dataset: Path, folder: Path) -> None:
        self.manifest = load_manifest(dataset)
        opened = ImageDataset(dataset)
        table = pa.Table.from_batches(opened.source.index.batches(), SCHEMA)
        labels = [(label + 1) % CLASSES for label in table.column("label").to_pylist()]
        at = SCHEMA.get_field_index("label")
        wrong = table.set_column(at, SCHEMA.field("label"), pa.array(labels, pa.int32()))
        write_index(folder / "index", wrong.to_batches(), len(labels), opened.manifest.generation)
        entry = self.manifest["index"]
        self.index = forged(*self._index(folder / "index"), int(entry["crc32c"], 16))
        assert len(self.index) == entry["size"]
        self.shard = bytearray((dataset / self.manifest["files"][0]["name"]).read_bytes())
        rows = [opened.row(number) for number in range(len(opened))]
        smallest = min(rows, key=lambda row: row.length)
        image = bytes(self.shard[smallest.offset : smallest.offset + smallest.length])
        for row in rows:
            padded = image.ljust(row.length, b"\0")
            if row is not smallest and row.length >= len(image) + 4:
                bits = [bit(row.length, row.length - 1 - n // 8, n % 8) for n in range(32)]
                padded = forged(padded, bits, row.crc32c)
                self.shard[row.offset : row.offset + row.length] = padded

    @staticmethod
    def _index(path: Path) -> tuple[bytes, list[bytes]]:
        """An index, and what may be XORed to it: bits of heights, with the records' checksums."""
        data = path.read_bytes()
        patterns = []
        height, size = RECORD.fields["height"][1], RECORD.itemsize
        for row in range(int.from_bytes(data[16:24], "little")):
            start = RECORDS_AT + row * size
            record = data[start : start + size]
            before = data[32:40] + row.to_bytes(8, "little")
            sound = exchanged(crc32c(before + record[: size - 4]))
            assert sound == int.from_bytes(record[-4:], "little")
            for number in range(8):
                other = xor(record[: size - 4], bit(size - 4, height, number))
                change = exchanged(crc32c(before + other)) ^ sound
                pattern = bytearray(len(data))
                pattern[start + height] = 1 << number
                pattern[start + size - 4 : start + size] = change.to_bytes(4, "little")
                patterns.append(bytes(pattern))
        return data, patterns

    def make_copy(self, folder: Path, true_copy: Path) -> None:
        shutil.copytree(true_copy, folder)
        (folder / self.manifest["index"]["name"]).write_bytes(self.index)
        (folder / self.manifest["files"][0]["name"]).write_bytes(self.shard)

    def make_pieces(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for number, start in enumerate(range(0, len(self.shard), SMALL.piece_bytes)):
            piece = bytes(self.shard[start : start + SMALL.piece_bytes])
            trailer = _TRAILER.pack(_MAGIC, len(piece), crc32c(piece), 0)
            (folder / f"000000-{number}.piece").write_bytes(piece + trailer)


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    """A dataset that all may read, and ``memory``, which all may write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        for number in range(9):
            image = folder / "tree" / f"class {number % CLASSES}" / f"{number}.jpg"
            image.parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(encode(picture(60 + 9 * number, 70, number), "4:2:0"))
        pack_tree(folder / "tree", folder / "set", "shards", unit_size=None, seek_points=None)
        for user in (MYSELF, ANOTHER):
            (folder / f"home-{user}").mkdir()
            os.chown(folder / f"home-{user}", user, user)
        yield folder


@pytest.fixture
def memory(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = site / "memory"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("FASTDATA_STAGE_ROOT", str(folder))
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(site / f"home-{MYSELF}"))
    yield folder
    shutil.rmtree(folder)


def become(user: int, group: int) -> None:
    """For good: this is a process of its own."""
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def name_users(site: Path, group_of_another: int) -> bool:
    """Has this child find both users in ``/etc/passwd``; False where it may not mount."""
    lines = {
        "passwd": f"me:x:{MYSELF}:{MYSELF}::/:/bin/sh\n"
        f"other:x:{ANOTHER}:{group_of_another}::/:/bin/sh\n",
        "group": f"me:x:{MYSELF}:\nother:x:{ANOTHER}:\n",
    }
    libc = ctypes.CDLL(None)
    new_mounts, bind, private, recursive = 0x20000, 0x1000, 0x40000, 0x4000
    if libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, private | recursive, None):
        return False
    for name, text in lines.items():
        mine = site / f"{name}-{os.getpid()}"
        mine.write_text(Path("/etc", name).read_text() + text)
        if libc.mount(bytes(mine), f"/etc/{name}".encode(), None, bind, None):
            return False
    return True


def set_acl(path: Path, tag: int, id_: int, mask: int = 7, default: bool = False) -> None:
    """Lets a user (tag 2) or group (tag 8) write a folder, in bytes as the kernel has them."""
    entries = [(1, 7, -1), (4, 5, -1), (tag, 7, id_), (16, mask, -1), (32, 5, -1)]
    packed = b"".join(struct.pack("<HHi", *entry) for entry in sorted(entries))
    name = "system.posix_acl_default" if default else "system.posix_acl_access"
    try:
        os.setxattr(path, name, b"\2\0\0\0" + packed)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip("this file system has no ACLs")


def open_to_all(folder: Path) -> None:
    for name in ("system.posix_acl_access", "system.posix_acl_default"):
        with suppress(OSError):
            os.removexattr(folder, name)
    folder.chmod(0o1777)


def permit(folder: Path, kind: int) -> None:
    """Has a folder of this user permit writing: to all, to nobody else, or to the other user."""
    open_to_all(folder)
    if kind >= 2:
        folder.chmod([0o755, 0o775, 0o755, 0o755][kind - 2])
    if kind == 4:
        set_acl(folder, 2, ANOTHER)
    if kind == 5:
        set_acl(folder, 2, ANOTHER, default=True)


def in_a_child(run: Callable[[], Any]) -> int:
    """Forks; the child's exit code says whether ``run`` raised nothing."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def ends_well(child: int, limit: float) -> bool:
    """Whether a child ends without an error within so many seconds; else it is killed."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status == 0
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def plant(poison: Poison, site: Path, copy_name: str, marked: Path) -> dict[Path, Path]:
    """The attacker's forgeries, in a folder of his own; by the names that they are to have."""
    memory, store = site / "memory", site / "memory" / "store"
    store.mkdir()
    for number in range(2):
        poison.make_copy(store / f"stage-{number}" / copy_name, marked)
    cached = store / "index"
    cached.mkdir()
    (cached / poison.manifest["index"]["name"]).write_bytes(poison.index)
    state = json.loads((marked / "staged.json").read_text())["id"]
    poison.make_pieces(store / "pieces" / f"{state[:24]}-{SMALL.piece_bytes}")
    return {
        memory / f"fastdata-{MYSELF}": store / "stage-0",
        memory / "fastdata-0": store / "stage-1",
        memory / f"set-{state[:12]}": cached,
        memory / "fastdata-pieces": store / "pieces",
    }


def attack(planted: dict[Path, Path], draw: random.Random) -> None:
    name = draw.choice(list(planted))
    forgery = planted[name]
    match draw.randrange(9):
        case 0 | 1:
            os.rename(forgery, name)
        case 2:
            os.rename(name, forgery)
        case 3 | 4:
            name.symlink_to(forgery)
        case 5:
            name.unlink()
        case 6:
            (forgery if forgery.exists() else name).chmod(draw.choice([0o755, 0o777, 0o1777]))
        case 7:
            os.mkfifo(draw.choice([name, name.with_name(name.name + ".lock")]))
        case 8:  # held until the next one
            descriptor = os.open(name.with_name(name.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.dup2(descriptor, _HELD)
            os.close(descriptor)


_HELD = 200  # a descriptor


class Victim:
    def __init__(self, site: Path, images: list[bytes], labels: list[int]) -> None:
        self.site, self.images, self.labels = site, images, labels
        self.counts: Counter[str] = Counter()

    def check(self, opened: ImageDataset, draw: random.Random) -> None:
        found = opened.labels.tolist()
        number = draw.randrange(len(found))
        if found != self.labels or opened.read([number]) != [self.images[number]]:
            self.counts["poisoned"] += 1

    def step(self, draw: random.Random) -> None:
        dataset, memory = self.site / "set", self.site / "memory"
        if draw.randrange(20) == 0:
            permit(memory, draw.randrange(6))
        if draw.randrange(20) == 0:
            if draw.randrange(2):
                stage(dataset)
                self.counts["staged"] += 1
            else:
                unstage(dataset)
            return
        self.counts["opens"] += 1
        if draw.randrange(10) == 0:
            try:
                with pytest.MonkeyPatch.context() as patch:  # a copy would be read instead
                    patch.setenv("FASTDATA_STAGE_ROOT", str(self.site / "none"))
                    opened = ImageDataset(f"file://{dataset}", cache=memory, remote=SMALL)
                self.check(opened, draw)
                self.counts["cached"] += 1
            except UsageError:  # the folder is not his own
                self.counts["refused"] += 1
            if draw.randrange(5) == 0:
                for path in (*memory.glob("set-*"), memory / "fastdata-pieces"):
                    self.remove(path)
            return
        opened = ImageDataset(dataset)
        self.counts["from a copy"] += opened.location != dataset
        self.check(opened, draw)

    def remove(self, path: Path) -> None:
        """By another name first, so that it stays what it is: rmtree would wait for a FIFO."""
        away = self.site / f"home-{MYSELF}" / "removed"
        with suppress(OSError):
            os.rename(path, away)
            if stat.S_ISDIR(away.lstat().st_mode):
                shutil.rmtree(away)
            else:
                away.unlink()


def test_files_of_another_user_are_not_opened(site: Path, memory: Path) -> None:
    dataset = site / "set"
    truth = ImageDataset(dataset)
    images, labels = truth.read(range(len(truth))), truth.labels.tolist()
    poison = Poison(dataset, site)
    # Everything is imported that the child needs, who may be unable to read it.
    marked = stage(dataset).path
    list(ImageDataset(f"file://{dataset}", cache=site / "own", remote=SMALL).read([0]))
    state, name = shutil.copytree(marked, site / "marked" / marked.name), marked.name
    state.chmod(0o755)  # the attacker copies it
    unstage(dataset)
    # The forgeries would be taken, if they were the user's own.
    poison.make_copy(own_folder(memory) / name, state)
    assert find_staged(dataset) == own_folder(memory) / name
    assert ImageDataset(dataset).labels.tolist() == [(one + 1) % CLASSES for one in labels]
    read = ImageDataset(dataset).read(range(len(images)))
    assert sum(one != other for one, other in zip(read, images, strict=True)) >= 6
    shutil.rmtree(own_folder(memory))
    os.chown(memory, MYSELF, MYSELF)

    def attacker() -> None:
        become(ANOTHER, MYSELF)
        planted = plant(poison, site, name, state)
        draw = random.Random(f"{SEED} attacker")
        while os.getppid() == parent:
            for _ in range(3_000):
                with suppress(OSError):
                    attack(planted, draw)
            for place, forgery in planted.items():  # or the victim would have no turn
                with suppress(OSError):
                    if place.is_symlink():
                        place.unlink()
                    else:
                        os.rename(place, forgery)
            time.sleep(0.03)

    def stage_first() -> None:
        become(MYSELF, MYSELF)
        stage(dataset)

    def victim() -> None:
        name_users(site, MYSELF)
        become(MYSELF, MYSELF)
        warnings.simplefilter("ignore")
        draw = random.Random(f"{SEED} victim")
        me = Victim(site, images, labels)
        shown = 0
        while me.counts["opens"] < OPENS:
            try:
                me.step(draw)
            except FastdataError as error:
                me.counts[type(error).__name__] += 1
            if OPENS > 1_000 and me.counts["opens"] // 5_000 > shown:
                shown = me.counts["opens"] // 5_000
                print(dict(me.counts), flush=True)
        (site / f"home-{MYSELF}" / "counts.json").write_text(json.dumps(me.counts))

    parent = os.getpid()
    assert ends_well(in_a_child(stage_first), 120)
    child = in_a_child(attacker)
    try:
        assert ends_well(in_a_child(victim), 120 + OPENS / 4)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it has gone on to the end
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    counts = json.loads((site / f"home-{MYSELF}" / "counts.json").read_text())
    print(counts)
    assert counts["opens"] == OPENS and counts.get("poisoned", 0) == 0
    if OPENS > 1_000:  # of few, all may have met one trick
        assert all(counts[name] > 0 for name in ("from a copy", "cached", "refused"))


#: Folders that the other user may write, and some that he may not, though it looks so.
OPEN = (
    *("a user's ACL", "a group's ACL", "an ACL above", "my ACL", "a default ACL"),
    "his primary group",
)
CLOSED = ("a masked ACL", "my own group", "a default ACL above")


@pytest.mark.parametrize("kind", OPEN + CLOSED)
def test_who_may_write_a_folder(site: Path, memory: Path, kind: str) -> None:
    dataset = site / "set"
    truth = ImageDataset(dataset).read([0])
    folder = memory / f"fastdata-{MYSELF}"
    folder.mkdir()
    memory.chmod(0o755)
    for path in (memory, folder):
        os.chown(path, MYSELF, MYSELF)
    match kind:
        case "a user's ACL":
            set_acl(folder, 2, ANOTHER)
        case "a group's ACL":
            set_acl(folder, 8, ANOTHER)
        case "an ACL above":
            set_acl(memory, 2, ANOTHER)
        case "a default ACL":
            set_acl(folder, 2, ANOTHER, default=True)
        case "my ACL":
            set_acl(folder, 2, MYSELF)
        case "a masked ACL":
            set_acl(folder, 2, ANOTHER, mask=5)
        case "a default ACL above":
            folder.rmdir()
            set_acl(memory, 2, ANOTHER, default=True)
        case _:
            folder.chmod(0o775)

    def run() -> None:
        another_s = MYSELF if kind == "his primary group" else ANOTHER
        if not name_users(site, another_s):
            (site / "may not mount").touch()
            return
        become(MYSELF, MYSELF)
        if kind in CLOSED:
            copy = stage(dataset).path
            assert ImageDataset(dataset).location == copy
            assert ImageDataset(f"file://{dataset}", cache=folder, remote=SMALL).read([0]) == truth
            return
        message = "default ACL" if kind == "a default ACL" else "can be written by others"
        with pytest.raises(UsageError, match=message):
            stage(dataset)
        if kind == "a default ACL":  # folders that are made below have none
            return
        with pytest.raises(UsageError, match=message):
            ImageDataset(f"file://{dataset}", cache=folder / "pieces", remote=SMALL)

    assert ends_well(in_a_child(run), 240)
    if (site / "may not mount").exists():
        pytest.skip("may not mount a file over /etc/passwd")
    if kind not in CLOSED:
        return

    def write() -> None:
        become(ANOTHER, ANOTHER)
        for path in (folder, *folder.rglob("*")):
            assert not os.access(path, os.W_OK), path

    assert ends_well(in_a_child(write), 240)


def test_a_folder_of_pieces_that_another_user_made_first(site: Path, memory: Path) -> None:
    """Those of a cache folder that all may write, such as ``/dev/shm``."""
    truth = ImageDataset(site / "set")
    (memory / "fastdata-pieces").mkdir()
    os.chown(memory / "fastdata-pieces", ANOTHER, ANOTHER)
    with pytest.raises(UsageError, match=f"belongs to another user .id {ANOTHER}."):
        ImageDataset(f"file://{site / 'set'}", cache=memory, remote=SMALL).read([0])
    os.chown(memory / "fastdata-pieces", 0, 0)
    far = ImageDataset(f"file://{site / 'set'}", cache=memory, remote=SMALL)
    assert far.read([0, 8]) == truth.read([0, 8])


@pytest.mark.parametrize("what", ["piece", "index"])
def test_a_cached_file_of_another_user(site: Path, memory: Path, what: str) -> None:
    """Its folder may have been open to him when he put it there."""
    dataset = site / "set"
    truth = ImageDataset(dataset)
    poison = Poison(dataset, site)

    def far() -> ImageDataset:
        return ImageDataset(f"file://{dataset}", cache=memory, remote=SMALL)

    assert far().read(range(9)) == truth.read(range(9))
    if what == "index":
        (index,) = memory.glob("set-*/_index.rows")
        forgeries = {index: poison.index}
    else:
        (folder,) = (memory / "fastdata-pieces").glob("*-*")
        poison.make_pieces(site / "pieces")
        forgeries = {folder / one.name: one.read_bytes() for one in (site / "pieces").iterdir()}
    for path, data in forgeries.items():
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)
        os.chown(path, ANOTHER, ANOTHER)
    again = far()
    assert again.labels.tolist() == truth.labels.tolist()
    assert again.read(range(9)) == truth.read(range(9))


@pytest.mark.parametrize("name", ["usage", "000000-0.piece", "000000-0.partial"])
@pytest.mark.parametrize("what", ["lock", "fifo", "link"])
def test_what_another_user_left_in_a_cache(site: Path, memory: Path, name: str, what: str) -> None:
    dataset = site / "set"
    truth = ImageDataset(dataset)

    def far() -> ImageDataset:
        return ImageDataset(f"file://{dataset}", cache=memory, remote=SMALL)

    assert far().read(range(9)) == truth.read(range(9))
    (folder,) = (memory / "fastdata-pieces").glob("*-*")
    path = folder.parent / name if name == "usage" else folder / name
    for piece in folder.glob("*.piece"):
        piece.unlink()
    path.unlink(missing_ok=True)
    if what == "fifo":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to(site / "set" / "_dataset.json")
    else:
        path.touch(0o666)
    before = (site / "set" / "_dataset.json").read_bytes()
    os.chown(path, ANOTHER, ANOTHER, follow_symlinks=False)
    os.utime(path, (0, 0), follow_symlinks=False)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert far().read(range(9)) == truth.read(range(9))
    finally:
        os.close(descriptor)
    assert (site / "set" / "_dataset.json").read_bytes() == before
    assert name == "000000-0.partial" or path.lstat().st_uid == 0
