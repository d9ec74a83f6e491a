"""The LMDB container: conformance, py-lmdb alone, and commits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from containers import FileContainerConformance, Made, blobs_of, originals, pack_tree, row_of

from fastdata.errors import CorruptionError
from fastdata.storage.formats import Sample
from fastdata.storage.formats.lmdb import LmdbWriter, entries, extents, map_size, sample_key


class TestLmdb(FileContainerConformance):
    container = "lmdb"

    def write(self, path: Path, groups: Sequence[Sequence[bytes]]) -> None:
        """One commit a group."""
        size = map_size(sum(len(blob) for group in groups for blob in group))
        first = 0
        for group in groups:
            with closing(LmdbWriter(path, first, size)) as writer:
                for blob in group:
                    writer.add(Sample(row_of(first, blob), blob))
                    first += 1
                writer.finish()

    def test_py_lmdb_reads_it(self, made: Made) -> None:
        with (
            lmdb.open(str(made.path), readonly=True, lock=False) as environment,
            environment.begin() as txn,
        ):
            assert environment.stat()["entries"] == len(made.images)
            for number, (key, value) in enumerate(txn.cursor()):
                assert key == number.to_bytes(8, "big")
                assert value == made.images[number].path.read_bytes()


def write(path: Path, blobs: Sequence[bytes], first: int = 0, size: int = 0) -> None:
    with closing(LmdbWriter(path, first, map_size(size))) as writer:
        for number, blob in enumerate(blobs):
            writer.add(Sample(row_of(first + number, blob), blob))
        writer.finish()


def test_what_is_not_committed_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    write(path, blobs_of([100, 9_000]))
    before = path.read_bytes()
    writer = LmdbWriter(path, 2, map_size(0))
    writer.add(Sample(row_of(2, b"lost"), b"lost"))
    writer.close()
    writer.close()
    assert entries(path) == 2
    assert path.read_bytes() == before


def test_a_commit_cut_off_leaves_no_trace(tmp_path: Path) -> None:
    """A killed commit may have written pages that the next, smaller one will not reach."""
    clean, killed = tmp_path / "clean.mdb", tmp_path / "killed.mdb"
    for path in (clean, killed):
        write(path, blobs_of([100, 9_000]))
    with killed.open("ab") as file:
        file.write(b"\xab" * 100_000)
    for path in (clean, killed):
        write(path, blobs_of([50, 9_000]), first=2)
    assert killed.read_bytes() == clean.read_bytes()


def test_a_file_cut_short_has_no_entries(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    write(path, blobs_of([9_000]))
    assert entries(path) == 1
    os.truncate(path, path.stat().st_size - 1)
    assert entries(path) == 0


def test_a_number_cannot_be_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    write(path, blobs_of([100]))
    with (
        closing(LmdbWriter(path, 0, map_size(0))) as writer,
        pytest.raises(CorruptionError, match="sample 0 is already there"),
    ):
        writer.add(Sample(row_of(0, b"again"), b"again"))


def test_a_full_map_is_a_full_disk(tmp_path: Path) -> None:
    # How LMDB reports a disk that is full: by its text alone.
    from fastdata.errors import is_no_space

    assert is_no_space(lmdb.Error("mdb_txn_commit: No space left on device"))
    assert not is_no_space(lmdb.MapFullError("mdb_put: MDB_MAP_FULL"))


def test_entries_of_what_is_no_lmdb(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    assert entries(path) == 0
    path.write_bytes(b"not a database" * 1000)
    assert entries(path) == 0
    with pytest.raises(CorruptionError, match="as LMDB"):
        list(extents(path))


def test_foreign_keys_are_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    with (
        closing(lmdb.open(str(path), subdir=False, lock=False)) as environment,
        environment.begin(write=True) as txn,
    ):
        txn.put(sample_key(0), b"a")
        txn.put(sample_key(2), b"b")
    with pytest.raises(CorruptionError, match="where sample 1 should"):
        list(extents(path))


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 1 << 30, (1 << 40) + 1])
def test_the_map_holds_twice_the_blobs(size: int) -> None:
    assert map_size(size) > 2 * size
    assert map_size(size) & (map_size(size) - 1) == 0


def test_commits_leave_no_trace_of_this_process(made_tree: Path, tmp_path: Path) -> None:
    """LMDB reuses page buffers: what a process wrote before must not show in the file."""
    write(tmp_path / "before.mdb", blobs_of([3_000] * 50))
    tree = made_tree / "val"
    pack_tree(tree, tmp_path / "one", "lmdb", unit_size=300_000)
    write(tmp_path / "between.mdb", [b"\xff" * 2_000] * 500)
    pack_tree(tree, tmp_path / "two", "lmdb", unit_size=300_000)
    one, two = (tmp_path / name / "data.mdb" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert entries(one) == len(originals(tree))
