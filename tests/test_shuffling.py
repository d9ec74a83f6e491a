"""Packing in a random order: a permutation by a seed, whatever packs it; and packing again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from containers import digests, load_manifest, originals, pack_tree
from fastdata.converters import (
    ImageFolder,
    ImageSource,
    PackedDataset,
    ParquetImages,
    Record,
    WebDataset,
    pack,
)
from fastdata.converters.listing import RecordListing, write_listing
from fastdata.converters.options import PackOptions
from fastdata.converters.shuffling import BLOCK_BYTES, WINDOW_BYTES, shuffle_listing
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import convert, jpeg, require_said, tar_bytes
from tiers import first_of

from fastdata import DataLoader, ImageDataset, verify
from fastdata.errors import BadSamplesError, MixingWarning, UsageError
from fastdata.executors import InProcess
from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.samplers import QuasiRandom
from fastdata.transforms import CenterCrop


@dataclass
class Files(ImageSource):
    counts: tuple[int, ...]
    length: int
    together: bool

    def shards(self) -> Sequence[Any]:
        return [
            Files((count,), self.length, self.together).of(number)
            for number, count in enumerate(self.counts)
        ]

    def of(self, number: int) -> Any:
        class Shard:
            def records(_) -> Iterator[Record]:  # noqa: N805
                for at in range(self.counts[0]):
                    path = f"/{number}" if self.together else f"/{number}/{at}"
                    offset = at * self.length if self.together else 0
                    yield Record(f"{number}/{at}", 0, path, offset, self.length, 0)

        return Shard()


def shuffled(
    source: Any, folder: Path, seed: int, **sizes: int
) -> tuple[RecordListing, RecordListing]:
    with InProcess() as executor:
        listing = write_listing(source, folder / "in", lambda count: None, executor)
    return listing, shuffle_listing(listing, folder / "out", seed, **sizes)


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any),
    together=st.booleans(),
    seed=st.integers(-(2**70), 2**70),
    shard=st.integers(3, 100),
)
def test_it_is_a_permutation(
    counts: list[int], together: bool, seed: int, shard: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("listing")
    before, after = shuffled(
        Files(tuple(counts), 300_000, together), folder, seed, shard_rows=shard
    )  # fmt: skip
    n = sum(counts)
    whole = shuffle_listing(before, folder / "whole", seed)
    assert list(whole.records(0, n)) == list(after.records(0, n))
    assert after.totals == before.totals
    source, found = list(before.records(0, n)), list(after.records(0, n))
    assert sorted(one._replace(window=None) for one in found) == sorted(source)
    if not together:
        # Single files: sorted by keys that seed and place give, however it was cut.
        keys = sample_keys(epoch_key(seed, -1), np.arange(n))
        assert found == [source[number] for number in np.argsort(keys).tolist()]


def test_archives_are_read_a_block_at_a_time(tmp_path: Path) -> None:
    length = 100_000
    _, after = shuffled(Files((4000, 3000), length, True), tmp_path, 0)
    found = list(after.records(0, 7000))
    windows = [list(group) for _, group in groupby(found, lambda record: record.window)]
    assert len({window[0].window for window in windows}) == len(windows)
    blocks = 0
    for window in windows:
        assert len(window) * length <= WINDOW_BYTES + 2 * BLOCK_BYTES
        in_order = sorted(window, key=lambda record: (record.path, record.offset))
        ends = [
            (one.path, one.offset + one.length) != (other.path, other.offset)
            for one, other in pairwise(in_order)
        ]
        runs = 1 + sum(ends)
        blocks += runs
        # Neighbours, as packed, come from many of the blocks.
        if len(window) > 500:
            near = {(record.path, record.offset // BLOCK_BYTES) for record in window[:32]}
            assert len(near) > 15
    # Each of about 350 blocks of 2 MiB is in one window; a few lie beside each other in it.
    assert 300 < blocks <= 7000 * length / BLOCK_BYTES + 10


def test_a_row_group_is_in_one_window(tmp_path: Path) -> None:
    table = pa.table({"image": [jpeg(n % 7) for n in range(60)], "label": list(range(60))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    _, after = shuffled(ParquetImages(tmp_path / "a.parquet"), tmp_path, 1)
    found = list(after.records(0, 60))
    assert [record.offset for record in found] != sorted(record.offset for record in found)
    for group in range(3):
        assert len({record.window for record in found if record.group == group}) == 1
    packed = pack(ParquetImages(tmp_path / "a.parquet"), tmp_path / "set", container="shards",
                  workers=1)  # fmt: skip
    dataset = ImageDataset(packed.path)
    assert dataset.labels.tolist() == [record.offset for record in shuffled(
        ParquetImages(tmp_path / "a.parquet"), tmp_path, 0)[1].records(0, 60)]  # fmt: skip
    assert all(dataset.read([i]) == [jpeg(dataset.row(i).label % 7)] for i in range(60))


@pytest.fixture(scope="module")
def tree(made_tree: Path) -> Path:
    return made_tree / "train"


@pytest.fixture(scope="module")
def sorted_shards(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sorted") / "shards"
    pack_tree(tree, out, "shards", unit_size=400_000)
    return out


def contents(dataset: Path) -> list[tuple[str, int, bytes]]:
    found = ImageDataset(dataset)
    rows = (found.row(number) for number in range(len(found)))
    return [(row.key, row.label, found.read([n])[0]) for n, row in enumerate(rows)]


@pytest.mark.parametrize("container", first_of(["shards", "parquet"]))
def test_the_bytes_depend_on_the_seed_alone(
    sorted_shards: Path, tree: Path, tmp_path: Path, container: str
) -> None:
    expected = sorted((one.key, one.label, one.path.read_bytes()) for one in originals(tree))
    for source in (lambda: ImageFolder(tree), lambda: WebDataset(sorted_shards)):
        made = {}
        for workers, seed in ((1, 0), (2, 0), (1, 1)):
            out = tmp_path / f"{workers}-{seed}"
            options: dict[str, Any] = {"seed": seed, "force": True}
            pack_tree(source(), out, container, workers=workers, shuffle=True,
                      unit_size=400_000, **options)  # fmt: skip
            made[workers, seed] = digests(out)
            assert sorted(contents(out)) == expected
        assert made[1, 0] == made[2, 0] != made[1, 1]


def test_what_is_shuffled_by_default(tree: Path, tmp_path: Path) -> None:
    evaluation = shutil.copytree(tree, tmp_path / "my-test.set")
    for folder, container, order in (
        (tree, "shards", "shuffled"),
        (tree, "parquet", "shuffled"),
        (tree, "lmdb", "source"),
        (tree, "folder", "source"),
        (evaluation, "shards", "source"),
    ):
        out = tmp_path / f"{folder.name}-{container}"
        packed = pack(ImageFolder(folder), out, container=container, workers=1)
        assert packed.manifest.order == load_manifest(out)["order"] == order
        assert packed.manifest.seed == (0 if order == "shuffled" else None)
        keys = [row.key for row in map(ImageDataset(out).row, range(packed.manifest.samples))]
        assert (keys == [one.key for one in originals(tree)]) == (order == "source")
    with pytest.raises(UsageError, match="--seed 3 has no effect"):
        pack(
            ImageFolder(tree),
            tmp_path / "no",
            container="lmdb",
            options=PackOptions(seed=3),
            workers=1,
        )


# Packing again.


@pytest.mark.parametrize("container", first_of(["lmdb", "parquet", "shards", "folder"]))
def test_packed_anew_it_has_the_same_samples(tree: Path, tmp_path: Path, container: str) -> None:
    pack_tree(tree, tmp_path / "first", container, unit_size=400_000)
    for target in ("lmdb", "shards", "parquet"):
        pack_tree(PackedDataset(tmp_path / "first"), tmp_path / target, target)
        assert contents(tmp_path / target) == contents(tmp_path / "first")
        direct = tmp_path / f"direct-{target}"
        pack_tree(tree, direct, target)
        data = {name: digest for name, digest in digests(direct).items() if name[0] != "_"}
        assert data.items() <= digests(tmp_path / target).items()
    verify(tmp_path / "lmdb")


def test_pixels_packed_anew(tree: Path, tmp_path: Path) -> None:
    convert("imagefolder", "--root", tree, "--encoding", "raw", "--max-side", 40, "--to", "shards",
            "--out", tmp_path / "raw")  # fmt: skip
    again = convert("dataset", "--root", tmp_path / "raw", "--out", tmp_path / "lmdb")
    assert again.exit_code == 0, again.output
    assert contents(tmp_path / "lmdb") == contents(tmp_path / "raw")
    # The order is still the shuffled one.
    assert load_manifest(tmp_path / "lmdb")["order"] == "shuffled"
    assert load_manifest(tmp_path / "lmdb")["seed"] == 0


def test_damage_is_not_packed(sorted_shards: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sorted_shards, tmp_path / "copy")
    row = ImageDataset(copy).row(5)
    with (copy / load_manifest(copy)["files"][row.file]["name"]).open("r+b") as file:
        file.seek(row.offset + row.length // 2)
        byte = file.read(1)[0]
        file.seek(row.offset + row.length // 2)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(BadSamplesError, match="its checksum is wrong"):
        pack(PackedDataset(copy), tmp_path / "out", workers=1)
    listed = json.loads((tmp_path / "out/_bad-samples.jsonl").read_text())
    assert listed["key"] == row.key


def test_what_cannot_be_packed_anew(sorted_shards: Path, tmp_path: Path) -> None:
    def failed(*options: object) -> Any:
        return convert("dataset", "--root", sorted_shards, "--out", tmp_path / "out", *options)

    require_said(failed("--to", "folder"), 2, "--to lmdb")
    require_said(convert("dataset", "--root", tmp_path), 1, "no dataset here")
    inside = convert("dataset", "--root", sorted_shards, "--out", sorted_shards / "x")
    require_said(inside, 2, "lies inside the source")


# What a loader says of neighbours that are alike.


def loader(path: Path, order: str | QuasiRandom) -> DataLoader:
    return DataLoader(ImageDataset(path, CenterCrop(32)), 8, order=order, seed=0)


def test_a_loader_tells_that_neighbours_are_alike(
    sorted_shards: Path, tree: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    pack(ImageFolder(tree), tmp_path / "mixed", container="shards", workers=1)
    pack_tree(PackedDataset(tmp_path / "mixed"), tmp_path / "copy", "lmdb")
    for quiet, order in (
        (sorted_shards, "random"), (sorted_shards, "sequential"), (sorted_shards, "quasi-random"),
        (tmp_path / "mixed", QuasiRandom(1)), (tmp_path / "copy", QuasiRandom(1)),
    ):  # fmt: skip
        loader(quiet, order)
    assert not recwarn.list
    told = r"QuasiRandom\(window=1\).*same label(.|\n)*convert dataset --root .*--to shards.*random"
    with pytest.warns(MixingWarning, match=told) as caught:
        loader(sorted_shards, QuasiRandom(1))
    assert [warning.filename for warning in caught] == [__file__]


def test_a_bad_image_in_an_archive_is_named(tmp_path: Path) -> None:
    members = [
        member
        for number in range(8)
        for member in ((f"{number}.jpg", jpeg(number)), (f"{number}.cls", b"%d" % number))
    ]
    members[6] = ("3.jpg", b"no image")
    (tmp_path / "in.tar").write_bytes(tar_bytes(members))
    with pytest.raises(BadSamplesError, match="1 of 8"):
        pack(WebDataset(tmp_path), tmp_path / "out", container="shards", workers=1)
    packed = pack(WebDataset(tmp_path), tmp_path / "out", container="shards", workers=1,
                  skip_bad=True)  # fmt: skip
    assert (packed.manifest.samples, packed.manifest.skipped) == (7, 1)
