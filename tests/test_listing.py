"""Listings in shards: the same records, cuts and complaints as of a listing in one piece."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import pytest
from fastdata.converters import ImageFolder, Record, WebDataset
from fastdata.converters.listing import Listing, write_listing
from fastdata.converters.records import Listable, listing_shards
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import jpeg, make_tree, tar_bytes

from fastdata.errors import SourceError
from fastdata.executors import InProcess


class Shard(NamedTuple):
    number: int
    keys: tuple[str, ...]
    lengths: tuple[int, ...]

    def records(self) -> Iterator[Record]:
        for at, (key, length) in enumerate(zip(self.keys, self.lengths, strict=True)):
            yield Record(key, 0, f"/{self.number}/{at}", at, length, 0)


class Made:
    """A source of shards that are given."""

    classes: ClassVar = ["one"]
    root: str | None = None
    inputs: Sequence[Path] = ()
    about: ClassVar = {"kind": "made", "root": "made"}

    def __init__(self, lengths: Sequence[Sequence[int]]) -> None:
        self._shards = [
            Shard(number, tuple(f"{number}/{at}" for at in range(len(each))), tuple(each))
            for number, each in enumerate(lengths)
        ]

    def records(self) -> Iterator[Record]:
        for shard in self._shards:
            yield from shard.records()

    def shards(self) -> Sequence[Listable]:
        return self._shards


def listed(source: Any, folder: Path, **sizes: int) -> Listing:
    with InProcess() as executor:
        return write_listing(source, folder, lambda count: None, executor, **sizes)


def expected_runs(
    lengths: list[int], most_bytes: float, most_rows: int
) -> list[tuple[int, int, int]]:
    """One record after the other."""
    found, start, held = [], 0, 0
    for at, length in enumerate(lengths):
        held += length
        if held >= most_bytes or at + 1 - start == most_rows:
            found.append((start, at + 1, held))
            start, held = at + 1, 0
    if start < len(lengths):
        found.append((start, len(lengths), held))
    return found


@settings(max_examples=60)
@given(
    lengths=st.lists(st.lists(st.integers(0, 50), max_size=12), min_size=1, max_size=6),
    most_bytes=st.floats(0.5, 300),
    most_rows=st.integers(1, 20),
    batch=st.integers(1, 5),
    part=st.tuples(st.integers(0, 72), st.integers(0, 72)),
)
def test_cuts(
    lengths: list[list[int]], most_bytes: float, most_rows: int, batch: int,
    part: tuple[int, int], tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    flat = [length for each in lengths for length in each]
    source = Made(lengths)
    folder = tmp_path_factory.mktemp("listing") / "listing"
    if not flat:
        with pytest.raises(SourceError, match="no images found"):
            listed(source, folder, rows_per_batch=batch)
        return
    found = listed(source, folder, rows_per_batch=batch)
    assert len(found) == len(flat)
    assert found.totals.size == found.totals.length == sum(flat)
    assert list(found.records(0, len(flat))) == list(source.records())
    start, stop = sorted(min(at, len(flat)) for at in part)
    assert list(found.records(start, stop)) == list(source.records())[start:stop]
    runs = list(found.runs(0, len(flat), most_bytes, most_rows))
    assert [run[:3] for run in runs] == expected_runs(flat, most_bytes, most_rows)
    assert all(size == stored for _, _, size, stored in runs)
    with InProcess() as executor:
        units = list(found.units(most_bytes, most_rows, {}, chained=False, executor=executor))
    assert [(u.start, u.stop, u.size) for u in units] == expected_runs(flat, most_bytes, most_rows)
    assert len({unit.fingerprint for unit in units}) == len(units)


@pytest.mark.parametrize("chained", [False, True])
def test_a_changed_record_changes_its_fingerprint(tmp_path: Path, chained: bool) -> None:
    def prints(name: str, lengths: list[list[int]], options: dict[str, int]) -> list[str]:
        found = listed(Made(lengths), tmp_path / name)
        with InProcess() as executor:
            units = found.units(30, 100, options, chained=chained, executor=executor)
            return [unit.fingerprint for unit in units]

    first = prints("a", [[10, 20], [30, 29, 1, 50]], {"a": 1})
    assert prints("b", [[10, 20], [30, 29, 1, 50]], {"a": 1}) == first
    assert not set(prints("c", [[10, 20], [30, 29, 1, 50]], {"a": 2})) & set(first)
    other = prints("d", [[10, 20], [31, 29, 1, 50]], {"a": 1})
    same = [one == two for one, two in zip(first, other, strict=True)]
    assert same == ([True, False, False, False] if chained else [True, False, True, True])


def test_a_key_in_two_shards(tmp_path: Path) -> None:
    source = Made([[1] * 40, [1] * 25, [], [1] * 30])
    sizes = {"rows_per_batch": 3, "compared_at_once": 10}
    listed(source, tmp_path / "good", **sizes)
    shards = source._shards
    shards[3] = shards[3]._replace(keys=(*shards[3].keys[:-1], "0/17"))
    with pytest.raises(SourceError, match="the key 0/17: /0/17 and /3/29"):
        listed(source, tmp_path / "bad", **sizes)


def test_shards_are_those_of_the_source(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", [f"c{c}/{n}.jpg" for c in range(5) for n in range(3)])
    for number in range(3):
        members = [(f"{number}-{at}.{kind}", data) for at in range(2)
                   for kind, data in (("jpg", jpeg(at)), ("cls", b"1"))]  # fmt: skip
        (tmp_path / "tars").mkdir(exist_ok=True)
        (tmp_path / "tars" / f"{number}.tar").write_bytes(tar_bytes(members))
    with mock.patch("fastdata.converters.imagefolder._MOST_SHARDS", 3):
        for source, count in ((ImageFolder(tree), 3), (WebDataset(tmp_path / "tars"), 3)):
            shards = pickle.loads(pickle.dumps(listing_shards(source)))
            assert len(shards) == count
            found = [record for shard in shards for record in shard.records()]
            assert found == list(source.records())
