"""Requests before the first batch of a dataset behind a URL: few in a row, none in vain."""

from __future__ import annotations

import io
import re
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastdata.converters import index
from flaky_proxy import Exchange, wait_until
from loader_data import CROPS, WITH_INDEX, as_file, dataset
from object_stores import Bucket, send_tree
from tiers import slow

from fastdata import DataLoader, ImageDataset
from fastdata.remote import RemoteOptions

BATCH = 24


def asked(exchange: Exchange) -> tuple[str, int, int]:
    first, last = re.findall(r"\d+", exchange.range)
    return exchange.path, int(first), int(last) + 1


def loader(of: ImageDataset, **options: Any) -> DataLoader[Any]:
    options = {"order": "quasi-random", "seed": 3, "num_workers": 2, **WITH_INDEX} | options
    return DataLoader(of, BATCH, **options)


def write_tars(folder: Path, count: int, each: int) -> None:
    folder.mkdir()
    for shard in range(count):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as tar:
            for number in range(each):
                data = as_file(np.full((32, 40, 3), 5 * shard + number, np.uint8), "JPEG")
                for name, content in {"jpg": data, "cls": b"1"}.items():
                    info = tarfile.TarInfo(f"{shard}-{number}.{name}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(("kind", "parts"), [("gcs", 3), slow("s3", 1)])
def test_a_dataset_that_is_known_here_opens_with_one_request(
    request: pytest.FixtureRequest, tmp_path: Path, parts: int, kind: str
) -> None:
    bucket: Bucket = request.getfixturevalue(kind)
    write_tars(tmp_path / "tars", 3, 2)
    tars, out = send_tree(bucket, tmp_path / "tars", "tars"), f"{bucket.url}/index"
    index(tars, out, part_files=3 // parts, storage_options=bucket.storage_options)
    with bucket.through_proxy() as (behind, proxy):
        for _ in range(2):
            proxy.clear()
            assert len(ImageDataset(out, storage_options=behind.storage_options)) == 6
        (exchange,) = proxy.exchanges
        assert "_dataset.json" in exchange.path


def test_the_first_batch_is_requested_before_all_else(gcs: Bucket) -> None:
    send_tree(gcs, dataset("parquet"), "data")
    near = ImageDataset(dataset("parquet"), CROPS)
    numbers = next(iter(loader(near)))[2].tolist()
    with gcs.through_proxy() as (bucket, proxy):
        # One at a time, so that they come in the order of their plan.
        options = RemoteOptions(concurrency=1)
        far = ImageDataset(
            f"{bucket.url}/data", CROPS, storage_options=bucket.storage_options, remote=options
        )
        proxy.clear()
        assert next(iter(loader(far)))[2].tolist() == numbers
        ranges = [asked(e) for e in proxy.matching("GET", ".parquet")]
    rows = [near.row(n) for n in numbers]
    needed = {(row.file, row.offset, row.offset + row.length) for row in rows}
    firsts = []
    while needed:
        path, start, stop = ranges.pop(0)
        (file,) = [n for n, each in enumerate(near.manifest.files) if each.name in path]
        firsts.append(stop - start)
        needed = {one for one in needed if not (one[0] == file and start <= one[1] < stop)}
    assert sum(firsts) <= 33 / 32 * sum(row.length for row in rows)
    assert len(firsts) <= BATCH


def test_the_requests_of_the_first_batch_are_under_way_at_once(
    store: Callable[[Path], Any],
) -> None:
    with store(dataset("shards")) as (url, options, proxy):
        remote = RemoteOptions(max_request=1, tries=1)
        far = ImageDataset(url, CROPS, storage_options=options, remote=remote)
        batches, answered = iter(loader(far)), threading.Event()

        def held(exchange: Exchange) -> bool:
            """Hold the answer back; the request has no fault."""
            return ".tar" in exchange.path and not answered.wait(60)

        proxy.clear()
        proxy.inject("stall", held)
        waiting = threading.Thread(target=next, args=(batches,))
        waiting.start()
        # None is answered, so those that have come are under way together.
        wait_until(lambda: len({asked(e) for e in proxy.matching("GET", ".tar")}) >= BATCH)
        answered.set()
        waiting.join()
        batches.close()
        proxy.settle()
