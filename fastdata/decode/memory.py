"""Tables in memory, as `fastdata.ImageDataset.from_table` takes them: columns become fields."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from fastdata._native import crc32c
from fastdata.decode.pillow import kind_of
from fastdata.errors import UsageError
from fastdata.storage.arrow import as_arrow, child_of, nullable, stored_type
from fastdata.storage.encodings import is_image_name
from fastdata.storage.fields import IMAGE, LABEL, Field
from fastdata.storage.hugging_face import names_mask
from fastdata.storage.source import Hints
from fastdata.storage.table_view import TableField, TableView
from fastdata.text import class_name

#: Usual names of a column of images' paths, the likelier first.
PATHS = ("path", "file_name", "filename", "image_path", "filepath", "file", "image", "img")
#: Column of samples' names.
_KEYS = "\0key"
#: Most classes whose names are their numbers.
_MOST_CLASSES = 1 << 16
_HINTS = Hints(
    changed="Make the table again.",
    missing="Correct the path; root= of from_table names the folder of relative ones.",
)
_TAKEN = (
    "Give a table of pandas, polars or pyarrow, a dict of columns, or a list of images, of (image, "
    "label) or of dicts; each image is a path, encoded bytes, or pixels of one uint8 array, "
    "N x H x W x 3."
)


def rows_of(
    data: Any,
    *,
    image: str | None,
    label: str | None,
    key: str | None,
    root: str | os.PathLike[str],
    classes: Sequence[str] | None,
    kinds: Mapping[str, str],
) -> TableView:
    """Return a table's rows; for the arguments see `fastdata.ImageDataset.from_table`.

    ``kinds``: "image" or "mask" for columns of images beside the first one.
    """
    columns = _columns_of(data)
    has = f"It has {', '.join(map(repr, columns))}."
    named = {
        "image=": image,
        "label=": label,
        "key=": key,
        **{f"formats= of {n}": n for n in kinds},
    }
    for argument, name in named.items():
        if name is not None and not isinstance(name, str):
            hint = 'Give columns as a dict: {"image": IMAGES, "label": LABELS}.'
            raise UsageError(f"{argument} takes the name of a column, not {class_name(name)}", hint)
        if name is not None and name not in columns:
            raise UsageError(f"{argument} {name!r}: there is no such column", has)
    if len({*map(len, columns.values())}) > 1:
        several = ", ".join(f"{name} {len(values):,}" for name, values in columns.items())
        raise UsageError(f"the columns differ in length: {several}", "Give each a value a row.")
    pixels = {name: _pixels(values) for name, values in columns.items()}
    plain = {name: _arrow(name, one) for name, one in columns.items() if pixels[name] is None}
    image = image or _image_column(columns, plain, has)
    fields, size = {}, None
    if (array := pixels[image]) is None:
        fields[image] = _require_files(image, plain[image])
    else:
        fields[image], size = _raw(image, array)
    parts, names = [TableField(IMAGE, (image,))], list[str]()
    if label == image:
        raise UsageError(f"label={label!r} is the column of images", has)
    wanted = label or (LABEL.name if LABEL.name in plain and image != LABEL.name else None)
    if wanted is None and classes is not None:
        raise UsageError("classes= without a column of labels", "Name it: label=.")
    if wanted is not None:
        asked = label is not None or classes is not None
        labels = _labels(wanted, plain.get(wanted), classes, asked)
        if labels is not None:
            fields[wanted], names = labels
            parts.append(TableField(LABEL, (wanted,)))
    key = key or ("key" if "key" in plain and "key" not in fields else None)
    taken = {"key", *(part.field.name for part in parts)}
    for name in columns:
        if name not in fields and name != key:
            kind, fields[name] = _kind(name, pixels[name], plain.get(name), kinds.get(name))
            lacks = kind != "column" or nullable(fields[name].chunks)
            stored = fields[name].type if kind == "column" else None
            field = Field(f"{name}_" if name in taken else name, kind, stored, lacks)
            parts.append(TableField(field, (name,)))
    table, keys = pa.table(fields), plain.get(key or image)
    if keys is not None and (key is not None or _is_text(keys.type)):
        table = table.append_column(_KEYS, keys)
    base = os.path.join(os.path.abspath(root), "")
    keys_column = _KEYS if _KEYS in table.column_names else None
    digest = _digest(base, fields[image])
    return TableView(
        table, parts, None, names, keys_column, (), digest, "table in memory", base, size, _HINTS
    )


def _columns_of(data: Any) -> dict[str, Any]:
    """Return the columns of a table of any library, or of a list, by name."""
    pairs: list[tuple[Any, Any]]
    is_array = hasattr(data, "dtype") and np.shape(data) != ()
    if is_array or isinstance(data, (pa.Array, pa.ChunkedArray)):
        return {IMAGE.name: data}  # an array or a Series
    if isinstance(data, Mapping):
        pairs = list(data.items())
    elif hasattr(data, "iloc"):  # pandas
        pairs = [(name, data.iloc[:, place]) for place, name in enumerate(data.columns)]
    elif hasattr(data, "__arrow_c_stream__"):
        with _reading("the table"):
            table = pa.table(data)
        pairs = list(zip(table.column_names, table.columns, strict=True))
    elif isinstance(data, (Sequence, Iterator)) and not isinstance(data, (str, bytes)):
        rows = list(data)
        if rows and all(isinstance(row, Mapping) for row in rows):
            names = dict.fromkeys(name for row in rows for name in row)
            pairs = [(name, [row.get(name) for row in rows]) for name in names]
        elif rows and all(isinstance(row, (tuple, list)) and len(row) == 2 for row in rows):
            pairs = list(zip((IMAGE.name, LABEL.name), zip(*rows, strict=True), strict=True))
        elif rows and all(isinstance(row, (tuple, list)) for row in rows):
            raise UsageError("from_table: a row is not (image, label)", _TAKEN)
        else:
            pairs = [(IMAGE.name, rows)]
    else:
        raise UsageError(f"from_table: {class_name(data)} is no table", _TAKEN)
    columns = {str(name): values for name, values in pairs}
    if len(columns) < len(pairs):
        raise UsageError("two columns have the same name", "Rename or drop one.")
    return columns


def _pixels(values: Any) -> npt.NDArray[Any] | None:
    """Return the images of a column of arrays, (N, H, W, …); None for other columns."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return None
    if getattr(values, "ndim", 1) == 1:  # a list or a Series may hold arrays
        first = next((one for one in values if one is not None), None)
        if isinstance(first, Image.Image):
            raise UsageError("from_table: a column has images of Pillow", _TAKEN)
        if len(getattr(first, "shape", ())) < 2:
            return None
        if len({getattr(one, "shape", ()) for one in values}) > 1:
            raise UsageError("from_table: a column has arrays of several shapes", _TAKEN)
        values = np.stack(list(values))
    array = np.asarray(values)
    return array if array.ndim > 2 else None


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        hint = "Give each column values of one type, or leave it out."
        raise UsageError(f"{what} cannot be read: {error}", hint) from None


