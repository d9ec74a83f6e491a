"""Files of tables: CSV, JSON lines and Parquet, read as Arrow tables."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from fastdata.converters.rowfiles import reading

from fastdata.errors import SourceError
from fastdata.remote.files import file_at
from fastdata.remote.urls import is_url, name_of, redact
from fastdata.storage.arrow import array
from fastdata.storage.formats.parquet_pages import PARQUET_ERRORS
from fastdata.storage.jsontext import parse_json
from fastdata.storage.peek import peek

#: Usual names of columns of text that may look like numbers.
_TEXTS = ("key", "caption", "captions", "text", "txt", "title", "prompt", "description")
#: Suffixes of tables.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
#: Cells of a row after a CSV's last.
_END = "end"
#: JSON lines that are held as Python's objects.
_JSON_LINES = 16_384


def read_table(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    texts: Sequence[str] = (),
) -> pa.Table:
    """Read a table of one of `SUFFIXES`.

    A column of CSV is of numbers or truth values if all its cells are such, or empty, and no
    number would lose a digit; else it is text, and so are the columns ``texts``.
    """
    shown = redact(os.fspath(path))
    if not is_url(path) and os.path.isdir(path) and peek(path).kind == "parquet":
        with reading(shown, "a folder of Parquet"):
            return pq.read_table(path)  # of Hive, its folders' names are columns
    name = name_of(os.fspath(path)) if is_url(path) else os.path.basename(path)
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in (*SUFFIXES, ".txt"):
        raise SourceError(f"{shown}: not a table", f"Name one of {', '.join(SUFFIXES)}.")
    with reading(shown, "a table"), file_at(os.fspath(path), storage_options).open() as file:
        if suffix == ".parquet":
            return pq.read_table(file)
        data = file.read()
        text = _decoded(shown, data)
        if suffix in (".jsonl", ".ndjson"):
            return _read_json_lines(io.BytesIO(data))
        return _read_csv(text, "\t" if suffix == ".tsv" else None, texts)


def _decoded(shown: str, data: bytes) -> str:
    """Return a file's text; raise SourceError that names another encoding than UTF-8."""
    at = 0
    try:
        if b"\0" not in data[:4]:
            return data.decode("utf-8-sig")
        encoding = shown_as = "UTF-16"
    except UnicodeDecodeError as error:
        at = error.start
        encoding, shown_as = "CP1252", "Latin-1 or Windows-1252"
        if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            encoding = shown_as = "UTF-16"
    stem, suffix = os.path.splitext(name_of(shown))
    names = shlex.quote(name_of(shown)), shlex.quote(f"{stem}-utf8{suffix}")
    line = data.count(b"\n", 0, at) + 1
    raise SourceError(
        f"{shown}: is not UTF-8 in line {line}, but probably {shown_as}",
        "Convert it: iconv -f {} -t UTF-8 {} > {}".format(encoding, *names),
    )


def _read_csv(text: str, delimiter: str | None, texts: Sequence[str]) -> pa.Table:
    """Return the table of CSV, whose cells may be separated by commas, semicolons, tabs or |."""
    header = re.sub('"[^"]*"', "", text.lstrip("\r\n").partition("\n")[0])
    delimiter = delimiter or max(",;\t|", key=header.count)
    names = next(filter(None, _rows(text, delimiter)), [])
    if not names:
        raise ValueError("it is empty")
    # A quote that is not closed takes the rest of the file, this row too, for its cell.
    text += f"\n{delimiter.join([_END] * len(names))}\n"
    if f"{delimiter} " in header:  # a space may come before a quote, too
        written = io.StringIO(newline="")
        csv.writer(written, delimiter=delimiter).writerows(_rows(text, delimiter))
        text = written.getvalue()
    data = text.encode()
    table = pa.csv.read_csv(
        io.BytesIO(data),
        # A cell may not go beyond two blocks.
        pa.csv.ReadOptions(block_size=min(len(data), 1 << 30), use_threads=False),
        parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )
    last = table.column(0)[-1].as_py() if len(table) else "the header"
    if last != _END:
        raise ValueError(f"a quote is not closed, after {last[:40]!r}")
    table = table.slice(0, len(table) - 1)
    columns = [
        column if name.strip() in {*texts, *_TEXTS} else _typed(column)
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, [name.strip() for name in table.column_names])


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    csv.field_size_limit(1 << 30)
    try:
        yield from csv.reader(
            io.StringIO(text, newline=""), "excel", delimiter=delimiter, skipinitialspace=True
        )
    except csv.Error as error:
        raise ValueError(str(error)) from None


