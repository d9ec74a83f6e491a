"""Datasets behind URLs, read by ranges and through a cache folder: real drivers and servers."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flaky_proxy import wait_until
from hangs import HANG
from loader_data import CROPS, SAMPLES, WITH_INDEX, dataset, same
from object_stores import Bucket

from fastdata import Cache, DataLoader, ImageDataset, stage, unstage
from fastdata.errors import (
    CorruptionError,
    DatasetError,
    FastdataError,
    RemoteError,
    SlowPathWarning,
    UsageError,
)
from fastdata.remote import RemoteOptions, opening
from fastdata.remote.drivers import open_filesystem
from fastdata.remote.prefetch import RemotePass
from fastdata.storage.manifest import with_root

#: Small enough that everything happens: many requests, pieces smaller than files.
SMALL = RemoteOptions(
    concurrency=4, memory=64 << 10, piece_bytes=16 << 10, timeout=1.0, tries=4, progress=False
)


def put(bucket: Bucket, container: str = "shards", **options: Any) -> str:
    """Uploads a dataset; returns its URL."""
    url = f"{bucket.url}/{container}"
    fs, root = open_filesystem(url, bucket.storage_options)
    for file in dataset(container, **options).iterdir():
        fs.put_file(str(file), f"{root}/{file.name}")
    return url


def remote(
    url: str, bucket: Bucket, cache: Any = None, options: RemoteOptions = SMALL, **more: Any
) -> ImageDataset:
    return ImageDataset(
        url, CROPS, cache=cache, storage_options=bucket.storage_options, remote=options, **more
    )


def loader(of: Any, **options: Any) -> DataLoader[Any]:
    options = {
        "batch_size": 8,
        "order": "quasi-random",
        "seed": 3,
        "num_workers": 2,
        **WITH_INDEX,
    } | options
    return DataLoader(of, **options)


def local(container: str = "shards", **options: Any) -> DataLoader[Any]:
    return loader(ImageDataset(dataset(container), CROPS), **options)


def data_bytes(container: str = "shards") -> int:
    """Bytes of all blobs."""
    found: int = json.loads((dataset(container) / "_dataset.json").read_text())["blob_bytes"]
    return found


@pytest.mark.parametrize("container", ["shards", "parquet", "lmdb"])
@pytest.mark.parametrize("kind", ["ranges", "cache"])
def test_two_epochs_are_those_of_the_local_dataset(
    gcs: Bucket, tmp_path: Path, container: str, kind: str
) -> None:
    url = put(gcs, container)
    cache = None if kind == "ranges" else tmp_path / "cache"
    far, near = loader(remote(url, gcs, cache)), local(container)
    for _ in range(2):
        assert same(list(far), list(near))
        found = far.stats().remote
        assert found is not None
        assert found.bytes_needed == data_bytes(container)
    if kind == "cache":
        assert found.requests == 0
        assert found.cache_reads > 0


@pytest.mark.parametrize("container", ["shards", "parquet", "lmdb"])
def test_ranges_ask_for_what_is_needed_and_little_more(gcs: Bucket, container: str) -> None:
    put(gcs, container)
    with gcs.through_proxy() as (bucket, proxy):
        url = f"{bucket.url}/{container}"
        far = loader(remote(url, bucket, options=RemoteOptions()))
        proxy.clear()
        assert same(list(far), list(local(container)))
        asked = [e for e in proxy.matching("GET") if e.range]
        assert proxy.received() <= 1.05 * data_bytes(container)
        found = far.stats().remote
        assert found is not None
        assert found.requests == len(asked)
        assert found.bytes_requested == proxy.received()
        if container == "parquet":  # where 4 bytes lie between neighbours
            # The first batch, for which somebody waits, is asked for without those of later ones.
            assert len(asked) < far.batch_size + (SAMPLES - far.batch_size) / 4


def test_a_slow_sampler_costs_no_more_requests(gcs: Bucket) -> None:
    put(gcs, "parquet")
    order = np.random.default_rng(5).permutation(SAMPLES).tolist()

    class Slow(torch.utils.data.Sampler[int]):
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def __iter__(self) -> Iterator[int]:
            for index in order:
                time.sleep(self.seconds)
                yield index

        def __len__(self) -> int:
            return SAMPLES

    asked = set()
    # So that the first batch's requests end while other batches are announced.
    for seconds in (0, 0.0002, 0.0005, 0.001):
        of = remote(f"{gcs.url}/parquet", gcs, options=RemoteOptions())
        far = loader(of, order=None, sampler=Slow(seconds))
        assert sum(1 for _ in far) == math.ceil(SAMPLES / 8)
        found = far.stats().remote
        assert found is not None
        asked.add(found.requests)
    assert len(asked) == 1


def test_connections_are_used_again_and_few_requests_are_under_way(gcs: Bucket) -> None:
    put(gcs)
    with gcs.through_proxy() as (bucket, proxy):
        options = RemoteOptions(concurrency=3, max_request=1)
        far = loader(remote(f"{bucket.url}/shards", bucket, options=options))
        proxy.clear()
        list(far)
        connections = {e.connection for e in proxy.matching("GET", ".tar")}
        assert proxy.count("GET", ".tar") == SAMPLES
        assert len(connections) <= 4


def test_memory_is_bounded(gcs: Bucket) -> None:
    url = put(gcs)
    largest = max(len(blob) for blob in ImageDataset(dataset("shards")).read(range(SAMPLES)))
    options = RemoteOptions(memory=40_000, max_request=10_000, concurrency=4)
    far = loader(remote(url, gcs, options=options), batch_size=2, prefetch_factor=1)
    assert same(list(far), list(local(batch_size=2)))
    found = far.stats().remote
    assert found is not None
    # Batches under way may ask beyond the bound, so that nothing ever stands still.
    assert found.memory_peak <= 40_000 + 4 * largest


FAULTS = ["503", "429", "reset", "stall", "truncate"]


@pytest.mark.parametrize("kind", ["ranges", "cache"])
def test_faults_are_tried_again(gcs: Bucket, tmp_path: Path, kind: str) -> None:
    put(gcs)
    with gcs.through_proxy() as (bucket, proxy):
        cache = None if kind == "ranges" else tmp_path / "cache"
        far = loader(remote(f"{bucket.url}/shards", bucket, cache))
        for fault in FAULTS:
            proxy.inject(fault, when=lambda e: ".tar" in e.path)
        assert same(list(far), list(local()))
        assert {e.fault for e in proxy.matching("GET", ".tar")} >= set(FAULTS)
        found = far.stats().remote
        assert found is not None
        assert found.retries >= 2  # drivers try some again by themselves


@pytest.mark.parametrize("kind", ["ranges", "cache"])
def test_wrong_bytes_are_fetched_again(gcs: Bucket, tmp_path: Path, kind: str) -> None:
    put(gcs)
    with gcs.through_proxy() as (bucket, proxy):
        cache = None if kind == "ranges" else tmp_path / "cache"
        # By single samples, so that the middle byte is one of an image.
        options = RemoteOptions(
            max_request=1, piece_bytes=16 << 10, tries=4, progress=False, concurrency=4
        )
        far = loader(remote(f"{bucket.url}/shards", bucket, cache, options))
        proxy.inject("corrupt", when=lambda e: ".tar" in e.path, times=3)
        assert same(list(far), list(local()))
        assert sum(e.fault == "corrupt" for e in proxy.exchanges) == 3
        found = far.stats().remote
        assert found is not None
        assert found.refetched >= (3 if kind == "ranges" else 1)


@pytest.mark.parametrize("kind", ["ranges", "cache"])
def test_bytes_that_stay_wrong_are_named(
    gcs: Bucket, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_ASK_EVERY", math.inf)  # seconds
    url = put(gcs)
    fs, root = open_filesystem(url, gcs.storage_options)
    shard = next(path for path in fs.find(root) if path.endswith(".tar"))
    row = ImageDataset(dataset("shards")).row(0)
    data = bytearray(fs.cat_file(shard))
    data[row.offset + row.length // 2] ^= 1
    fs.pipe_file(shard, bytes(data))
    cache = None if kind == "ranges" else tmp_path / "cache"
    options = RemoteOptions(tries=2, piece_bytes=16 << 10, progress=False)
    with gcs.through_proxy() as (bucket, proxy):
        of = remote(f"{bucket.url}/shards", bucket, cache, options)
        with pytest.raises(CorruptionError, match=r"sample 0 .*have changed"):
            list(loader(of, order="sequential"))
        with pytest.raises(CorruptionError, match=r"sample 0 .*have changed"):
            of[0]
        with pytest.warns(UserWarning, match="1 sample could not be decoded and was"):
            batches = list(loader(of, order="sequential", on_error="skip"))
        # When it was opened, and at the first error: whether it was packed again.
        assert proxy.count(part="_dataset.json") == 2
        monkeypatch.setattr(opening, "_ASK_EVERY", 0)
        of = remote(f"{bucket.url}/shards", bucket, cache, options)
        for _ in range(2):
            with pytest.raises(CorruptionError, match=r"sample 0 .*have changed"):
                of[0]
        assert proxy.count(part="_dataset.json") == 2 + 3
    found = torch.cat([indices for _, _, indices in batches]).tolist()
    assert sorted(set(found)) == list(range(1, SAMPLES))


def test_a_server_that_is_gone_is_an_error_and_no_hang(gcs: Bucket) -> None:
    put(gcs)
    with gcs.through_proxy() as (bucket, proxy):
        options = RemoteOptions(tries=2, timeout=1.0)
        far = loader(remote(f"{bucket.url}/shards", bucket, options=options))
        proxy.inject("stall", when=lambda e: ".tar" in e.path, times=10_000)
        with pytest.raises(RemoteError, match=r"sample \d+ .*failed 2 times.*TimeoutError"):
            next(iter(far))
        asked = Counter((e.path, e.range) for e in proxy.matching(part=".tar"))
        assert max(asked.values()) == 2


def test_single_samples_of_a_server_that_is_gone(gcs: Bucket, tmp_path: Path) -> None:
    put(gcs)
    with gcs.through_proxy() as (bucket, proxy):
        options = RemoteOptions(tries=2, timeout=0.5, progress=False)
        far = [
            remote(f"{bucket.url}/shards", bucket, cache, options)
            for cache in (None, tmp_path / "cache")
        ]
        proxy.inject("stall", when=lambda e: ".tar" in e.path, times=10_000)
        for each in far:
            with pytest.raises(RemoteError, match="failed 2 times"):
                each.read([0])


def test_single_samples_rows_and_labels(gcs: Bucket, tmp_path: Path) -> None:
    url, near = put(gcs), ImageDataset(dataset("shards"))
    for cache in (None, tmp_path / "cache"):
        far = ImageDataset(url, cache=cache, storage_options=gcs.storage_options, remote=SMALL)
        assert len(far) == SAMPLES
        assert far.is_remote
        assert far.classes == near.classes
        assert far.read([4, 2]) == near.read([4, 2])
        assert far.row(7) == near.row(7)
        assert far[5][1] == near[5][1]
        assert far[5][0].tobytes() == near[5][0].tobytes()
        assert "gs://" in repr(far)


@pytest.mark.parametrize(
    ("start", "kind"), [("fork", "ranges"), ("fork", "cache"), ("spawn", "cache")]
)
def test_torch_workers(gcs: Bucket, tmp_path: Path, start: str, kind: str) -> None:
    cache = None if kind == "ranges" else tmp_path / "cache"
    far = ImageDataset(put(gcs), storage_options=gcs.storage_options, cache=cache, remote=SMALL)
    assert far.read([0])  # the parent has used its filesystem before the fork
    near = ImageDataset(dataset("shards"))
    found = torch.utils.data.DataLoader(
        _Labels(far), batch_size=8, num_workers=1, multiprocessing_context=start
    )
    assert torch.cat(list(found)).tolist() == [_digest(near, i) for i in range(SAMPLES)]


class _Labels(torch.utils.data.Dataset[Any]):
    """Runs in torch's workers."""

    def __init__(self, of: ImageDataset) -> None:
        self._of = of

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, index: int) -> int:
        return _digest(self._of, index)


