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
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from containers import edit_manifest, load_manifest, pack_tree
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.packing import pack
from fastdata.converters.table import TableImages
from hangs import HANG
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from test_fields_storage import BLOBS, as_files

from fastdata.cli import cli
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
from fastdata.staging import copying, staged
from fastdata.staging import stage as staging
from fastdata.staging.stage import stage, unstage
from fastdata.staging.staged import MARKER_NAME, find_staged, own_folder
from fastdata.storage import files, room
from fastdata.storage.checksum import crc32c, crc32c_file
from fastdata.storage.index import Index
from fastdata.storage.manifest import MANIFEST_NAME, FileEntry, Manifest
from fastdata.storage.records import INDEX_NAME, Row, rows_to_batch, write_index

CONTAINERS = ("lmdb", "parquet", "shards", "folder")
CLASSES, IMAGES = 2, 12
#: So small that the files of these datasets have many blocks.
BLOCK = 4096

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


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
    """The default place of a test, its cache, and small blocks."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setenv("FASTDATA_STAGE_ROOT", str(folder))
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(copying, "_BLOCK", BLOCK)
    monkeypatch.setattr(copying, "_CHUNK", 1000)
    return folder


@pytest.fixture
def make(tree: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Packs the tree, copied so that a test may damage it."""

    def packed(container: str = "shards") -> Path:
        root = tmp_path / "tree"
        shutil.copytree(tree, root, dirs_exist_ok=True)
        size = 9000 if container in ("parquet", "shards") else None
        out = tmp_path / f"set-{container}"
        pack(ImageFolder(root), out, container=container, shard_size=size, workers=1)
        return out

    return packed


@pytest.fixture(params=CONTAINERS)
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

copying._BLOCK, copying._CHUNK = 4096, 1000

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
    staged = stage(dataset, progress=lambda done, total: reports.append((done, total)))
    assert not staged.reused
    assert staged.freed_bytes == 0
    assert staged.path.parent == own_folder(place)
    assert_whole(staged.path, dataset)
    done, total = reports[-1]
    assert done == total == staged.copied_bytes
    assert [path.name for path in staged.path.parent.iterdir()] == [staged.path.name]
    assert find_staged(dataset) == staged.path
    assert find_staged(staged.path) is None
    assert ImageDataset(dataset).location == staged.path


def test_staging_again_reuses(dataset: Path) -> None:
    first = stage(dataset)
    assert stage(dataset) == (first.path, 0, True, 0)


def test_bad_samples_are_copied(make: Callable[[str], Path]) -> None:
    dataset = make("lmdb")
    (dataset / "_bad-samples.jsonl").write_text('{"key": "a"}\n')
    assert (stage(dataset).path / "_bad-samples.jsonl").read_text() == '{"key": "a"}\n'


