"""Checks of a dataset's indexes, columns, and samples: files, checksums and images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata.decode.pillow import ImageInfo, open_image, probe
from fastdata.errors import CorruptionError, DatasetError, FastdataError, SampleError, printable
from fastdata.executors import report
from fastdata.remote.opening import RemoteSource
from fastdata.storage.arrow import as_numpy
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.fields import IMAGE, IMAGES, StoredField
from fastdata.storage.files import open_file
from fastdata.storage.manifest import ELSEWHERE
from fastdata.storage.packed import IndexedSource
from fastdata.storage.records import Row
from fastdata.storage.row_groups import split_name
from fastdata.storage.shapes import misshapen, why_misshapen
from fastdata.text import human_size


class Finding(NamedTuple):
    """Problem that a check found, and how many samples it kept from being checked."""

    where: str
    what: str
    samples: int = 0


#: Checks one blob. Its last argument is the outcome of reading it, None if it is not read yet.
Check: TypeAlias = (
    "Callable[[IndexedSource, str, Row, int, bytes | FastdataError | None], Finding | None]"
)
#: Bytes of blobs behind a URL that are read at once.
_WINDOW = 16 << 20


def check_index(source: IndexedSource, stored: StoredField) -> Iterator[Finding]:
    """Check all rows of a field's index against the manifest, without reading values."""
    if stored.file is not None:
        yield from _other_packing(source, stored.file)
        yield from _impossible_pieces(source, stored)
    else:
        yield from _impossible_rows(source, stored)


def _impossible_rows(source: IndexedSource, stored: StoredField) -> Iterator[Finding]:
    manifest, (name, kind, _, nullable, _) = source.manifest, stored.field
    is_extra = stored.field != IMAGE
    sizes = np.array(source.files.sizes[: manifest.blob_files], np.int64)
    labels_of = 1 if is_extra else max(len(manifest.classes), 1)
    start = previous = 0
    names = ("label", "file", "offset", "length", "width")
    for batch in source.index_of(name).batches(columns=names):
        columns = (as_numpy(batch.column(one)) for one in names)
        labels, files, offsets, lengths, widths = columns
        bad = (labels < 0) | (labels >= labels_of)
        if kind == "blob":
            bad |= widths != 0
        # An empty file of a field of blobs has an offset, and is one.
        lacks = (lengths == 0) & is_extra & ((kind != "blob") | (offsets == 0))
        bad |= lacks & ((not nullable) | (files != 0) | (offsets != 0))
        if len(sizes):
            known = (files >= 0) & (files < len(sizes))
            end = sizes[np.where(known, files, 0)]
            wrong = ~known | (offsets < 0) | (lengths < 0) | (offsets > end - lengths)
            has = np.flatnonzero(~lacks)
            if manifest.container not in ELSEWHERE:  # they lie in any order
                wrong[has] |= np.diff(files[has], prepend=previous) < 0
            previous = int(files[has[-1]]) if len(has) else previous
        else:
            wrong = files != -1
        for at in np.flatnonzero(bad | (wrong & ~lacks)).tolist():
            row = source.index_of(name)[start + at]
            of_field = f" of {name}" if is_extra else ""
            yield Finding(
                f"sample {start + at} ({printable(source.index[start + at].key)})",
                f"its index row{of_field} is impossible: label {row.label}, file {row.file}, "
                f"offset {row.offset}, length {row.length}",
            )
        start += batch.num_rows


def _other_packing(source: IndexedSource, name: str) -> Iterator[Finding]:
    """Check the generation that a column's file names."""
    path = f"{source.location}/{name}"
    with suppress(pa.ArrowException, OSError):  # other checks report such a file
        with pa.OSFile(path) as file:
            file.seek(8)  # past the magic bytes
            named = pa.ipc.read_schema(file).metadata or {}
        if named.get(b"generation") != source.generation.encode():
            yield Finding(path, "belongs to another packing than the manifest")


def _impossible_pieces(source: IndexedSource, stored: StoredField) -> Iterator[Finding]:
    manifest, index = source.manifest, source.index_of(stored.field.name)
    assert stored.file is not None
    number = manifest.number_of(stored.file)
    size = manifest.files[number].size
    start = end = 0
    names = ("file", "offset", "length", "width")
    for batch in index.batches(columns=names):
        columns = (as_numpy(batch.column(one)).astype(np.int64) for one in names)
        files, offsets, lengths, rows = columns
        firsts: npt.NDArray[np.int64] = np.arange(start, start + len(files)) * stored.rows
        expected = np.minimum(stored.rows, manifest.samples - firsts)
        # The file's batches are in the order of the rows.
        before = np.append(end, (offsets + lengths)[:-1])
        bad = (files != number) | (lengths < 0) | (offsets < before) | (rows != expected)
        bad |= offsets > size - lengths
        for at in np.flatnonzero(bad).tolist():
            yield Finding(
                f"{source.location}/{stored.index}",
                f"its row {start + at} is impossible for {expected[at]} rows in {stored.file}: "
                f"file {files[at]}, offset {offsets[at]}, length {lengths[at]}, {rows[at]} rows",
            )
        start, end = start + len(files), int(offsets[-1] + lengths[-1])


