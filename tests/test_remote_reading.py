"""Datasets behind URLs, read by ranges and through a cache folder: real drivers and servers."""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flaky_proxy import wait_until
from hangs import HANG
from hypothesis import given
from hypothesis import strategies as st
from loader_data import CROPS, SAMPLES, WITH_INDEX, dataset, same
from object_stores import Bucket
from tiers import slow

from fastdata import Cache, DataLoader, ImageDataset
from fastdata.errors import (
    CorruptionError,
    DatasetError,
    FastdataError,
    RemoteError,
    UsageError,
)
from fastdata.remote import RemoteOptions
from fastdata.remote.drivers import open_filesystem
from fastdata.remote.ranges import UNCHECKED, FileRef, Ranges, merge
from fastdata.storage.manifest import with_root

#: Small enough that everything happens: many requests, pieces smaller than files.
SMALL = RemoteOptions(concurrency=4, memory=64 << 10, piece_bytes=16 << 10, timeout=1.0, tries=4)


def put(bucket: Bucket, container: str = "shards", **options: Any) -> str:
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


@pytest.fixture(params=["ranges", "cache"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "ranges" else tmp_path / "cache"


@pytest.mark.parametrize(
    ("container", "kind"),
    [("shards", "jpeg"), slow("parquet", "jpeg"), slow("lmdb", "jpeg"), slow("parquet", "raw")],
)
def test_two_epochs_are_those_of_the_local_dataset(
    gcs: Bucket, cache: Path | None, container: str, kind: str
) -> None:
    url, folder = put(gcs, container, kind=kind), dataset(container, kind)
    of, near = remote(url, gcs, cache), ImageDataset(folder, CROPS)
    assert of.is_remote and url in repr(of) and of.classes == near.classes
    assert of.read([4, 2]) == near.read([4, 2])
    far, other = loader(of), loader(near)
    for _ in range(2):
        assert same(list(far), list(other))
        found = far.stats().remote
        assert (
            found.bytes_needed == json.loads((folder / "_dataset.json").read_text())["blob_bytes"]
        )
    if cache is not None:
        assert found.requests == 0
        assert found.cache_reads > 0


def test_a_concatenation_frees_the_bytes_of_batches_that_were_taken(gcs: Bucket) -> None:
    url, folder = put(gcs), dataset("shards")
    stored = json.loads((folder / "_dataset.json").read_text())["blob_bytes"]
    both = torch.utils.data.ConcatDataset([remote(url, gcs), remote(url, gcs)])
    next(iter(loader(both)))  # opens them
    batches = iter(loader(both, batch_size=1))
    next(batches)
    tracemalloc.start()
    try:
        for _ in range(len(both) - 2):
            next(batches)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 1.5 * stored  # all that was read has twice as many


@pytest.mark.parametrize("container", ["parquet", slow("shards"), slow("lmdb")])
def test_ranges_ask_for_what_is_needed_and_little_more(gcs: Bucket, container: str) -> None:
    put(gcs, container)
    with gcs.through_proxy() as (bucket, proxy):
        url = f"{bucket.url}/{container}"
        far = loader(remote(url, bucket, options=RemoteOptions()))
        proxy.clear()
        assert same(list(far), list(local(container)))
        asked = [e for e in proxy.matching("GET") if e.range]
        found = far.stats().remote
        # Small images have much between them in tars and LMDB: less than requests would cost.
        most = 1.05 if container == "parquet" else 1.25
        assert proxy.received() <= most * found.bytes_needed
        assert found.requests == len(asked)
        assert found.bytes_requested == proxy.received()
        if container == "parquet":  # where 4 bytes lie between neighbours
            # The first batch, for which somebody waits, is asked for without those of later ones.
            assert len(asked) < far.batch_size + (SAMPLES - far.batch_size) / 4


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5000), st.integers(0, 400)), max_size=60),
    st.integers(0, 600),
    st.integers(1, 3000),
)
def test_merged_requests(extents: list[tuple[int, int, int]], gap: int, largest: int) -> None:
    files = [FileRef(f"file{file}", 0, "", file) for file, _, _ in extents]
    columns = np.array(extents, np.int64).reshape(-1, 3).T
    places, starts, sizes = columns
    ranges = Ranges(files, places, starts, starts + sizes, np.full(len(files), UNCHECKED))
    order, begins = merge(ranges, gap, largest)
    assert sorted(order.tolist()) == list(range(len(extents)))
    for members in np.split(order, begins[1:]) if extents else []:
        request = ranges.request(members)
        spans = [(starts[one], starts[one] + sizes[one]) for one in members]
        assert spans == sorted(spans, key=lambda span: span[0])
        assert len({places[one] for one in members}) == 1
        assert request.start == spans[0][0]
        assert request.stop == max(stop for _, stop in spans)
        assert len(members) == 1 or request.size <= largest
        # Nothing that is not needed comes along, but for a little between neighbours.
        covered = {byte for start, stop in spans for byte in range(start, stop)}
        assert request.size - len(covered) <= max(sizes[members].sum() / 32, 64 << 10)
        reach = spans[0][1]
        for start, stop in spans[1:]:
            assert start - reach <= gap
            reach = max(reach, stop)


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


