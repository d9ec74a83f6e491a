"""Paths that data names: one rule, the same wherever a manifest, a row, a tar or a key has one."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from fastdata.converters.listing import write_listing
from fastdata.converters.records import Record
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_extents import IMAGES, row, table_of

from fastdata.errors import CorruptionError, SourceError
from fastdata.executors import InProcess
from fastdata.storage.formats.tars import members
from fastdata.storage.manifest import MANIFEST_NAME, FileEntry, Manifest
from fastdata.storage.packed import PackedSource
from fastdata.storage.paths import is_inside
from fastdata.storage.records import INDEX_NAME, NO_GENERATION, rows_to_batch, write_index

PARTS = st.sampled_from(["..", ".", "", "a", "...", "..a", "é", "\0"])
PATHS = st.one_of(
    st.text(max_size=12),
    st.lists(st.sampled_from(["..", ".", "", "a", "...", "..a", "é", "\0"]), max_size=5).map(
        "/".join
    ),
)
#: What every user of the rule is asked about.
CASES = {
    "a.jpg": True,
    "a/b.jpg": True,
    "..a/b..": True,
    "c/...": True,
    "größe": True,
    "": False,
    "/": False,
    "/etc/passwd": False,
    "..": False,
    "../a": False,
    "a/..": False,
    "a/../../b": False,
    "./../a": False,
    "a\0b": False,
}


@given(PATHS)
@example("a//../b")
@example("../root")
def test_what_is_inside_stays_inside(path: str) -> None:
    """Judged by what the path leads to, by the rules of the operating system."""
    resolved = os.path.normpath(os.path.join("/root", path))
    stays = resolved == "/root" or resolved.startswith("/root/")
    if is_inside(path):
        assert stays
        assert path and "\0" not in path
    else:
        assert not stays or not path or "\0" in path or ".." in path.split("/") or path[0] == "/"


@pytest.mark.parametrize("path", CASES)
def test_the_rule(path: str) -> None:
    assert is_inside(path) == CASES[path]


@settings(max_examples=50)
@given(PATHS.filter(lambda path: path.isprintable() and path != ""))  # no bytes: no path
def test_the_native_core_has_the_same_rule(
    tmp_path_factory: pytest.TempPathFactory, path: str
) -> None:
    folder = tmp_path_factory.mktemp("rule")
    extents = table_of(folder, [row(0, IMAGES[0], file=-1, path=path)], [], folder).gather(
        np.array([0])
    )
    try:
        extents.read(0)
        refused = False
    except ValueError as error:
        refused = "leaves the dataset's root" in str(error)
    except OSError:
        refused = False  # it was looked for, below the root
    assert refused != is_inside(path)


def accepted_by_manifest(folder: Path, path: str) -> bool:
    entry = {"name": path, "size": 0, "crc32c": "00000000"}
    manifest = Manifest("lmdb", 0, 0, [], 0, FileEntry(**entry), [], {}, {}, "0", NO_GENERATION)  # type: ignore[arg-type]
    try:
        Manifest.parse(manifest.to_json(), "_dataset.json")
    except CorruptionError:
        return False
    return True


def accepted_by_rows(folder: Path, path: str) -> bool:
    """By the reader of single rows, whose paths are relative to the manifest's root."""
    rows = rows_to_batch([row(0, IMAGES[0], file=-1, path=path)])
    write_index(folder / INDEX_NAME, [rows], 1)
    entry = FileEntry(INDEX_NAME, (folder / INDEX_NAME).stat().st_size, "00000000")
    manifest = Manifest("folder", 1, 0, ["a"], 1, entry, [], {}, {}, "0", NO_GENERATION, "images")
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), "utf-8")
    blobs = PackedSource(folder)
    try:
        return blobs.file(blobs.index[0], 0) == folder / "images" / path
    except CorruptionError:
        return False


def accepted_by_tars(folder: Path, path: str) -> bool:
    with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo(path), io.BytesIO())
    try:
        return len(list(members(folder / "a.tar"))) == 1
    except SourceError:
        return False


class Keys(NamedTuple):
    """A source of one sample, of some key."""

    classes: list[str]
    about: dict[str, str]
    inputs: list[Path | str]
    root: str | None
    key: str

    def records(self) -> Iterator[Record]:
        yield Record(self.key, 0, "/image.jpg", 0, 1, 0)


def accepted_by_listing(folder: Path, path: str) -> bool:
    try:
        with InProcess() as running:
            source = Keys(["a"], {}, [], None, path)
            return len(write_listing(source, folder / "list", lambda count: None, running)) == 1
    except SourceError:
        return False


USERS: list[Callable[[Path, str], bool]] = [
    accepted_by_manifest,
    accepted_by_rows,
    accepted_by_tars,
    accepted_by_listing,
]


@pytest.mark.parametrize("user", USERS, ids=lambda user: user.__name__)
@pytest.mark.parametrize("path", [path for path in CASES if path and "\0" not in path])
def test_every_user_has_the_rule(
    tmp_path: Path, user: Callable[[Path, str], bool], path: str
) -> None:
    assert user(tmp_path, path) == CASES[path]
