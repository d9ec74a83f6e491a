"""Sources behind URLs that are files with much in them: Parquet, and archives."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastdata.converters.parquet import ParquetImages
from fastdata.converters.tasks import reader
from flaky_proxy import FlakyProxy
from object_stores import Bucket, send_tree
from sources import (
    contents_but_source,
    convert,
    encoded,
    make_archives,
    make_kaggle,
    make_tree,
    picture,
    require_said,
)
from test_cifar import Made, calls, write_archive, write_folder

from fastdata import ImageDataset, verify
from fastdata.errors import SampleError, UnreadableError
from fastdata.remote.filesystem import remove, upload


def require_same(remote: Path, local: Path) -> None:
    """Checks that two datasets are the same to the byte, but for where they come from."""
    assert contents_but_source(remote) == contents_but_source(local)


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


@pytest.mark.parametrize(("store", "container"), [("gcs", "shards"), ("s3", "lmdb")])
def test_parquet_in_a_bucket(
    store: str, container: str, rows: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bucket: Bucket = request.getfixturevalue(store)
    url = send_tree(bucket, rows, "rows.parquet")
    given = ("--image-column", "picture", "--to", container, "--workers", 2, "--fields", "")
    with bucket.through_proxy() as (slow, proxy):
        result = convert(
            "parquet", "--root", url, *given, "--out", tmp_path / "remote", *slow.arguments
        )
        require_said(result, 0)
        images = sum(path.stat().st_size for path in rows.rglob("*.parquet")) - 48 * 400_000
        # Footers, labels for the classes and for the records; the images, and some to estimate.
        assert proxy.received("GET", ".parquet") < 2.5 * images + 40 * (64 << 10)
        assert not proxy.count("GET", "half.parquet")
    require_said(convert("parquet", "--root", rows, *given, "--out", tmp_path / "local"), 0)
    require_same(tmp_path / "remote", tmp_path / "local")
    source = json.loads((tmp_path / "remote" / "_dataset.json").read_text())["source"]
    assert (source["kind"], source["root"]) == ("parquet", url)
    one = ("--root", f"{url}/z.parquet", "--order", "source", "--out", tmp_path / "one")
    require_said(convert("parquet", *one, *given, *bucket.arguments), 0)
    assert ImageDataset(tmp_path / "one").row(3).key == "z/00000003"


def test_parquet_that_fails_for_a_while_or_for_good(
    gcs: Bucket, rows: Path, tmp_path: Path
) -> None:
    url = send_tree(gcs, rows, "rows")
    given = ("parquet", "--root", url, "--image-column", "picture", "--to", "shards")
    with gcs.through_proxy() as (slow, proxy):
        for fault in ("503", "reset", "truncate"):
            proxy.inject(fault, lambda exchange: bool(exchange.range) and ".parq" in exchange.path)
        require_said(convert(*given, "--out", tmp_path / "out", *slow.arguments), 0)
        assert sum(exchange.fault is not None for exchange in proxy.exchanges) == 3
        proxy.clear()
        proxy.inject("403", lambda exchange: "z.parquet" in exchange.path, times=1000)
        refused = convert(*given, "--out", tmp_path / "no", *slow.arguments)
        # That images cannot be reached is no sign that they are bad.
        require_said(refused, 1, f"{url}/z.parquet", "credentials")
        assert "cannot be packed" not in refused.stderr
    verify(tmp_path / "out")


def test_parquet_that_changes_under_way(gcs: Bucket, rows: Path, tmp_path: Path) -> None:
    url = send_tree(gcs, rows / "split=a", "rows")
    source = ParquetImages(url, image_column="picture", storage_options=gcs.storage_options)
    record = next(source.records())
    upload(rows / "z.parquet", f"{url}/part-0.parquet", storage_options=gcs.storage_options)
    read = reader([record], gcs.storage_options)
    with pytest.raises(SampleError, match="has changed since it was listed"):
        read(record)
    remove(f"{url}/part-0.parquet", gcs.storage_options)
    with pytest.raises(UnreadableError, match=r"part-0\.parquet"):
        read(record)


def test_shards_of_a_listing_hold_no_drivers_and_no_bytes(gcs: Bucket, rows: Path) -> None:
    """They are pickled for workers, which make drivers of their own."""
    url = send_tree(gcs, rows, "rows")
    source = ParquetImages(url, image_column="picture", storage_options=gcs.storage_options)
    expected = list(source.records())
    shards = [pickle.dumps(shard) for shard in source.shards()]
    assert len(shards) == 3 and max(map(len, shards)) < 2_000
    assert [record for shard in shards for record in pickle.loads(shard).records()] == expected


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("parquet", "no *.parquet here"),
        ("petastorm", "no _common_metadata"),
        ("cifar10", "holds neither cifar-10-python.tar.gz nor cifar-10-batches-py/"),
        ("imagenet", "ILSVRC2012_img_train.tar"),
        ("webdataset", "holds no *.tar"),
    ],
)
def test_nothing_at_a_url(source: str, text: str, gcs: Bucket, tmp_path: Path) -> None:
    for url in (f"{gcs.url}/none", f"{gcs.url}-none/none.parquet"):
        result = convert(source, "--root", url, "--out", tmp_path / "{split}", *gcs.arguments)
        require_said(result, 1, url, text)


def require_survived(proxy: FlakyProxy, *given: Any) -> None:
    """Converts while three answers to ranges go wrong, each in another way."""
    for fault in ("503", "reset", "truncate"):
        proxy.inject(fault, lambda exchange: bool(exchange.range))
    require_said(convert(*given), 0)
    assert sum(exchange.fault is not None for exchange in proxy.exchanges) == 3


@pytest.mark.parametrize("unpacked", [False, True])
def test_cifar_in_a_bucket(unpacked: bool, gcs: Bucket, tmp_path: Path) -> None:
    made = Made("cifar10")
    (tmp_path / "in").mkdir()
    (write_folder if unpacked else write_archive)("cifar10", made.files, tmp_path / "in")
    url = send_tree(gcs, tmp_path / "in", "cifar")
    given = ("cifar10", "--to", "shards")
    with gcs.through_proxy() as (slow, proxy):
        remote = ("--root", url, "--out", tmp_path / "remote-{split}", *slow.arguments)
        require_survived(proxy, *given, *remote)
        proxy.clear()
        proxy.inject("403", lambda exchange: bool(exchange.range), times=1000)
        require_said(convert(*given, *remote, "--force"), 1, url, "credentials")
    local = ("--root", tmp_path / "in", "--out", tmp_path / "local-{split}")
    require_said(convert(*given, *local), 0)
    for split in ("train", "test"):
        require_same(tmp_path / f"remote-{split}", tmp_path / f"local-{split}")


def test_a_malicious_pickle_in_a_bucket(gcs: Bucket, tmp_path: Path) -> None:
    made = Made("cifar10")
    made.files["test_batch"] = calls("os", "system", f"touch {tmp_path / 'proof'}")
    (tmp_path / "in").mkdir()
    url = send_tree(gcs, write_archive("cifar10", made.files, tmp_path / "in"), "cifar")
    given = ("--root", url, "--split", "test", "--out", tmp_path / "out", *gcs.arguments)
    require_said(convert("cifar10", *given), 1, url, "test_batch", "os.system")
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("layout", ["archives", "kaggle"])
def test_imagenet_in_a_bucket(layout: str, gcs: Bucket, tmp_path: Path) -> None:
    wnids = [f"n0000000{number}" for number in range(4)]
    names = [f"train/{wnid}/{wnid}_{number}.JPEG" for wnid in wnids for number in range(6)]
    names += [f"val/{wnid}/ILSVRC2012_val_0000000{n}.JPEG" for n, wnid in enumerate(wnids, 1)]
    tree = make_tree(tmp_path / "tree", names)
    folder = (make_kaggle if layout == "kaggle" else make_archives)(tree, tmp_path / layout)
    shutil.copytree(folder, tmp_path / "in")  # Kaggle's are made of links
    url = send_tree(gcs, tmp_path / "in", "imagenet")
    workers = 2 if layout == "archives" else 1
    given = ("imagenet", "--to", "shards", "--shard-size", "20KiB", "--workers", workers)
    with gcs.through_proxy() as (slow, proxy):
        remote = ("--root", url, "--out", tmp_path / "remote-{split}", *slow.arguments)
        require_survived(proxy, *given, *remote)
    local = ("--root", folder, "--out", tmp_path / "local-{split}")
    require_said(convert(*given, *local), 0)
    for split in ("train", "val"):
        require_same(tmp_path / f"remote-{split}", tmp_path / f"local-{split}")
    labels = "LOC_val_solution.csv" if layout == "kaggle" else "ILSVRC2012_devkit_t12.tar.gz"
    remove(f"{url}/{labels}", gcs.storage_options)
    alone = ("--root", url, "--split", "val", "--out", tmp_path / "val", *gcs.arguments)
    require_said(convert(*given, *alone), 1, f"{url}/{labels}: ")


def test_parquet_of_a_web_server(web: str, rows: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    shutil.copytree(rows, tmp_path / "web" / "rows.parquet")
    given = ("--image-column", "picture", "--to", "shards", "--out")
    remote = ("--root", f"{web}/rows.parquet/", *given, tmp_path / "remote")
    require_said(convert("parquet", *remote), 0)
    require_said(convert("parquet", "--root", rows, *given, tmp_path / "local"), 0)
    require_same(tmp_path / "remote", tmp_path / "local")