def _digest(of: ImageDataset, index: int) -> int:
    image, label = of[index]
    return sum(image.tobytes()) * 10 + int(label)


def test_workers_path(gcs: Bucket) -> None:
    url = put(gcs)
    far = remote(url, gcs)
    options: dict[str, Any] = {
        "fields": None,
        "batch_transform": None,
        "worker_init_fn": _nothing,
        "order": "sequential",
    }
    with pytest.warns(SlowPathWarning, match="a worker_init_fn was given"):
        found = loader(far, **options)
    assert "workers" in found.explain()
    labels = torch.cat([labels for _, labels in found])
    assert labels.tolist() == ImageDataset(dataset("shards")).labels.tolist()


def _nothing(worker: int) -> None:
    pass


def test_the_default_order_is_quasi_random(gcs: Bucket) -> None:
    far = remote(put(gcs), gcs)
    shuffled = DataLoader(far, batch_size=8, shuffle=True, seed=3, num_workers=1)
    asked_for = DataLoader(far, batch_size=8, order="auto", seed=3, num_workers=1)
    for one in (shuffled, asked_for):
        assert 'quasi-random, as order="auto" is' in one.explain()
        assert one.state_dict()["order"] == "quasi-random"
    subset = torch.utils.data.Subset(far, range(20))
    assert "quasi-random" in DataLoader(subset, shuffle=True, num_workers=1).explain()
    asked = DataLoader(far, batch_size=8, order="random", num_workers=1)
    assert "order: random" in asked.explain()
    assert "order: sequential" in DataLoader(far, num_workers=1).explain()
    near = ImageDataset(dataset("shards"), CROPS)
    for options in ({"shuffle": True}, {"order": "auto"}):
        assert "order: random" in DataLoader(near, num_workers=1, **options).explain()


