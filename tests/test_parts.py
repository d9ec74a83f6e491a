"""An index of many parts: read as one dataset, and extended without a change to older parts."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from fastdata.converters import index as index_with
from hangs import HANG
from hypothesis import given
from hypothesis import strategies as st
from object_stores import Bucket
from sources import jpeg, require_said

from fastdata import Cache, DataLoader, ImageDataset
from fastdata import verify as verify_with
from fastdata.cli import cli
from fastdata.errors import CorruptionError, DatasetError, SourceError, UsageError
from fastdata.remote.filesystem import upload
from fastdata.remote.options import RemoteOptions
from fastdata.remote.urls import is_url
from fastdata.samplers import QuasiRandom
from fastdata.storage.joined import JoinedSource
from fastdata.storage.source import Blob, Rows, Source
from fastdata.transforms import RandomResizedCrop

EACH = 5
#: In this process: starting others takes longer than the work.
index, verify = partial(index_with, workers=1), partial(verify_with, workers=1)
Members = dict[str, dict[str, bytes]]


def run(command: str, *arguments: object) -> Result:
    few = [] if command in ("info", "stage") else ["--workers", "1"]
    return CliRunner().invoke(cli, [command, *few, *(str(argument) for argument in arguments)])


def write_tar(path: Path, number: int, **more: bytes) -> Members:
    """Write a shard of `EACH` samples by tarfile; return the members of each key."""
    found = {}
    with tarfile.open(path, "w") as tar:
        for at in range(number * EACH, (number + 1) * EACH):
            members = {"jpg": jpeg(at), "cls": b"%d" % (at % 7), "txt": f"text {at} é".encode()}
            found[f"{at:05}"] = members = members | more
            for extension, content in members.items():
                info = tarfile.TarInfo(f"{at:05}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return found


def write_tars(folder: Path, numbers: range) -> Members:
    folder.mkdir(exist_ok=True)
    found: Members = {}
    for number in numbers:
        found |= write_tar(folder / f"{number:04}.tar", number)
    return found


@pytest.fixture
def tars(tmp_path: Path) -> tuple[Path, Members]:
    return tmp_path / "tars", write_tars(tmp_path / "tars", range(7))


def assert_all(dataset: ImageDataset, expected: Members) -> None:
    assert len(dataset) == len(expected)
    assert [dataset.row(n).key for n in range(len(dataset))] == list(expected)
    assert dataset.read(range(len(dataset))) == [one["jpg"] for one in expected.values()]
    assert dataset.targets == [int(one["cls"]) for one in expected.values()]
    texts = [one["txt"].decode() for one in expected.values()]
    assert dataset.column("txt").to_pylist() == texts
    # One by one, against the order of parts.
    loader = DataLoader(ImageDataset(dataset.path, fields=("txt", "label"), **options(dataset)), 1)
    assert [text for (text,), _ in loader] == texts


def options(dataset: ImageDataset) -> dict[str, Any]:
    given = dataset._storage_options
    return {} if given is None else {"storage_options": given}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("order", ["random", QuasiRandom(window=1)])
def test_samples_and_order_are_those_of_one_part(
    tars: Any, tmp_path: Path, order: Any, threads: int
) -> None:
    root, expected = tars
    index(root, tmp_path / "one")
    index(root, tmp_path / "many", part_files=2)
    assert len(list((tmp_path / "many").glob("part-*"))) == 4
    assert "4 parts" in repr(ImageDataset(tmp_path / "many"))
    assert_all(ImageDataset(tmp_path / "many"), expected)
    loaders = [
        DataLoader(
            ImageDataset(
                tmp_path / name,
                transform=RandomResizedCrop(16),
                fields=("image", "label", "txt", "key"),
            ),
            6, shuffle=True, order=order, seed=3, num_workers=threads, require_native=True,
        )
        for name in ("one", "many")
    ]  # fmt: skip
    for _ in range(2):
        keys = []
        for one, many in zip(*loaders, strict=True):
            assert torch.equal(one[0], many[0])
            assert torch.equal(one[1], many[1])
            assert one[2:] == many[2:]
            keys += many[3]
        assert sorted(keys) == list(expected)


def test_every_sample_once_over_ranks_and_a_resumed_epoch(tars: Any, tmp_path: Path) -> None:
    root, expected = tars
    index(root, tmp_path / "many", part_files=2)

    def loader(rank: int, world: int, fields: Any = ("key",)) -> Any:
        data = ImageDataset(tmp_path / "many", fields=fields)
        return DataLoader(data, 4, shuffle=True, seed=5, shard=(rank, world))

    first = [loader(rank, 2) for rank in range(2)]
    seen: list[str] = []
    for one in first:
        batches = iter(one)
        seen += next(batches)[0] + next(batches)[0]
    state = first[0].state_dict()
    for rank in range(3):  # the rest on another number of ranks
        rest = loader(rank, 3)
        rest.load_state_dict(state)
        seen += [key for (keys,) in rest for key in keys]
    assert set(seen) == set(expected)
    assert len(seen) - len(expected) < 3  # what fills up the last batch


def test_an_index_grows_by_parts_and_keeps_its_row_numbers(tars: Any, tmp_path: Path) -> None:
    root, expected = tars
    out = tmp_path / "out"
    index(root, out, part_files=3)
    before, pickled = contents(out), pickle.dumps(ImageDataset(out))
    # A new tar whose name sorts before the others still comes after them.
    added = write_tar(root / "0000-more.tar", 100)
    require_said(run("index", root, "--out", out, "--part-files", 3), 2, "1 file of", "--append")
    assert contents(out) == before
    said = run("index", root, "--out", out, "--append")
    require_said(said, 0)
    assert "indexed 5 in" in said.output
    assert_all(ImageDataset(out), expected | added)
    kept = pickle.loads(pickled)  # in a worker, it is what was opened
    assert kept.read(range(len(kept))) == [one["jpg"] for one in expected.values()]
    after = contents(out)
    assert {name for name in before if after[name] != before[name]} == {"_dataset.json"}
    new = {name.partition("/")[0] for name in after.keys() - before.keys()}
    assert new == {"part-000003"}
    assert "already indexed" in run("index", root, "--out", out, "--append").output
    assert contents(out) == after
    assert verify(out).problems == []
    require_said(run("index", root, "--out", out, "--force", "--part-files", 4), 0)
    assert len(list(out.glob("part-*"))) == 2
    assert sorted(ImageDataset(out, fields=("key",))) == sorted((key,) for key in expected | added)


def test_a_dataset_of_one_becomes_the_first_part(tars: Any, tmp_path: Path) -> None:
    root, expected = tars
    out = tmp_path / "out"
    require_said(run("index", root, "--out", out), 0)
    held = ImageDataset(out)  # goes on reading what it has opened
    expected |= write_tars(root, range(7, 9))
    require_said(run("index", root, "--out", out, "--append", "--seek-points"), 0)
    assert held.read([3]) == [expected["00003"]["jpg"]]
    assert_all(ImageDataset(out), expected)
    # Seek points are each part's own.
    require_said(run("seek-points", out), 1, "several parts", "part-000000")
    require_said(run("seek-points", out / "part-000000"), 0)
    data = ImageDataset(out, transform=RandomResizedCrop(8))
    loader = DataLoader(data, 9, require_native=True)
    list(loader)
    assert loader.stats().with_seek_points == len(expected)
    said = json.loads(run("info", "--json", out).output)
    assert (said["samples"], len(said["parts"])) == (len(expected), 2)
    assert "9 files in 2 parts" in run("info", out).output
    require_said(run("stage", out), 1, "several parts")


BROKEN = {
    "missing": (lambda part: shutil.rmtree(part), "no such folder"),
    "without its index": (lambda part: (part / "_index.rows").unlink(), "No such file"),
    "cut short": (lambda part: os.truncate(part / "_index.rows", 200), "cut short"),
    "damaged": (lambda part: _replace(part / "_dataset.json", b'"samples": 10', b'"samples": 11'),
                "checksum"),
}  # fmt: skip


def _replace(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_part_is_named_and_others_are_read(tars: Any, tmp_path: Path, name: str) -> None:
    root, expected = tars
    out = tmp_path / "out"
    index(root, out, part_files=2)
    breaks, why = BROKEN[name]
    breaks(out / "part-000001")
    dataset = ImageDataset(out, transform=RandomResizedCrop(8))
    images = [one["jpg"] for one in expected.values()]
    assert dataset.read([0, 34]) == [images[0], images[34]]
    for read in (lambda: dataset.read([12]), lambda: list(DataLoader(dataset, 5, shuffle=True))):
        with pytest.raises(DatasetError, match=rf"part-000001.*{why}"):
            read()
    (problem,) = verify(out).problems
    assert "part-000001" in problem.where
    said = run("verify", out)
    require_said(said, 1, "1 problem")
    assert "part-000001" in said.stdout


def test_a_part_that_was_indexed_again_is_refused(tars: Any, tmp_path: Path) -> None:
    root, _ = tars
    out = tmp_path / "out"
    index(root, out, part_files=2)
    index(root / "{0000,0001}.tar", tmp_path / "other")
    for source, why in ((root / "0005.tar", "5 samples"), (root / "{0003,0002}.tar", "again")):
        index(source, out / "part-000001", force=True)
        with pytest.raises(CorruptionError, match=rf"part-000001: this part .*{why}"):
            ImageDataset(out).read([10])
        (problem,) = verify(out).problems
        assert why in problem.what
    (out / "_dataset.json").write_bytes((out / "_dataset.json").read_bytes().replace(b"7", b"8"))
    with pytest.raises(CorruptionError, match="checksum"):
        ImageDataset(out)


def test_damaged_samples_are_named_with_their_part(tars: Any, tmp_path: Path) -> None:
    root, _ = tars
    out = tmp_path / "out"
    index(root, out, part_files=2)
    path, data = root / "0003.tar", bytearray((root / "0003.tar").read_bytes())
    data[ImageDataset(out).row(17).offset + 30] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"part-000001: sample 7 \(00017\).*0003\.tar"):
        list(DataLoader(ImageDataset(out, transform=RandomResizedCrop(8)), 5))
    assert [problem.where for problem in verify(out).problems] == ["part-000001: sample 7 (00017)"]


def test_parts_that_do_not_fit_are_refused(tars: Any, tmp_path: Path) -> None:
    root, expected = tars
    out = tmp_path / "out"
    index(root, out, part_files=4)
    before = contents(out)
    other = tmp_path / "other"
    other.mkdir()
    with tarfile.open(other / "a.tar", "w") as tar:
        info = tarfile.TarInfo("x.jpg")
        info.size = len(jpeg(0))
        tar.addfile(info, io.BytesIO(jpeg(0)))
    with pytest.raises(UsageError, match=r"part-000002: this part has other fields.*label, txt"):
        index(other, out, append=True)
    assert contents(out).items() >= before.items()
    assert_all(ImageDataset(out), expected)
    # The next run replaces what the refused one has left.
    (other / "a.tar").unlink()
    more = write_tar(other / "b.tar", 50, **{"extra.bin": b"more"})
    with pytest.warns(UserWarning, match=r"b\.tar .*left out: extra\.bin"):
        index(other, out, append=True)
    assert_all(ImageDataset(out), expected | more)
    write_tar(root / "0001.tar", 1, txt=bytes(5000))
    with pytest.raises(SourceError, match=r"0001\.tar: has .* bytes, and had"):
        index(root, out, append=True)
    with pytest.raises(UsageError, match="only tars"):
        index(tmp_path / "cache", out, kind="imagefolder", append=True)
    with pytest.raises(UsageError, match="--part-files 0"):
        index(root, tmp_path / "none", part_files=0)


def test_classes_of_all_parts(tmp_path: Path) -> None:
    root, out = tmp_path / "tars", tmp_path / "out"
    root.mkdir()

    def write(number: int, label: int, name: str) -> None:
        about = json.dumps({"label": label, "class": name}).encode()
        with tarfile.open(root / f"{number}.tar", "w") as tar:
            for at in range(number * EACH, (number + 1) * EACH):
                for extension, data in (("jpg", jpeg(at)), ("json", about)):
                    info = tarfile.TarInfo(f"{at:05}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))

    write(0, 0, "ant")
    index(root, out, append=True)
    assert ImageDataset(out).classes == ["ant"]
    write(1, 2, "cow")
    write(2, 1, "bee")
    index(root, out, append=True, part_files=1)
    assert ImageDataset(out).classes == ["ant", "bee", "cow"]
    assert ImageDataset(out).targets == [0] * EACH + [2] * EACH + [1] * EACH
    write(3, 1, "bat")
    with pytest.raises(UsageError, match="names class 1 'bat', the other parts 'bee'"):
        index(root, out, append=True)


_MANY_PARTS = """
import os, resource, sys
import numpy as np
from fastdata import DataLoader, ImageDataset
from fastdata.transforms import RandomResizedCrop

