"""Datasets and sources behind URLs: converted, verified, described, staged; killed and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.packing import Progress, Silent, pack
from fastdata.converters.uploading import Uploading
from flaky_proxy import Exchange, FlakyProxy, wait_until
from object_stores import Bucket, send_tree
from sources import contents, contents_but_source, convert, make_tree, require_said

from fastdata import ImageDataset
from fastdata.cli import cli
from fastdata.errors import DataError
from fastdata.remote.filesystem import list_files, read_bytes, remove, upload
from fastdata.remote.urls import join_url
from fastdata.staging.staged import find_staged
from fastdata.storage.checksum import crc32c
from fastdata.storage.manifest import WORK_NAME, FileEntry


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of 36 small photographs in 3 classes; do not change it."""
    root = tmp_path_factory.mktemp("urls") / "tree"
    return make_tree(root, [f"{name}/{number:02}.jpg" for name in "abc" for number in range(12)])


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def remote_contents(bucket: Bucket, url: str, folder: Path) -> dict[str, str]:
    """Digests of the files below a URL, as `contents` has them of a folder."""
    for name in list_files(url, bucket.storage_options):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read_bytes(join_url(url, name), bucket.storage_options))
    return contents(folder)


SMALL = ("--shard-size", "5KiB")


@pytest.mark.parametrize(
    ("store", "container"),
    [("gcs", "shards"), ("gcs", "parquet"), ("gcs", "lmdb"), ("s3", "shards")],
)
def test_convert_to_a_bucket(
    store: str, container: str, tree: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bucket: Bucket = request.getfixturevalue(store)
    size = () if container == "lmdb" else SMALL
    arguments = ("imagefolder", "--root", tree, "--to", container, *size)
    assert convert(*arguments, "--out", tmp_path / "local").exit_code == 0
    url = f"{bucket.url}/data/{{split}}set"
    result = convert(*arguments, "--out", url, *bucket.arguments)
    require_said(result, 0)
    url = url.replace("{split}", "")
    assert f"{url}: 36 samples of 3 classes" in result.stdout
    assert remote_contents(bucket, url, tmp_path / "back") == contents(tmp_path / "local")
    again = convert(*arguments, "--out", url, *bucket.arguments)
    require_said(again, 0)
    assert "already packed" in again.stdout
    # Nothing is left of it on this machine.
    assert not any((tmp_path / "cache").rglob("*.*"))


@pytest.fixture(params=["gcs", "s3"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(request.param)
    return found


def packed(bucket: Bucket, tree: Path, container: str = "shards", *more: object) -> str:
    """Packs the tree to the bucket; the dataset's URL."""
    url = f"{bucket.url}/ds"
    size = () if container == "lmdb" else SMALL
    arguments = ("imagefolder", "--root", tree, "--to", container, *size, *more)
    require_said(convert(*arguments, "--out", url, *bucket.arguments), 0)
    return url


def test_verify_info_and_stage(bucket: Bucket, tree: Path, tmp_path: Path) -> None:
    url = packed(bucket, tree)
    require_said(
        convert(
            "imagefolder", "--root", tree, "--to", "shards", *SMALL, "--out", tmp_path / "local"
        ),
        0,
    )
    fast = run("verify", "--fast", url, *bucket.arguments)
    require_said(fast, 0)
    whole = run("verify", "--workers", 1, url, *bucket.arguments)
    require_said(whole, 0)
    assert f"{url}: 36 samples" in whole.stdout and "every image decodes" in whole.stdout
    about = run("info", "--json", url, *bucket.arguments)
    require_said(about, 0)
    assert json.loads(about.stdout)["samples"] == 36
    assert json.loads(about.stdout)["path"] == url
    staged = run("stage", url, "--to", tmp_path / "fast", *bucket.arguments)
    require_said(staged, 0)
    copy = Path(staged.stdout.partition(": ")[0])
    found = contents(copy)
    del found["staged.json"]
    expected = contents(tmp_path / "local")
    del expected[".huggingface.yaml"]  # no part of the dataset
    assert found == expected
    again = run("stage", url, "--to", tmp_path / "fast", *bucket.arguments)
    assert "staged already" in again.stdout
    about = run("info", "--json", url, *bucket.arguments)
    assert json.loads(about.stdout)["staged"] == str(copy)
    require_said(run("stage", url, "--unstage", "--to", tmp_path / "fast"), 0)
    assert not copy.exists()


def test_damage_in_a_bucket_is_found(gcs: Bucket, tree: Path, tmp_path: Path) -> None:
    url = packed(gcs, tree)
    names = sorted(name for name in list_files(url, gcs.storage_options) if "shard" in name)
    for name, change in ((names[0], "cut"), (names[1], "flip")):
        data = bytearray(read_bytes(join_url(url, name), gcs.storage_options))
        data[700] ^= 1
        (tmp_path / "bad").write_bytes(data[:-512] if change == "cut" else data)
        upload(tmp_path / "bad", join_url(url, name), storage_options=gcs.storage_options)
    remove(join_url(url, names[2]), gcs.storage_options)
    fast = run("verify", "--fast", url, *gcs.arguments)
    require_said(fast, 1, "2 problems")
    assert f"{url}/{names[0]}: has " in fast.stdout and f"{url}/{names[2]}: No such" in fast.stdout
    whole = run("verify", "--workers", 1, url, *gcs.arguments)
    require_said(whole, 1)
    assert f"{url}/{names[1]}: has CRC-32C" in whole.stdout
    assert "fastdata-" not in whole.stdout  # temporary folders mean nothing to the user
    staged = run("stage", url, "--to", tmp_path / "fast", *gcs.arguments)
    require_said(staged, 1, names[0], "damaged")


def test_bytes_that_come_damaged_once_are_not_the_datasets(gcs: Bucket, tree: Path) -> None:
    url = packed(gcs, tree)
    with gcs.through_proxy() as (slow, proxy):
        proxy.inject(
            "corrupt", lambda exchange: bool(exchange.range) and "/shard-" in exchange.path
        )
        require_said(run("verify", "--workers", 1, url, *slow.arguments), 0)
        assert any(exchange.fault for exchange in proxy.exchanges)


def start(*arguments: object) -> subprocess.Popen[bytes]:
    """Starts a command in a process of its own, to be killed."""
    command = [sys.executable, "-m", "fastdata", *(str(argument) for argument in arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill(process: subprocess.Popen[bytes]) -> None:
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()


def is_upload(exchange: Exchange) -> bool:
    return exchange.method == "POST" and "/upload/" in exchange.path


def test_killed_while_uploading(gcs: Bucket, tree: Path, tmp_path: Path) -> None:
    arguments = ("imagefolder", "--root", tree, "--to", "shards", *SMALL)
    require_said(convert(*arguments, "--out", tmp_path / "local"), 0)
    url = f"{gcs.url}/ds"
    with gcs.through_proxy() as (slow, proxy):
        proxy.delay = 0.2
        command = ("convert", *arguments, "--workers", 1, "--out", url, *slow.arguments)
        process = start(*command)
        wait_until(lambda: sum(is_upload(exchange) for exchange in proxy.exchanges) >= 3)
        kill(process)
        assert "_dataset.json" not in list_files(url, gcs.storage_options)
        proxy.delay = 0
        proxy.settle()
        before = sum(is_upload(exchange) for exchange in proxy.exchanges)
        require_said(run(*command), 0)
        uploads = [exchange for exchange in proxy.exchanges if is_upload(exchange)]
    files = contents(tmp_path / "local")
    assert 3 <= before < len(files)
    # Each file was sent once, those of the killed run too.
    assert len(uploads) == len(files)
    assert remote_contents(gcs, url, tmp_path / "back") == files


def test_a_refused_upload_loses_nothing(s3: Bucket, tree: Path, tmp_path: Path) -> None:
    arguments = ("imagefolder", "--root", tree, "--to", "shards", *SMALL)
    require_said(convert(*arguments, "--out", tmp_path / "local"), 0)
    url = f"{s3.url}/ds"
    with s3.through_proxy() as (slow, proxy):
        command = (*arguments, "--out", url, "--local", tmp_path / "making", *slow.arguments)
        proxy.inject("403", lambda exchange: "shard-000003" in exchange.path, times=1000)
        refused = convert(*command)
        require_said(refused, 1, f"{url}/shard-000003.tar", "credentials")
        left = [path for path in (tmp_path / "making").rglob("*") if path.is_file()]
        assert tmp_path / "making" / "shard-000003.tar" in left
        for text in (refused.output, *(path.read_bytes().decode("latin-1") for path in left)):
            assert "testing-secret" not in text
        sent = {exchange.path for exchange in proxy.matching("PUT") if exchange.status == 200}
        assert len(sent) >= 3
        proxy.clear()
        require_said(convert(*command), 0)
        assert not any(exchange.path in sent for exchange in proxy.matching("PUT"))
    assert remote_contents(s3, url, tmp_path / "back") == contents(tmp_path / "local")
    assert not (tmp_path / "making").exists()


def uploads_of(proxy: FlakyProxy) -> int:
    return sum(exchange.method in ("POST", "PUT") for exchange in proxy.exchanges)


@pytest.mark.parametrize("bucket", ["gcs", "s3"], indirect=True)
def test_uploads_under_way_are_given_up_at_ctrl_c(bucket: Bucket, tmp_path: Path) -> None:
    entries = []
    for number in range(7):  # more than are sent at once
        path = tmp_path / f"shard-{number:06d}.tar"
        path.write_bytes(bytes([number]) * 100_000)
        entries.append(FileEntry(path.name, 100_000, f"{crc32c(path.read_bytes()):08x}"))
    (tmp_path / WORK_NAME).mkdir()
    ledger = tmp_path / WORK_NAME / "sent.jsonl"
    with bucket.through_proxy() as (slow, proxy):
        proxy.inject("stall", lambda exchange: exchange.method in ("POST", "PUT"), times=1000)
        sender = Uploading(f"{slow.url}/ds", slow.storage_options, tmp_path)

        def interrupted() -> None:
            with sender:
                for entry in entries:
                    sender.add(entry)
                wait_until(lambda: uploads_of(proxy) == 4)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert uploads_of(proxy) == 4  # those that stalled were not waited for, and sent again
        wait_until(lambda: not any("fastdata-send" in t.name for t in threading.enumerate()))
        time.sleep(0.5)
        assert uploads_of(proxy) == 4  # nothing goes on behind the user's back
        assert not ledger.exists()
        assert all((tmp_path / entry.name).exists() for entry in entries)
        proxy.clear()
        with Uploading(f"{slow.url}/ds", slow.storage_options, tmp_path) as again:
            for entry in entries:
                again.add(entry)
            again.wait()
            assert again.arrived(entries) == {entry.name for entry in entries}
    assert not any((tmp_path / entry.name).exists() for entry in entries)


def test_ctrl_c_ends_a_packing_whose_uploads_hang(gcs: Bucket, tree: Path, tmp_path: Path) -> None:
    arguments = ("imagefolder", "--root", tree, "--to", "shards", *SMALL)
    require_said(convert(*arguments, "--out", tmp_path / "local"), 0)
    url = f"{gcs.url}/ds"
    with gcs.through_proxy() as (slow, proxy):
        proxy.inject("stall", is_upload, times=1000)
        command = ("convert", *arguments, "--workers", 1, "--out", url, *slow.arguments)
        process = start(*command)
        wait_until(lambda: sum(is_upload(exchange) for exchange in proxy.exchanges) == 4)
        process.send_signal(signal.SIGINT)
        assert process.wait() != 0  # its workers end, and the interpreter
        assert sum(is_upload(exchange) for exchange in proxy.exchanges) == 4
        proxy.clear()
        require_said(run(*command), 0)
    assert remote_contents(gcs, url, tmp_path / "back") == contents(tmp_path / "local")


class Removing(Progress):
    """Removes a file from the bucket before the manifest is sent."""

    def __init__(self, bucket: Bucket, local: Path) -> None:
        self._url, self._options = f"{bucket.url}/ds", bucket.storage_options
        self._local = local

    def finishing(self, what: str) -> None:
        if what == "upload":
            name = "shard-000000.tar"
            # Packing looks at what has arrived, and then removes what it has sent.
            wait_until(lambda: not (self._local / name).exists())
            assert name in list_files(self._url, self._options)
            remove(f"{self._url}/{name}", self._options)


def test_no_manifest_is_sent_where_a_file_is_missing(
    gcs: Bucket, tree: Path, tmp_path: Path
) -> None:
    def packing(progress: Progress) -> None:
        pack(
            ImageFolder(tree),
            f"{gcs.url}/ds",
            container="shards",
            shard_size=30_000,
            workers=1,
            progress=progress,
            local=tmp_path / "making",
            storage_options=gcs.storage_options,
        )

    with pytest.raises(DataError, match=r"the first: shard-000000\.tar"):
        packing(Removing(gcs, tmp_path / "making"))
    assert "_dataset.json" not in list_files(f"{gcs.url}/ds", gcs.storage_options)
    packing(Silent())
    require_said(run("verify", "--workers", 1, f"{gcs.url}/ds", *gcs.arguments), 0)


def test_killed_while_staging(gcs: Bucket, tree: Path, tmp_path: Path) -> None:
    url = packed(gcs, tree)
    shards = [name for name in list_files(url, gcs.storage_options) if name.endswith(".tar")]
    (tmp_path / "fast").mkdir()
    with gcs.through_proxy() as (slow, proxy):
        proxy.delay = 0.2
        command = ("stage", url, "--to", tmp_path / "fast", "--threads", 2, *slow.arguments)
        process = start(*command)
        wait_until(lambda: proxy.count("GET", "/shard-") >= 5)
        kill(process)
        proxy.delay = 0
        proxy.settle()
        assert find_staged(url, slow.storage_options) is None
        proxy.inject("corrupt", lambda exchange: "/shard-" in exchange.path)
        done = run(*command)
        require_said(done, 0)
        # What two threads were at is fetched again, and what came damaged.
        assert len(shards) < proxy.count("GET", "/shard-") <= len(shards) + 3
        copy = find_staged(url, slow.storage_options)
    assert copy is not None
    found = contents(copy)
    del found["staged.json"]
    expected = remote_contents(gcs, url, tmp_path / "back")
    del expected[".huggingface.yaml"]  # no part of the dataset
    assert found == expected


def test_ranks_that_stage_at_once_stage_once(gcs: Bucket, tree: Path, tmp_path: Path) -> None:
    url = packed(gcs, tree)
    shards = [name for name in list_files(url, gcs.storage_options) if name.endswith(".tar")]
    (tmp_path / "fast").mkdir()
    with gcs.through_proxy() as (slow, proxy):
        ranks = [start("stage", url, "--to", tmp_path / "fast", *slow.arguments) for _ in range(3)]
        assert [rank.wait(120) for rank in ranks] == [0, 0, 0]
        assert proxy.count("GET", "/shard-") == len(shards)


def test_a_bucket_with_something_else(gcs: Bucket, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.pdf").write_bytes(b"all of it")
    upload(tmp_path / "thesis.pdf", f"{gcs.url}/ds/thesis.pdf", storage_options=gcs.storage_options)
    arguments = ("imagefolder", "--root", tree, "--out", f"{gcs.url}/ds", *gcs.arguments)
    require_said(convert(*arguments), 2, f"{gcs.url}/ds", "thesis.pdf")
    require_said(convert(*arguments, "--force"), 2, "thesis.pdf")


def test_another_dataset_is_replaced_only_by_force(gcs: Bucket, tree: Path, tmp_path: Path) -> None:
    url = packed(gcs, tree)
    other = make_tree(tmp_path / "other", ["a/1.jpg", "b/2.jpg"])
    arguments = ("imagefolder", "--root", other, "--to", "shards", "--out", url, *gcs.arguments)
    require_said(convert(*arguments), 2, "already, packed from other data", "--force")
    require_said(convert(*arguments, "--force"), 0)
    assert sorted(list_files(url, gcs.storage_options)) == [
        ".huggingface.yaml",
        "_dataset.json",
        "_index.rows",
        "shard-000000.tar",
    ]
    require_said(run("verify", "--workers", 1, url, *gcs.arguments), 0)


def test_options_for_drivers_need_a_url(tree: Path, tmp_path: Path) -> None:
    option = ("--storage-option", "token=anon")
    require_said(convert("imagefolder", "--root", tree, "--out", tmp_path / "x", *option), 2, "URL")
    # A dataset's manifest says whether its files are behind a URL.
    local = tmp_path / "local"
    require_said(convert("imagefolder", "--root", tree, "--out", local), 0)
    require_said(run("verify", local, *option), 2, "URL")
    require_said(run("stage", tmp_path, "--to", "gs://b/copy"), 2, "--to gs://b/copy is a URL")
    made = ("--out", "gs://b/ds", "--local", "gs://b/making")
    require_said(convert("imagefolder", "--root", tree, *made), 2, "--local gs://b/making is a URL")
    require_said(run("seek-points", "gs://bucket/ds"), 2, "gs://bucket/ds")
    require_said(
        convert("imagefolder", "--root", tree, "--out", tmp_path / "x", "--local", tmp_path / "y"),
        2,
        "--local",
    )


def equal_but_source(remote: Path, local: Path) -> bool:
    return contents_but_source(remote) == contents_but_source(local)


@pytest.mark.parametrize(
    ("bucket", "container"), [("gcs", "shards"), ("s3", "lmdb")], indirect=["bucket"]
)
def test_sources_in_a_bucket(container: str, bucket: Bucket, tree: Path, tmp_path: Path) -> None:
    odd = make_tree(
        tmp_path / "odd", ["a/x/2.jpg", "a/x-y/1.jpg", "a/z.jpg", "b/B.JPEG", "b/a.jpg"]
    )
    (odd / "a" / "notes.txt").write_text("no image")
    for root in (tree, odd):
        url = send_tree(bucket, root, root.name)
        arguments = ("--to", container, "--workers", 2 if root is tree else 1)
        remote, local = tmp_path / f"{root.name}-r", tmp_path / f"{root.name}-l"
        result = convert(
            "imagefolder", "--root", url, *arguments, "--out", remote, *bucket.arguments
        )
        require_said(result, 0)
        require_said(convert("imagefolder", "--root", root, *arguments, "--out", local), 0)
        assert equal_but_source(remote, local)
        about = json.loads((remote / "_dataset.json").read_text())["source"]
        assert about["root"] == url


def test_tar_shards_in_a_bucket(gcs: Bucket, tree: Path, tmp_path: Path) -> None:
    shards = packed(gcs, tree)
    arguments = ("--to", "parquet", "--encoding", "jpeg", "--max-side", 24)
    with gcs.through_proxy() as (slow, proxy):
        out = tmp_path / "remote"
        result = convert("webdataset", "--root", shards, *arguments, "--out", out, *slow.arguments)
        require_said(result, 0)
        sizes = list_files(shards, gcs.storage_options)
        stored = sum(size for name, size in sizes.items() if name.endswith(".tar"))
        # Once to list, once to pack; a sample of records to estimate from.
        assert proxy.received("GET", "/shard-") <= 3 * stored
    staged = run("stage", shards, "--to", tmp_path / "fast", *gcs.arguments)
    copy = staged.stdout.partition(": ")[0]
    require_said(convert("webdataset", "--root", copy, *arguments, "--out", tmp_path / "local"), 0)
    assert equal_but_source(tmp_path / "remote", tmp_path / "local")
    one = convert(
        "webdataset", "--root", f"{shards}/shard-000000.tar", "--out", tmp_path / "one",
        "--to", "shards", *gcs.arguments,
    )  # fmt: skip
    require_said(one, 0)


def test_imagenet_in_a_bucket(gcs: Bucket, tmp_path: Path) -> None:
    names = [f"{split}/n0000000{n}/{n}.JPEG" for split in ("train", "val") for n in (1, 2)]
    url = send_tree(gcs, make_tree(tmp_path / "imagenet", names), "imagenet")
    out = f"{gcs.url}/made-{{split}}"
    arguments = ("imagenet", "--to", "shards", "--out", out, *gcs.arguments)
    require_said(convert(*arguments, "--root", url), 0)
    for split in ("train", "val"):
        about = run("info", "--json", out.replace("{split}", split), *gcs.arguments)
        assert json.loads(about.stdout)["samples"] == 2
    require_said(convert(*arguments, "--root", f"{gcs.url}/no"), 1, f"{gcs.url}/no", "--root")


def test_an_index_of_images_in_a_bucket(gcs: Bucket, tree: Path, tmp_path: Path) -> None:
    url = send_tree(gcs, tree, "tree")
    arguments = ("imagefolder", "--root", url, "--to", "folder", *gcs.arguments)
    require_said(convert(*arguments, "--out", tmp_path / "here"), 0)
    here = ImageDataset(tmp_path / "here", storage_options=gcs.storage_options)
    assert here.read([0])[0] == (tree / "a" / "00.jpg").read_bytes()
    require_said(convert(*arguments, "--out", f"{gcs.url}/tree/x"), 2, "lies inside")
    require_said(convert(*arguments, "--out", f"{gcs.url}/index"), 0)
    require_said(run("verify", "--workers", 1, f"{gcs.url}/index", *gcs.arguments), 0)
    staged = run("stage", f"{gcs.url}/index", "--to", tmp_path / "fast", *gcs.arguments)
    require_said(staged, 0)
    dataset = ImageDataset(staged.stdout.partition(": ")[0])
    assert len(dataset) == 36
    assert dataset.read([0])[0] == (tree / "a" / "00.jpg").read_bytes()
    remove(f"{url}/b/00.jpg", gcs.storage_options)
    gone = run("verify", "--fast", f"{gcs.url}/index", *gcs.arguments)
    require_said(gone, 1)
    assert f"{url}/b/00.jpg: No such file" in gone.stdout


def test_a_source_that_fails_for_a_while(gcs: Bucket, tree: Path, tmp_path: Path) -> None:
    url = send_tree(gcs, tree, "tree")
    with gcs.through_proxy() as (slow, proxy):
        for fault in ("503", "reset", "truncate"):
            proxy.inject(fault, lambda exchange: ".jpg" in exchange.path)
        arguments = ("imagefolder", "--root", url, "--to", "shards", *slow.arguments)
        require_said(convert(*arguments, "--out", tmp_path / "out"), 0)
        assert sum(exchange.fault is not None for exchange in proxy.exchanges) == 3
    require_said(run("verify", "--workers", 1, tmp_path / "out"), 0)