def test_symlink_and_relative_path(
    make: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make("lmdb")
    (tmp_path / "link").symlink_to(dataset)
    copy = stage(tmp_path / "link").path
    monkeypatch.chdir(tmp_path)
    assert find_staged(Path("link")) == find_staged(Path(dataset.name)) == copy


def test_repacked_dataset_never_gets_the_old_copy(dataset: Path) -> None:
    old = stage(dataset).path
    size = allocated(old)
    repack(dataset)
    assert find_staged(dataset) is None
    staged = stage(dataset)
    assert not staged.reused
    assert staged.freed_bytes == size
    assert not old.exists()
    assert_whole(staged.path, dataset)


def test_datasets_of_one_name_do_not_meet(make: Callable[[str], Path], tmp_path: Path) -> None:
    dataset = make("lmdb")
    other = tmp_path / "other" / dataset.name
    shutil.copytree(dataset, other)
    repack(other)
    first, second = stage(dataset), stage(other)
    assert first.freed_bytes == second.freed_bytes == 0
    assert (find_staged(dataset), find_staged(other)) == (first.path, second.path)
    unstage(other)
    assert find_staged(dataset) == first.path


def test_other_places_are_remembered(
    make: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make("lmdb")
    other = tmp_path / "nvme"
    copy = stage(dataset, other).path
    assert copy.parent.parent == other
    assert find_staged(dataset) == copy
    roots = tmp_path / "cache" / "stage-roots.json"
    assert json.loads(roots.read_text()) == [str(other)]
    for garbage in ("", "{", "{}", '[1, null, "relative"]', "\xff"):
        roots.write_text(garbage, "latin-1")
        assert find_staged(dataset) is None
    stage(dataset, other)  # whole already; and remembered again
    assert find_staged(dataset) == copy
    monkeypatch.delenv("FASTDATA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find_staged(dataset) is None
    stage(dataset, other)
    assert (tmp_path / "xdg" / "fastdata" / "stage-roots.json").exists()


def test_place_that_cannot_be_remembered_is_refused(
    make: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("not a folder")
    with pytest.raises(UsageError, match="FASTDATA_CACHE_DIR"):
        stage(make("lmdb"), tmp_path / "nvme")


def test_wrong_arguments(make: Callable[[str], Path], tmp_path: Path) -> None:
    dataset = make("lmdb")
    with pytest.raises(UsageError, match="--threads 0"):
        stage(dataset, threads=0)
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


@pytest.mark.parametrize("spoil", ["marker", "manifest", "id", "symlink"])
def test_what_is_not_whole_is_not_found(
    make: Callable[[str], Path], tmp_path: Path, spoil: str
) -> None:
    dataset = make("lmdb")
    copy = stage(dataset).path
    if spoil == "symlink":
        copy.rename(tmp_path / "elsewhere")
        copy.symlink_to(tmp_path / "elsewhere")
    elif spoil == "id":
        marker = json.loads((copy / MARKER_NAME).read_text())
        marker["id"] = marker["id"][:-1] + ("0" if marker["id"][-1] != "0" else "1")
        (copy / MARKER_NAME).write_text(json.dumps(marker))
    else:
        (copy / (MARKER_NAME if spoil == "marker" else MANIFEST_NAME)).unlink()
    assert find_staged(dataset) is None


@pytest.mark.parametrize("damage", ["cut", "grow", "remove", "folder"])
@pytest.mark.parametrize("which", ["index", "file"])
def test_damaged_copy_is_named_and_passed_over(
    make: Callable[[str], Path], damage: str, which: str
) -> None:
    dataset = make("lmdb")
    copy = stage(dataset).path
    path = copy / (INDEX_NAME if which == "index" else "data.mdb")
    data = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "remove":
        path.write_bytes(data[:-1] if damage == "cut" else data + b"x")
    with pytest.warns(UserWarning, match="this staged copy is damaged") as caught:
        opened = ImageDataset(dataset)
    (warning,) = caught
    assert warning.filename == __file__
    for wanted in (str(copy), path.name, str(dataset)):
        assert wanted in str(warning.message)
    assert opened.location == dataset
    assert len(opened.read(range(IMAGES))) == IMAGES
    if damage != "folder":
        assert not stage(dataset).reused
        assert find_staged(dataset) == copy


def test_of_very_many_files_some_are_looked_at(
    make: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make("shards")
    monkeypatch.setattr(staged, "_MOST_CHECKED", 1)
    copy = stage(dataset).path
    names = [entry.name for entry in Manifest.load(dataset).files]
    assert len(names) > 2
    original = staged.Original.read(dataset)
    assert original is not None
    checked = [entry.name for entry in original.some_files()]
    assert checked == [INDEX_NAME, names[0]]
    missed = next(number for number, name in enumerate(names) if name not in checked)
    (copy / names[missed]).unlink()
    opened = ImageDataset(dataset)
    assert opened.location == copy
    number = next(i for i in range(IMAGES) if opened.row(i).file == missed)
    with pytest.raises(DatasetError, match="no such file") as caught:
        opened.read([number])
    assert_tells_of_copy(caught.value, dataset)


def assert_tells_of_copy(error: DatasetError, dataset: Path) -> None:
    for wanted in (
        f"This is a staged copy of {dataset}",
        f"fastdata stage {dataset} --unstage",
    ):
        assert error.hint.count(wanted) == 1, error.hint


@pytest.mark.parametrize("part", ["blob", "index"])
def test_errors_of_a_copy_say_that_it_is_one(dataset: Path, part: str) -> None:
    copy = stage(dataset).path
    path = blob_file(copy) if part == "blob" else copy / INDEX_NAME
    data = path.read_bytes()
    path.write_bytes(bytes(byte ^ 0x55 for byte in data))
    for folder in (dataset, copy):
        for use in (list, lambda opened: opened.read(range(IMAGES))):
            with pytest.raises(CorruptionError) as caught:
                use(ImageDataset(folder))
            assert_tells_of_copy(caught.value, dataset)
    assert verify(dataset, workers=1).problems == []
    unstage(dataset)
    assert len(ImageDataset(dataset).read(range(IMAGES))) == IMAGES


def test_errors_of_an_original_do_not_speak_of_copies(make: Callable[[str], Path]) -> None:
    dataset = make("lmdb")
    (dataset / "data.mdb").write_bytes(b"")
    with pytest.raises(CorruptionError) as caught:
        ImageDataset(dataset)[0]
    assert "staged" not in str(caught.value)


def test_fields_of_a_later_fastdata_are_copied(make: Callable[[str], Path]) -> None:
    dataset = make("folder")
    edit_manifest(dataset, lambda fields: fields.update(later=[1]))
    fields, copied = load_manifest(dataset), load_manifest(stage(dataset).path)
    assert fields.pop("checksum") != copied.pop("checksum")
    assert copied == {**fields, "root": "images"} and copied["later"] == [1]


@pytest.mark.parametrize(
    ("container", "behind_url"), [("folder", False), ("folder", True), ("shards", True)]
)
def test_further_fields_are_copied(
    tmp_path: Path, web: str, container: str, behind_url: bool
) -> None:
    """Also the blobs of a `folder`, each of which is a file."""
    names = ("text", "boxes", *BLOBS)
    table = as_files(tmp_path / "web" / "files").select(["key", "path", *names])
    path = tmp_path / "web" / "set"
    meanings: dict[str, Any] = {"masks": ["second"], "formats": {"boxes": "xywh"}}
    source = TableImages(table, tmp_path / "web" / "files", files=["raw"], **meanings)
    pack_tree(source, path, container)
    if container == "folder":
        edit_manifest(path, lambda manifest: manifest.update(root="../files"))

    def rows(where: Path | str) -> list[Any]:
        dataset = ImageDataset(where, fields=("image", "key", *names))
        return [[np.asarray(one).tolist() for one in sample] for sample in dataset]

    def kinds(where: Path | str) -> set[tuple[str, str]]:
        return {(field.kind, field.format) for field in ImageDataset(where).source.fields}

    expected = rows(path)
    assert kinds(path) >= {("mask", ""), ("column", "xywh")}
    name = f"{web}/set" if behind_url else path
    copy = stage(name).path
    (tmp_path / "web").rename(tmp_path / "gone")
    assert rows(copy) == expected
    assert kinds(copy) >= {("mask", ""), ("column", "xywh")}
    assert verify(copy, workers=1).problems == []


def test_paths_may_be_text(make: Callable[[str], Path], tmp_path: Path) -> None:
    dataset = str(make("lmdb"))
    copy = stage(dataset, str(tmp_path / "nvme")).path
    assert find_staged(dataset) == copy
    assert unstage(dataset, str(tmp_path / "nvme")).paths == [copy]


def test_copy_that_lost_a_file_is_made_again(make: Callable[[str], Path]) -> None:
    dataset = make("shards")
    copy = stage(dataset).path
    (copy / "shard-000000.tar").unlink()
    assert not stage(dataset).reused
    assert_whole(copy, dataset)


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


def test_a_folder_that_another_user_made_first(shared: Path) -> None:
    """Nobody else's folder is used, whatever it is called and holds."""
    dataset = shared.parent / "set"
    become(ANOTHER)
    theirs = stage(dataset).path
    os.seteuid(0)
    os.rename(theirs.parent, shared / f"fastdata-{MYSELF}")  # as if it had been made so
    become(MYSELF)
    assert find_staged(dataset) is None
    with pytest.raises(UsageError, match=f"belongs to another user .id {ANOTHER}."):
        stage(dataset)


def test_a_copy_of_another_user(shared: Path) -> None:
    dataset = shared.parent / "set"
    become(ANOTHER)
    theirs = stage(dataset).path
    become(MYSELF)
    assert find_staged(dataset) is None
    mine = stage(dataset).path
    assert mine != theirs
    assert find_staged(dataset) == mine
    with pytest.raises(DataError, match="another user staged it"):
        unstage(theirs)
    assert unstage(dataset).paths == [mine]
    os.seteuid(0)
    of_root = stage(dataset).path  # root may stage it for all
    os.chown(dataset, ANOTHER, ANOTHER)
    become(MYSELF)
    assert find_staged(dataset) == of_root
    assert stage(dataset) == (of_root, 0, True, 0)


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


def test_a_folder_behind_a_link(make: Callable[[str], Path], place: Path) -> None:
    """A link's owner could point it elsewhere a moment later."""
    dataset = make("lmdb")
    copy = stage(dataset).path
    copy.parent.rename(place / "elsewhere")
    copy.parent.symlink_to(place / "elsewhere")
    assert find_staged(dataset) is None
    with pytest.raises(UsageError, match="is not a folder"):
        stage(dataset)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_follow_the_umask(dataset: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        copy = stage(dataset).path
    finally:
        os.umask(before)
    for path in (copy.parent, *copy.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path
    assert find_staged(dataset) == copy


def test_a_copy_whose_manifest_was_changed(dataset: Path) -> None:
    """Class names stand nowhere else: a flipped one would go unnoticed."""
    copy = stage(dataset).path
    text = (copy / MANIFEST_NAME).read_bytes()
    (copy / MANIFEST_NAME).write_bytes(text.replace(b"class1", b"class9"))
    with pytest.warns(UserWarning, match="damaged ._dataset.json differs from the original's"):
        assert find_staged(dataset) is None
    assert not stage(dataset).reused
    assert find_staged(dataset) == copy


def test_nobody_else_can_hold_the_lock(shared: Path) -> None:
    """A lock is held through any descriptor, also one for reading."""
    become(MYSELF)
    final = shared / "copy"
    with staged.lock(final):
        become(ANOTHER)
        with pytest.raises(PermissionError):
            os.open(shared / "copy.lock", os.O_RDONLY)
        become(MYSELF)


def test_copy_is_as_closed_as_the_original(
    make: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make("lmdb")
    dataset.chmod(0o700)
    assert stage(dataset).path.stat().st_mode & 0o777 == 0o700


def test_no_space_in_memory(
    make: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make("lmdb")
    monkeypatch.setattr(room, "is_tmpfs", lambda folder: True)
    monkeypatch.setattr(room, "available_memory", lambda: (1 << 30) + 5000)
    with pytest.raises(SpaceError, match=r"5\.0 kB are free \(memory") as caught:
        stage(dataset)
    assert "--unstage" in caught.value.hint
    assert list(own_folder(place).iterdir()) == []


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MB."""
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
    unstage(dataset)
    ballast = small_tmpfs / "ballast"
    ballast.write_bytes(bytes((1 << 20) - whole.copied_bytes))
    with pytest.raises(SpaceError, match=r"are needed, .* are free") as caught:
        stage(dataset, small_tmpfs)
    assert str(small_tmpfs) in caught.value.what
    assert list(own_folder(small_tmpfs).iterdir()) == []
    # Where the room vanishes only later, nothing stays to occupy what is left.
    monkeypatch.setattr(staging, "room", lambda place: (1 << 60, ""))
    with pytest.raises(SpaceError, match="disk is full"):
        stage(dataset, small_tmpfs)
    assert list(own_folder(small_tmpfs).iterdir()) == []


# Copying the smallest of these datasets takes over 30 chunks; the last moments are those of
# the final rename, before and after.
MOMENTS = [
    'hook(copying, "write_exactly", kill(1))',
    'hook(copying, "write_exactly", kill(8))',
    'hook(copying, "write_exactly", kill(30))',
    'hook(staging._Staging, "_finish", kill(1))',
    'hook(os, "replace", kill(1))',  # of the marker
    'hook(os, "replace", kill(2))',  # of the copy
    'hook(staging, "sync", kill(10**6)); staging.sync = lambda p: p == p and kill(1)(1)',
]


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


def test_killed_run_is_resumed_by_blocks(make: Callable[[str], Path]) -> None:
    dataset = make("lmdb")
    total = sum(path.stat().st_size for path in dataset.iterdir()) - len(
        (dataset / MANIFEST_NAME).read_bytes()
    )
    start(dataset, 'hook(staging._Staging, "_finish", kill(1))').communicate(timeout=HANG)
    assert stage(dataset).copied_bytes == 0
    unstage(dataset)
    start(dataset, 'hook(copying, "write_exactly", kill(60))').communicate(timeout=HANG)
    copied = stage(dataset).copied_bytes
    # 59 chunks of at most 1000 bytes were written, some of them in blocks not completed.
    assert total - 59_000 <= copied < total


def test_partial_copy_that_was_damaged_is_mended(dataset: Path, place: Path) -> None:
    start(dataset, 'hook(staging._Staging, "_finish", kill(1))').communicate(timeout=HANG)
    (partial,) = own_folder(place).glob("*.partial")
    rng = random.Random(1)
    for path in partial.rglob("*"):
        if path.is_file() and path.name not in (MARKER_NAME, copying.JOURNAL_NAME):
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data))] ^= 1
            path.write_bytes(data[: rng.choice([len(data), len(data) // 2])])
    with (partial / copying.JOURNAL_NAME).open("a") as journal:
        journal.write("garbage\nffff")
    staged = stage(dataset)
    assert staged.copied_bytes > 0
    assert_whole(staged.path, dataset)


def test_two_processes_stage_once(dataset: Path) -> None:
    processes = [start(dataset, 'hook(copying, "write_exactly", slowly)') for _ in range(3)]
    outputs = [process.communicate(timeout=HANG) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert sorted(out.split()[-1] for out, _ in outputs) == ["copied", "reused", "reused"]
    copy = find_staged(dataset)
    assert copy is not None
    assert_whole(copy, dataset)
    assert list(copy.parent.iterdir()) == [copy]


def test_waiting_for_another_process_is_told(make: Callable[[str], Path]) -> None:
    dataset = make("lmdb")
    for tell in ("library", "command"):
        process = start(dataset, 'hook(copying, "write_exactly", slowly)')
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGSTOP)  # it goes on once the other one waits
        if tell == "library":
            told: list[bool] = []

            def resume(told: list[bool] = told, process: subprocess.Popen[str] = process) -> None:
                told.append(True)
                process.send_signal(signal.SIGCONT)

            assert stage(dataset, waiting=resume).reused
            assert told == [True]
        else:
            command = subprocess.Popen(
                [sys.executable, "-m", "fastdata", "stage", str(dataset)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert command.stderr is not None
            assert command.stderr.readline() == "waiting for another process that is staging it\n"
            process.send_signal(signal.SIGCONT)
            out, err = command.communicate(timeout=HANG)
            assert (command.returncode, err) == (0, ""), err
            assert "staged already" in out
        process.communicate(timeout=HANG)
        unstage(dataset)
    assert CliRunner().invoke(cli, ["stage", str(dataset)]).stderr == ""


def test_unstage_while_staging_is_refused(make: Callable[[str], Path]) -> None:
    dataset = make("lmdb")
    process = start(dataset, 'hook(copying, "write_exactly", slowly)')
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    with pytest.raises(BusyError, match="another process"):
        unstage(dataset)
    process.kill()
    process.communicate()
    assert len(unstage(dataset).paths) == 1


def test_interrupt_stops_promptly(make: Callable[[str], Path], place: Path) -> None:
    dataset = make("lmdb")
    process = start(dataset, 'hook(copying, "write_exactly", slowly); PAUSE = 0.3')
    assert process.stdout is not None
    for _ in range(10):
        assert process.stdout.readline() == "writing\n"
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


def test_damaged_copy_is_told_apart(
    make: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = copying.write_exactly
    monkeypatch.setattr(
        copying,
        "write_exactly",
        lambda fd, data, at: write(fd, bytes([data[0] ^ 1]) + data[1:], at),
    )
    dataset = make("lmdb")
    with pytest.raises(CorruptionError, match="the copy's checksum is wrong") as caught:
        stage(dataset)
    assert "is intact" in caught.value.what
    assert list(own_folder(place).iterdir()) == []


def test_unreadable_original(make: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make("lmdb")

    def failing(descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(DatasetError, match=r"cannot be read: Input/output error"):
        stage(dataset)


@pytest.mark.parametrize("path", ["../out.jpg", "/etc/passwd", "a/../../b", "", "nul\0"])
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
    copies = [stage(dataset).path, stage(dataset, tmp_path / "nvme").path]
    size = sum(map(allocated, copies))
    assert unstage(dataset, tmp_path / "unknown") == ([], 0)
    assert unstage(dataset) == (copies, size)
    assert find_staged(dataset) is None
    assert list(place.iterdir()) == list((tmp_path / "nvme").iterdir()) == []


def test_unstage_from_one_place(make: Callable[[str], Path], tmp_path: Path) -> None:
    dataset = make("lmdb")
    kept, other = stage(dataset).path, stage(dataset, tmp_path / "nvme").path
    assert unstage(dataset, tmp_path / "nvme").paths == [other]
    assert find_staged(dataset) == kept


def test_unstage_by_the_copys_path(make: Callable[[str], Path], tmp_path: Path) -> None:
    dataset = make("lmdb")
    copy = stage(dataset, tmp_path / "nvme").path
    (tmp_path / "cache" / "stage-roots.json").unlink()
    shutil.rmtree(dataset)
    assert unstage(copy).paths == [copy]
    assert not copy.exists()


def test_unstage_when_the_original_is_gone_or_changed(
    make: Callable[[str], Path], place: Path
) -> None:
    dataset = make("lmdb")
    copy = stage(dataset).path
    repack(dataset)
    (own_folder(place) / f"{copy.name}.lock").touch()
    shutil.rmtree(dataset)
    assert unstage(dataset).paths == [copy]
    assert list(place.iterdir()) == []


def test_unstage_that_was_interrupted(
    make: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make("lmdb")
    stage(dataset)
    shutil.rmtree(dataset)

    unlink, calls = Path.unlink, []

    def interrupt(path: Path, missing_ok: bool = False) -> None:
        calls.append(path)
        if len(calls) > 1:
            raise KeyboardInterrupt
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", interrupt)
        with pytest.raises(KeyboardInterrupt):
            unstage(dataset)
    (left,) = own_folder(place).glob("*.partial")
    # The original is gone: only the marker, which goes last, tells whose copy this was.
    assert unstage(dataset).paths == [left]
    assert list(place.iterdir()) == []


def test_lock_has_one_holder(place: Path) -> None:
    """Also when the lock file is removed and made again all the time."""
    holders: list[int] = []

    def hold(number: int) -> None:
        for _ in range(100):
            with staged.lock(place / "copy"):
                holders.append(number)
                time.sleep(1e-4)
                assert holders == [number]
                holders.clear()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(hold, range(6)))
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_unstage_after_a_kill(make: Callable[[str], Path], place: Path, moment: str) -> None:
    dataset = make("lmdb")
    start(dataset, moment).communicate(timeout=HANG)
    assert len(unstage(dataset).paths) == 1
    assert list(place.iterdir()) == []


def test_others_things_stay(make: Callable[[str], Path], place: Path) -> None:
    """A folder that only claims to be a copy, by its marker, is not removed."""
    dataset = make("lmdb")
    copy = stage(dataset).path
    mine = own_folder(place) / "mine"
    mine.mkdir()
    shutil.copy(copy / MARKER_NAME, mine)
    assert unstage(dataset).paths == [copy]
    assert mine.exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    block=st.integers(1, 400),
    chunk=st.integers(1, 100),
    threads=st.integers(1, 4),
)
def test_any_sizes(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    block: int,
    chunk: int,
    threads: int,
) -> None:
    monkeypatch.setattr(copying, "_BLOCK", block)
    monkeypatch.setattr(copying, "_CHUNK", chunk)
    folder = tmp_path_factory.mktemp("sizes")
    files = []
    for number, size in enumerate(sizes):
        data = random.Random(number).randbytes(size)
        source = folder / str(number)
        source.write_bytes(data)
        entry = FileEntry(source.name, size, f"{crc32c(data):08x}")
        files.append(copying.CopiedFile(entry, source, folder / "copy" / source.name))
    for again in (False, True):
        run = copying.Copying(iter(files), folder / "journal", sum(sizes), None)
        run.run(threads)
        assert run.copied == (0 if again else sum(sizes))
    assert all(file.source.read_bytes() == file.target.read_bytes() for file in files)