def _arrow(name: str, values: Any) -> pa.ChunkedArray:
    """Return a column as Arrow has it, of a type that is stored."""
    with _reading(f"the column {name!r}"):
        if not isinstance(values, (pa.Array, pa.ChunkedArray)):
            if isinstance(values, (list, tuple)) or str(getattr(values, "dtype", "")) == "object":
                values = [os.fspath(v) if isinstance(v, os.PathLike) else v for v in values]
            elif not hasattr(values, "iloc"):
                values = np.asarray(values)
            several = isinstance(values, np.ndarray) and values.ndim > 1
            values = as_arrow(values) if several else pa.array(values, from_pandas=True)
        column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
        nothing = pa.types.is_null(column.type)
        return column.cast(pa.string() if nothing else stored_type(column.type))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _files(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return files as structs of ``bytes`` and ``path``; None: the column has no files."""
    kind, wanted = column.type, {"bytes": pa.binary(), "path": pa.string()}
    is_struct = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    of_bytes = kind.field("bytes").type if is_struct else kind
    if not (_is_bytes(of_bytes) or (pa.types.is_null if is_struct else _is_text)(of_bytes)):
        return None
    structs = []
    for chunk in column.chunks or [pa.nulls(0, kind)]:
        if is_struct:
            names = [name for name in wanted if kind.get_field_index(name) >= 0]
            children = {name: child_of(chunk, name) for name in names}
        else:
            children = {"bytes" if _is_bytes(kind) else "path": chunk}
        children = {name: one for name, one in children.items() if not pa.types.is_null(one.type)}
        arrays = [children.get(name, pa.nulls(len(chunk), of)) for name, of in wanted.items()]
        structs.append(pa.StructArray.from_arrays(arrays, list(wanted)))
    return pa.chunked_array(structs)


def _require_files(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if (files := _files(column)) is None:
        what = f"the column {name!r} is {column.type}, not paths or bytes of images"
        raise UsageError(what, "Name another, or make it one of these.")
    return files


def _image_column(columns: Iterable[str], plain: Mapping[str, pa.ChunkedArray], has: str) -> str:
    """Return the column of images: one of a usual name, or the only one of bytes or pixels."""
    possible = [name for name in columns if name not in plain or _files(plain[name]) is not None]
    sure = [name for name in possible if name not in plain or not _is_text(plain[name].type)]
    usual = next((one for among in (sure, possible) for one in PATHS if one in among), None)
    if usual is None and len(sure or possible) != 1:
        raise UsageError("no column has images and a usual name", f"Name it: image=. {has}")
    return usual or (sure or possible)[0]


def _raw(name: str, array: npt.NDArray[Any]) -> tuple[pa.ChunkedArray, tuple[int, int]]:
    """Return images of pixels as files, without a copy of RGB; and their width and height."""
    channels = array.shape[3] if array.ndim == 4 else 1
    if array.ndim == 3 and array.shape[2] in (3, 4):
        what = f"the column {name!r} has the shape {array.shape}, as one image of colours has"
        raise UsageError(what, "Give N x H x W x 3: of a single image, array[None].")
    if array.dtype != np.uint8 or array.ndim > 4 or channels not in (1, 3) or not all(array.shape):
        raise UsageError(
            f"the column {name!r} is {array.dtype} of the shape {array.shape}, which are no images",
            "Give uint8, N x H x W x 3 (RGB) or N x H x W (grey): images.transpose(0, 2, 3, 1) "
            "moves channels to the end.",
        )
    count, height, width = array.shape[:3]
    rgb = np.broadcast_to(array.reshape(count, height, width, channels), (*array.shape[:3], 3))
    offsets = np.arange(count + 1, dtype=np.int64) * (3 * height * width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rgb))]
    values = pa.Array.from_buffers(pa.large_binary(), count, buffers)
    return _require_files(name, pa.chunked_array([values])), (width, height)


def _kind(
    name: str, pixels: npt.NDArray[Any] | None, column: pa.ChunkedArray | None, asked: str | None
) -> tuple[str, pa.ChunkedArray]:
    """Return the kind of another field, and its column."""
    of_images = asked or ("mask" if names_mask(name) else "image")
    if column is None:
        assert pixels is not None
        if of_images == "mask" and pixels.dtype == np.uint8 and pixels.ndim == 3:
            asked, column = "mask", pa.chunked_array([pa.array(map(_png, pixels), pa.binary())])
        else:
            column = _arrow(name, as_arrow(np.ascontiguousarray(pixels)))
    if asked is not None:
        return asked, _require_files(name, column)
    if (files := _files(column)) is None:
        return "column", column
    child = "path" if _is_text(column.type) else "bytes"
    values = (one for chunk in files.chunks for one in child_of(chunk, child) if one.is_valid)
    first = next((one.as_py() for one in values), None)
    if child == "path":
        is_mask = of_images == "mask" and first is not None and is_image_name(first)
        return ("mask", files) if is_mask else ("column", column)
    return (of_images if first is None or kind_of(first) != "other" else "blob"), files


def _png(mask: npt.NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(mask).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _labels(
    name: str, column: pa.ChunkedArray | None, classes: Sequence[str] | None, asked: bool
) -> tuple[pa.ChunkedArray, list[str]] | None:
    """Return labels as whole numbers, and the classes' names; None: they are others, unasked."""
    values: list[Any] = [[]] if column is None else column.to_pylist()
    known = classes
    if classes is None:
        values = [str(value) if isinstance(value, bool) else value for value in values]
    if any(isinstance(value, str) for value in values):
        known = sorted({*values} - {None, ""}) if classes is None else classes
        ranks = {one: number for number, one in enumerate(known)}
        numbers = [ranks.get(value) for value in values]
    else:
        numbers = [_whole(value, None if known is None else len(known)) for value in values]
    if known is not None and len({*known}) < len(known):
        raise UsageError(f"classes={classes!r} names a class twice", "Name each class once.")
    if None in numbers:
        row = numbers.index(None)
        if not asked:
            return None
        raise UsageError(
            f"label={name!r}: row {row} has {values[row]!r}, which is no class",
            "Leave such rows out; or give the column as a field, in fields= alone.",
        )
    labels = np.array(numbers, np.int64)
    if known is None:
        most = int(labels.max(initial=-1)) + 1
        known = list(map(str, range(most if most <= _MOST_CLASSES else 0)))
    return pa.chunked_array([as_arrow(labels)]), list(known)


def _whole(value: Any, limit: int | None) -> int | None:
    """Return a class's number, of 32 bits; None for a value that is none."""
    if not isinstance(value, (bool, int, float)) or value != value // 1:  # NaN differs
        return None
    return int(value) if 0 <= value < (1 << 31 if limit is None else limit) else None


def _digest(base: str, column: pa.ChunkedArray) -> str:
    """Return a name of the images' content."""
    buffers = [one for chunk in column.chunks for one in chunk.buffers()]
    sums = [0 if one is None else crc32c(memoryview(one)) for one in buffers]
    text = repr((base, [(one.offset, len(one)) for one in column.chunks], sums))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