def test_subsets_states_and_samplers(gcs: Bucket) -> None:
    far = remote(put(gcs), gcs)
    near = ImageDataset(dataset("shards"), CROPS)
    numbers = [3, 50, 4, 5, 3, -1, 17]
    one, other = (loader(torch.utils.data.Subset(of, numbers), batch_size=3) for of in (far, near))
    assert same(list(one), list(other))
    one, other = (loader(of, order=None, sampler=numbers, batch_size=2) for of in (far, near))
    assert same(list(one), list(other))
    whole = list(loader(near))
    begun = loader(far)
    iterator = iter(begun)
    assert same([next(iterator) for _ in range(3)], whole[:3])
    state = begun.state_dict()
    resumed = loader(far)
    resumed.load_state_dict(state)
    assert same(list(resumed), whole[3:])


@pytest.mark.parametrize("kind", ["ranges", "cache"])
def test_samples_that_turn_out_bad_are_not_kept(gcs: Bucket, tmp_path: Path, kind: str) -> None:
    """Where a sampler gives some again and again, they were announced for batches to come."""
    cache = None if kind == "ranges" else tmp_path / "cache"
    far = remote(put(gcs), gcs, cache)
    source: Any = far.source
    random = np.random.default_rng(0)
    batches = [np.concatenate(([5, 6, 7], random.integers(0, SAMPLES, 5))) for _ in range(30)]
    bad: set[int] = set()
    coming: Any = RemotePass(
        source, iter([(batch, 0) for batch in batches]), lambda indices: indices, bad
    )
    for number, (indices, _) in enumerate(coming):
        good = np.array([i for i in indices.tolist() if i not in bad])
        fetch = coming.fetch(source.table.gather(good), good)
        assert fetch.wait(30)
        found = [data for _, data in sorted(fetch.take().items())]
        assert found == ImageDataset(dataset("shards")).read(good)
        bad |= {6} if number == 0 else {5, 7} if number == 4 else set()
    wait_until(lambda: not coming._tasks)
    assert coming._announced == 0
    assert not coming._known and coming._outstanding == 0
    assert not coming._pieces
    coming.close()


