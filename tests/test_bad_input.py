"""Bad input: each ends with an error that says what, where and how to mend it."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
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
from fastdata.converters.options import PackOptions
from sources import (
    contents,
    encoded,
    jpeg,
    make_devkit,
    make_tree,
    picture,
    require_said,
    tar_bytes,
)
from tiers import slow

from fastdata import ImageDataset
from fastdata.cli.commands import cli
from fastdata.errors import DatasetError, SpaceError

pytestmark = pytest.mark.usefixtures("own_folder")

CONTAINERS = ("lmdb", "parquet", "shards")
NOBODY = 65534


def convert(*arguments: object) -> Result:
    """In the source's order: these tests know samples by where they were."""
    return sources.convert(*arguments, "--no-shuffle")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def no_dataset(out: Path) -> None:
    assert not (out / "_dataset.json").exists()
    with pytest.raises(DatasetError):
        ImageDataset(out)


def listed_bad(out: Path) -> list[dict[str, str]]:
    lines = (out / "_bad-samples.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


# Roots.


def test_a_root_that_is_missing_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file.jpg").write_bytes(jpeg())
    for source in ("imagenet", "imagefolder", "webdataset"):
        arguments = (source, "--out", tmp_path / "out/{split}", "--root")
        require_said(convert(*arguments, tmp_path / "nowhere"), 1, "nowhere: no such")
        if source != "webdataset":
            require_said(convert(*arguments, tmp_path / "file.jpg"), 1, "file.jpg", "folder")
            continue
        require_said(convert(source), 2, "--root")
    assert not (tmp_path / "out").exists()
    require_said(convert("imagenet"), 1, "imagenet: no such folder", "--root")
    monkeypatch.setenv("IMAGENET_DIR", "/nowhere/at/all")
    require_said(convert("imagenet"), 1, "/nowhere/at/all: no such folder", "--root")


def test_folders_without_images(tmp_path: Path) -> None:
    root, out = tmp_path / "n00000001", tmp_path / "out"
    (root / "b").mkdir(parents=True)
    (root / "b" / "notes.txt").touch()
    arguments = ("imagefolder", "--root", root, "--out", out)
    require_said(convert(*arguments, "--allow-empty"), 1, f"{root}: no images found", "--root")
    make_tree(root, ["a/1.jpg", "c/1.jpg"])
    require_said(convert(*arguments), 1, root / "b", "--allow-empty", "Remove the folder")
    assert not out.exists()
    assert convert(*arguments, "--allow-empty").exit_code == 0
    assert ImageDataset(out).classes == ["a", "b", "c"]
    assert ImageDataset(out).labels.tolist() == [0, 2]
    # ImageNet's.
    (tmp_path / "in/train/n00000002").mkdir(parents=True)
    root.rename(tmp_path / "in/train/n00000001")
    arguments = ("imagenet", "--root", tmp_path / "in", "--out", tmp_path / "other")
    require_said(convert(*arguments), 1, "train/n00000002", "--allow-empty")
    assert convert(*arguments, "--allow-empty").exit_code == 0


# Permissions: none count for root, so commands run as another user.


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that other users can reach, which ``tmp_path`` is not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        for path in (folder / "cache", folder / "out"):
            path.mkdir()
            path.chmod(0o777)
        monkeypatch.setenv("FASTDATA_CACHE_DIR", str(folder / "cache"))
        monkeypatch.chdir(folder)
        yield folder


def run_unprivileged(*arguments: object) -> Result:
    if os.geteuid() != 0:
        return run(*arguments)
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        return run(*arguments)
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Another user may be unable to import what commands import when they run."""
    root = tmp_path_factory.mktemp("imported")
    tree = make_tree(root / "train", ["n00000001/1.jpg"])
    for source in ("imagenet", "webdataset"):
        sources.convert(source, "--root", root, "--out", root / source)
    for container in ("lmdb", "shards"):
        pack_tree(tree, root / container, container)
        run("verify", root / container, "--workers", 1)
    sources.convert("imagefolder", "--root", root / "nowhere")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("command", ["seek-points", "stage"])
def test_a_folder_that_cannot_be_written_is_named_and_not_its_lock(
    public: Path, command: str
) -> None:
    make_tree(public / "in", ["a/1.jpg"])
    dataset, place = public / "set", public / "place"
    pack_tree(public / "in", dataset, "shards")
    own = place / f"fastdata-{NOBODY}"
    own.mkdir(parents=True)
    os.chown(own, NOBODY, NOBODY)
    own.chmod(0o555)
    arguments = [command, dataset, *(["--to", place] if command == "stage" else [])]
    assert run(*arguments).exit_code == 0
    shutil.rmtree(place / "fastdata-0", ignore_errors=True)
    result = run_unprivileged(*arguments)
    require_said(result, 1, own if command == "stage" else dataset, "Permission denied")
    assert ".lock" not in result.stderr


def test_an_image_that_cannot_be_read_is_bad_until_a_chmod(public: Path) -> None:
    root, out = make_tree(public / "in", ["a/1.jpg", "a/2.jpg", "b/3.jpg"]), public / "out/set"
    (root / "a" / "2.jpg").chmod(0)
    arguments = ("convert", "imagefolder", "--root", root, "--out", out, "--no-shuffle",
                 "--workers", "1")  # fmt: skip
    result = run_unprivileged(*arguments)
    require_said(result, 1, "1 of 3 images", root / "a" / "2.jpg", "Permission denied")
    no_dataset(out)
    (bad,) = listed_bad(out)
    assert bad["key"] == "a/2"
    assert "Permission denied" in bad["reason"]
    (root / "a" / "2.jpg").chmod(0o644)
    assert run_unprivileged(*arguments).exit_code == 0
    assert ImageDataset(out).read(range(3)) == [jpeg(seed) for seed in range(3)]
    assert not (out / "_bad-samples.jsonl").exists()


def test_files_and_folders_that_cannot_be_read(public: Path) -> None:
    tree = make_tree(public / "in/train", ["n00000001/1.jpg"])
    deep = make_tree(public / "deep", ["n00000001/1.jpg", "n00000001/deep/2.jpg", "b/3.jpg"])
    for source, root, closed, mode in (
        ("imagefolder", deep, deep / "n00000001/deep", 0),
        ("imagefolder", deep, deep, 0o444),
        ("imagenet", tree.parent, tree.parent, 0o444),
        ("imagenet", tree.parent, tree / "n00000001", 0),
        ("webdataset", public, public / "x.tar", 0),
        ("imagenet", public, public / "ILSVRC2012_img_train.tar", 0),
    ):
        closed.touch()
        closed.chmod(mode)
        place = public / "out/a{split}"
        result = run_unprivileged("convert", source, "--root", root, "--out", place)
        closed.chmod(0o755)
        require_said(result, 1, closed, "Permission denied")
        assert not closed.is_dir() or "chmod" in result.stderr
    assert not [*(public / "out").rglob("_dataset.json")]
    result = run_unprivileged("convert", "imagefolder", "--root", tree, "--out", public / "no/set")
    require_said(result, 2, public / "no/set", "Permission denied", "--out")
    out = public / "dataset"
    pack_tree(tree, out, "shards")
    for name in ("shard-000000.tar", "_dataset.json"):
        (out / name).chmod(0)
        result = run_unprivileged("verify", out, "--workers", "1")
        assert result.exit_code == 1
        assert name in result.output and "Permission denied" in result.output


# Disks that are full.


@contextmanager
def small_disk(where: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A real file system of ``size`` bytes at ``where``; yields what makes it larger."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount a small file system to fill")
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")

    def resize(larger: int) -> None:
        options = f"remount,size={larger}"
        subprocess.run(["mount", "-o", options, str(where)], check=True)

    try:
        yield resize
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_full_disk_where_an_index_of_first_use_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [(f"{number:0200}.jpg", jpeg()) for number in range(300)]
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    with small_disk(tmp_path / "disk", 60_000):
        monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "disk"))
        with (
            pytest.warns(UserWarning, match="indexed now"),
            pytest.raises(SpaceError, match=r"\nMake room. Set FASTDATA_CACHE_DIR"),
        ):
            ImageDataset(tmp_path / "a.tar")


@pytest.fixture(scope="module")
def deceptive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree whose pixels need far more room than the even sample of every second image shows."""
    folder = tmp_path_factory.mktemp("deceptive") / "a"
    folder.mkdir()
    few = jpeg(1, comment=b"x" * 4000)
    many = encoded(picture(2).resize((400, 400)).quantize(2), "PNG")
    for number in range(128):
        data = few if number % 2 else many
        (folder / f"{number:03d}.jpg").write_bytes(data + bytes([number]))
    return folder.parent


@pytest.mark.parametrize(
    ("container", "shard_size"),
    [("shards", 64 << 10), slow("lmdb", None), slow("parquet", 64 << 10)],
)
def test_a_disk_that_fills_midway_and_then_has_room(
    deceptive: Path, tmp_path: Path, container: str, shard_size: int | None
) -> None:
    arguments = ["imagefolder", "--root", deceptive, "--to", container, "--encoding", "raw"]
    arguments += ["--workers", "1", *(["--shard-size", shard_size] if shard_size else [])]
    with small_disk(tmp_path / "disk", 8_000_000) as resize:
        out = tmp_path / "disk" / "out"
        for _ in range(2):  # the second time with what the first has left lying there
            result = convert(*arguments, "--out", out)
            require_said(result, 1, f"{out}: the disk is full", "free", "resumes", "--out")
            no_dataset(out)
        before = {path.name: path.stat().st_ino for path in out.glob("*-*.[tp]a*[rt]")}
        assert bool(before) == (shard_size is not None)
        resize(100_000_000)
        assert convert(*arguments, "--out", out).exit_code == 0
        after = {path.name: path.stat().st_ino for path in out.iterdir()}
        assert before.items() <= after.items(), "what was finished is kept"
        whole: dict[str, Any] = {"container": container, "workers": 1}
        chosen = PackOptions(Encoding("raw"), shuffle=False, shard_size=shard_size)
        whole["options"] = chosen
        pack(ImageFolder(deceptive), tmp_path / "undisturbed", **whole)
        assert contents(out) == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize("container", ["shards", slow("lmdb"), slow("parquet")])
def test_a_disk_with_too_little_room_is_not_filled(tmp_path: Path, container: str) -> None:
    tree = make_tree(tmp_path / "tree", [f"a/{number}.jpg" for number in range(40)])
    needed = sum(path.stat().st_size for path in tree.rglob("*.jpg"))
    arguments = ["imagefolder", "--root", tree, "--to", container, "--shard-size", 4096]
    arguments = arguments[: None if container != "lmdb" else -2]
    with small_disk(tmp_path / "disk", 2 * needed // 3) as resize:
        out = tmp_path / "disk" / "out"
        require_said(convert(*arguments, "--out", out), 1, "are needed", "free", "resumes")
        assert not out.exists()
        resize(100_000_000)
        assert convert(*arguments, "--out", out).exit_code == 0


def test_a_quota_counts_as_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setitem(pack.__globals__, "write_listing", full)
    with pytest.raises(SpaceError, match="quota"):
        pack(ImageFolder(make_tree(tmp_path / "in", ["a/1.jpg"])), tmp_path / "out", workers=1)


# Places that are taken.


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    root, out = make_tree(tmp_path / "in", ["a/1.jpg"]), tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    for place in (out, out / "thesis.tex", out / "thesis.tex/below"):
        for options in ((), ("--force",)):
            result = convert("imagefolder", "--root", root, "--out", place, *options)
            require_said(result, 2, place, "--out")
        assert [path.name for path in out.iterdir()] == ["thesis.tex"]
        assert (out / "thesis.tex").read_text() == "years of work"


# Images.


def bomb() -> bytes:
    data = encoded(picture(1), "PNG")
    at = data.index(b"IHDR") + 4
    return data[:at] + (60_000).to_bytes(4, "big") * 2 + data[at + 8 :]


BAD_IMAGES = {
    "bomb": (bomb(), ""),
    "cut-in-header": (jpeg(90)[:30], ""),
    "empty": (b"", "0 bytes"),
    "html": (b"<html>404 Not Found</html>", "not an image"),
    "png": (encoded(picture(91), "PNG")[:-40], ""),
    "truncated": (jpeg(90)[: len(jpeg(90)) * 2 // 3], "truncated"),
    "two-bytes": (b"\xff\xd8", ""),
    "zeros": (bytes(5000), "not an image"),
}


@pytest.mark.parametrize("container", [*CONTAINERS, "folder"])
def test_bad_images_are_listed_and_all_others_packed(tmp_path: Path, container: str) -> None:
    root, out = make_tree(tmp_path / "in", [f"a/{n}.JPEG" for n in range(5)]), tmp_path / "out"
    for kind, (data, _) in BAD_IMAGES.items():
        (root / "a" / f"{kind}.JPEG").write_bytes(data)
    arguments = ("imagefolder", "--root", root, "--out", out, "--to", container)
    for _ in range(2):  # it is no better the second time
        result = convert(*arguments)
        require_said(result, 1, "8 of 13 images", out / "_bad-samples.jsonl", "--skip-bad")
        no_dataset(out)
        for bad, (kind, (_, reason)) in zip(listed_bad(out), BAD_IMAGES.items(), strict=True):
            assert (bad["key"], bad["path"]) == (f"a/{kind}", str(root / "a" / f"{kind}.JPEG"))
            assert reason in bad["reason"]
    assert convert(*arguments, "--skip-bad").exit_code == 0
    dataset = ImageDataset(out)
    assert [dataset.row(i).key for i in range(5)] == [f"a/{n}" for n in range(5)]
    assert dataset.read(range(5)) == [jpeg(n) for n in range(5)]
    assert dataset.manifest.skipped == len(listed_bad(out)) == 8
    assert run("verify", out, "--workers", 1).exit_code == 0


def test_nothing_but_bad_images(tmp_path: Path) -> None:
    root, out = make_tree(tmp_path / "in", ["a/1.jpg", "b/2.jpg"]), tmp_path / "out"
    for path in root.glob("*/*"):
        path.write_bytes(b"no")
    for options in ((), ("--skip-bad",)):
        result = convert("imagefolder", "--root", root, "--out", out, *options)
        require_said(result, 1, out, "2 of 2 images", root / "a" / "1.jpg", "--root")
        no_dataset(out)
        assert len(listed_bad(out)) == 2


def test_what_only_decoding_shows(tmp_path: Path) -> None:
    """Copying does not decode: verify does, and so does another encoding."""
    root, out = make_tree(tmp_path / "in", ["a/1.jpg", "a/2.jpg"]), tmp_path / "out"
    path = root / "a" / "2.jpg"
    path.write_bytes(broken_jpeg())
    assert convert("imagefolder", "--root", root, "--out", out).exit_code == 0
    result = run("verify", out, "--workers", 1)
    require_said(result, 1, out, "1 problem")
    assert "sample 1 (a/2): cannot be decoded" in result.stdout
    for encoding in ("jpeg", "raw"):
        again = convert("imagefolder", "--root", root, "--out", tmp_path / encoding,
                        "--encoding", encoding)  # fmt: skip
        require_said(again, 1, path, "cannot be decoded", "--skip-bad")


# Keys that occur twice.


def test_two_extensions_of_one_key(tmp_path: Path) -> None:
    """They have the suffix in their keys; real clashes are listed together."""
    names = ["a/1.jpg", "a/1.png", "a/2.jpg", "b/1.jpg"]
    root, out = make_tree(tmp_path / "in", names), tmp_path / "out"
    assert convert("imagefolder", "--root", root, "--out", out).exit_code == 0
    keys = ["a/1.jpg", "a/1.png", "a/2", "b/1"]
    assert [one["key"] for one in ImageDataset(out, fields=("key",))] == keys
    make_tree(
        root, more := [f"c/{n}{end}" for n in range(12) for end in (".jpg", ".png", ".jpg.png")]
    )
    again = ("imagefolder", "--root", root, "--out", tmp_path / "again")
    result = convert(*again)
    require_said(result, 1, *(root / f"c/{n}.jpg.png" for n in (0, 1, 10, 11, 2, 3, 4, 5, 6, 7)))
    require_said(result, 1, "2 more", "--skip-bad")
    assert str(root / "c/9.jpg.png") not in result.output
    assert "--shard-keys" not in result.output
    assert convert(*again, "--skip-bad").exit_code == 0
    dataset = ImageDataset(tmp_path / "again", fields=("key",))
    assert [one["key"] for one in dataset] == [*keys, *sorted(m for m in more if m.count(".") < 2)]
    assert dataset.manifest.skipped == 12
    lines = (tmp_path / "again" / "_bad-samples.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["path"] for line in lines) == sorted(
        str(root / f"c/{n}.jpg.png") for n in range(12)
    )


@pytest.mark.slow
def test_a_key_twice_far_apart(tmp_path: Path) -> None:
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
    (root / "a" / "8999.jpg.png").touch()
    result = convert("imagefolder", "--root", root, "--out", tmp_path / "out")
    require_said(result, 1, "two images have the key a/8999.jpg")


def test_a_key_twice_in_archives(tmp_path: Path) -> None:
    for name in ("x", "y"):
        members = [("1.jpg", jpeg()), ("1.cls", b"0")]
        (tmp_path / f"{name}.tar").write_bytes(tar_bytes(members))
    result = convert("webdataset", "--root", tmp_path, "--out", tmp_path / "out")
    require_said(result, 1, "two images have the key 1", "x.tar", "y.tar")
    path = archive_of("train-inner", tmp_path, tar_bytes([("x_1.JPEG", jpeg(1))] * 2))
    result = convert("imagenet", "--root", tmp_path, "--out", tmp_path / "out")
    require_said(result, 1, "two images have the key n00000001/x_1", path)


# Tars.


def tar_with(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "" if kind == tarfile.REGTYPE else "/etc/passwd"
        info.size = len(jpeg()) if kind == tarfile.REGTYPE else 0
        tar.addfile(info, io.BytesIO(jpeg()))
        for sound, content in (("z.jpg", jpeg(1)), ("z.cls", b"0")):
            info = tarfile.TarInfo(sound)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def archive_of(source: str, root: Path, data: bytes) -> Path:
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


def convert_archive(source: str, root: Path) -> Result:
    command = "webdataset" if source == "webdataset" else "imagenet"
    return convert(command, "--root", root, "--out", root / "out")


#: Tars, and what is said of their one odd member.
ODD_TARS = {
    **{
        name: (tar_with(name), f"the member {name} would lie outside")
        for name in ("../1.jpg", "a/../../1.jpg", "/etc/1.jpg", "..", "a/..", "./../n00000001.tar")
    },
    **{
        name: (tar_with("1.jpg", kind), "1.jpg is a link or a device")
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE),
                           ("fifo", tarfile.FIFOTYPE))
    },
}  # fmt: skip


@pytest.mark.parametrize("source", ["webdataset", "train", "train-inner", "val"])
def test_odd_tars(tmp_path: Path, source: str) -> None:
    for data, said in ODD_TARS.values():
        path = archive_of(source, tmp_path, data)
        require_said(convert_archive(source, tmp_path), 1, path, said)
    path = archive_of(source, tmp_path, random.Random(1).randbytes(5000))
    require_said(convert_archive(source, tmp_path), 1, f"{path}: cannot be read as an uncompressed")
    data = tar_with("1.jpg")
    if source == "train":
        inner = tar_bytes([("1.JPEG", jpeg())])
        data = tar_bytes([("n00000001.tar", inner), ("n00000002.tar", inner)])
    for left in (0, 1, 511, 700, 1500):  # in a header, and in data
        path = archive_of(source, tmp_path, data)
        os.truncate(path, left)
        require_said(convert_archive(source, tmp_path), 1, f"{path}: cannot be read", "downloaded")
    assert not (tmp_path / "out").exists()


def test_a_tar_that_is_cut_between_members(tmp_path: Path) -> None:
    """Python's tarfile takes this for the end, and would drop what follows in silence."""
    names = [("1.jpg", jpeg(1)), ("1.cls", b"0"), ("2.jpg", jpeg(2)), ("2.cls", b"0")]
    data = tar_bytes(names)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        ends = [info.offset_data + -(-info.size // 512) * 512 for info in tar]
    cuts = [data[: ends[after] + more] for after, more in ((1, 0), (1, 1), (1, 300), (1, 511))]
    # After the last member there is only the end mark: some of it is enough, none is not.
    cuts.append(data[: ends[3]])
    cuts.append(data[: ends[1] + 10] + bytes([data[ends[1] + 10] ^ 255]) + data[ends[1] + 11 :])
    path = tmp_path / "x.tar"
    for cut in cuts:
        path.write_bytes(cut)
        require_said(convert_archive("webdataset", tmp_path), 1, path, "downloaded")


# Names that are not UTF-8.


def rename(path: Path, name: bytes) -> None:
    try:
        os.rename(os.fsencode(path), os.path.join(os.fsencode(path.parent), name))
    except OSError:
        pytest.skip("this file system has only UTF-8 names")


@pytest.mark.parametrize("container", ["lmdb", "folder"])
def test_a_file_whose_name_is_not_utf_8(tmp_path: Path, container: str) -> None:
    root, out = make_tree(tmp_path / "in", ["a/1.jpg", "a/2.jpg", "a/é.jpg"]), tmp_path / "out"
    rename(root / "a" / "2.jpg", b"caf\xe9.jpg")
    (root / "a" / "x").mkdir()
    (root / "a" / "x" / "3.jpg").write_bytes(jpeg())
    rename(root / "a" / "x", b"\xff")
    arguments = ("imagefolder", "--root", root, "--out", out, "--to", container)
    require_said(convert(*arguments), 1, r"a/caf\xe9.jpg", "not UTF-8", "rename")
    assert [(b["key"], b["path"]) for b in listed_bad(out)] == [
        (r"a/caf\xe9", rf"{root}/a/caf\xe9.jpg"),
        (r"a/\xff/3", rf"{root}/a/\xff/3.jpg"),
    ]
    assert convert(*arguments, "--skip-bad").exit_code == 0
    dataset = ImageDataset(out)
    assert [dataset.row(i).key for i in range(2)] == ["a/1", "a/é"]


@pytest.mark.parametrize("source", ["imagefolder", "imagenet", "webdataset"])
def test_folders_whose_names_are_not_utf_8(tmp_path: Path, source: str) -> None:
    parent = make_tree(tmp_path / "in", ["train/n00000001/1.jpg", "train/b/2.jpg"])
    (parent / "x.tar").write_bytes(tar_bytes([("1.jpg", jpeg()), ("1.cls", b"0")]))
    below = "/train" if source == "imagefolder" else ""
    rename(parent / "train" / "b", b"\xe9t\xe9")
    if source != "webdataset":
        result = convert(source, "--root", f"{parent}{below}", "--out", tmp_path / "out")
        require_said(result, 1, parent / "train", r"\xe9t\xe9", "not UTF-8", "Rename")
    rename(parent, b"\xff")
    root = os.fsdecode(os.fsencode(tmp_path) + b"/\xff") + below
    result = convert(source, "--root", root, "--out", tmp_path / "out")
    require_said(result, 1, r"\xff", "not UTF-8", "Rename")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("source", ["webdataset", "train-inner", "val"])
def test_a_member_whose_name_is_not_utf_8(tmp_path: Path, source: str, form: int) -> None:
    name = os.fsdecode(b"caf\xe9_1")
    members = [(f"{name}.jpg", jpeg(1)), (f"{name}.cls", b"0")]
    members += [("x_1.jpg", jpeg(2)), ("x_1.cls", b"0")]
    path = archive_of(source, tmp_path, tar_bytes(members, form))
    result = convert_archive(source, tmp_path)
    require_said(result, 1, "1 of 2 images", path, "not UTF-8", "--skip-bad")
    (bad,) = listed_bad(tmp_path / "out")
    assert r"caf\xe9_1" in bad["key"]


# Links.


def test_links_that_lead_back(tmp_path: Path) -> None:
    """To a folder above; to itself: as an image it is a bad sample, as a folder it is none."""
    root = make_tree(tmp_path / "train", ["n00000001/1.jpg", "n00000001/b/2.jpg"])
    for link, target in ((root / "n00000001/b/up", root / "n00000001"), (root / "b", root)):
        link.symlink_to(target)
        result = convert("imagefolder", "--root", root, "--out", tmp_path / "out")
        require_said(result, 1, link, "leads back", "Remove the link")
        link.unlink()
    for name in ("n00000001/loop.jpg", "n00000001/loop", "n00000002"):
        (root / name).symlink_to(Path(name).name)
    for source, place in (("imagefolder", root), ("imagenet", tmp_path)):
        result = convert(source, "--root", place, "--out", tmp_path / "out" / source)
        require_said(result, 1, "loop.jpg", "--skip-bad")


@pytest.mark.parametrize("container", ["lmdb", "folder"])
def test_links_that_lead_nowhere(tmp_path: Path, container: str) -> None:
    root, out = make_tree(tmp_path / "in", ["a/1.jpg"]), tmp_path / "out"
    (root / "a" / "2.jpg").symlink_to(tmp_path / "gone.jpg")
    (root / "a" / "folder").symlink_to(tmp_path / "gone")
    (root / "b").symlink_to(tmp_path / "gone")
    arguments = ("imagefolder", "--root", root, "--out", out, "--to", container)
    require_said(convert(*arguments), 1, root / "a" / "2.jpg", "No such file", "--skip-bad")
    assert [bad["key"] for bad in listed_bad(out)] == ["a/2"]
    # Mended by supplying what the link names.
    (tmp_path / "gone.jpg").write_bytes(jpeg(7))
    assert convert(*arguments).exit_code == 0
    assert ImageDataset(out).read([1]) == [jpeg(7)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "in", [f"a/{n}.jpg" for n in range(4)])


# While packing.


def test_a_source_that_changes_while_it_is_packed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


#: Commands that read a dataset, with what they need beside it.
READERS = {
    "verify": (), "info": (), "seek-points": (), "stage": ("--to", "staged"),
    "doctor": ("--seconds", "0.1"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*indexed now:UserWarning")
@pytest.mark.parametrize("command", READERS)
def test_wrong_places_are_errors_with_a_remedy(command: str, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", ["a/0.jpg", "b/1.jpg"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "cut.tar").write_bytes(tar_bytes([("a.jpg", b"no image")])[:700])
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    pack_tree(tree, tmp_path / "broken", "lmdb")
    (tmp_path / "broken" / "_dataset.json").write_text('{"format": "fastdata", "samples": -1}')
    wrong = ["missing", "text.txt", "empty", "cut.tar", "cut.parquet", "broken", "file:///missing"]
    for place in wrong + ["tree"] * (command != "doctor"):
        done = run(command, place, *READERS[command])
        assert isinstance(done.exception, SystemExit), (place, done.exception)
        error, *hint = done.stderr.splitlines()[-2:]
        assert done.exit_code in (1, 2) and error.startswith("error: ") and hint, done.stderr