#: Cells without a value, in columns of numbers and truth values.
_NULLS = array(pa.csv.ConvertOptions().null_values, pa.string())
#: Types of cells that all match a pattern. Neither 007 nor digits beyond double precision do.
_CELLS = (
    (r"^\s*-?(0|[1-9]\d*)\s*$", pa.int64()),
    (r"^\s*(0|[1-9]\d*)\s*$", pa.uint64()),
    (r"^\s*-?((0|[1-9]\d{0,14})(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\s*$|^\s*-?inf\s*$", pa.float64()),
    (r"^\s*(true|false|True|False|TRUE|FALSE)\s*$", pa.bool_()),
)


def _typed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of cells of text; the text itself where it is more than they say."""
    missing = pc.is_in(column, _NULLS)
    cells = column.filter(pc.invert(missing))
    if not len(cells):
        return pa.chunked_array([pa.nulls(len(column))])
    for pattern, kind in _CELLS:
        if pc.all(pc.match_substring_regex(cells, pattern)).as_py():
            with suppress(pa.ArrowInvalid):
                return pc.if_else(missing, None, pc.utf8_trim_whitespace(column)).cast(kind)
    return column


def _read_json_lines(file: Iterable[bytes]) -> pa.Table:
    """Return the table of JSON lines, with nulls where a line lacks a name.

    Arrow's own reader makes invalid arrays of lists that begin with nulls, rounds whole numbers
    beyond 2^53 and takes text such as 2020-01-01 for a time.
    """
    tables: list[pa.Table] = []
    names: dict[str, None] = {}
    lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
    while block := list(islice(lines, _JSON_LINES)):
        rows, columns = [], {}
        first, last = block[0][0], block[-1][0]
        for number, line in block:
            try:
                row = parse_json(line, lenient=True)
                if not isinstance(row, dict):
                    raise ValueError("it is not a JSON object")
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            rows.append(row)
        names |= dict.fromkeys(chain.from_iterable(rows))
        if not names:  # such a table would have no rows
            raise ValueError(f"lines {first} to {last} have no columns")
        for name in names:
            try:
                columns[name] = _inferred([row.get(name) for row in rows])
            except PARQUET_ERRORS as error:
                raise ValueError(f"lines {first} to {last}: {name}: {error}") from None
        tables.append(pa.table(columns))
    if not tables:
        raise ValueError("it has no lines")
    return pa.concat_tables(tables, promote_options="permissive")


def _inferred(values: list[Any]) -> pa.Array:
    with suppress(OverflowError):
        column = pa.array(values)
        _require_no_booleans(column.type, values)
        return column
    return pa.array(values, pa.uint64())


def _require_no_booleans(kind: pa.DataType, values: Iterable[Any]) -> None:
    """Raise TypeError if booleans, of which Arrow makes numbers, are among floats."""
    present = [value for value in values if value is not None]
    if pa.types.is_floating(kind) and bool in set(map(type, present)):
        raise TypeError("numbers and booleans")
    if pa.types.is_list(kind):
        _require_no_booleans(kind.value_type, chain.from_iterable(present))
    elif pa.types.is_struct(kind):
        for field in kind:
            _require_no_booleans(field.type, (value.get(field.name) for value in present))
