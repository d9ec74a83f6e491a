"""Staging: copies are whole and current or absent, whatever kills, fills or damages."""

from __future__ import annotations

import grp
import json
import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from containers import edit_manifest, load_manifest, pack_tree
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.options import PackOptions
from fastdata.converters.packing import pack
from fastdata.converters.table import TableImages
from hangs import HANG
from PIL import Image
from test_fields_storage import BLOBS, as_files
from tiers import slow

from fastdata.cli.commands import cli
from fastdata.dataset import ImageDataset
from fastdata.errors import (
    BusyError,
    CorruptionError,
    DataError,
    DatasetError,
    SpaceError,
    UsageError,
)
from fastdata.maintenance.verify import verify
from fastdata.staging import copying
from fastdata.staging.stage import stage, unstage
from fastdata.staging.staged import MARKER_NAME, find_staged, own_folder
from fastdata.storage import cache, files
from fastdata.storage.files import crc32c_file
from fastdata.storage.index import Index
from fastdata.storage.manifest import MANIFEST_NAME, FileEntry, Manifest
from fastdata.storage.records import INDEX_NAME, Row, rows_to_batch, write_index

CLASSES, IMAGES = 2, 12


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for number in range(IMAGES):
        folder = root / f"class{number % CLASSES}"
        folder.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d} ü.jpg", quality=90)
    return root


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setenv("FASTDATA_STAGE_ROOT", str(folder))
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(copying, "_BLOCK", 1000)
    return folder


@pytest.fixture
def make(tree: Path, tmp_path: Path) -> Callable[[str], Path]:
    def packed(container: str = "shards") -> Path:
        root = tmp_path / "tree"
        shutil.copytree(tree, root, dirs_exist_ok=True)
        size = 9000 if container in ("parquet", "shards") else None
        out = tmp_path / f"set-{container}"
        pack(
            ImageFolder(root),
            out,
            container=container,
            options=PackOptions(shard_size=size),
            workers=1,
        )
        return out

    return packed


@pytest.fixture(params=["lmdb", "folder", slow("shards")])
def dataset(request: pytest.FixtureRequest, make: Callable[[str], Path]) -> Path:
    return make(request.param)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_whole(copy: Path, original: Path) -> None:
    """The copy holds the original's files, and reads the same without the original."""
    expected, found = contents(original), contents(copy)
    expected.pop(".huggingface.yaml", None)  # for those who read the files without fastdata
    marker = json.loads(found.pop(MARKER_NAME))
    assert marker["original"] == str(original)
    images = {name: found.pop(name) for name in list(found) if name.startswith("images/")}
    manifest = Manifest.load(original)
    if manifest.root is not None:
        root = original / manifest.root
        assert images == {f"images/{name}": data for name, data in contents(root).items()}
        assert Manifest.load(copy) == replace(manifest, root="images")
        del found[MANIFEST_NAME], expected[MANIFEST_NAME]
    assert found == expected
    assert len(ImageDataset(copy).read(range(IMAGES))) == IMAGES


def repack(dataset: Path) -> None:
    """Makes the manifest another one, as packing with other options would."""
    manifest = Manifest.load(dataset)
    changed = replace(manifest, options={**manifest.options, "again": True})
    (dataset / MANIFEST_NAME).write_text(changed.to_json(), "utf-8")