def check_pieces(
    source: IndexedSource, stored: StoredField, start: int, stop: int
) -> list[Finding]:
    """Read some pieces of a column."""
    assert stored.file is not None
    path = f"{source.location}/{stored.file}"
    name, meaning, findings = stored.field.name, stored.field.format, []
    places = enumerate(source.index_of(name).rows(start, stop), start)
    for (_, number, _), outcome in _read(source, ((name, *place) for place in places)):
        try:
            data = outcome if isinstance(outcome, bytes) else None
            piece = source.piece(name, number, data)
        except DatasetError as error:
            findings.append(Finding(path, error.what.removeprefix(f"{source.location}: ")))
            continue
        wrong = np.flatnonzero(misshapen(piece, meaning)).tolist() if meaning else ()
        for at in wrong:
            row = number * stored.rows + at
            where = f"sample {row} ({printable(source.index[row].key)})"
            findings.append(Finding(where, why_misshapen(name, meaning)))
    return findings


def check_column_file(source: IndexedSource, stored: StoredField) -> Iterator[Finding]:
    """Check that a file, whose checksum is right, has the manifest's column."""
    assert stored.file is not None
    path = f"{source.location}/{stored.file}"
    name, kind = stored.field.name, stored.field.type
    pieces = len(source.index_of(name))
    try:
        with pa.OSFile(path) as opened, pa.ipc.open_file(opened) as file:
            schema, batches = file.schema, file.num_record_batches
            has = ", ".join(f"{one.name} {one.type}" for one in schema)  # names may be no UTF-8
    except (pa.ArrowException, OSError, ValueError) as error:
        yield Finding(path, f"cannot be read as Arrow: {error}")
        return
    if schema != pa.schema([(name, kind)]):
        yield Finding(path, f"holds {printable(has)}, the manifest says {name} {kind}")
    if batches != pieces:
        yield Finding(path, f"has {batches} record batches, its index has {pieces}")


def check_rows(
    source: IndexedSource, names: Sequence[str], start: int, stop: int, check: Check
) -> list[Finding]:
    """Check the blobs of some fields, the image first, of some samples."""
    findings = []
    for (name, number, row), outcome in _read(source, _blobs(source, names, start, stop)):
        if name == IMAGE.name:
            report(1, row.length)
        finding = check(source, name, row, number, outcome)
        if finding is not None:
            findings.append(finding)
    return findings


#: A blob, or a piece of a column: its field, number and row of the index.
_Place: TypeAlias = tuple[str, int, Row]


def _blobs(source: IndexedSource, names: Sequence[str], start: int, stop: int) -> Iterator[_Place]:
    fields = [source.index_of(name).rows(start, stop) for name in names]
    for number, rows in enumerate(zip(*fields, strict=True), start):
        for name, row in zip(names, rows, strict=True):
            if row.length or name == IMAGE.name:
                yield name, number, row._replace(key=rows[0].key)


def _read(
    source: IndexedSource, places: Iterable[_Place]
) -> Iterator[tuple[_Place, bytes | FastdataError | None]]:
    """Yield places; those behind a URL with what reading them gives, many at once."""
    if not isinstance(source, RemoteSource):
        yield from zip(places, repeat(None))
        return
    window: list[_Place] = []
    size = 0
    for place in chain(places, [None]):
        if place is None or size >= _WINDOW:
            outcomes = source.read_each([(row, number) for _, number, row in window])
            yield from zip(window, outcomes, strict=True)
            window, size = [], 0
        if place is not None:
            window.append(place)
            size += place[2].length


def _sample(row: Row, number: int) -> str:
    return f"sample {number} ({printable(row.key)})"


def check_loose_size(
    source: IndexedSource, name: str, row: Row, number: int, outcome: bytes | FastdataError | None
) -> Finding | None:
    """Check the size of a sample's file in a `folder` of this machine."""
    try:
        path = Path(source.file(row, number))
    except CorruptionError as error:
        return Finding(_sample(row, number), error.what)
    try:
        problem = _size_problem(path.stat(), row.length, "index")
    except OSError as error:
        problem = reason(error)
    return Finding(str(path), problem) if problem else None


def check_sample(
    bad: Mapping[str, str],
    source: IndexedSource,
    name: str,
    row: Row,
    number: int,
    outcome: bytes | FastdataError | None,
) -> Finding | None:
    """Read a blob of a sample, unless it is read; decode it if it is an image.

    ``bad`` has the problems of files.
    """
    file = ""
    try:
        path = source.file(row, number)
        file = str(path) if source.manifest.groups is None else split_name(str(path))[0]
        if problem := bad.get(file):
            return Finding(file, problem, samples=int(name == IMAGE.name))
        if isinstance(path, Path) and not source.manifest.blob_files:
            problem = file_problem(path, row.length, "index")
            if problem:
                return Finding(file, problem)
        if isinstance(outcome, FastdataError):
            raise outcome
        data = source.read([row], number)[0] if outcome is None else outcome
        problem = _blob_problem(row, data) if source.field(name).kind in IMAGES else None
    except DatasetError as error:
        problem = error.what
        if problem.startswith(f"{file}: "):  # of all its rows
            return Finding(file, problem[len(file) + 2 :], samples=int(name == IMAGE.name))
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