def test_an_early_break_leaves_nothing_behind(gcs: Bucket, tmp_path: Path) -> None:
    put(gcs)
    with gcs.through_proxy() as (bucket, proxy):
        for cache in (None, tmp_path / "cache"):
            options = RemoteOptions(tries=2, max_request=1, piece_bytes=16384)
            of = remote(f"{bucket.url}/shards", bucket, cache, options)
            far = loader(of, batch_size=1, order="sequential")
            proxy.inject("stall", lambda e: "shard-000004" in e.path, 999)
            begun = len(proxy.exchanges)
            iterator = iter(far)
            next(iterator)
            wait_until(lambda: any(e.fault == "stall" for e in proxy.exchanges[begun:]))
            # What closing waited for would be cut off by its time limit, and asked for again.
            del far, iterator, of
            asked = Counter((e.path, e.range) for e in proxy.exchanges[begun:])
            assert max(asked.values()) == 1
            proxy.clear()


_EXIT = """
import sys
from fastdata import DataLoader, ImageDataset
from fastdata.remote import RemoteOptions
from fastdata.transforms import RandomResizedCrop
url, options, cache = sys.argv[1], eval(sys.argv[2]), sys.argv[3] or None
of = ImageDataset(url, RandomResizedCrop(24), cache=cache, storage_options=options,
                  remote=RemoteOptions(piece_bytes=16384, progress=False, max_request=1))
for batch in DataLoader(of, batch_size=2, num_workers=2):
    break
iterator = iter(DataLoader(of, batch_size=2, num_workers=2))
next(iterator)
print("ends")
if cache is not None:
    raise KeyError("mine")
"""


