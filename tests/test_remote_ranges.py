"""Which byte ranges are asked for, and samples whose bytes are in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_data import SAMPLES, dataset

from fastdata import ImageDataset, _native
from fastdata.remote.ranges import FileRef, Wanted, merge, plan
from fastdata.storage.checksum import crc32c


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5000), st.integers(0, 400)), max_size=60),
    st.integers(0, 600),
    st.integers(1, 3000),
)
def test_merged_requests(extents: list[tuple[int, int, int]], gap: int, largest: int) -> None:
    wanted = [
        Wanted(number, FileRef(f"file{file}", 0, ""), start, start + size, 0)
        for number, (file, start, size) in enumerate(extents)
    ]
    requests = merge(wanted, gap, largest)
    found = [one for request in requests for one in request.members]
    assert sorted(one.number for one in found) == list(range(len(wanted)))
    for request in requests:
        members = sorted(request.members, key=lambda one: one.start)
        assert all(one.file == request.file for one in members)
        assert request.start == members[0].start
        assert request.stop == max(one.stop for one in members)
        assert len(members) == 1 or request.size <= largest
        # Nothing that is not needed comes along, but for a little between neighbours.
        covered = {byte for one in members for byte in range(one.start, one.stop)}
        assert (request.size - len(covered)) * 32 <= sum(one.size for one in members)
        reach = members[0].stop
        for one in members[1:]:
            assert one.start - reach <= gap
            reach = max(reach, one.stop)


def test_neighbours_are_merged() -> None:
    wanted = [
        Wanted(i, FileRef("file", 0, ""), i * 1000, i * 1000 + 996, 0) for i in reversed(range(10))
    ]
    assert len(merge(wanted, 4, 1 << 20)) == 1
    assert len(merge(wanted, 3, 1 << 20)) == 10
    assert len(merge(wanted, 4, 3000)) == 4
    assert len(merge(wanted[::2], 4096, 1 << 20)) == 5  # what lies between would be wasted


@given(
    st.permutations(range(60)),
    st.integers(1, 20_000),
    st.integers(1, 3000),
    st.sets(st.integers(0, 59)),
)
def test_plans_cover_everything_in_order(
    order: list[int], reach: int, largest: int, needed: set[int]
) -> None:
    coming = {i: Wanted(i, FileRef("file", 0, ""), i * 100, i * 100 + 100, 0) for i in order}
    first = plan(coming.values(), reach, 0, largest, [coming[i] for i in needed])
    assert needed <= {one.number for request in first for one in request.members}
    fetched: list[int] = []
    while coming:
        ahead = next(iter(coming))
        requests = plan(coming.values(), reach, 0, largest)
        assert ahead in [one.number for one in requests[0].members]  # what is needed next
        for request in requests:
            for one in request.members:
                fetched.append(one.number)
                del coming[one.number]
    assert sorted(fetched) == sorted(order)


def test_attached_bytes_are_used_instead_of_the_file(tmp_path: Path) -> None:
    near = ImageDataset(dataset("shards"))
    numbers = np.arange(SAMPLES)
    extents = near.source.table.gather(numbers)
    rows = [near.row(i) for i in range(SAMPLES)]
    assert extents.files.tolist() == [row.file for row in rows]
    assert extents.offsets.tolist() == [row.offset for row in rows]
    assert extents.lengths.tolist() == [row.length for row in rows]
    assert extents.checksums.tolist() == [row.crc32c for row in rows]
    assert not extents.corrupt_slots()
    (blob,) = near.read([3])
    extents.attach(3, memoryview(blob))
    assert extents.read(3) == blob
    other = bytes(len(blob))
    extents.attach(3, other)
    assert extents.read(3, check=False) == other
    with pytest.raises(ValueError, match="have changed"):
        extents.read(3)
    with pytest.raises(ValueError, match=f"sample 3 has {len(blob)} bytes, not 1"):
        extents.attach(3, b"x")
    with pytest.raises(IndexError):
        extents.attach(SAMPLES, b"x")
    with pytest.raises(ValueError):  # noqa: PT011 - numpy's own words
        extents.offsets[0] = 1
    assert crc32c(blob) == rows[3].crc32c


def test_attached_bytes_of_files() -> None:
    extents = _native.Extents(["/nowhere/at-all"])
    extents.attach(0, b"anything")  # of unknown length
    assert extents.read(0) == b"anything"
    empty = _native.Extents([])
    assert empty.offsets.tolist() == []
