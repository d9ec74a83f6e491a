"""Source of Parquet files with a column of images, from Spark, Dask, petastorm, Hugging Face, ….

Files are read as plain Parquet. petastorm's own metadata are a pickle, which could run any code
when it is read. They are not needed and never unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fastdata.converters import tabular
from fastdata.converters.records import Record
from fastdata.converters.rowfiles import (
    BATCH_ROWS,
    EXTENTS,
    ROWS,
    OpenRows,
    RowBatch,
    RowsFile,
    reading,
)
from fastdata.converters.rows import column_values
from fastdata.converters.trees import LocalTree, RemoteTree, data_files, is_folder, require_utf8

from fastdata.errors import SourceError
from fastdata.remote.files import SourceFile, archive_files, file_at
from fastdata.remote.patterns import is_pattern
from fastdata.remote.urls import common_folder, is_url, name_of, redact
from fastdata.storage.formats.parquet_pages import (
    Chunk,
    Page,
    file_chunks,
    page_extents,
    plain_pages,
)
from fastdata.storage.local import LocalFile
from fastdata.storage.peek import is_unknown_file, lacks_data, peek
from fastdata.storage.source import MOST_BYTES

_EXTENSION = ".parquet"
#: Hugging Face's name of a file of a split: ``data/train-00000-of-00002.parquet``.
_OF_SPLIT = re.compile(r"(?:.*/)?([^/]+)-\d+-of-\d+(?:-[0-9a-f]+)?\.parquet")
#: Values to decode at a time.
_FEW = 8


class ParquetImages(tabular.TabularImages):
    """Source of the rows of Parquet files, by file path and then row.

    See `TabularImages`. Labels may also be in the names of folders, ``label=3/part-0.parquet``.
    petastorm's ``CompressedImageCodec`` writes images that are read, too.

    Images and blobs in uncompressed, PLAIN-encoded pages are extents of the file, as the Hub writes
    them for columns of images. Of other row groups, pyarrow decodes the rows. The length of such an
    image or blob is the mean of its column in the row group: exact lengths would require reading
    all images.

    Args:
        root: A folder of ``*.parquet``, at any depth, one file, a pattern such as
            ``part-{0..9}.parquet``; or the URL of any. Names that begin with ``_`` or ``.`` are not
            data.
        split: The files to take, one of `parquet_splits`; None for all.
        extents: Whether to look for extents; None for files of this machine. Of a file behind a
            URL, finding them reads all of it.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        split: str | None = None,
        extents: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> None:
        remote = is_url(root)
        where = redact(os.fspath(root))
        if not remote and not is_pattern(root):
            where = str(require_utf8(Path(root).resolve()))
        files = _files(root, storage_options)
        plain = not remote if extents is None else extents
        of_split = {name: _split_of(name) for name in files}
        tabular.taken_split(where, split, list(filter(None, dict.fromkeys(of_split.values()))))
        every = {
            name: ParquetRows(name[: -len(_EXTENSION)], file, plain) for name, file in files.items()
        }
        rows = [every.pop(name) for name in files if split in (None, of_split[name])]
        super().__init__(rows, where, "parquet", split, others=every.values, **columns)


class ParquetRows(RowsFile):
    """Rows of a Parquet file."""

    @contextmanager
    def open(self) -> Iterator[_OpenParquet]:
        with reading(self, "Parquet"):
            footer = _footer(self.file, self.file.mtime_ns)
            with self.file.open() as source, pq.ParquetFile(source, metadata=footer) as opened:
                yield _OpenParquet(self, opened, source)


@lru_cache(maxsize=64)  # one may have megabytes
def _footer(file: SourceFile, mtime_ns: int) -> pq.FileMetaData:
    with file.open() as source:
        footer = pq.read_metadata(source)
        if footer.num_rows > file.size:
            raise ValueError(f"{footer.num_rows:,} rows in {file.size:,} bytes")
        return footer


