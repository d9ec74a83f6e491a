"""Bad input: each ends with an error that says what, where and how to mend it."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sources
from click.testing import CliRunner, Result
from containers import broken_jpeg, pack_tree
from fastdata.converters import Encoding, ImageFolder, pack
from sources import (
    contents,
    contents_but_source,
    encoded,
    jpeg,
    make_devkit,
    make_tree,
    picture,
    require_said,
    tar_bytes,
)

from fastdata import ImageDataset
from fastdata.cli import cli
from fastdata.errors import CorruptionError, DatasetError, SpaceError, VersionError
from fastdata.storage.manifest import FORMAT_VERSION

CONTAINERS = ("lmdb", "parquet", "shards")
ALL_CONTAINERS = (*CONTAINERS, "folder")
REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no --out is given, datasets are made in the working directory."""
    monkeypatch.chdir(tmp_path)


def convert(*arguments: object) -> Result:
    """In the source's order: these tests know samples by where they were."""
    return sources.convert(*arguments, "--order", "source")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


# What is wrong outside of converters.


def no_dataset(out: Path) -> None:
    """Check that what an error left behind does not pass for a dataset."""
    assert not (out / "_dataset.json").exists()
    with pytest.raises(DatasetError):
        ImageDataset(out)


class TestMissing:
    @pytest.mark.parametrize(
        "source", ["imagenet", "imagefolder", "cifar10", "cifar100", "webdataset"]
    )
    def test_root(self, tmp_path: Path, source: str) -> None:
        root, out = tmp_path / "nowhere", tmp_path / "out"
        result = convert(source, "--root", root, "--out", out / "{split}")
        require_said(result, 1, f"error: {root}: no such", "--root")
        assert not out.exists()

    def test_default_root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        require_said(convert("imagenet"), 1, "imagenet: no such folder", "--root")
        monkeypatch.setenv("IMAGENET_DIR", "/nowhere/at/all")
        require_said(convert("imagenet"), 1, "/nowhere/at/all: no such folder", "--root")

    @pytest.mark.parametrize("source", ["imagenet", "imagefolder", "cifar10"])
    def test_root_is_a_file(self, tmp_path: Path, source: str) -> None:
        root = tmp_path / "file.jpg"
        root.write_bytes(jpeg())
        result = convert(source, "--root", root, "--split" if source == "cifar10" else "--to",
                         "test" if source == "cifar10" else "lmdb")  # fmt: skip
        require_said(result, 1, f"{root}: is not a folder", "--root")

    @pytest.mark.parametrize("source", ["imagefolder", "webdataset"])
    def test_root_is_not_given(self, source: str) -> None:
        require_said(convert(source), 2, "--root")

    def test_no_images_at_all(self, tmp_path: Path) -> None:
        root = tmp_path / "in"
        (root / "a").mkdir(parents=True)
        (root / "a" / "notes.txt").touch()
        result = convert("imagefolder", "--root", root, "--out", tmp_path / "out", "--allow-empty")
        require_said(result, 1, f"{root}: no images found", "--root", ".jpeg")
        assert not (tmp_path / "out").exists()


class TestEmptyClass:
    def test_imagefolder(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg", "c/1.jpg"])
        (root / "b").mkdir()
        (root / "b" / "notes.txt").touch()
        arguments = ("imagefolder", "--root", root, "--out", tmp_path / "out")
        require_said(convert(*arguments), 1, f"{root / 'b'}: this class has no images",
                     "--allow-empty", "Remove the folder")  # fmt: skip
        assert not (tmp_path / "out").exists()
        assert convert(*arguments, "--allow-empty").exit_code == 0
        dataset = ImageDataset(tmp_path / "out")
        assert dataset.classes == ["a", "b", "c"]
        assert dataset.labels.tolist() == [0, 2]

    def test_imagenet(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["train/n00000001/1.JPEG"])
        (root / "train" / "n00000002").mkdir()
        arguments = ("imagenet", "--root", root, "--out", tmp_path / "out")
        require_said(convert(*arguments), 1, root / "train" / "n00000002", "--allow-empty")
        assert convert(*arguments, "--allow-empty").exit_code == 0


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users can reach, which ``tmp_path`` is not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name).resolve()


NOBODY = 65534


# What is needed is imported by using it first: another user may not reach root's Python.
AS_NOBODY = f"""
import gzip, os, tempfile
from pathlib import Path
from PIL import Image
from fastdata.cli import main
from fastdata.cli.convert import ImageFolder
from fastdata.cli.packing import pack
from fastdata.cli.verify import verify
with tempfile.TemporaryDirectory() as name:
    folder = Path(name) / "tree" / "a"
    folder.mkdir(parents=True)
    Image.new("L", (8, 8)).save(folder / "1.jpg")
    for container in ("lmdb", "shards"):
        pack(ImageFolder(folder.parent), Path(name) / container, container=container, workers=1)
        verify(Path(name) / container, workers=1)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
main()
"""