def test_bytes_that_stay_wrong_are_named(gcs: Bucket, cache: Path | None) -> None:
    url = put(gcs)
    fs, root = open_filesystem(url, gcs.storage_options)
    shard = next(path for path in fs.find(root) if path.endswith(".tar"))
    row = ImageDataset(dataset("shards")).row(0)
    data = bytearray(fs.cat_file(shard))
    data[row.offset + row.length // 2] ^= 1
    fs.pipe_file(shard, bytes(data))
    options = RemoteOptions(tries=2, piece_bytes=16 << 10)
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
    found = torch.cat([indices for _, _, indices in batches]).tolist()
    assert sorted(set(found)) == list(range(1, SAMPLES))


def test_a_server_that_is_gone(gcs: Bucket, cache: Path | None) -> None:
    put(gcs)
    with gcs.through_proxy() as (bucket, proxy):
        options = RemoteOptions(tries=2, timeout=0.5)
        far = remote(f"{bucket.url}/shards", bucket, cache, options)
        proxy.inject("stall", when=lambda e: ".tar" in e.path, times=10_000)
        with pytest.raises(RemoteError, match="failed 2 times"):
            far.read([0])
        # Clients spell an object's place in different ways.
        asked = Counter(e.range for e in proxy.matching(part=".tar"))
        assert max(asked.values()) == 2


@pytest.mark.parametrize("start", ["fork", slow("spawn")])
def test_torch_workers(gcs: Bucket, cache: Path | None, start: str) -> None:
    far = ImageDataset(put(gcs), storage_options=gcs.storage_options, cache=cache, remote=SMALL)
    assert far.read([0])  # the parent has used its filesystem before the fork
    near = ImageDataset(dataset("shards"))
    found = torch.utils.data.DataLoader(
        _Labels(far), batch_size=8, num_workers=1, multiprocessing_context=start
    )
    assert torch.cat(list(found)).tolist() == [_digest(near, i) for i in range(SAMPLES)]


class _Labels(torch.utils.data.Dataset[Any]):
    def __init__(self, of: ImageDataset) -> None:
        self._of = of

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, index: int) -> int:
        return _digest(self._of, index)


def _digest(of: ImageDataset, index: int) -> int:
    image, label = of[index]
    return sum(image.tobytes()) * 10 + int(label)


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


def test_a_machine_that_starts_few_threads(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a container's limit of threads is reached: those that run make the requests."""
    started, start = [], threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "fastdata-remote":
            if started:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    far = loader(remote(put(gcs), gcs, options=replace(SMALL, max_request=1)), timeout=HANG)
    monkeypatch.setattr(threading.Thread, "start", limited)
    assert same(list(far), list(local()))
    assert len(started) == 1


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
                  remote=RemoteOptions(piece_bytes=16384, max_request=1))
