"""The LMDB source: databases that py-lmdb wrote, and what it says of values that are no images."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import pytest
from fastdata.converters import ImageSource, LmdbImages, pack
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sources import (
    Expected,
    SourceConformance,
    bytes_of,
    convert,
    encoded,
    jpeg,
    picture,
    require_said,
)

from fastdata import ImageDataset
from fastdata.errors import SourceError, UsageError

#: Some in leaves of the tree, some in overflow pages.
IMAGES = [
    encoded(picture(seed, (8 + 9 * seed, 8 + seed)), form)
    for seed, form in enumerate(["JPEG", "PNG", "WEBP"] * 5)
]


def write(
    path: Path,
    values: Mapping[bytes, bytes],
    database: bytes | None = None,
    *,
    subdir: bool = True,
    **flags: Any,
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"map_size": 1 << 28, "subdir": subdir, "max_dbs": 4}
    with closing(lmdb.open(str(path), **options)) as environment:
        handle = environment.open_db(database, **flags)
        with environment.begin(write=True, db=handle) as transaction:
            for key, value in values.items():
                transaction.put(key, value)
    return path


def listed(path: Path, database: bytes | None = None) -> list[tuple[bytes, bytes]]:
    options = {"readonly": True, "lock": False, "subdir": path.is_dir(), "max_dbs": 4}
    with closing(lmdb.open(str(path), **options)) as environment:
        handle = environment.open_db(database, create=False) if database else None
        with environment.begin(db=handle) as transaction:
            return [(bytes(key), bytes(value)) for key, value in transaction.cursor()]


class TestLmdbImages(SourceConformance):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        keys = [f"{'cab'[n % 3]}/{n * 7 % 15}.{n}.jpg".encode() for n in range(15)]
        values = dict(zip(keys, IMAGES, strict=True)) | {b"__len__": b"15"}
        return write(tmp_path / "in", values)

    @pytest.fixture
    def sources(self, path: Path) -> list[ImageSource]:
        return [LmdbImages(path, keys=r"(?P<class>[^/]+)/.*") for _ in range(2)]

    @pytest.fixture
    def expected(self, path: Path) -> Expected:
        found = [(key.decode(), value) for key, value in listed(path) if key != b"__len__"]
        return Expected(["a", "b", "c"], [(key, key[0], value) for key, value in found])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.lists(st.binary(min_size=1, max_size=511), min_size=1, max_size=60, unique=True),
    sizes=st.lists(st.integers(0, 9_000), min_size=1, max_size=60),
    named=st.booleans(),
    reverse=st.booleans(),
)
def test_all_entries_as_lmdb_iterates_over_them(
    keys: list[bytes], sizes: list[int], named: bool, reverse: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("any") / "x.mdb"
    values = {key: jpeg(0) + bytes(sizes[n % len(sizes)]) for n, key in enumerate(keys)}
    database = b"images" if named else None
    flags = {"subdir": False} | ({"reverse_key": reverse} if named else {})
    write(path, dict.fromkeys(values, jpeg(1) * 3), database, **flags)
    write(path, values, database, **flags)
    source = LmdbImages(path, database="images" if named else None, keys="(?s).*")
    assert [bytes_of(record) for record in source.records()] == [
        value for _, value in listed(path, database)
    ]


def test_a_large_database_of_many_levels(tmp_path: Path) -> None:
    image = jpeg(0)
    values = {b"%08d" % n + b"x" * 300: image + b"%d" % n for n in range(3_000)}
    path = write(tmp_path / "in", values)
    with closing(lmdb.open(str(path), readonly=True)) as environment:
        assert environment.stat()["depth"] > 2
    found = [(one.key.encode(), bytes_of(one)) for one in LmdbImages(path).records()]
    assert found == listed(path)


def test_classes_of_lsun(tmp_path: Path) -> None:
    for name, image in (("church_lmdb", IMAGES[2]), ("bedroom_lmdb", IMAGES[5])):
        write(tmp_path / "lsun" / name, {b"0a1b": image})
    source = LmdbImages(tmp_path / "lsun")
    assert source.classes == ["bedroom", "church"]
    pack(source, tmp_path / "out", workers=1)
    dataset = ImageDataset(tmp_path / "out")
    assert [dataset.row(n).key for n in range(2)] == ["bedroom_lmdb/0a1b", "church_lmdb/0a1b"]
    assert list(dataset.read([0, 1])) == [IMAGES[5], IMAGES[2]]
    with pytest.raises(UsageError, match="folders and from --keys"):
        LmdbImages(tmp_path / "lsun", keys="(?P<class>.).*")
    (tmp_path / "lsun/church_lmdb").rename(tmp_path / "lsun/train_lmdb")
    (tmp_path / "lsun/bedroom_lmdb").rename(tmp_path / "lsun/val_lmdb")
    result = convert("lmdb", "--root", tmp_path / "lsun", "--out", tmp_path / "no")
    require_said(result, 1, "databases are splits", "--root", "train_lmdb")


def test_keys_that_are_no_text_and_entries_left_out(tmp_path: Path) -> None:
    values = {(n).to_bytes(4, "big"): IMAGES[n] for n in range(3)}
    path = write(tmp_path / "in", values | {b"/data/x.jpg": IMAGES[3], b"__keys__": b"\x80\4."})
    result = convert("lmdb", "--root", path, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "left out" in result.output
    dataset = ImageDataset(tmp_path / "out")
    keys = [dataset.row(n).key for n in range(4)]
    assert keys == ["0x00000000", "0x00000001", "0x00000002", "data/x.jpg"]
    assert dataset.classes == []


@pytest.mark.parametrize(
    "value", [pickle.dumps((IMAGES[0], 3)), b"\x08\x03\x10\x80\x02", b"cat.jpg", b""]
)
def test_values_that_are_no_images_are_named(tmp_path: Path, value: bytes) -> None:
    path = write(tmp_path / "in", {b"000%d" % n: value for n in range(3)})
    result = convert("lmdb", "--root", path, "--out", tmp_path / "out")
    require_said(result, 1, "no image files; the value of 0000", repr(value[:16]), "the images'")


def test_named_databases(tmp_path: Path) -> None:
    path = write(tmp_path / "in", {b"a": IMAGES[0]}, b"images")
    write(path, {b"a": b"3"}, b"labels")
    assert [bytes_of(one) for one in LmdbImages(path, database="images").records()] == IMAGES[:1]
    with pytest.raises(SourceError, match="has the databases images, labels"):
        LmdbImages(path)
    result = convert("lmdb", "--root", path, "--database", "x", "--out", tmp_path / "out")
    require_said(result, 2, "has no database x", "images, labels")


def test_what_is_written_after_the_listing_is_a_bad_sample(tmp_path: Path) -> None:
    from fastdata.converters.encode import Encoding
    from fastdata.converters.tasks import encode, reader

    from fastdata.errors import SampleError

    path = write(tmp_path / "in", {b"a": jpeg(0) * 5})
    (record,) = LmdbImages(path).records()
    for seed in range(1, 4):
        write(path, {b"a": jpeg(seed) * 5})
    assert bytes_of(record) != jpeg(0) * 5
    with pytest.raises(SampleError, match="has changed since it was listed"):
        encode(record, Encoding("original"), reader([record], {}))
