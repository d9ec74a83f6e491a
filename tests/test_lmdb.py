"""The LMDB container: conformance, py-lmdb alone, and commits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from containers import FileContainerConformance, Made, blobs_of, row_of

from fastdata.errors import CorruptionError
from fastdata.storage.formats import NewSample
from fastdata.storage.formats.lmdb import LmdbWriter, entries, extents, map_size, sample_key


class TestLmdb(FileContainerConformance):
    container = "lmdb"

    def write(self, path: Path, groups: Sequence[Sequence[bytes]]) -> None:
        size = map_size(sum(len(blob) for group in groups for blob in group))
        first = 0
        for group in groups:
            with closing(LmdbWriter(path, first, size)) as writer:
                for blob in group:
                    writer.add(NewSample(row_of(first, blob), blob))
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
            writer.add(NewSample(row_of(first + number, blob), blob))
        writer.finish()


def test_what_is_not_committed_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    write(path, blobs_of([100, 9_000]))
    before = path.read_bytes()
    writer = LmdbWriter(path, 2, map_size(0))
    writer.add(NewSample(row_of(2, b"lost"), b"lost"))
    writer.close()
    writer.close()
    assert entries(path) == 2
    assert path.read_bytes() == before
    os.truncate(path, len(before) - 1)
    assert entries(path) == 0


def test_a_commit_cut_off_leaves_no_trace(tmp_path: Path) -> None:
    clean, killed = tmp_path / "clean.mdb", tmp_path / "killed.mdb"
    for path in (clean, killed):
        write(path, blobs_of([100, 9_000]))
    with killed.open("ab") as file:
        file.write(b"\xab" * 100_000)
    for path in (clean, killed):
        write(path, blobs_of([50, 9_000]), first=2)
    assert killed.read_bytes() == clean.read_bytes()


def test_a_number_cannot_be_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    write(path, blobs_of([100]))
    with (
        closing(LmdbWriter(path, 0, map_size(0))) as writer,
        pytest.raises(CorruptionError, match="sample 0 is already there"),
    ):
        writer.add(NewSample(row_of(0, b"again"), b"again"))


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