for batch in DataLoader(of, batch_size=2, num_workers=2):
    break
iterator = iter(DataLoader(of, batch_size=2, num_workers=2))
next(iterator)
print("ends")
if cache is not None:
    raise KeyError("mine")
"""


@pytest.mark.slow
def test_the_interpreter_exits_in_the_middle(gcs: Bucket, cache: Path | None) -> None:
    put(gcs)
    with gcs.through_proxy() as (bucket, proxy):
        proxy.inject("stall", when=lambda e: ".tar" in e.path and proxy.count("", ".tar") > 20)
        command = [sys.executable, "-c", _EXIT, f"{bucket.url}/shards"]
        command += [repr(bucket.storage_options)]
        command += [str(cache or "")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
        assert done.stdout == "ends\n", done.stderr
        assert done.returncode == (cache is not None)
        assert ("mine" in done.stderr) == (cache is not None)
        assert "Task" not in done.stderr


# The cache folder.


class Rank:
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


def needed_pieces() -> int:
    rows = [ImageDataset(dataset("shards")).row(i) for i in range(SAMPLES)]
    of_rows = (range(row.offset >> 14, ((row.offset + row.length - 1) >> 14) + 1) for row in rows)
    return len({(row.file, n) for row, of in zip(rows, of_rows, strict=True) for n in of})


def pieces(cache: Path) -> list[Path]:
    return sorted(cache.glob("fastdata-pieces/*/*.piece"))


def test_a_cache_smaller_than_the_dataset(gcs: Bucket, tmp_path: Path) -> None:
    url, limit = put(gcs), 5 << 14
    foreign = tmp_path / "cache" / "fastdata-pieces" / "mine" / "000000-0.piece.bak"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"x" * limit)
    far = loader(remote(url, gcs, Cache(tmp_path / "cache", limit)))
    for _ in range(2):
        assert same(list(far), list(local()) if _ == 0 else _second_epoch())
        assert sum(piece.stat().st_size for piece in pieces(tmp_path / "cache")) <= limit
    found = far.stats().remote
    assert found.requests > 0
    assert found.cache_bytes <= limit
    assert foreign.exists()
    # And two ranks, each evicting what the other has.
    ranks = [Rank(gcs, tmp_path / "cache", limit) for _ in range(2)]
    assert {one.outcome() for one in ranks} == {expected_pixels()}
    assert sum(piece.stat().st_size for piece in pieces(tmp_path / "cache")) <= limit


def test_many_caches_share_the_open_files(tmp_path: Path, limited: Callable[[int], None]) -> None:
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
    of = remote(put(gcs), gcs, Cache(tmp_path / "cache", 8 << 14))
    of.read([0])
    (first,) = pieces(tmp_path / "cache")
    old = time.time() - 1000
    os.utime(first, (old, old))
    for index in range(1, SAMPLES):
        of.read([index])
    assert not first.exists()


def damaged(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    if damage == "unreadable":  # there, but not to be opened, as on a disk with a bad block
        path.unlink()
        path.symlink_to(path)
        return
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "changed":
        data[len(data) // 2] ^= 1
    elif damage == "empty":
        data.clear()
    else:
        data[-5] ^= 1
    path.write_bytes(data)


DAMAGES = ("cut", "changed", "empty", "trailer", "unreadable")


def test_a_damaged_piece_is_not_trusted(gcs: Bucket, tmp_path: Path) -> None:
    url = put(gcs)
    list(loader(remote(url, gcs, tmp_path / "cache")))
    chosen = pieces(tmp_path / "cache")[::2]
    assert len(chosen) >= len(DAMAGES)
    for at, piece in enumerate(chosen):
        damaged(piece, DAMAGES[at % len(DAMAGES)])
    again = loader(remote(url, gcs, tmp_path / "cache"), timeout=20)
    assert same(list(again), list(local()))
    assert again.stats().remote.cache_fills == len(chosen)
    assert not any(piece.is_symlink() for piece in chosen)


def test_a_damaged_index_is_fetched_again(gcs: Bucket, cache: Path | None, tmp_path: Path) -> None:
    put(gcs)
    rows = [ImageDataset(dataset("shards")).row(i) for i in range(SAMPLES)]
    with gcs.through_proxy() as (bucket, proxy):
        for _ in range(2):
            remote(f"{bucket.url}/shards", bucket, cache)
        assert proxy.count("GET", "_index.rows") == 1
        (index,) = (tmp_path / "cache").rglob("_index.rows")
        for times, damage in enumerate(("cut", "changed", "unreadable"), 2):
            damaged(index, damage)
            again = remote(f"{bucket.url}/shards", bucket, cache)
            assert proxy.count("GET", "_index.rows") == times
            assert [again.row(i) for i in range(SAMPLES)] == rows


def test_a_cache_folder_that_others_may_change(gcs: Bucket, tmp_path: Path) -> None:
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


def test_a_cache_folder_that_vanishes_is_named(gcs: Bucket, tmp_path: Path) -> None:
    url = put(gcs)
    cached = remote(url, gcs, tmp_path / "cache")
    cached.read([0])
    shutil.rmtree(tmp_path / "cache" / "fastdata-pieces")
    with pytest.raises(DatasetError, match="cannot be written: No such file"):
        cached.read([SAMPLES - 1])


def test_a_closed_pass_leaves_its_fills_to_another(gcs: Bucket, tmp_path: Path) -> None:
    put(gcs)
    with gcs.through_proxy() as (bucket, proxy):
        options = replace(SMALL, concurrency=32, timeout=20.0)
        of = remote(f"{bucket.url}/shards", bucket, tmp_path / "cache", options)
        proxy.retry_after = "2"
        proxy.inject("503", lambda exchange: ".tar" in exchange.path, 8)
        closed: Any = iter(loader(of))
        batches: list[Any] = []
        for one in (closed, loader(of)):
            threading.Thread(target=lambda one=one: batches.append(list(one)), daemon=True).start()
            time.sleep(0.5)  # both wait for fills that wait until they try again
        wait_until(lambda: proxy.count("GET", ".tar") >= 8)
        closed.close()
        wait_until(lambda: len(batches) == 2)
        assert same(max(batches, key=len), list(local()))


@pytest.mark.slow
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


# Other protocols, other containers, bad input.


def test_a_driver_that_is_not_asynchronous() -> None:
    far = loader(ImageDataset(f"file://{dataset('shards')}", CROPS, remote=SMALL))
    assert same(list(far), list(local()))
    assert far.stats().remote is not None


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
    elsewhere = put(gcs, "folder")
    fs, root = open_filesystem(elsewhere, gcs.storage_options)
    text = (dataset("folder") / "_dataset.json").read_bytes()
    fs.pipe_file(f"{root}/_dataset.json", with_root(text, "/somewhere/else"))
    with pytest.raises(DatasetError, match="files in /somewhere/else on the machine"):
        remote(elsewhere, gcs)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FastdataError):
        ImageDataset(url, cache=file, **options)


def test_relative_caches(gcs: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("range", Path("oranges"), "a/b/"):
        found = remote(put(gcs), gcs, folder)
        found.read([0])
        assert pieces(tmp_path / folder)
        assert pickle.loads(pickle.dumps(found)).read([0]) == found.read([0])


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


def test_a_long_name_beyond_ascii(tmp_path: Path) -> None:
    url = f"memory://names/{'ü' * 150}"
    fs, root = open_filesystem(url)
    for file in dataset("shards").iterdir():
        fs.put_file(str(file), f"{root}/{file.name}")
    assert len(ImageDataset(url, cache=tmp_path / "cache")) == SAMPLES