def allocated(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


# What another process runs. STOP names a function that is replaced by one that calls `at`
# with the number of the call, so that a process can be killed at an exact moment.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from fastdata.staging import copying
from fastdata.staging import staged
from fastdata.staging import stage as staging

copying._BLOCK = 1000

def hook(module, name, at):
    calls, real = [], getattr(module, name)
    def hooked(*arguments):
        calls.append(1)
        at(len(calls))
        return real(*arguments)
    setattr(module, name, hooked)

def kill(number):
    def at(call):
        if call == number:
            os.kill(os.getpid(), signal.SIGKILL)
    return at

def slowly(call):
    os.write(1, b"writing\\n")  # in one piece, whatever the other threads write
    time.sleep(PAUSE)

PAUSE = 0.02
{hooks}
staged = staging.stage(Path(sys.argv[1]))
print("reused" if staged.reused else "copied", flush=True)
"""


def start(dataset: Path, hooks: str) -> subprocess.Popen[str]:
    script = SCRIPT.replace("{hooks}", textwrap.dedent(hooks))
    return subprocess.Popen(
        [sys.executable, "-c", script, str(dataset)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_copy_is_equal_and_found(dataset: Path, place: Path) -> None:
    reports: list[tuple[int, int]] = []
    (dataset / "_bad-samples.jsonl").write_text('{"key": "a"}\n')
    staged = stage(dataset, progress=lambda done, total: reports.append((done, total)))
    assert (staged.reused, staged.freed_bytes) == (False, 0)
    assert staged.path.parent == own_folder(place)
    assert_whole(staged.path, dataset)
    assert reports[-1] == (staged.copied_bytes, staged.copied_bytes)
    assert [path.name for path in staged.path.parent.iterdir()] == [staged.path.name]
    assert find_staged(dataset) == staged.path
    assert find_staged(staged.path) is None
    assert ImageDataset(dataset).location == staged.path
    assert stage(dataset) == (staged.path, 0, True, 0)


def test_links_relative_paths_and_text(
    make: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make("lmdb")
    (tmp_path / "link").symlink_to(dataset)
    copy = stage(str(tmp_path / "link"), str(tmp_path / "nvme")).path
    monkeypatch.chdir(tmp_path)
    assert find_staged("link") is None  # it looks in the default place alone
    assert stage("link", "nvme") == (copy, 0, True, 0)
    assert ImageDataset(copy).read([0]) == ImageDataset(dataset).read([0])
    monkeypatch.setenv("FASTDATA_STAGE_ROOT", "nvme")
    assert find_staged(Path("link")) == find_staged(dataset.name) == copy
    assert unstage(str(dataset), str(tmp_path / "nvme")).paths == [copy]


def test_repacked_dataset_never_gets_the_old_copy(dataset: Path, tmp_path: Path) -> None:
    size = allocated(stage(dataset).path)
    other = tmp_path / "other" / dataset.name
    shutil.copytree(dataset, other)
    shutil.copytree(tmp_path / "tree", tmp_path / "other" / "tree")
    edit_manifest(other, lambda fields: fields.update(later=[1]))
    of_other = stage(other)  # of the same name, and yet another dataset
    assert of_other.freed_bytes == 0
    repack(dataset)
    assert find_staged(dataset) is None
    staged = stage(dataset)
    assert (staged.reused, staged.freed_bytes) == (False, size)
    assert_whole(staged.path, dataset)
    unstage(dataset)
    assert find_staged(other) == of_other.path


def test_wrong_arguments(make: Callable[[str], Path], tmp_path: Path) -> None:
    dataset = make("lmdb")
    with pytest.raises(UsageError, match="--to gs://bucket/copy is a URL"):
        stage(dataset, "gs://bucket/copy")
    with pytest.raises(DataError, match="--to"):
        stage(dataset, tmp_path / "missing" / "deep")
    with pytest.raises(DatasetError, match="no such folder"):
        stage(tmp_path / "nothing")
    with pytest.raises(UsageError, match="itself a staged copy"):
        stage(stage(dataset).path)
    for inside in (dataset, dataset / "copy"):
        with pytest.raises(UsageError, match="lies inside the dataset"):
            stage(dataset, inside)
    assert find_staged(tmp_path / "nothing") is None


@pytest.mark.parametrize("spoil", ["marker", "manifest", "id", "symlink", "folder"])
def test_what_is_not_whole_is_not_found(
    make: Callable[[str], Path], tmp_path: Path, spoil: str
) -> None:
    dataset = make("lmdb")
    copy = stage(dataset).path
    if spoil == "folder":  # the link's owner could point it elsewhere
        copy.parent.rename(tmp_path / "elsewhere")
        copy.parent.symlink_to(tmp_path / "elsewhere")
    elif spoil == "symlink":
        copy.rename(tmp_path / "elsewhere")
        copy.symlink_to(tmp_path / "elsewhere")
    elif spoil == "id":
        marker = json.loads((copy / MARKER_NAME).read_text())
        marker["id"] = marker["id"][:-1] + ("0" if marker["id"][-1] != "0" else "1")
        (copy / MARKER_NAME).write_text(json.dumps(marker))
    else:
        (copy / (MARKER_NAME if spoil == "marker" else MANIFEST_NAME)).unlink()
    assert find_staged(dataset) is None


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (INDEX_NAME, "cut"),
        (MANIFEST_NAME, "flip"),
        ("data.mdb", "grow"),
        ("data.mdb", "remove"),
        ("data.mdb", "folder"),
    ],
)
def test_damaged_copy_is_named_and_passed_over(
    make: Callable[[str], Path], name: str, damage: str
) -> None:
    dataset = make("lmdb")
    copy = stage(dataset).path
    path = copy / name
    data = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "remove":
        bad = {"cut": data[:-1], "grow": data + b"x", "flip": data.replace(b"class1", b"class9")}
        path.write_bytes(bad[damage])
    with pytest.warns(UserWarning, match="this staged copy is damaged") as caught:
        opened = ImageDataset(dataset)
    (warning,) = caught
    assert warning.filename == __file__
    assert all(one in str(warning.message) for one in (str(copy), path.name, str(dataset)))
    assert opened.location == dataset
    assert len(opened.read(range(IMAGES))) == IMAGES
    if damage != "folder":
        assert not stage(dataset).reused
        assert find_staged(dataset) == copy


@pytest.mark.parametrize("part", ["blob", "index"])
def test_errors_of_a_copy_say_that_it_is_one(
    dataset: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = stage(dataset).path
    path = blob_file(copy) if part == "blob" else copy / INDEX_NAME
    data = path.read_bytes()
    path.write_bytes(bytes(byte ^ 0x55 for byte in data))
    for folder in (dataset, copy):
        for use in (list, lambda opened: opened.read(range(IMAGES))):
            with pytest.raises(CorruptionError) as caught:
                use(ImageDataset(folder))
            for wanted in (f"copy of {dataset}", f"fastdata stage {dataset} --unstage"):
                assert caught.value.hint.count(wanted) == 1
    assert verify(dataset, workers=1).problems == []
    unstage(dataset)
    original = blob_file(dataset)
    original.write_bytes(original.read_bytes()[:-1])
    with pytest.raises(CorruptionError) as caught:
        ImageDataset(dataset).read(range(IMAGES))
    assert "staged" not in str(caught.value)


def test_fields_of_a_later_fastdata_are_copied(make: Callable[[str], Path]) -> None:
    dataset = make("folder")
    edit_manifest(dataset, lambda fields: fields.update(later=[1]))
    fields, copied = load_manifest(dataset), load_manifest(stage(dataset).path)
    assert fields.pop("checksum") != copied.pop("checksum")
    assert copied == {**fields, "root": "images"} and copied["later"] == [1]


@pytest.mark.parametrize(
    ("container", "behind_url"),
    [
        slow("folder", False),
        ("folder", True),
        slow("shards", True),
    ],
)
def test_further_fields_are_copied(
    tmp_path: Path, web: str, container: str, behind_url: bool
) -> None:
    """Also the blobs of a `folder`, each of which is a file."""
    names = ("text", "boxes", *BLOBS)
    table = as_files(tmp_path / "web" / "files").select(["key", "path", *names])
    path = tmp_path / "web" / "set"
    meanings: dict[str, Any] = {"masks": ["second"], "formats": {"boxes": "xywh"}}
    pack_tree(
        TableImages(table, tmp_path / "web" / "files", files=["raw"], **meanings), path, container
    )
    if container == "folder":
        edit_manifest(path, lambda manifest: manifest.update(root="../files"))

    def rows(where: Path | str) -> list[Any]:
        dataset = ImageDataset(where, fields=("image", "key", *names))
        fields = [(field.kind, field.format) for field in dataset.source.fields]
        return [fields, [[np.asarray(one).tolist() for one in sample] for sample in dataset]]

    expected = rows(path)
    copy = stage(f"{web}/set" if behind_url else path).path
    (tmp_path / "web").rename(tmp_path / "gone")
    assert rows(copy) == expected
    assert verify(copy, workers=1).problems == []


ANOTHER, MYSELF = 4242, 4343


def become(user: int) -> None:
    os.seteuid(0)
    os.seteuid(user)


@pytest.fixture
def shared(make: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for all users, as /dev/shm is, and the default; with a dataset beside it."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        place = Path(name).resolve() / "memory"
        place.mkdir()
        place.chmod(0o1777)
        shutil.copytree(make("lmdb"), Path(name) / "set")
        for user in (ANOTHER, MYSELF):
            cache = Path(name) / f"cache-{user}"
            cache.mkdir()
            os.chown(cache, user, user)
        monkeypatch.setenv("FASTDATA_STAGE_ROOT", str(place))
        monkeypatch.setenv("FASTDATA_CACHE_DIR", str(Path(name).resolve() / f"cache-{MYSELF}"))
        try:
            yield place
        finally:
            os.seteuid(0)


def test_a_copy_of_another_user(shared: Path) -> None:
    dataset = shared.parent / "set"
    become(ANOTHER)
    theirs = stage(dataset).path
    become(MYSELF)
    assert find_staged(dataset) is None
    mine = stage(dataset).path
    assert find_staged(dataset) == mine
    assert unstage(theirs).paths == []  # no other user can read it
    assert unstage(dataset).paths == [mine]
    os.seteuid(0)
    shutil.rmtree(mine.parent)
    os.rename(theirs.parent, shared / f"fastdata-{MYSELF}")  # as if it had been made so
    become(MYSELF)
    assert find_staged(dataset) is None
    with pytest.raises(UsageError, match=f"belongs to another user .id {ANOTHER}."):
        stage(dataset)


@pytest.mark.parametrize("part", [".", "fastdata-uid", "copy"])
def test_folders_that_others_may_change(
    make: Callable[[str], Path], place: Path, part: str
) -> None:
    dataset = make("lmdb")
    copy = stage(dataset).path
    folder = {".": place, "fastdata-uid": copy.parent, "copy": copy}[part]
    for mode in (0o775, 0o757):
        folder.chmod(mode)
        assert find_staged(dataset) is None
        if part != "copy":
            with pytest.raises(UsageError, match=f"{folder} can be written by others"):
                stage(dataset)
    folder.chmod(0o755)
    assert find_staged(dataset) == copy


def test_folders_of_a_group_of_ones_own(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the umask 002 that goes with such groups, all that a user makes is writable by it."""
    dataset = shared.parent / "set"
    user, group = pwd.getpwnam("daemon").pw_uid, pwd.getpwnam("daemon").pw_gid
    place = shared / "mine"
    place.mkdir()
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(place / "cache"))
    place.chmod(0o775)
    os.chown(place, user, group)
    become(user)
    copy = stage(dataset, to=place).path
    assert stage(dataset, to=place).path == copy
    os.seteuid(0)
    os.chown(place, user, grp.getgrnam("users").gr_gid)
    become(user)
    with pytest.raises(UsageError, match=f"{place} can be written by others"):
        stage(dataset, to=place)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_follow_the_umask(dataset: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        copy = stage(dataset).path
    finally:
        os.umask(before)
    assert copy.stat().st_mode & 0o777 == 0o700
    for path in copy.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path
    assert find_staged(dataset) == copy


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(command, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root and the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_no_space_on_a_real_tmpfs(
    make: Callable[[str], Path], small_tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert files.is_tmpfs(small_tmpfs)
    dataset = make("lmdb")
    whole = stage(dataset, small_tmpfs)
    unstage(dataset, small_tmpfs)
    ballast = small_tmpfs / "ballast"
    ballast.write_bytes(bytes((1 << 20) - whole.copied_bytes))
    with pytest.raises(SpaceError, match=r"are needed, .* are free") as caught:
        stage(dataset, small_tmpfs)
    assert str(small_tmpfs) in caught.value.what
    assert list(own_folder(small_tmpfs).iterdir()) == []
    # Where the room vanishes only later, nothing stays to occupy what is left.
    monkeypatch.setattr(cache, "room", lambda *_: (1 << 60, ""))
    with pytest.raises(SpaceError, match="disk is full"):
        stage(dataset, small_tmpfs)
    assert list(own_folder(small_tmpfs).iterdir()) == []
    # A tmpfs promises memory that may be in use.
    ballast.unlink()
    monkeypatch.undo()
    monkeypatch.setattr(cache, "available_memory", lambda: (1 << 30) + 5000)
    with pytest.raises(SpaceError, match=r"5\.0 kB are free \(memory"):
        stage(dataset, small_tmpfs)


# Copying the smallest of these datasets takes over 30 chunks; the last moments are those of
# the final rename, before and after.
MOMENTS = [
    'hook(copying, "write_exactly", kill(1))',
    'hook(copying, "write_exactly", kill(8))',
    'hook(copying, "write_exactly", kill(30))',
    'hook(staging._Run, "_finish", kill(1))',
    'hook(os, "replace", kill(1))',  # of the copy
    'hook(staging, "sync", kill(10**6)); staging.sync = lambda p: p == p and kill(1)(1)',
]


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_then_run_again(dataset: Path, place: Path, moment: str) -> None:
    process = start(dataset, moment)
    process.communicate(timeout=HANG)
    assert process.returncode == -signal.SIGKILL
    assert find_staged(dataset) is None
    names = sorted(path.suffix for path in own_folder(place).iterdir())
    assert set(names) <= {".partial", ".lock"}
    staged = stage(dataset)
    assert not staged.reused
    assert_whole(staged.path, dataset)
    assert [path.name for path in staged.path.parent.iterdir()] == [staged.path.name]
    unstage(dataset)
    start(dataset, moment).communicate(timeout=HANG)
    assert len(unstage(dataset).paths) == 1
    assert list(own_folder(place).iterdir()) == []


@pytest.mark.slow
def test_killed_run_keeps_whole_files(dataset: Path, place: Path) -> None:
    start(dataset, 'hook(staging._Run, "_finish", kill(1))').communicate(timeout=HANG)
    assert stage(dataset).copied_bytes == 0
    unstage(dataset)
    start(dataset, 'hook(staging._Run, "_finish", kill(1))').communicate(timeout=HANG)
    (partial,) = own_folder(place).glob("*.partial")
    names = [path for path in partial.rglob("*") if path.is_file() and path.name != MARKER_NAME]
    damaged = random.Random(1).sample(names, 2)
    sizes = sum(path.stat().st_size for path in damaged)
    for path, size in zip(damaged, (None, -1), strict=True):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data[:size])
    staged = stage(dataset)
    assert staged.copied_bytes == sizes
    assert_whole(staged.path, dataset)


@pytest.mark.slow
def test_two_processes_stage_once(dataset: Path) -> None:
    processes = [start(dataset, 'hook(copying, "write_exactly", slowly)') for _ in range(3)]
    outputs = [process.communicate(timeout=HANG) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert sorted(out.split()[-1] for out, _ in outputs) == ["copied", "reused", "reused"]
    copy = find_staged(dataset)
    assert copy is not None
    assert_whole(copy, dataset)
    assert list(copy.parent.iterdir()) == [copy]
    assert ImageDataset(dataset).location == copy


@pytest.mark.slow
def test_waiting_for_another_process_is_told(make: Callable[[str], Path]) -> None:
    dataset = make("lmdb")
    process = start(dataset, 'hook(copying, "write_exactly", slowly)')
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGSTOP)  # until the other one waits
    command = subprocess.Popen(
        [sys.executable, "-m", "fastdata", "stage", str(dataset)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stderr is not None
    assert "waiting" in command.stderr.readline()
    process.send_signal(signal.SIGCONT)
    out, err = command.communicate(timeout=HANG)
    assert (command.returncode, err) == (0, ""), err
    assert "staged already" in out
    process.communicate(timeout=HANG)
    assert CliRunner().invoke(cli, ["stage", str(dataset)]).stderr == ""


@pytest.mark.slow
def test_interrupt_stops_promptly(make: Callable[[str], Path], place: Path) -> None:
    dataset = make("lmdb")
    process = start(dataset, 'hook(copying, "write_exactly", slowly); PAUSE = 0.3')
    assert process.stdout is not None
    for _ in range(10):
        assert process.stdout.readline() == "writing\n"
    with pytest.raises(BusyError, match="another process"):
        unstage(dataset)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate()
    assert "KeyboardInterrupt" in err
    assert rest.count("writing") <= 16  # what each thread had begun, of 200 and more
    assert find_staged(dataset) is None
    assert [path.suffix for path in own_folder(place).iterdir()] == [".partial"]
    assert_whole(stage(dataset).path, dataset)


def blob_file(dataset: Path) -> Path:
    manifest = Manifest.load(dataset)
    if manifest.root is not None:
        return next((dataset / manifest.root).rglob("*.jpg"))
    return dataset / manifest.files[0].name


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "remove"])
def test_damaged_original_is_refused(dataset: Path, place: Path, damage: str) -> None:
    path = blob_file(dataset)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "remove":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "cut" else data + b"x")
    with pytest.raises(CorruptionError, match="the original is damaged") as caught:
        stage(dataset)
    assert str(path) in caught.value.what
    assert find_staged(dataset) is None
    assert list(own_folder(place).iterdir()) == []


def test_wrong_bytes_of_the_disk(
    make: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, write = make("lmdb"), copying.write_exactly
    with monkeypatch.context() as patch:
        patch.setattr(
            copying,
            "write_exactly",
            lambda fd, data, at: write(fd, bytes([data[0] ^ 1]) + data[1:], at),
        )
        with pytest.raises(DataError, match=r"copy was damaged") as caught:
            stage(dataset)
    assert not isinstance(caught.value, DatasetError)
    assert list(own_folder(place).iterdir()) == []

    def failing(descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(DatasetError, match=r"cannot be read: Input/output error"):
        stage(dataset)


@pytest.mark.parametrize("path", ["../out.jpg", "/etc/passwd", "", "nul\0"])
def test_paths_that_leave_the_root_are_refused(
    make: Callable[[str], Path], path: str, place: Path
) -> None:
    dataset = make("folder")
    manifest = Manifest.load(dataset)
    index = dataset / manifest.index.name
    rows: list[Row] = list(Index(index, manifest.samples, manifest.generation))
    changed = rows_to_batch([rows[0]._replace(path=path), *rows[1:]])
    write_index(index, [changed], len(rows), manifest.generation)
    entry = FileEntry(index.name, index.stat().st_size, f"{crc32c_file(index):08x}")
    text = replace(manifest, index=entry).to_json()
    (dataset / MANIFEST_NAME).write_text(text, "utf-8")
    with pytest.raises(CorruptionError, match="leaves the dataset's root"):
        stage(dataset)
    assert list(own_folder(place).iterdir()) == []


def test_unstage(dataset: Path, place: Path, tmp_path: Path) -> None:
    assert unstage(dataset) == ([], 0)
    nvme = tmp_path / "nvme"
    kept, other = stage(dataset).path, stage(dataset, nvme).path
    size = allocated(kept)
    assert unstage(dataset, tmp_path / "unknown") == ([], 0)
    assert unstage(other) == ([other], size)
    assert find_staged(dataset) == kept
    other = stage(dataset, nvme).path
    assert unstage(dataset, nvme) == ([other], size)
    assert unstage(dataset) == ([kept], size)
    assert find_staged(dataset) is None
    assert [*own_folder(place).iterdir(), *own_folder(nvme).iterdir()] == []


def test_unstage_that_was_interrupted(
    make: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make("lmdb")
    copy = stage(dataset).path
    repack(dataset)
    (own_folder(place) / f"{copy.name}.lock").touch()
    shutil.rmtree(dataset)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", lambda *path, **how: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            unstage(dataset)
    (left,) = own_folder(place).glob("*.partial")
    assert unstage(dataset).paths == [left]  # though the original is gone
    assert list(own_folder(place).iterdir()) == []