@pytest.mark.parametrize("kind", ["ranges", "cache"])
def test_the_interpreter_exits_in_the_middle(gcs: Bucket, tmp_path: Path, kind: str) -> None:
    put(gcs)
    with gcs.through_proxy() as (bucket, proxy):
        proxy.inject("stall", when=lambda e: ".tar" in e.path and proxy.count("", ".tar") > 20)
        command = [sys.executable, "-c", _EXIT, f"{bucket.url}/shards"]
        command += [repr(bucket.storage_options)]
        command += ["" if kind == "ranges" else str(tmp_path / "cache")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
        assert done.stdout == "ends\n", done.stderr
        assert done.returncode == (kind == "cache")
        assert ("mine" in done.stderr) == (kind == "cache")
        assert "Task" not in done.stderr


# The cache folder.


class Rank:
    """A process that reads two epochs; forked, as torch's workers are."""

    def __init__(self, bucket: Bucket, cache: Path, limit: int | None = None) -> None:
        context = multiprocessing.get_context("fork")
        self._results, results = context.Pipe(False)
        self._process = context.Process(target=_read, args=(bucket, cache, limit, results))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads
            self._process.start()
        results.close()

    def outcome(self) -> str:
        assert self._results.poll(60)
        found: str = self._results.recv()
        self._process.join()
        assert self._process.exitcode == 0
        return found

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _read(bucket: Bucket, cache: Any, limit: int | None, results: Any) -> None:
    options = replace(SMALL, timeout=20.0)
    of = remote(f"{bucket.url}/shards", bucket, Cache(cache, limit), options)
    results.send(_pixels(loader(of, order="random", batch_size=4)))


def _pixels(of: DataLoader[Any]) -> str:
    digest = hashlib.sha256()
    for _ in range(2):
        for images, _labels, _indices in of:
            digest.update(images.numpy().tobytes())
    return digest.hexdigest()


def expected_pixels() -> str:
    return _pixels(local(order="random", batch_size=4))


def test_ranks_that_share_a_cache_download_once(gcs: Bucket, tmp_path: Path) -> None:
    put(gcs)
    with gcs.through_proxy() as (bucket, proxy):
        proxy.delay = 0.02
        ranks = [Rank(bucket, tmp_path / "cache") for _ in range(2)]
        assert {one.outcome() for one in ranks} == {expected_pixels()}
        assert proxy.count("GET", ".tar") == needed_pieces()
        assert proxy.count("GET", "_index.rows?") == 1
        ranges = [(e.path, e.range) for e in proxy.matching("GET", ".tar")]
        assert len(ranges) == len(set(ranges))


def test_progress_is_visible(
    gcs: Bucket, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = replace(SMALL, progress=True)
    list(loader(remote(put(gcs), gcs, tmp_path / "cache", options)))
    errors = capfd.readouterr().err
    assert errors.startswith(f"caching {gcs.url}/shards in {tmp_path / 'cache'}: ")
    assert " kB of " in errors
    assert errors.count("caching") == 1  # until ten seconds have passed


def needed_pieces() -> int:
    """Pieces of 16 KiB that samples lie in."""
    rows = [ImageDataset(dataset("shards")).row(i) for i in range(SAMPLES)]
    of_rows = (range(row.offset >> 14, ((row.offset + row.length - 1) >> 14) + 1) for row in rows)
    return len({(row.file, n) for row, of in zip(rows, of_rows, strict=True) for n in of})


def pieces(cache: Path) -> list[Path]:
    return sorted(cache.glob("fastdata-pieces/*/*.piece"))


def test_a_cache_smaller_than_the_dataset(gcs: Bucket, tmp_path: Path) -> None:
    url, limit = put(gcs), 5 << 14
    assert data_bytes() > 2 * limit
    foreign = tmp_path / "cache" / "fastdata-pieces" / "mine" / "000000-0.piece.bak"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"x" * limit)
    far = loader(remote(url, gcs, Cache(tmp_path / "cache", limit)))
    for _ in range(2):
        assert same(list(far), list(local()) if _ == 0 else _second_epoch())
        assert sum(piece.stat().st_size for piece in pieces(tmp_path / "cache")) <= limit
    found = far.stats().remote
    assert found is not None
    assert found.requests > 0
    assert found.cache_bytes <= limit
    assert foreign.exists()
    # And two ranks, each evicting what the other has.
    ranks = [Rank(gcs, tmp_path / "cache", limit) for _ in range(2)]
    assert {one.outcome() for one in ranks} == {expected_pixels()}
    assert sum(piece.stat().st_size for piece in pieces(tmp_path / "cache")) <= limit


def test_caches_of_many_datasets_share_the_open_files(
    tmp_path: Path, limited: Callable[[int], None]
) -> None:
    url, options = f"file://{dataset('shards')}", replace(SMALL, concurrency=32, timeout=30.0)
    parts = [ImageDataset(url, CROPS, cache=tmp_path / str(n), remote=options) for n in range(30)]
    both = DataLoader(torch.utils.data.ConcatDataset(parts), 64, shuffle=True, num_workers=1)
    limited(256)
    assert sum(len(images) for images, _ in both) == 30 * SAMPLES


def _second_epoch() -> list[Any]:
    near = local()
    list(near)
    return list(near)


def test_least_recently_used_pieces_go_first(gcs: Bucket, tmp_path: Path) -> None:
    url = put(gcs)
    of = remote(url, gcs, Cache(tmp_path / "cache", 8 << 14))
    of.read([0])
    (first,) = pieces(tmp_path / "cache")
    old = time.time() - 1000
    os.utime(first, (old, old))
    for index in range(1, SAMPLES):
        of.read([index])
    assert not first.exists()
    newest = max(pieces(tmp_path / "cache"), key=lambda piece: piece.stat().st_mtime)
    assert newest.exists()


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "trailer"])
def test_a_damaged_piece_is_not_trusted(gcs: Bucket, tmp_path: Path, damage: str) -> None:
    url = put(gcs)
    assert same(list(loader(remote(url, gcs, tmp_path / "cache"))), list(local()))
    for piece in pieces(tmp_path / "cache")[::2]:
        data = bytearray(piece.read_bytes())
        match damage:
            case "cut":
                del data[len(data) // 2 :]
            case "changed":
                data[len(data) // 2] ^= 1
            case "empty":
                data.clear()
            case "trailer":
                data[-5] ^= 1
        piece.write_bytes(data)
    again = loader(remote(url, gcs, tmp_path / "cache"))
    assert same(list(again), list(local()))
    found = again.stats().remote
    assert found is not None
    assert found.cache_fills == len(pieces(tmp_path / "cache")[::2])


@pytest.mark.parametrize("kind", ["ranges", "cache"])
@pytest.mark.parametrize("damage", ["changed", "cut", "unreadable"])
def test_a_damaged_index_is_fetched_again(
    gcs: Bucket, tmp_path: Path, kind: str, damage: str
) -> None:
    put(gcs)
    rows = [ImageDataset(dataset("shards")).row(i) for i in range(SAMPLES)]
    cache = None if kind == "ranges" else tmp_path / "cache"
    with gcs.through_proxy() as (bucket, proxy):
        for _ in range(2):
            remote(f"{bucket.url}/shards", bucket, cache)
        assert proxy.count("GET", "_index.rows") == 1
        (index,) = (tmp_path / "cache").rglob("_index.rows")
        data = bytearray(index.read_bytes())
        if damage == "unreadable":
            index.unlink()
            index.symlink_to(index)
        elif damage == "changed":
            data[len(data) // 2] ^= 1
            index.write_bytes(data)
        else:
            index.write_bytes(data[:-1])
        again = remote(f"{bucket.url}/shards", bucket, cache)
        assert proxy.count("GET", "_index.rows") == 2
    assert [again.row(i) for i in range(SAMPLES)] == rows


def test_a_cache_folder_that_others_may_change(gcs: Bucket, tmp_path: Path) -> None:
    """Files of other users are not trusted: checksums can be forged."""
    url = put(gcs, "shards")
    cache = tmp_path / "cache"
    for mode in (0o777, 0o775):
        cache.mkdir(exist_ok=True)
        cache.chmod(mode)
        with pytest.raises(UsageError, match=f"{cache} can be written by others"):
            remote(url, gcs, cache)
    cache.chmod(0o755)
    index = remote(url, gcs, cache).source.index.path
    if os.geteuid() == 0:
        os.chown(index.parent, 4242, 4242)
        with pytest.raises(UsageError, match=r"belongs to another user \(id 4242\)"):
            remote(url, gcs, cache)
        os.chown(index.parent, 0, 0)
    before = os.umask(0)
    try:
        list(loader(remote(url, gcs, tmp_path / "new" / "cache")))
    finally:
        os.umask(before)
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert [path for path in made if path.stat().st_mode & 0o022] == []


def test_a_piece_that_cannot_be_read_is_fetched_again(gcs: Bucket, tmp_path: Path) -> None:
    url = put(gcs)
    assert same(list(loader(remote(url, gcs, tmp_path / "cache"))), list(local()))
    piece = pieces(tmp_path / "cache")[0]
    # There, but not to be opened, as on a disk with a bad block.
    piece.rename(tmp_path / "elsewhere")
    piece.symlink_to(tmp_path / "elsewhere")
    again = loader(remote(url, gcs, tmp_path / "cache"), timeout=20)
    assert same(list(again), list(local()))
    assert not piece.is_symlink()


def test_a_cache_folder_that_vanishes_is_named(gcs: Bucket, tmp_path: Path) -> None:
    url = put(gcs)
    cached = remote(url, gcs, tmp_path / "cache")
    cached.read([0])
    shutil.rmtree(tmp_path / "cache" / "fastdata-pieces")
    with pytest.raises(DatasetError, match="cannot be written: No such file"):
        cached.read([SAMPLES - 1])


def test_a_process_killed_while_it_fills_the_cache(gcs: Bucket, tmp_path: Path) -> None:
    put(gcs)
    cache = tmp_path / "cache"
    whole = needed_pieces()
    with gcs.through_proxy() as (bucket, proxy):
        for seen in (1, 3, 9):
            proxy.clear()
            proxy.delay = 0.05
            rank = Rank(bucket, cache)
            wait_until(lambda: proxy.count("GET", ".tar") >= seen or not rank.is_alive())
            rank.kill()
        left = len(pieces(cache))
        assert left < whole
        proxy.clear()
        assert Rank(bucket, cache).outcome() == expected_pixels()
        assert len(pieces(cache)) == whole
        assert proxy.count("GET", ".tar") == whole - left
        assert not list(cache.glob("fastdata-pieces/*/*.partial"))


def test_a_dataset_packed_anew_has_other_pieces(gcs: Bucket, tmp_path: Path) -> None:
    url = put(gcs)
    assert same(list(loader(remote(url, gcs, tmp_path / "cache"))), list(local()))
    fs, root = open_filesystem(url, gcs.storage_options)
    other = dataset("shards", "jpeg")
    for file in other.iterdir():
        fs.put_file(str(file), f"{root}/{file.name}")
    near = loader(ImageDataset(other, CROPS))
    assert same(list(loader(remote(url, gcs, tmp_path / "cache"))), list(near))


def test_a_staged_copy_is_read_instead(gcs: Bucket, tmp_path: Path) -> None:
    url = put(gcs)
    stage(url, tmp_path / "fast", storage_options=gcs.storage_options)
    near = remote(url, gcs)
    assert Path(near.location).is_relative_to(tmp_path / "fast")
    found = loader(near)
    assert same(list(found), list(local()))
    assert found.stats().remote is None
    # Ranks agree on the order whether or not their machine has a copy.
    assert "quasi-random" in DataLoader(near, shuffle=True, num_workers=1).explain()
    unstage(url)
    assert remote(url, gcs).location == url


# Other protocols, other containers, bad input.


def test_raw_pixels(gcs: Bucket) -> None:
    far = loader(remote(put(gcs, "parquet", kind="raw"), gcs))
    near = loader(ImageDataset(dataset("parquet", "raw"), CROPS))
    assert same(list(far), list(near))


def test_s3(s3: Bucket, tmp_path: Path) -> None:
    url = put(s3)
    for cache in (None, tmp_path / "cache"):
        far = loader(remote(url, s3, cache))
        assert same(list(far), list(local()))
    with s3.through_proxy() as (bucket, proxy):
        far = loader(remote(url, bucket))
        for fault in ("503", "truncate", "corrupt"):
            proxy.inject(fault, when=lambda e: ".tar" in e.path)
        assert same(list(far), list(local()))


def test_a_driver_that_is_not_asynchronous() -> None:
    url = "file://" + str(dataset("shards"))
    far = loader(ImageDataset(url, CROPS, remote=SMALL))
    assert same(list(far), list(local()))
    assert far.stats().remote is not None


def test_a_local_dataset_needs_no_event_loop() -> None:
    """Importing asyncio takes as long as opening a dataset."""
    code = "import sys, fastdata; fastdata.ImageDataset(sys.argv[1])[0]; print(*sys.modules)"
    command = [sys.executable, "-c", code, str(dataset("shards"))]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "fastdata.remote.manifests" in loaded
    assert "fastdata.remote.opening" not in loaded
    assert not {"asyncio", "fsspec"} & set(loaded)


def test_bad_arguments(gcs: Bucket, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a URL"):
        ImageDataset(dataset("shards"), cache="gs://bucket/cache")
    for option in ({"storage_options": {}}, {"remote": RemoteOptions()}):
        with pytest.raises(UsageError, match="are for URLs"):
            ImageDataset(dataset("shards"), **option)
    url = put(gcs)
    options = {"storage_options": gcs.storage_options}
    with pytest.raises(UsageError, match="its bytes limit a folder, and it names none"):
        ImageDataset(url, cache=Cache(bytes=1 << 30), **options)
    with pytest.raises(UsageError, match="no room for four pieces"):
        ImageDataset(url, cache=Cache(tmp_path, 1000), **options)
    for wrong in (-1, 1.5, True, "1"):
        with pytest.raises(UsageError, match="a number of bytes"):
            Cache(tmp_path, wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is a URL"):
        ImageDataset(url, cache="gs://bucket/cache", **options)
    with pytest.raises(UsageError, match="concurrency=0"):
        RemoteOptions(concurrency=0)
    with pytest.raises(DatasetError, match="no dataset here"):
        ImageDataset(f"{gcs.url}/nothing", **options)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FastdataError):
        ImageDataset(url, cache=file, **options)


def test_a_cache_folder_of_any_name(
    gcs: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = put(gcs)
    for folder in ("range", Path("oranges"), "images/", "a/b"):
        found = remote(url, gcs, folder)
        found.read([0])
        assert pieces(tmp_path / folder)
        assert pickle.loads(pickle.dumps(found)).read([0]) == found.read([0])


def test_a_tree_that_was_indexed_in_place(gcs: Bucket, tmp_path: Path) -> None:
    url = f"{gcs.url}/index"
    fs, root = open_filesystem(gcs.url, gcs.storage_options)
    text = (dataset("folder") / "_dataset.json").read_bytes()
    tree = Path(os.path.normpath(dataset("folder") / json.loads(text)["root"]))
    for file in tree.glob("*/*"):
        fs.put_file(str(file), f"{root}/tree/{file.relative_to(tree)}")
    fs.put_file(str(dataset("folder") / "_index.rows"), f"{root}/index/_index.rows")
    fs.pipe_file(f"{root}/index/_dataset.json", with_root(text, "../tree"))
    for cache in (None, tmp_path / "cache"):
        assert same(list(loader(remote(url, gcs, cache))), list(local("folder")))
    fs.pipe_file(f"{root}/index/_dataset.json", with_root(text, "/somewhere/else"))
    with pytest.raises(DatasetError, match="files in /somewhere/else on the machine"):
        remote(url, gcs)


def _in_child(work: Callable[[], None]) -> int | None:
    """The exit code of a forked process that does something; None where it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
    child.join(30)
    if child.exitcode is None:
        child.kill()
    return child.exitcode


def test_a_fork_while_another_thread_opens_the_cache(tmp_path: Path) -> None:
    """The child must not wait for a lock that nobody in it holds."""
    cache = tmp_path / "cache"
    (cache / "fastdata-pieces").mkdir(parents=True)
    of = ImageDataset(f"file://{dataset('shards')}", cache=cache, remote=SMALL)
    blob = ImageDataset(dataset("shards")).read([0])
    with (cache / "fastdata-pieces" / "usage").open("w") as usage:
        fcntl.flock(usage, fcntl.LOCK_EX)
        opening = threading.Thread(target=of.read, args=([0],))
        opening.start()
        # It has opened the file, and waits.
        wait_until(lambda: _descriptors_of(usage.name) == 2)

        def read() -> None:
            fcntl.flock(usage, fcntl.LOCK_UN)
            assert of.read([0]) == blob

        assert _in_child(read) == 0
        opening.join()
    assert of.read([0]) == blob


def _descriptors_of(path: str) -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}") == path
    return found


def test_threads_of_a_fork_share_one_reader() -> None:
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.registry import register_implementation

    both_make = threading.Barrier(1)

    class Slow(LocalFileSystem):
        protocol = "slowfiles"

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            with suppress(threading.BrokenBarrierError):
                both_make.wait(5)

    register_implementation("slowfiles", Slow, clobber=True)
    of: Any = ImageDataset(f"slowfiles://{dataset('shards')}", remote=SMALL)
    assert of.read([0])

    def read() -> None:
        nonlocal both_make
        both_make = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(lambda _: of.source.reader, range(2))
        assert one is other

    assert _in_child(read) == 0


def test_a_long_name_beyond_ascii(tmp_path: Path) -> None:
    """Caches are named after datasets: 150 letters may have more bytes than a name may have."""
    url = f"memory://names/{'ü' * 150}"
    fs, root = open_filesystem(url)
    for file in dataset("shards").iterdir():
        fs.put_file(str(file), f"{root}/{file.name}")
    assert len(ImageDataset(url, cache=tmp_path / "cache")) == SAMPLES
