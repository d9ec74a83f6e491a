"""Checks of a dataset's samples: their files, checksums and images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from fastdata import _native
from fastdata.decode.pillow import ImageInfo, open_image, probe
from fastdata.errors import CorruptionError, DatasetError, SampleError, printable
from fastdata.executors import report
from fastdata.maintenance.indexes import Finding
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.fields import IMAGE, IMAGES
from fastdata.storage.files import open_file
from fastdata.storage.packed import PackedSource
from fastdata.storage.records import Row
from fastdata.storage.row_groups import split_name
from fastdata.text import human_size

#: Checks one sample; the dictionary caches the problem of each file.
Check: TypeAlias = Callable[[PackedSource, str, Row, int, dict[Path, "str | None"]], Finding | None]


def check_rows(
    source: PackedSource, names: Sequence[str], start: int, stop: int, check: Check
) -> list[Finding]:
    """Check the blobs of some fields of some samples."""
    files: dict[Path, str | None] = {}
    findings = []
    keys: list[str] = []
    for name in names:
        for number, row in enumerate(source.index_of(name).rows(start, stop), start):
            if name == IMAGE.name:
                keys.append(row.key)
                report(1, row.length)
            elif not row.length:
                continue
            row = row._replace(key=keys[number - start])
            finding = check(source, name, row, number, files)
            if finding is not None:
                findings.append(finding)
    return findings


def _sample(row: Row, number: int) -> str:
    return f"sample {number} ({printable(row.key)})"


def check_loose_size(
    source: PackedSource, name: str, row: Row, number: int, files: dict[Path, str | None]
) -> Finding | None:
    """Check the size of a sample's file in a `folder`."""
    try:
        path = source.file(row, number)
    except CorruptionError as error:
        return Finding(_sample(row, number), error.what)
    try:
        problem = _size_problem(path.stat(), row.length, "index")
    except OSError as error:
        problem = reason(error)
    return Finding(str(path), problem) if problem else None


def check_sample(
    source: PackedSource, name: str, row: Row, number: int, files: dict[Path, str | None]
) -> Finding | None:
    """Read a blob of a sample; decode it if it is an image."""
    path: Path | str = ""
    try:
        path = source.file(row, number)
        if not source.manifest.blob_files:
            problem = file_problem(path, row.length, "index")
            if problem:
                return Finding(str(path), problem)
        elif source.manifest.groups is None and path not in files:
            files[path] = file_problem(path, source.manifest.files[row.file].size)
        problem = files.get(path)
        if problem:
            return Finding(str(path), problem, samples=int(name == IMAGE.name))
        (data,) = source.read([row], number)
        problem = _blob_problem(row, data) if source.field(name).kind in IMAGES else None
    except DatasetError as error:
        problem = error.what
        table = split_name(str(path))[0]
        if problem.startswith(f"{table}: "):  # of all its rows
            return Finding(table, problem[len(table) + 2 :], samples=int(name == IMAGE.name))
    except SampleError as error:
        problem = error.line
    if problem is None:
        return None
    return Finding(
        _sample(row, number), problem if name == IMAGE.name else f"its {name}: {problem}"
    )


def _blob_problem(row: Row, data: bytes) -> str | None:
    """Return how an image differs from its row; None if it does not."""
    orientation = row.orientation if 1 <= row.orientation <= 8 else 1
    info = ImageInfo(row.encoding, row.width, row.height, row.channels, orientation)
    if row.encoding == "raw":
        if len(data) == row.width * row.height * 3:
            return None if row.channels == 3 else f"is raw, the index says {row.channels} channels"
        return f"has {len(data)} bytes, too many or too few for {human_size(row.width, row.height)}"
    # An encoding that is not known here is anything that decodes (docs/formats/index.md).
    probed = probe(data) if row.encoding in ENCODINGS else None
    width, height = open_image(data, info).size
    if (width, height) != (row.width, row.height):
        said = human_size(row.width, row.height)
        return f"is {human_size(width, height)}, the index says {said}"
    if probed is not None and probed[:4] != info[:4]:
        return (
            f"is {probed.encoding} of {probed.channels} channels, "
            f"the index says {row.encoding} of {row.channels}"
        )
    if probed is not None and probed != info:
        return f"has EXIF orientation {probed.orientation}, the index says {row.orientation}"
    if row.seek_points is not None:
        code, detail, _ = _native.check_seek_points(row.seek_points, data)
        if code != "ok":
            return f"has seek points of another image ({detail}): run fastdata seek-points"
    return None


def file_problem(path: Path, size: int, says: str = "manifest") -> str | None:
    """Return why a file is wrong as a whole: it cannot be opened, or has another size."""
    try:
        with open_file(path) as file:
            return _size_problem(os.fstat(file.fileno()), size, says)
    except OSError as error:
        return reason(error)


def _size_problem(stat: os.stat_result, size: int, says: str) -> str | None:
    if stat.st_size == size:
        return None
    return f"has {stat.st_size} bytes, the {says} says {size}"


def reason(error: OSError) -> str:
    """Return why a file cannot be read."""
    return error.strerror or "cannot be read"