def run_unprivileged(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user for whom permissions count: they do not for root."""
    command = [sys.executable, "-c", AS_NOBODY, *map(str, arguments)]
    return subprocess.run(command, text=True, capture_output=True, cwd="/")


def require_ended(done: subprocess.CompletedProcess[str], exit_code: int, *parts: object) -> None:
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    for part in parts:
        assert str(part) in done.stderr, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("command", ["seek-points", "stage"])
def test_a_folder_that_cannot_be_written_is_named_and_not_its_lock(
    public: Path, command: str
) -> None:
    make_tree(public / "in", ["a/1.jpg"])
    dataset = public / "set"
    pack_tree(public / "in", dataset, "shards")
    place = public / "place"
    mine = public / "cache"
    mine.mkdir()
    os.chown(mine, NOBODY, NOBODY)
    own = place / f"fastdata-{NOBODY}"
    own.mkdir(parents=True)
    os.chown(own, NOBODY, NOBODY)
    own.chmod(0o555)
    arguments = [command, str(dataset), *(["--to", str(place)] if command == "stage" else [])]
    # As root first: another user may be unable to import what it takes.
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    shutil.rmtree(place / "fastdata-0", ignore_errors=True)
    os.seteuid(NOBODY)
    try:
        result = CliRunner(env={"FASTDATA_CACHE_DIR": str(mine)}).invoke(cli, arguments)
    finally:
        os.seteuid(0)
    folder = own if command == "stage" else dataset
    assert result.exit_code == 1
    assert f"{folder}: " in result.stderr and "Permission denied" in result.stderr
    assert ".lock" not in result.stderr


class TestNoPermission:
    @pytest.fixture
    def out(self, public: Path) -> Path:
        (public / "out").mkdir()
        (public / "out").chmod(0o777)
        return public / "out" / "dataset"

    def test_image(self, public: Path, out: Path) -> None:
        """Bad samples, which need no other bytes to be good: a chmod mends them."""
        root = make_tree(public / "in", ["a/1.jpg", "a/2.jpg", "b/3.jpg"])
        (root / "a" / "2.jpg").chmod(0)
        arguments = ("convert", "imagefolder", "--root", root, "--out", out, "--workers", "1")
        require_ended(run_unprivileged(*arguments), 1, "1 of 3 images", root / "a" / "2.jpg",
                      "Permission denied", "--skip-bad")  # fmt: skip
        no_dataset(out)
        (bad,) = listed_bad(out)
        assert bad["key"] == "a/2"
        assert "Permission denied" in bad["reason"]
        (root / "a" / "2.jpg").chmod(0o644)
        require_ended(run_unprivileged(*arguments), 0)
        assert ImageDataset(out).read(range(3)) == [jpeg(seed) for seed in range(3)]
        assert not (out / "_bad-samples.jsonl").exists()

    @pytest.mark.parametrize("where", ["", "in", "in/a", "in/a/deep"])
    @pytest.mark.parametrize("mode", [0o000, 0o444])
    def test_folder(self, public: Path, out: Path, where: str, mode: int) -> None:
        if mode == 0o444 and where in ("in/a", "in/a/deep"):
            pytest.skip("names can be listed: the images in it are bad samples")
        root = make_tree(public / "data" / "in", ["a/1.jpg", "a/deep/2.jpg", "b/3.jpg"])
        closed = public / "data" / where
        closed.chmod(mode)
        arguments = ("convert", "imagefolder", "--root", root, "--out", out, "--workers", "1")
        done = run_unprivileged(*arguments)
        closed.chmod(0o755)
        assert not out.exists()
        named = root if where == "" else closed
        if closed == root and mode == 0:
            # click looks at this one itself, and calls it a wrong argument.
            assert done.returncode in (1, 2)
            require_ended(done, done.returncode, root)
        else:
            require_ended(done, 1, f"error: {named}", "Permission denied", "chmod")

    def test_imagenet_root(self, public: Path, out: Path) -> None:
        root = make_tree(public / "in", ["train/n00000001/1.JPEG"])
        arguments = ("convert", "imagenet", "--root", root, "--out", out, "--workers", "1")
        for closed in (root, root / "train", root / "train" / "n00000001"):
            closed.chmod(0o444 if closed == root else 0)
            done = run_unprivileged(*arguments)
            closed.chmod(0o755)
            require_ended(done, 1, f"error: {closed}", "Permission denied", "chmod")

    @pytest.mark.parametrize("source", ["webdataset", "imagenet", "cifar10"])
    def test_archive(self, public: Path, out: Path, source: str) -> None:
        names = {"webdataset": "x.tar", "imagenet": "ILSVRC2012_img_train.tar",
                 "cifar10": "cifar-10-python.tar.gz"}  # fmt: skip
        (public / "in").mkdir()
        path = public / "in" / names[source]
        path.touch(0)
        done = run_unprivileged(
            "convert", source, "--root", public / "in", "--out", out / "{split}"
        )
        require_ended(done, 1, path, "Permission denied")

    @pytest.mark.parametrize("deep", [False, True])
    def test_out(self, public: Path, deep: bool) -> None:
        root = make_tree(public / "in", ["a/1.jpg"])
        out = public / "out" if not deep else public / "out" / "deeper" / "dataset"
        done = run_unprivileged(
            "convert", "imagefolder", "--root", root, "--out", out, "--workers", "1"
        )
        require_ended(done, 2, out, "Permission denied", "--out")

    def test_reading_a_dataset(self, public: Path) -> None:
        root = make_tree(public / "in", ["a/1.jpg"])
        out = public / "dataset"
        pack(ImageFolder(root), out, container="shards", workers=1)
        (out / "shard-000000.tar").chmod(0)
        done = run_unprivileged("verify", out, "--workers", "1")
        require_ended(done, 1)
        assert "shard-000000.tar" in done.stdout
        assert "Permission denied" in done.stdout
        manifest = out / "_dataset.json"
        manifest.chmod(0)
        require_ended(run_unprivileged("verify", out, "--workers", "1"), 1, manifest, "Permission")


@contextmanager
def small_disk(where: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A real file system of ``size`` bytes at ``where``; yields what makes it larger."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system to fill")
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")

    def resize(larger: int) -> None:
        options = f"remount,size={larger}"
        subprocess.run(["mount", "-o", options, str(where)], check=True)

    try:
        yield resize
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


class TestDiskFull:
    def test_where_an_index_of_first_use_is_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for number in range(300):
                info = tarfile.TarInfo(f"{number:0200}.jpg")
                info.size = len(jpeg())
                tar.addfile(info, io.BytesIO(jpeg()))
        with small_disk(tmp_path / "disk", 60_000):
            monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "disk"))
            with (
                pytest.warns(UserWarning, match="indexed now"),
                pytest.raises(SpaceError, match=r"\nMake room. Set FASTDATA_CACHE_DIR"),
            ):
                ImageDataset(tmp_path / "a.tar")

    @pytest.mark.parametrize("container", ALL_CONTAINERS)
    def test_checked_first(self, tmp_path: Path, container: str) -> None:
        names = [f"a/{n}.jpg" for n in range(300)]
        root = make_tree(tmp_path / "in", names)
        with small_disk(tmp_path / "disk", 200_000 if container != "folder" else 90_000):
            out = tmp_path / "disk" / "out"
            arguments = ("imagefolder", "--root", root, "--out", out, "--to", container)
            require_said(convert(*arguments), 1, f"{out}: about", "needed", "free", "--out")
            # Nothing was begun, so nothing is left.
            assert list((tmp_path / "disk").iterdir()) == []

    @pytest.fixture(scope="class")
    @staticmethod
    def deceptive(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A tree whose pixels need far more room than an even sample of it lets one expect.

        Of 128 images every second is looked at to estimate: large files of few pixels. The
        others are small files of many.
        """
        folder = tmp_path_factory.mktemp("deceptive") / "a"
        folder.mkdir()
        few = jpeg(1, comment=b"x" * 4000)
        many = encoded(picture(2).resize((400, 400)).quantize(2), "PNG")
        for number in range(128):
            data = few if number % 2 else many
            (folder / f"{number:03d}.jpg").write_bytes(data + bytes([number]))
        return folder.parent

    @pytest.mark.parametrize(
        ("container", "several_files"),
        [
            ("lmdb", False),
            ("parquet", False),
            ("parquet", True),
            ("shards", False),
            ("shards", True),
        ],
    )
    def test_found_midway_and_resumed(
        self, deceptive: Path, tmp_path: Path, container: str, several_files: bool
    ) -> None:
        options = ["--to", container, "--encoding", "raw", "--workers", "1"]
        if several_files:
            options += ["--shard-size", "64KiB"]
        command = [sys.executable, "-m", "fastdata", "convert", "imagefolder"]
        command += ["--root", str(deceptive), *options, "--order", "source", "--out"]
        with small_disk(tmp_path / "disk", 8_000_000) as resize:
            out = tmp_path / "disk" / "out"
            for _ in range(2):  # the second time with what the first has left lying there
                done = subprocess.run([*command, str(out)], capture_output=True, text=True)
                require_ended(done, 1, f"{out}: the disk is full", "free", "resumes", "--out")
                no_dataset(out)
            before = {path.name: path.stat().st_ino for path in out.glob("*-*.[tp]a*[rt]")}
            assert bool(before) == several_files
            resize(100_000_000)
            done = subprocess.run([*command, str(out)], capture_output=True, text=True)
            require_ended(done, 0)
            after = {path.name: path.stat().st_ino for path in out.iterdir()}
            assert before.items() <= after.items(), "what was finished is kept"
            pack(
                ImageFolder(deceptive),
                tmp_path / "undisturbed",
                container=container,
                encoding=Encoding("raw"),
                shard_size=64 << 10 if several_files else None,
                order="source",
                workers=1,
            )
            assert contents(out) == contents(tmp_path / "undisturbed")

    def test_quota_counts_as_full(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(122, "Disk quota exceeded")

        monkeypatch.setitem(pack.__globals__, "write_listing", full)
        root = make_tree(tmp_path / "in", ["a/1.jpg"])
        with pytest.raises(SpaceError, match="quota"):
            pack(ImageFolder(root), tmp_path / "out", workers=1)


class TestOutExists:
    def test_foreign_files(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg"])
        out = tmp_path / "out"
        out.mkdir()
        (out / "thesis.tex").write_text("years of work")
        for options in ((), ("--force",)):
            result = convert("imagefolder", "--root", root, "--out", out, *options)
            require_said(result, 2, out, "not a dataset", "Choose another --out")
            assert [path.name for path in out.iterdir()] == ["thesis.tex"]

    def test_file(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg"])
        out = tmp_path / "out"
        out.write_text("years of work")
        for at in (out, out / "below"):
            result = convert("imagefolder", "--root", root, "--out", at, "--force")
            require_said(result, 2, at, "--out")
        assert out.read_text() == "years of work"

    def test_empty_folder_is_used(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg"])
        (tmp_path / "out").mkdir()
        assert convert("imagefolder", "--root", root, "--out", tmp_path / "out").exit_code == 0

    def test_other_dataset(self, tmp_path: Path) -> None:
        one = make_tree(tmp_path / "one", ["a/1.jpg"])
        two = make_tree(tmp_path / "two", ["a/1.jpg", "b/2.jpg"])
        out = tmp_path / "out"
        assert convert("imagefolder", "--root", one, "--out", out).exit_code == 0
        before = contents(out)
        result = convert("imagefolder", "--root", two, "--out", out)
        require_said(result, 2, out, "1 sample already", "--force", "--out")
        assert contents(out) == before
        # What is not ours stays, whatever is forced.
        (out / "notes.txt").write_text("mine")
        assert convert("imagefolder", "--root", two, "--out", out, "--force").exit_code == 0
        assert len(ImageDataset(out)) == 2
        assert (out / "notes.txt").read_text() == "mine"

    def test_same_dataset_is_left_as_it_is(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg"])
        arguments = ("imagefolder", "--root", root, "--out", tmp_path / "out")
        assert convert(*arguments).exit_code == 0
        before = state(tmp_path / "out")
        result = convert(*arguments)
        assert result.exit_code == 0
        assert "already packed" in result.stdout
        assert state(tmp_path / "out") == before


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Which file each name is, and when it was last written: nobody redid what has the same."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in folder.iterdir()
        if path.is_file()
    }


def listed_bad(out: Path) -> list[dict[str, str]]:
    lines = (out / "_bad-samples.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def cut_after_headers(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


BAD_IMAGES = {
    "truncated": (cut_after_headers(jpeg(90)), "truncated"),
    "cut-in-header": (jpeg(90)[:30], ""),
    "empty": (b"", "0 bytes"),
    "text": (b"This is no picture of a pipe.\n", "not an image"),
    "html": (b"<html>404 Not Found</html>", "not an image"),
    "png": (encoded(picture(91), "PNG")[:-40], ""),
    "two-bytes": (b"\xff\xd8", ""),
    "zeros": (bytes(5000), "not an image"),
}


class TestBadImages:
    """The run goes on, lists them and packs all others; then ``--skip-bad`` finishes."""

    @pytest.mark.parametrize("kind", BAD_IMAGES)
    @pytest.mark.parametrize("container", ALL_CONTAINERS)
    def test_one(self, tmp_path: Path, container: str, kind: str) -> None:
        data, reason = BAD_IMAGES[kind]
        root = make_tree(tmp_path / "in", [f"a/{n}.JPEG" for n in range(5)])
        bad_path = root / "a" / "2.JPEG"
        bad_path.write_bytes(data)
        out = tmp_path / "out"
        arguments = ("imagefolder", "--root", root, "--out", out, "--to", container)
        for _ in range(2):  # it is no better the second time
            require_said(
                convert(*arguments), 1, out, "1 of 5 images cannot be packed", bad_path,
                reason, out / "_bad-samples.jsonl", "--skip-bad", "fix them",
            )  # fmt: skip
            no_dataset(out)
            (bad,) = listed_bad(out)
            assert (bad["key"], bad["path"]) == ("a/2", str(bad_path))
            assert reason in bad["reason"]
        result = convert(*arguments, "--skip-bad")
        assert result.exit_code == 0, result.output
        assert "1 bad one skipped" in result.stdout
        dataset = ImageDataset(out)
        assert [dataset.row(i).key for i in range(4)] == ["a/0", "a/1", "a/3", "a/4"]
        assert dataset.read(range(4)) == [jpeg(n) for n in (0, 1, 3, 4)]
        assert dataset.manifest.skipped == 1
        assert len(listed_bad(out)) == 1
        assert run("verify", out, "--workers", 1).exit_code == 0

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Enough for several files, of which the second and the last have bad images."""
        root = make_tree(tmp_path / "in", [f"a/{n:02d}.jpg" for n in range(40)])
        for number in (15, 16, 39):
            (root / "a" / f"{number}.jpg").write_bytes(b"not an image")
        return root

    @pytest.mark.parametrize("container", ["parquet", "shards"])
    def test_skipping_redoes_nothing(self, root: Path, tmp_path: Path, container: str) -> None:
        out = tmp_path / "out"
        arguments = ("imagefolder", "--root", root, "--out", out, "--to", container,
                     "--shard-size", len(jpeg()) * 10)  # fmt: skip
        require_said(convert(*arguments), 1, "3 of 40 images")
        before = state(out)
        assert len(before) > 3
        assert [bad["key"] for bad in listed_bad(out)] == ["a/15", "a/16", "a/39"]
        assert convert(*arguments, "--skip-bad").exit_code == 0
        after = state(out)
        del before["_bad-samples.jsonl"]
        assert before.items() <= after.items()
        assert len(ImageDataset(out)) == 37
        # What is finished stays finished, also when it is not asked to skip.
        result = convert(*arguments)
        assert result.exit_code == 0, result.output
        assert state(out).items() == after.items()

    def test_skipping_redoes_nothing_in_lmdb(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "out"
        arguments = ("imagefolder", "--root", root, "--out", out)
        require_said(convert(*arguments), 1, "3 of 40 images")
        before = state(out)
        (name,) = before.keys() - {"_bad-samples.jsonl"}

        def redone(*_: object) -> None:
            raise AssertionError("nothing is left to pack")

        monkeypatch.setattr(pack.__globals__["lmdb"], "LmdbWriter", redone)
        assert convert(*arguments, "--skip-bad").exit_code == 0
        assert state(out)["data.mdb"] == before[name]
        assert len(ImageDataset(out)) == 37

    @pytest.mark.parametrize("container", CONTAINERS)
    def test_mending(self, root: Path, tmp_path: Path, container: str) -> None:
        """Mended and run again, it is the dataset of a tree that was never bad."""
        options = ["--to", container]
        if container != "lmdb":
            options += ["--shard-size", str(len(jpeg()) * 10)]
        arguments = ("imagefolder", "--root", root, *options)
        assert convert(*arguments, "--out", tmp_path / "out").exit_code == 1
        before = state(tmp_path / "out")
        for number in (15, 16, 39):
            (root / "a" / f"{number}.jpg").write_bytes(jpeg(number))
        result = convert(*arguments, "--out", tmp_path / "out")
        assert result.exit_code == 0, result.output
        assert not (tmp_path / "out" / "_bad-samples.jsonl").exists()
        assert convert(*arguments, "--out", tmp_path / "clean").exit_code == 0
        assert contents(tmp_path / "out") == contents(tmp_path / "clean")
        if container != "lmdb":
            first = min(before.keys() - {"_bad-samples.jsonl"})
            assert state(tmp_path / "out")[first] == before[first]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_nothing_but_bad_ones(self, tmp_path: Path, workers: int) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg", "b/2.jpg"])
        for path in root.glob("*/*"):
            path.write_bytes(b"no")
        out = tmp_path / "out"
        for options in ((), ("--skip-bad",)):
            result = convert(
                "imagefolder", "--root", root, "--out", out, "--workers", workers, *options
            )
            require_said(result, 1, out, "2 images, none of which", root / "a" / "1.jpg", "--root")
            no_dataset(out)
            assert len(listed_bad(out)) == 2

    def test_one_split_does_not_keep_the_next(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["train/n00000001/1.JPEG", "val/n00000001/2.JPEG"])
        (root / "train" / "n00000001" / "3.JPEG").touch()
        result = convert("imagenet", "--root", root, "--out", tmp_path / "{split}")
        require_said(result, 1, tmp_path / "train", "1 of 2 images")
        no_dataset(tmp_path / "train")
        assert len(ImageDataset(tmp_path / "val")) == 1

    def test_in_archives(self, tmp_path: Path) -> None:
        inner = tar_bytes([("x_1.JPEG", jpeg(1)), ("x_2.JPEG", b""), ("x_3.JPEG", jpeg(3))])
        path = tmp_path / "ILSVRC2012_img_train.tar"
        path.write_bytes(tar_bytes([("n00000001.tar", inner)]))
        out = tmp_path / "out"
        require_said(convert("imagenet", "--root", tmp_path, "--out", out), 1, path, "1 of 3")
        assert [bad["key"] for bad in listed_bad(out)] == ["n00000001/x_2"]

    def test_only_decoding_shows_it(self, tmp_path: Path) -> None:
        """Copying does not decode: verify does. Re-encoding does too."""
        root = make_tree(tmp_path / "in", ["a/1.jpg", "a/2.jpg"])
        path = root / "a" / "2.jpg"
        path.write_bytes(broken_jpeg())
        out = tmp_path / "out"
        assert convert("imagefolder", "--root", root, "--out", out).exit_code == 0
        result = run("verify", out, "--workers", 1)
        require_said(result, 1, out, "1 problem")
        assert "sample 1 (a/2): cannot be decoded" in result.stdout
        for encoding in ("jpeg", "raw"):
            again = convert("imagefolder", "--root", root, "--out", tmp_path / encoding,
                            "--encoding", encoding)  # fmt: skip
            require_said(again, 1, path, "cannot be decoded", "--skip-bad")

    def test_bomb(self, tmp_path: Path) -> None:
        """A file that claims to be 60,000 pixels square costs nobody that memory."""
        root = make_tree(tmp_path / "in", ["a/1.jpg", "a/2.jpg"])
        data = encoded(picture(1), "PNG")
        at = data.index(b"IHDR") + 4
        header = (60_000).to_bytes(4, "big") * 2
        (root / "a" / "2.jpg").write_bytes(data[:at] + header + data[at + 8 :])
        result = convert("imagefolder", "--root", root, "--out", tmp_path / "out")
        require_said(result, 1, root / "a" / "2.jpg", "1 of 2 images")


class TestDuplicateKeys:
    def test_two_extensions(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg", "a/1.png", "a/2.jpg"])
        result = convert("imagefolder", "--root", root, "--out", tmp_path / "out")
        require_said(result, 1, "two images have the key a/1", root / "a" / "1.jpg",
                     root / "a" / "1.png", "rename one")  # fmt: skip
        assert not (tmp_path / "out").exists()

    def test_far_apart(self, tmp_path: Path) -> None:
        """Keys are compared across the listing's batches."""
        root = tmp_path / "in"
        (root / "a").mkdir(parents=True)
        for number in range(9000):
            (root / "a" / f"{number:04d}.jpg").touch()
        # Upper case sorts first.
        (root / "a" / "0000.PNG").touch()
        os.rename(root / "a" / "0000.jpg", root / "a" / "0000.zz.jpg")
        (root / "b").mkdir()
        (root / "b" / "1.jpg").touch()
        (root / "a" / "8999.tiff").touch()
        result = convert("imagefolder", "--root", root, "--out", tmp_path / "out")
        require_said(result, 1, "two images have the key a/8999")

    def test_in_shards(self, tmp_path: Path) -> None:
        for name in ("x", "y"):
            members = [("1.jpg", jpeg()), ("1.cls", b"0")]
            (tmp_path / f"{name}.tar").write_bytes(tar_bytes(members))
        result = convert("webdataset", "--root", tmp_path, "--out", tmp_path / "out")
        require_said(result, 1, "two images have the key 1", "x.tar", "y.tar")

    def test_in_archives(self, tmp_path: Path) -> None:
        inner = tar_bytes([("x_1.JPEG", jpeg(1)), ("x_1.JPEG", jpeg(2))])
        path = tmp_path / "ILSVRC2012_img_train.tar"
        path.write_bytes(tar_bytes([("n00000001.tar", inner)]))
        result = convert("imagenet", "--root", tmp_path, "--out", tmp_path / "out")
        require_said(result, 1, "two images have the key n00000001/x_1", path)


def tar_with(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    """A tar file with one member of any name or type, then a sound sample."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        data = jpeg() if kind == tarfile.REGTYPE else b""
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
        for sound, content in (("z.jpg", jpeg(1)), ("z.cls", b"0")):
            info = tarfile.TarInfo(sound)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def archive_of(source: str, root: Path, data: bytes) -> Path:
    """Puts a tar file where a source reads it."""
    if source == "webdataset":
        path = root / "x.tar"
        path.write_bytes(data)
    elif source == "val":
        path = root / "ILSVRC2012_img_val.tar"
        path.write_bytes(data)
        make_devkit(root, ["n00000001"], {1: "n00000001"})
    else:
        path = root / "ILSVRC2012_img_train.tar"
        path.write_bytes(data if source == "train" else tar_bytes([("n00000001.tar", data)]))
    return path


ARCHIVES = ("webdataset", "train", "train-inner", "val")


def convert_archive(source: str, root: Path, out: Path) -> Result:
    command = "webdataset" if source == "webdataset" else "imagenet"
    return convert(command, "--root", root, "--out", out)


@pytest.mark.parametrize("source", ARCHIVES)
class TestTars:
    @pytest.mark.parametrize(
        "name", ["../1.jpg", "a/../../1.jpg", "/etc/1.jpg", "..", "a/..", "./../n00000001.tar"]
    )
    def test_path_traversal(self, tmp_path: Path, source: str, name: str) -> None:
        path = archive_of(source, tmp_path, tar_with(name))
        result = convert_archive(source, tmp_path, tmp_path / "out")
        require_said(result, 1, f"{path}: the member {name} would lie outside", "do not use")
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
    def test_links_and_devices(self, tmp_path: Path, source: str, kind: bytes) -> None:
        path = archive_of(source, tmp_path, tar_with("1.jpg", kind, "/etc/passwd"))
        result = convert_archive(source, tmp_path, tmp_path / "out")
        require_said(result, 1, path, "1.jpg is a link or a device", "--dereference")

    @pytest.mark.parametrize("left", [0, 1, 511, 700, 1500])
    def test_truncated(self, tmp_path: Path, source: str, left: int) -> None:
        """Cut in a header or in data; only the outer archive can be, an inner lies in it."""
        data = tar_with("1.jpg")
        if source == "train":
            inner = tar_bytes([("1.JPEG", jpeg())])
            data = tar_bytes([("n00000001.tar", inner), ("n00000002.tar", inner)])
        path = archive_of(source, tmp_path, data)
        os.truncate(path, left)
        result = convert_archive(source, tmp_path, tmp_path / "out")
        require_said(result, 1, f"{path}: cannot be read as an uncompressed tar", "downloaded")
        assert not (tmp_path / "out").exists()

    def test_not_a_tar(self, tmp_path: Path, source: str) -> None:
        if source == "train-inner":
            pytest.skip("see TestTarsCutBetweenMembers")
        path = archive_of(source, tmp_path, random.Random(1).randbytes(5000))
        result = convert_archive(source, tmp_path, tmp_path / "out")
        require_said(result, 1, f"{path}: cannot be read as an uncompressed tar", "gunzip")


def member_ends(data: bytes) -> list[int]:
    """Where each member of a tar file ends, its padding included."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [info.offset_data + -(-info.size // 512) * 512 for info in tar]


TWO_SAMPLES = [("1.jpg", jpeg(1)), ("1.cls", b"0"), ("2.jpg", jpeg(2)), ("2.cls", b"0")]


class TestTarsCutBetweenMembers:
    """Python's tarfile takes these for the end, and would drop what follows in silence."""

    # After the last member there is only the end mark: some of it is enough, none is not.
    @pytest.mark.parametrize(("after", "more"), [(1, 0), (1, 1), (1, 300), (1, 511), (3, 0)])
    def test_cut(self, tmp_path: Path, after: int, more: int) -> None:
        data = tar_bytes(TWO_SAMPLES)
        path = tmp_path / "x.tar"
        path.write_bytes(data[: member_ends(data)[after] + more])
        result = convert("webdataset", "--root", tmp_path, "--out", tmp_path / "out")
        require_said(result, 1, path, "downloaded")

    def test_inner_tar_that_is_none(self, tmp_path: Path) -> None:
        path = archive_of("train-inner", tmp_path, random.Random(1).randbytes(5000))
        result = convert("imagenet", "--root", tmp_path, "--allow-empty")
        require_said(result, 1, f"{path}: cannot be read as an uncompressed tar")

    def test_damaged_header(self, tmp_path: Path) -> None:
        data = bytearray(tar_bytes(TWO_SAMPLES))
        data[member_ends(bytes(data))[1] + 10] ^= 0xFF
        path = tmp_path / "x.tar"
        path.write_bytes(data)
        result = convert("webdataset", "--root", tmp_path, "--out", tmp_path / "out")
        require_said(result, 1, path, "downloaded")


class TestNamesThatAreNotUtf8:
    @staticmethod
    def rename(path: Path, name: bytes) -> None:
        try:
            os.rename(os.fsencode(path), os.path.join(os.fsencode(path.parent), name))
        except OSError:
            pytest.skip("this file system has only UTF-8 names")

    @pytest.mark.parametrize("container", ALL_CONTAINERS)
    def test_file(self, tmp_path: Path, container: str) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg", "a/2.jpg", "a/é.jpg"])
        self.rename(root / "a" / "2.jpg", b"caf\xe9.jpg")
        out = tmp_path / "out"
        arguments = ("imagefolder", "--root", root, "--out", out, "--to", container)
        require_said(convert(*arguments), 1, r"a/caf\xe9.jpg", "not UTF-8", "rename")
        assert [(b["key"], b["path"]) for b in listed_bad(out)] == [
            (r"a/caf\xe9", rf"{root}/a/caf\xe9.jpg")
        ]
        assert convert(*arguments, "--skip-bad").exit_code == 0
        dataset = ImageDataset(out)
        assert [dataset.row(i).key for i in range(2)] == ["a/1", "a/é"]

    def test_folder_within_a_class(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg", "a/x/2.jpg"])
        self.rename(root / "a" / "x", b"\xff")
        result = convert("imagefolder", "--root", root, "--out", tmp_path / "out")
        require_said(result, 1, "1 of 2 images", r"a/\xff/2.jpg", "not UTF-8")

    @pytest.mark.parametrize("source", ["imagefolder", "imagenet"])
    def test_class_folder(self, tmp_path: Path, source: str) -> None:
        root = make_tree(tmp_path / "in", ["train/n00000001/1.jpg", "train/b/2.jpg"])
        self.rename(root / "train" / "b", b"\xe9t\xe9")
        where = root / "train" if source == "imagefolder" else root
        result = convert(source, "--root", where, "--out", tmp_path / "out")
        require_said(result, 1, root / "train", r"\xe9t\xe9", "not UTF-8", "Rename")

    @pytest.mark.parametrize("source", ["imagefolder", "imagenet", "webdataset"])
    def test_root(self, tmp_path: Path, source: str) -> None:
        parent = make_tree(tmp_path / "in", ["train/n00000001/1.jpg"])
        (parent / "x.tar").write_bytes(tar_bytes([("1.jpg", jpeg()), ("1.cls", b"0")]))
        self.rename(parent, b"\xff")
        root = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
        where = root + "/train" if source == "imagefolder" else root
        result = convert(source, "--root", where, "--out", tmp_path / "out")
        require_said(result, 1, r"\xff", "not UTF-8", "Rename")

    @pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
    @pytest.mark.parametrize("source", ["webdataset", "train-inner", "val"])
    def test_tar_member(self, tmp_path: Path, source: str, form: int) -> None:
        name = os.fsdecode(b"caf\xe9_1")
        members = [(f"{name}.jpg", jpeg(1)), (f"{name}.cls", b"0")]
        members += [("x_1.jpg", jpeg(2)), ("x_1.cls", b"0")]
        path = archive_of(source, tmp_path, tar_bytes(members, form))
        result = convert_archive(source, tmp_path, tmp_path / "out")
        require_said(result, 1, "1 of 2 images", path, "not UTF-8", "--skip-bad")
        (bad,) = listed_bad(tmp_path / "out")
        assert r"caf\xe9_1" in bad["key"]


class TestLinks:
    def test_loop_of_folders(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg", "a/b/2.jpg"])
        (root / "a" / "b" / "up").symlink_to(root / "a")
        result = convert("imagefolder", "--root", root, "--out", tmp_path / "out")
        require_said(result, 1, root / "a" / "b" / "up", "leads back", "Remove the link")

    def test_loop_through_the_root(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg"])
        (root / "b").symlink_to(root)
        result = convert("imagefolder", "--root", root, "--out", tmp_path / "out")
        require_said(result, 1, root / "b", "leads back", "Remove the link")

    def test_link_to_itself(self, tmp_path: Path) -> None:
        """As an image it is a bad sample; as a folder it is none."""
        root = make_tree(tmp_path / "in", ["n00000001/1.jpg"])
        (root / "n00000001" / "loop.jpg").symlink_to("loop.jpg")
        (root / "n00000001" / "loop").symlink_to("loop")
        (root / "n00000002").symlink_to("n00000002")
        for name, source in (("x", ("imagefolder", root)), ("y", ("imagenet", tmp_path))):
            if name == "y":
                root.rename(tmp_path / "train")
            out = tmp_path / "out" / name
            result = convert(source[0], "--root", source[1], "--out", out)
            require_said(result, 1, "1 of 2 images", "loop.jpg", "--skip-bad")

    @pytest.mark.parametrize("container", ALL_CONTAINERS)
    def test_dangling(self, tmp_path: Path, container: str) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg"])
        (root / "a" / "2.jpg").symlink_to(tmp_path / "gone.jpg")
        (root / "a" / "folder").symlink_to(tmp_path / "gone")
        (root / "b").symlink_to(tmp_path / "gone")
        out = tmp_path / "out"
        arguments = ("imagefolder", "--root", root, "--out", out, "--to", container)
        require_said(convert(*arguments), 1, root / "a" / "2.jpg", "No such file", "--skip-bad")
        assert [bad["key"] for bad in listed_bad(out)] == ["a/2"]
        # Mended by supplying what the link names.
        (tmp_path / "gone.jpg").write_bytes(jpeg(7))
        assert convert(*arguments).exit_code == 0
        assert ImageDataset(out).read([1]) == [jpeg(7)]


BLOBS = {"lmdb": "data.mdb", "parquet": "part-000000.parquet", "shards": "shard-000000.tar"}


class TestChangedAfterPacking:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        return make_tree(tmp_path / "in", [f"a/{n}.jpg" for n in range(4)])

    def packed(self, tree: Path, tmp_path: Path, container: str) -> Path:
        out = tmp_path / "out"
        result = convert("imagefolder", "--root", tree, "--out", out, "--to", container)
        assert result.exit_code == 0, result.output
        return out

    @pytest.mark.parametrize("container", CONTAINERS)
    @pytest.mark.parametrize("by", [-1, -3000, 5])
    def test_size(self, tree: Path, tmp_path: Path, container: str, by: int) -> None:
        out = self.packed(tree, tmp_path, container)
        path = out / BLOBS[container]
        os.truncate(path, path.stat().st_size + by)
        dataset = ImageDataset(out)
        for read in (lambda: dataset[3], lambda: dataset.read([0])):
            with pytest.raises(CorruptionError, match=r"bytes, but the manifest says") as raised:
                read()
            assert str(path) in raised.value.what
            assert "fastdata verify" in raised.value.hint
        for option in ((), ("--fast",)):
            result = run("verify", out, "--workers", 1, *option)
            require_said(result, 1, out, "--force")
            assert f"{path}: has" in result.stdout

    @pytest.mark.parametrize("container", CONTAINERS)
    def test_bytes(self, tree: Path, tmp_path: Path, container: str) -> None:
        out = self.packed(tree, tmp_path, container)
        path = out / BLOBS[container]
        row = ImageDataset(out).row(2)
        with path.open("r+b") as file:
            file.seek(row.offset + row.length // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        dataset = ImageDataset(out)
        assert dataset.read([0, 1, 3]) == [jpeg(0), jpeg(1), jpeg(3)]
        for read in (lambda: dataset[2], lambda: dataset.read([2])):
            with pytest.raises(CorruptionError, match=r"\(a/2\)") as raised:
                read()
            assert "have changed since it was packed" in raised.value.what
            assert str(path) in raised.value.what
            assert raised.value.hint
        result = run("verify", out, "--workers", 1)
        require_said(result, 1, out, "2 problems", "--force")
        assert "sample 2 (a/2)" in result.stdout
        assert f"{path}: has CRC-32C" in result.stdout

    @pytest.mark.parametrize("container", CONTAINERS)
    def test_missing(self, tree: Path, tmp_path: Path, container: str) -> None:
        out = self.packed(tree, tmp_path, container)
        path = out / BLOBS[container]
        path.unlink()
        with pytest.raises(DatasetError, match="no such file") as raised:
            ImageDataset(out).read([0])
        assert str(path) in raised.value.what
        require_said(run("verify", out, "--workers", 1), 1, out)

    @pytest.mark.parametrize("change", ["truncate", "replace", "remove"])
    def test_folder(self, tree: Path, tmp_path: Path, change: str) -> None:
        out = self.packed(tree, tmp_path, "folder")
        path = tree / "a" / "1.jpg"
        if change == "truncate":
            os.truncate(path, 500)
        elif change == "replace":
            path.write_bytes(jpeg(1)[:-3] + b"x" + jpeg(1)[-2:])
        else:
            path.unlink()
        dataset = ImageDataset(out)
        assert dataset.read([0, 2, 3]) == [jpeg(0), jpeg(2), jpeg(3)]
        for read in (lambda: dataset[1], lambda: dataset.read([1])):
            with pytest.raises(DatasetError) as raised:
                read()
            assert str(path) in raised.value.what
            assert raised.value.hint
        result = run("verify", out, "--workers", 1)
        require_said(result, 1, out, "1 problem")
        assert str(path) in result.stdout or "a/1" in result.stdout

    @pytest.mark.parametrize("name", ["_index.rows", "_dataset.json"])
    def test_metadata(self, tree: Path, tmp_path: Path, name: str) -> None:
        out = self.packed(tree, tmp_path, "shards")
        path = out / name
        whole = path.read_bytes()
        for spoiled in (whole[: len(whole) // 2], b"", random.Random(3).randbytes(len(whole))):
            path.write_bytes(spoiled)
            with pytest.raises(CorruptionError) as raised:
                ImageDataset(out)
            assert str(path) in raised.value.what
            assert raised.value.hint
            require_said(run("verify", out, "--workers", 1), 1, path)

    def test_source_changes_while_it_is_packed(
        self, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from fastdata.converters import listing

        wrote = listing.write_listing

        def write_then_change(*arguments: Any) -> Any:
            made = wrote(*arguments)
            os.truncate(tree / "a" / "2.jpg", 100)
            return made

        monkeypatch.setitem(pack.__globals__, "write_listing", write_then_change)
        result = convert("imagefolder", "--root", tree, "--out", tmp_path / "out")
        require_said(result, 1, tree / "a" / "2.jpg", "has 100 bytes now", "when it was listed")


class TestNewerFormat:
    def test_is_refused(self, tmp_path: Path) -> None:
        root = make_tree(tmp_path / "in", ["a/1.jpg"])
        out = tmp_path / "out"
        pack(ImageFolder(root), out, workers=1)
        path = out / "_dataset.json"
        manifest = json.loads(path.read_text("utf-8"))
        # A newer version may have changed everything but these.
        newer = {"format": "fastdata", "format_version": FORMAT_VERSION + 1, "tool": "9.1"}
        for fields in (manifest | newer, newer | {"things": []}):
            path.write_text(json.dumps(fields), "utf-8")
            with pytest.raises(VersionError, match=r"format version 4, written by fastdata 9\.1"):
                ImageDataset(out)
            for command in ("verify", "info"):
                result = run(command, out)
                require_said(
                    result, 1, path, "reads version 3", "pip install --upgrade fastdata-torch"
                )
            result = convert("imagefolder", "--root", root, "--out", out)
            require_said(result, 1, path, "pip install --upgrade fastdata-torch")


class TestCommandLine:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("imagenet", "--colour"),
            ("imagefolder", "--root", ".", "--shuffle"),
            ("cifar10", "--allow-empty"),
            ("webdataset", "--root", ".", "--split", "train"),
        ],
    )
    def test_unknown_option(self, arguments: tuple[str, ...]) -> None:
        require_said(convert(*arguments), 2, "No such option")

    def test_unknown_source_and_command(self) -> None:
        require_said(run("convert", "coco"), 2, "coco")
        require_said(run("compress"), 2, "compress")

    def test_stray_argument(self) -> None:
        require_said(run("convert", "imagenet", "/data/imagenet"), 2, "/data/imagenet")

    def test_not_a_dataset(self, tmp_path: Path) -> None:
        for command in ("verify", "info"):
            require_said(run(command, tmp_path), 1, tmp_path, "no dataset here", "convert")
            missing = tmp_path / "missing"
            require_said(run(command, missing), 1, missing, "no such folder", "convert")


class TestInterrupted:
    def test_before_anything_is_finished(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same command must not take what it left behind for somebody else's."""
        root = make_tree(tmp_path / "in", [f"a/{n}.jpg" for n in range(8)])
        for container in CONTAINERS:
            out = tmp_path / container
            source = ImageFolder(root)
            with monkeypatch.context() as patch:
                patch.setattr("fastdata.converters.tasks.probe", interrupt_at(jpeg(5)))
                with pytest.raises(KeyboardInterrupt):
                    pack(source, out, container=container, workers=1)
            with pytest.raises(DatasetError):
                ImageDataset(out)
            assert len(pack(source, out, container=container, workers=1).manifest.classes) == 1
            pack(source, tmp_path / "whole", container=container, workers=1)
            assert contents_but_source(out) == contents_but_source(tmp_path / "whole")
            shutil.rmtree(tmp_path / "whole")


def interrupt_at(data: bytes) -> Callable[[bytes], Any]:
    """A probe that is interrupted at one image."""
    from fastdata.decode.pillow import probe

    def probe_or_interrupt(blob: bytes) -> Any:
        if blob == data:
            raise KeyboardInterrupt
        return probe(blob)

    return probe_or_interrupt