resource.setrlimit(resource.RLIMIT_NOFILE, (120, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
data = ImageDataset(sys.argv[1], transform=RandomResizedCrop(8), fields=("image", "txt", "index"))
loader = DataLoader(data, 4, shuffle=True, num_workers=2, require_native=True)
seen, most = [], 0
for _ in range(2):
    for images, texts, numbers in loader:
        seen += numbers.tolist()
        most = max(most, len(os.listdir("/proc/self/fd")))
assert sorted(seen) == sorted(2 * list(range(len(data))))
print(most)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_few_parts_are_open_at_a_time(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars", range(40))
    index(tmp_path / "tars", tmp_path / "out", part_files=1)
    done = subprocess.run(
        [sys.executable, "-c", _MANY_PARTS, tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100


# Ends the process before its n-th step that changes what is on the disk, for every n.
_KILLED = """
import os, shutil, sys, traceback
from pathlib import Path

from fastdata import ImageDataset
from fastdata.converters import index

tars, first, folder, append = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
KILLED = 9


def index_until(step, out):
    taken = 0

    def counted(function):
        def call(*args, **options):
            nonlocal taken
            if taken == step:
                os._exit(KILLED)
            taken += 1
            return function(*args, **options)

        return call

    # A kill of the process alone loses nothing that was written.
    os.fsync = counted(lambda descriptor: None)
    os.replace, os.unlink = map(counted, (os.replace, os.unlink))
    os.mkdir, os.rmdir, os.link = map(counted, (os.mkdir, os.rmdir, os.link))
    index(tars, out, append=append == "append", part_files=1, workers=1)


def in_a_child(step, out):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            index_until(step, out)
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def samples(out):
    data = ImageDataset(out)
    return [(data.row(n).key, data.read([n])) for n in range(len(data))]


def copied(out):
    if append == "append":
        shutil.copytree(first, out)
    return out


def files(out):
    found = [path for path in out.rglob("*") if path.is_file()]
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


index(tars, folder / "warm", workers=1)  # imports what children would each import
assert in_a_child(-1, copied(folder / "whole")) == 0
expected, step = samples(folder / "whole"), 0
old = samples(first)
while True:
    out = copied(folder / f"out-{step}")
    status = in_a_child(step, out)
    if status == 0:
        break
    assert status == KILLED, (step, status)
    if append == "append":
        assert samples(out) in (old, expected), step
    else:
        assert not (out / "_dataset.json").exists() or samples(out) == expected, step
    assert in_a_child(-1, out) == 0, step
    whole = files(folder / "whole")
    assert files(out) == whole, (step, files(out).keys() ^ whole.keys())
    shutil.rmtree(out)
    step += 1
print(step)
"""


@pytest.mark.parametrize("start", ["parts", "one", "nothing"])
def test_killed_before_every_step(tmp_path: Path, start: str) -> None:
    root, first = tmp_path / "tars", tmp_path / "first"
    write_tars(root, range(1))
    index(root, first, append=start == "parts")
    write_tars(root, range(1, 3))
    append = "no" if start == "nothing" else "append"
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, root, first, tmp_path, append],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def test_finished_parts_of_an_interrupted_run_are_kept(
    tars: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, expected = tars
    out = tmp_path / "out"
    data = (root / "0006.tar").read_bytes()
    (root / "0006.tar").write_bytes(b"no tar" * 2000)
    with pytest.raises(SourceError, match=r"0006\.tar"):
        index(root, out, part_files=2)
    with pytest.raises(DatasetError, match="not finished"):
        ImageDataset(out)
    made = {path: path.stat().st_mtime_ns for path in out.glob("part-*/*")}
    assert len(made) >= 9
    (root / "0006.tar").write_bytes(data)
    require_said(run("index", root, "--out", out, "--part-files", 2), 0)
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert_all(ImageDataset(out), expected)


def test_parts_in_a_bucket(tars: Any, tmp_path: Path, gcs: Bucket) -> None:
    root, expected = tars

    def send(paths: Any) -> None:
        for path in paths:
            upload(path, f"{gcs.url}/tars/{path.name}", storage_options=gcs.storage_options)

    send(root.iterdir())
    given = {"storage_options": gcs.storage_options}
    shuffled = {"shuffle": True, "seed": 1, "num_workers": 2, "require_native": True}
    outs = [tmp_path / "here", f"{gcs.url}/there"]
    for out in outs:
        index(f"{gcs.url}/tars", out, part_files=3, **given)
        assert_all(ImageDataset(out, **given), expected)
    expected |= write_tars(root, range(7, 9))
    send([root / "0007.tar", root / "0008.tar"])
    for out in outs:
        require_said(run("index", f"{gcs.url}/tars", "--out", out, "--append", *gcs.arguments), 0)
        assert_all(ImageDataset(out, **given), expected)
        folder = tmp_path / f"cache-{len(str(out))}"
        small = Cache(folder, 4 << 12)
        for cache in (None, small):
            dataset = ImageDataset(
                out,
                transform=RandomResizedCrop(16),
                fields=("image", "txt"),
                cache=cache,
                remote=RemoteOptions(piece_bytes=1 << 12),
                **given,
            )
            assert dataset.is_remote
            loader = DataLoader(dataset, 8, **shuffled)
            for _ in range(2):
                found = list(loader)
            texts = [text for _, several in found for text in several]
            assert sorted(texts) == sorted(one["txt"].decode() for one in expected.values())
        assert loader.stats().remote.refetched == 0
        pieces = list(folder.glob("fastdata-pieces/*/*.piece"))
        assert 0 < sum(piece.stat().st_size for piece in pieces) <= 4 << 12
        require_said(run("verify", out, *gcs.arguments), 0)
        said = json.loads(run("info", "--json", out, *gcs.arguments * is_url(out)).output)
        assert len(said["parts"]) == 4
    # The same crops as from the tars on a disk.
    index(root, tmp_path / "local")
    local = ImageDataset(
        tmp_path / "local", transform=RandomResizedCrop(16), fields=("image", "txt")
    )
    again = DataLoader(local, 8, shuffle=True, seed=1, num_workers=2)
    list(again)
    for (one, texts), (other, others) in zip(found, again, strict=True):
        assert texts == others
        assert torch.equal(one, other)


class _Numbers(Source):
    """Rows of numbers, which are their keys and labels."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = np.array(numbers, np.int64)

    classes = ()

    def __len__(self) -> int:
        return len(self._numbers)

    def key(self, row: int) -> str:
        return str(self._numbers[row])

    def encoded(self, row: int, field: str = "image", data: bytes | None = None) -> Blob:
        return Blob(str(self._numbers[row]).encode())

    def column(self, field: str, rows: Rows | None = None) -> Any:
        return self._numbers if rows is None else self._numbers[rows]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.data())
def test_numbers_are_those_of_the_parts_one_after_the_other(sizes: list[int], data: Any) -> None:
    made = iter(range(sum(sizes)))
    parts = [[next(made) * 7 for _ in range(size)] for size in sizes]
    expected = list(chain(*parts))
    joined = JoinedSource.of([_Numbers(part) for part in parts])
    assert len(joined) == len(expected)
    assert joined.column("label").tolist() == expected
    if not expected:
        return
    rows = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=12))
    wanted = [expected[row] for row in rows]
    array = np.array(rows, np.int64)
    assert [int(joined.key(row)) for row in rows] == wanted
    if rows:
        assert joined.column("label", array).tolist() == wanted
    gathered = joined.gather(array, ("image", "label"))
    assert gathered.columns["label"].tolist() == wanted
    extents = gathered.blobs["image"].extents
    assert [int(extents.read(slot)) for slot in range(len(rows))] == wanted
