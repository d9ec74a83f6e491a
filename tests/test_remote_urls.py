"""Datasets and sources behind URLs: converted, verified, described, staged; killed and resumed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.options import PackOptions
from fastdata.converters.packing import SILENT, PackingProgress, pack
from fastdata.converters.uploading import Uploading
from flaky_proxy import Exchange, FlakyProxy, wait_until
from object_stores import Bucket, send_tree
from sources import (
    contents,
    contents_but_source,
    convert,
    encoded,
    make_tree,
    picture,
    require_said,
    run,
)
from tiers import slow

from fastdata import ImageDataset
from fastdata._native import crc32c
from fastdata.errors import DataError
from fastdata.remote.filesystem import list_files, read_bytes, remove, upload
from fastdata.remote.urls import join_url
from fastdata.storage.manifest import WORK_NAME, FileEntry


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of 36 small photographs in 3 classes; do not change it."""
    root = tmp_path_factory.mktemp("urls") / "tree"
    return make_tree(root, [f"{name}/{number:02}.jpg" for name in "abc" for number in range(12)])


def remote_contents(bucket: Bucket, url: str, folder: Path) -> dict[str, str]:
    for name in list_files(url, bucket.storage_options):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read_bytes(join_url(url, name), bucket.storage_options))
    return contents(folder)


SMALL = ("--shard-size", "5KiB")


@pytest.mark.parametrize(
    ("store", "container"),
    [("gcs", "shards"), slow("gcs", "parquet"), slow("gcs", "lmdb"), slow("s3", "shards")],
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


def packed(bucket: Bucket, tree: Path, container: str = "shards", *more: object) -> str:
    url = f"{bucket.url}/ds"
    size = () if container == "lmdb" else SMALL
    arguments = ("imagefolder", "--root", tree, "--to", container, *size, *more)
    require_said(convert(*arguments, "--out", url, *bucket.arguments), 0)
    return url


def test_verify_info_and_stage(
    bucket: Bucket, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setenv("FASTDATA_STAGE_ROOT", str(tmp_path / "fast"))
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
    assert f"{names[1]}, its bytes have changed since it was packed" in whole.stdout
    assert f"{url}/{names[2]}: No such file or directory; " in whole.stdout
    staged = run("stage", url, "--to", tmp_path / "fast", *gcs.arguments)
    require_said(staged, 1, names[0], "damaged")


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fastdata", *(str(argument) for argument in arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill(process: subprocess.Popen[bytes]) -> None:
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()


def is_upload(exchange: Exchange) -> bool:
    return exchange.method == "POST" and "/upload/" in exchange.path


@pytest.mark.slow
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


class Removing(PackingProgress):
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


def test_no_manifest_without_its_files(gcs: Bucket, tree: Path, tmp_path: Path) -> None:
    def packing(progress: PackingProgress) -> None:
        pack(
            ImageFolder(tree),
            f"{gcs.url}/ds",
            container="shards",
            options=PackOptions(shard_size=30_000),
            workers=1,
            progress=progress,
            local=tmp_path / "making",
            storage_options=gcs.storage_options,
        )

    with pytest.raises(DataError, match=r"the first: shard-000000\.tar"):
        packing(Removing(gcs, tmp_path / "making"))
    assert "_dataset.json" not in list_files(f"{gcs.url}/ds", gcs.storage_options)
    packing(SILENT)
    require_said(run("verify", "--workers", 1, f"{gcs.url}/ds", *gcs.arguments), 0)


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


# Sources that are files with much in them.


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet in Spark's layout, of 48 noisy photographs; do not change it."""
    root = tmp_path_factory.mktemp("rows") / "rows"
    for number, name in enumerate(["split=a/part-0", "split=b/part-1", "z"]):
        path = root / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        seeds = range(16 * number, 16 * number + 16)
        columns = {
            "picture": [encoded(picture(seed, (320, 240)), quality=97) for seed in seeds],
            "label": [seed % 5 for seed in seeds],
            # What is not asked for is not fetched.
            "unused": [random.Random(seed).randbytes(400_000) for seed in seeds],
        }
        pq.write_table(pa.table(columns), path, row_group_size=8)
    (root / "_temporary").mkdir()
    (root / "_temporary" / "half.parquet").write_bytes(b"PAR1")
    (root / "_SUCCESS").touch()
    return root


def test_parquet_in_a_bucket(bucket: Bucket, rows: Path, tmp_path: Path) -> None:
    url = send_tree(bucket, rows, "rows.parquet")
    given = ("--image-column", "picture", "--to", "shards", "--workers", 2, "--fields", "")
    with bucket.through_proxy() as (slow, proxy):
        require_said(
            convert(
                "parquet", "--root", url, *given, "--out", tmp_path / "remote", *slow.arguments
            ),
            0,
        )
        images = sum(path.stat().st_size for path in rows.rglob("*.parquet")) - 48 * 400_000
        # Footers, labels for the classes and for the records; the images, and some to estimate.
        assert proxy.received("GET", ".parquet") < 2.5 * images + 40 * (64 << 10)
        assert not proxy.count("GET", "half.parquet")
    require_said(convert("parquet", "--root", rows, *given, "--out", tmp_path / "local"), 0)
    assert contents_but_source(tmp_path / "remote") == contents_but_source(tmp_path / "local")
    source = json.loads((tmp_path / "remote" / "_dataset.json").read_text())["source"]
    assert (source["kind"], source["root"]) == ("parquet", url)
    one = ("--root", f"{url}/z.parquet", "--no-shuffle", "--out", tmp_path / "one")
    require_said(convert("parquet", *one, *given, *bucket.arguments), 0)
    assert ImageDataset(tmp_path / "one").row(3).key == "z/00000003"


def test_parquet_that_may_not_be_read(gcs: Bucket, rows: Path, tmp_path: Path) -> None:
    url = send_tree(gcs, rows, "rows")
    given = ("parquet", "--root", url, "--image-column", "picture", "--to", "shards")
    with gcs.through_proxy() as (slow, proxy):
        proxy.inject("403", lambda exchange: "z.parquet" in exchange.path, times=1000)
        refused = convert(*given, "--out", tmp_path / "no", *slow.arguments)
        # That images cannot be reached is no sign that they are bad.
        require_said(refused, 1, f"{url}/z.parquet", "credentials")
        assert "cannot be packed" not in refused.stderr


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("parquet", "holds no *.parquet"),
        ("imagenet", "ILSVRC2012_img_train.tar"),
        ("webdataset", "holds no *.tar"),
    ],
)
def test_nothing_at_a_url(source: str, text: str, gcs: Bucket, tmp_path: Path) -> None:
    for url in (f"{gcs.url}/none", f"{gcs.url}-none/none.parquet"):
        result = convert(source, "--root", url, "--out", tmp_path / "{split}", *gcs.arguments)
        require_said(result, 1, url, text)