class _OpenParquet(OpenRows):
    def __init__(self, rows: ParquetRows, opened: pq.ParquetFile, source: Any) -> None:
        self.schema = opened.schema_arrow
        self._rows, self._opened, self._source = rows, opened, source
        self._state = rows.file.mtime_ns
        self._chunks = file_chunks(opened.metadata)

    def values(self, column: str) -> Iterator[bytes | None]:
        # One row group at a time: otherwise pyarrow prefetches all the others.
        for group in range(self._opened.num_row_groups):
            for batch in self._opened.iter_batches(_FEW, [group], [column], use_threads=False):
                yield from column_values(batch, column)

    def batches(self, columns: Sequence[str], blobs: Sequence[str]) -> Iterator[RowBatch]:
        for group in range(self._opened.num_row_groups):
            left = self._opened.metadata.row_group(group).num_rows
            places = {leaf: self._places(group, leaf, left) for leaf in blobs}
            read: Iterator[pa.RecordBatch] = iter(())
            if columns:
                read = self._opened.iter_batches(BATCH_ROWS, [group], [*columns], use_threads=False)
            while left:
                rows, values = min(left, BATCH_ROWS), {}
                if columns:
                    batch = next(read, None)
                    if batch is None:
                        raise ValueError(f"row group {group} has fewer rows than it says")
                    rows = batch.num_rows
                    values = {name: column_values(batch, name) for name in columns}
                yield RowBatch(rows, values, {n: list(islice(places[n], rows)) for n in blobs})
                left -= rows

    def kept(self, column: str) -> str:
        if not self._rows.plain:
            return ROWS
        for chunks, rows in zip(self._chunks, self.groups(), strict=True):
            if rows and self._pages(chunks.get(column), rows) is None:
                return ROWS
        return EXTENTS

    def groups(self) -> list[int]:
        metadata = self._opened.metadata
        return [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]

    def _places(self, group: int, leaf: str, rows: int) -> Iterator[Record | None]:
        """Yield the places of a column's values in a row group."""
        path, chunk = self._rows.file.location, self._chunks[group].get(leaf)
        pages = self._pages(chunk, rows) if self._rows.plain else None
        if chunk is not None and pages is not None:
            try:
                for page in pages:
                    for extent in page_extents(self._read, page, chunk.level):
                        yield extent and Record("", 0, path, *extent, self._state)
            except ValueError as error:
                raise ValueError(f"{leaf} of row group {group} {error}") from None
            return
        whole = self._opened.metadata.row_group(group).total_byte_size
        size = whole if chunk is None else chunk.size
        length = min(max(1, size // rows), MOST_BYTES)
        first = sum(self.groups()[:group])
        for row in range(first, first + rows):
            yield Record("", 0, path, row, length, self._state, column=leaf, group=group)

    def _pages(self, chunk: Chunk | None, rows: int) -> list[Page] | None:
        """Return the pages of a chunk; None if pyarrow has to decode it."""
        try:
            return None if chunk is None else plain_pages(self._read, chunk, rows)
        except ValueError:
            return None

    def _read(self, offset: int, length: int) -> bytes:
        self._source.seek(offset)
        data: bytes = self._source.read(length)
        return data


def parquet_splits(
    root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the splits that Hugging Face's names of files have; none if a file has another."""
    splits = [_split_of(name) for name in _files(root, storage_options)]
    return [] if None in splits else [split for split in dict.fromkeys(splits) if split]


def _split_of(name: str) -> str | None:
    match = _OF_SPLIT.fullmatch(name)
    return match and match[1]


def _files(
    root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> Mapping[str, SourceFile]:
    """Return the files of a pattern, a folder or a file, by their paths below the folder."""
    place = os.fspath(root)
    if is_pattern(root):
        try:
            listed = archive_files(place, _EXTENSION, storage_options)
        except OSError as error:
            what = error.filename or redact(place)
            raise SourceError(
                f"{what}: {error.strerror or 'no such file'}", "Check the path."
            ) from None
        folder = common_folder([file.location for file in listed])
        return {file.location[len(folder) :].lstrip("/"): file for file in listed}
    if is_url(root):
        # Spark's folders may have this suffix, too; on a web server, only a final slash shows it.
        if name_of(place).lower().endswith(_EXTENSION) and not place.endswith("/"):
            with suppress(FileNotFoundError):
                return {name_of(place): file_at(place, storage_options)}
    elif not is_folder(path := Path(root)):
        if not path.is_file():
            raise SourceError(f"{root}: no such folder or file", "Name the files with --root.")
        if not peek(root).source and not is_unknown_file(root):
            raise lacks_data(root, "is not Parquet", "")
        return {path.name: LocalFile(path.absolute())}
    tree = RemoteTree(place, storage_options) if is_url(root) else LocalTree(Path(root).absolute())
    files = data_files(tree, _EXTENSION)
    if not files:
        raise lacks_data(
            str(tree), "holds no *.parquet", "Name the folder of the files with --root."
        )
    return files
