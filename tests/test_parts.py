"""An index of many parts: read as one dataset, and extended without a change to older parts."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from fastdata.converters import index as index_with
from hangs import HANG
from object_stores import Bucket
from sources import contents, jpeg, require_said, tar_bytes
from sources import run as run_plainly
from tiers import slow

from fastdata import Cache, DataLoader, ImageDataset
from fastdata import verify as verify_with
from fastdata.errors import CorruptionError, DatasetError, SourceError, UsageError
from fastdata.remote.filesystem import upload
from fastdata.remote.options import RemoteOptions
from fastdata.remote.urls import is_url
from fastdata.samplers import QuasiRandom
from fastdata.transforms import RandomResizedCrop

EACH = 5
#: In this process: starting others takes longer than the work.
index, verify = partial(index_with, workers=1), partial(verify_with, workers=1)
Members = dict[str, dict[str, bytes]]


def run(command: str, *arguments: object) -> Result:
    few = [] if command in ("info", "stage") else ["--workers", "1"]
    return run_plainly(command, *few, *arguments)


def write_tar(path: Path, number: int, **more: bytes) -> Members:
    found: Members = {}
    for at in range(number * EACH, (number + 1) * EACH):
        members = {"jpg": jpeg(at), "cls": b"%d" % (at % 7), "txt": f"text {at} é".encode()}
        found[f"{at:05}"] = members | more
    path.write_bytes(tar_of(found))
    return found


def tar_of(samples: Members) -> bytes:
    return tar_bytes(
        (f"{key}.{e}", data) for key, one in samples.items() for e, data in one.items()
    )


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
    assert [text for batch in loader for text in batch["txt"]] == texts


def options(dataset: ImageDataset) -> dict[str, Any]:
    given = dataset._place.storage_options
    return {} if given is None else {"storage_options": given}


@pytest.mark.parametrize(
    ("order", "threads"), [("random", 2), slow(QuasiRandom(window=1), 0), slow("random", 0)]
)
def test_samples_and_order(tars: Any, tmp_path: Path, order: Any, threads: int) -> None:
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
            assert torch.equal(one["image"], many["image"])
            assert torch.equal(one["label"], many["label"])
            assert (one["txt"], one["key"]) == (many["txt"], many["key"])
            keys += many["key"]
        assert sorted(keys) == list(expected)


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
    keys = [sample["key"] for sample in ImageDataset(out, fields=("key",))]
    assert sorted(keys) == sorted(expected | added)


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


def test_parts_that_do_not_fit_are_refused(tars: Any, tmp_path: Path) -> None:
    root, expected = tars
    out = tmp_path / "out"
    index(root, out, part_files=4)
    before = contents(out)
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.tar").write_bytes(tar_bytes([("x.jpg", jpeg(0))]))
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
        keys = range(number * EACH, (number + 1) * EACH)
        samples = {f"{at:05}": {"jpg": jpeg(at), "json": about} for at in keys}
        (root / f"{number}.tar").write_bytes(tar_of(samples))

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


def test_few_parts_are_open_at_a_time(tmp_path: Path, limited: Callable[[int], None]) -> None:
    write_tars(tmp_path / "tars", range(40))
    index(tmp_path / "tars", tmp_path / "out", part_files=1)
    fields = ("image", "txt", "index")
    data = ImageDataset(tmp_path / "out", transform=RandomResizedCrop(8), fields=fields)
    loader = DataLoader(data, 4, shuffle=True, num_workers=2, require_native=True)
    limited(len(os.listdir("/proc/self/fd")) + 80)
    for _ in range(2):
        assert sorted(n for batch in loader for n in batch["index"].tolist()) == [*range(200)]


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


@pytest.mark.slow
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


def test_parts_in_a_bucket(tars: Any, tmp_path: Path, gcs: Bucket) -> None:
    root, expected = tars

    def send(paths: Any) -> None:
        for path in paths:
            upload(path, f"{gcs.url}/tars/{path.name}", storage_options=gcs.storage_options)

    send(root.iterdir())
    given = {"storage_options": gcs.storage_options}
    outs = [tmp_path / "here", f"{gcs.url}/there"]
    for out in outs:
        index(f"{gcs.url}/tars", out, part_files=3, **given)
    expected |= write_tars(root, range(7, 9))
    send([root / "0007.tar", root / "0008.tar"])
    index(root, tmp_path / "local")
    steps: dict[str, Any] = {"transform": RandomResizedCrop(16), "fields": ("image", "txt")}
    shuffled: dict[str, Any] = {"shuffle": True, "seed": 1, "num_workers": 2, "order": "random"}
    same_crops = list(DataLoader(ImageDataset(tmp_path / "local", **steps), 8, **shuffled))
    for out in outs:
        require_said(run("index", f"{gcs.url}/tars", "--out", out, "--append", *gcs.arguments), 0)
        assert_all(ImageDataset(out, **given), expected)
        folder = tmp_path / f"cache-{len(str(out))}"
        for cache in (None, Cache(folder, 4 << 12)):
            small = RemoteOptions(piece_bytes=1 << 12)
            dataset = ImageDataset(out, **steps, cache=cache, remote=small, **given)
            assert dataset.is_remote
            loader = DataLoader(dataset, 8, require_native=True, **shuffled)
            for one, other in zip(loader, same_crops, strict=True):
                assert one["txt"] == other["txt"] and torch.equal(one["image"], other["image"])
        assert loader.stats().remote.refetched == 0
        pieces = list(folder.glob("fastdata-pieces/*/*.piece"))
        assert 0 < sum(piece.stat().st_size for piece in pieces) <= 4 << 12
        require_said(run("verify", out, *gcs.arguments), 0)
        said = json.loads(run("info", "--json", out, *gcs.arguments * is_url(out)).output)
        assert len(said["parts"]) == 4
