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

from fastdata.decode.codecs import kind_of
from fastdata.errors import UsageError
from fastdata.storage.arrow import as_arrow, stored_type
from fastdata.storage.checksum import crc32c
from fastdata.storage.encodings import is_image_name
from fastdata.storage.fields import IMAGE, LABEL, Field
from fastdata.storage.hugging_face import names_mask
from fastdata.storage.source import Hints
from fastdata.storage.table_rows import Part, TableRows, child_of, nullable
from fastdata.text import class_name

#: Usual names of the column of images, the likelier first.
_IMAGES = ("image", "img", "path", "file_name", "filename", "image_path", "filepath", "file")
#: Most classes whose names are their numbers.
_MOST_CLASSES = 1 << 16
_HINTS = Hints(
    changed="Make the table again.",
    missing="Correct the path; root= of from_table names the folder of relative ones.",
)
_TAKEN = (
    "Give a table of pandas, polars or pyarrow, a dict of columns, or a list of paths; each image "
    "is a path, encoded bytes, or pixels of one uint8 array, N x H x W x 3."
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
) -> TableRows:
    """Return a table's rows; for the arguments see `fastdata.ImageDataset.from_table`.

    ``kinds``: "image" or "mask" for columns of images beside the first one.
    """
    columns = _columns_of(data)
    for argument, name in {"image": image, "label": label, "key": key}.items():
        if name is not None and name not in columns:
            raise UsageError(f"{argument}={name!r}: there is no such column", _list(columns))
    pixels = {name: _pixels(values) for name, values in columns.items()}
    arrays = {
        name: _arrow(name, values) for name, values in columns.items() if pixels[name] is None
    }
    image = _image_column(columns, arrays) if image is None else image
    size = None
    found: dict[str, pa.ChunkedArray] = {}
    parts = [Part(IMAGE, (image,))]
    if (several := pixels[image]) is not None:
        found[image], size = _raw(image, several)
    else:
        found[image] = _require_blobs("image", image, arrays[image])
    label_column = label or (LABEL.name if LABEL.name in arrays and image != LABEL.name else None)
    names: list[str] = []
    if label_column is not None:
        numbers = _labels(label_column, arrays, classes, asked=label is not None or bool(classes))
        if numbers is None:
            label_column = None
        else:
            found[label_column], names = numbers
            parts.append(Part(LABEL, (label_column,)))
    elif classes is not None:
        raise UsageError("classes= without a column of labels", "Name it: label=.")
    key = key or ("key" if "key" in arrays and "key" not in (image, label_column) else None)
    taken = {"key", *(part.field.name for part in parts)}
    for name in columns:
        if name in found or name == key:
            continue
        kind, found[name] = _kind(name, pixels[name], arrays.get(name), kinds.get(name))
        stored = found[name].type if kind == "column" else None
        lacks = kind != "column" or nullable(found[name].chunks)
        field = Field(f"{name}_" if name in taken else name, kind, stored, lacks)
        parts.append(Part(field, (name,)))
    if unknown := [name for name in kinds if name not in found]:
        raise UsageError(f"formats= names {unknown[0]!r}, which is no column", _list(columns))
    table = pa.table(found)
    paths = arrays.get(image)
    keys = arrays[key] if key is not None else paths
    if key is not None or (paths is not None and _is_text(paths.type)):
        table = table.append_column(_KEYS, keys)
    base = os.path.join(os.path.abspath(root), "")
    name = _digest(base, found[image])
    return TableRows(
        table, parts, None, names, _KEYS if _KEYS in table.column_names else None, (), name,
        "table in memory", base, size, _HINTS,
    )  # fmt: skip


#: Column of samples' names.
_KEYS = "\0key"


def _list(columns: Iterable[str]) -> str:
    return f"It has {', '.join(map(repr, columns))}."


def _columns_of(data: Any) -> dict[str, Any]:
    """Return the columns of a table of any library, or of a list, by name."""
    columns: dict[str, Any]
    if hasattr(data, "dtype") or isinstance(data, (pa.Array, pa.ChunkedArray)):
        columns = {IMAGE.name: data}  # an array or a Series
    elif isinstance(data, Mapping):
        columns = {str(name): values for name, values in data.items()}
    elif hasattr(data, "iloc") and hasattr(data, "columns"):  # pandas
        columns = {str(name): data.iloc[:, place] for place, name in enumerate(data.columns)}
        if len(columns) < len(data.columns):
            raise UsageError("two columns have the same name", "Rename or drop one.")
    elif hasattr(data, "__arrow_c_stream__"):
        with _reading("the table"):
            table = pa.table(data)
        columns = dict(zip(table.column_names, table.columns, strict=True))
        if len(columns) < table.num_columns:
            raise UsageError("two columns have the same name", "Rename or drop one.")
    else:
        columns = _columns_of_list(data)
    lengths = {name: len(values) for name, values in columns.items()}
    if not columns:
        raise UsageError("the table has no columns", _TAKEN)
    if len({*lengths.values()}) > 1:
        several = ", ".join(f"{name} {count:,}" for name, count in lengths.items())
        raise UsageError(f"the columns differ in length: {several}", "Give each a value a row.")
    return columns


def _columns_of_list(data: Any) -> dict[str, Any]:
    """Return the columns of a list of images, of (image, label), or of dicts."""
    if not isinstance(data, (Sequence, Iterator)) or isinstance(data, (str, bytes)):
        raise UsageError(f"from_table: {class_name(data)} is no table", _TAKEN)
    rows = list(data)
    kinds = {type(row) for row in rows}
    if kinds and all(issubclass(one, Mapping) for one in kinds):
        names = dict.fromkeys(str(name) for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}
    if kinds and all(issubclass(one, (tuple, list)) for one in kinds):
        if {len(row) for row in rows} != {2}:
            raise UsageError("from_table: the rows are no pairs of image and label", _TAKEN)
        return {IMAGE.name: [row[0] for row in rows], LABEL.name: [row[1] for row in rows]}
    return {IMAGE.name: rows}


def _pixels(values: Any) -> npt.NDArray[Any] | None:
    """Return the images of a column of arrays, (N, H, W, …); None for other columns."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return None
    if getattr(values, "ndim", 1) < 2:  # a list or a pandas.Series may hold arrays
        first = next((one for one in values if one is not None), None)
        if isinstance(first, Image.Image):
            raise UsageError("from_table: a column has images of Pillow", _TAKEN)
        shapes = {getattr(one, "shape", ()) for one in values} if hasattr(first, "shape") else {()}
        if len(next(iter(shapes))) < 2:
            return None
        if len(shapes) > 1:
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
                values = [os.fspath(one) if isinstance(one, os.PathLike) else one for one in values]
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


def _blobs(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
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
            found = {name: child_of(chunk, name) for name in names}
        else:
            found = {"bytes" if _is_bytes(kind) else "path": chunk}
        found = {name: one for name, one in found.items() if not pa.types.is_null(one.type)}
        arrays = [found.get(name, pa.nulls(len(chunk), of)) for name, of in wanted.items()]
        structs.append(pa.StructArray.from_arrays(arrays, list(wanted)))
    return pa.chunked_array(structs)


def _require_blobs(argument: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    found = _blobs(column)
    if found is None:
        what = f"{argument}: the column {name!r} is {column.type}, not paths or bytes of images"
        raise UsageError(what, "Name another, or make it one of these.")
    return found


def _image_column(columns: Mapping[str, Any], arrays: Mapping[str, pa.ChunkedArray]) -> str:
    """Return the column of images: one of a usual name, or the only one of files or pixels."""
    possible = [name for name in columns if name not in arrays or _blobs(arrays[name]) is not None]
    for usual in _IMAGES:
        if usual in possible:
            return usual
    sure = [name for name in possible if name not in arrays or not _is_text(arrays[name].type)]
    if len(several := sure or possible) == 1:
        return several[0]
    raise UsageError("no column has a usual name of images", f"Name it: image=. {_list(columns)}")


def _raw(name: str, array: npt.NDArray[Any]) -> tuple[pa.ChunkedArray, tuple[int, int]]:
    """Return images of pixels as files, without a copy of RGB; and their width and height."""
    channels = array.shape[3] if array.ndim == 4 else 1
    if array.dtype != np.uint8 or array.ndim > 4 or channels not in (1, 3) or not all(array.shape):
        raise UsageError(
            f"the column {name!r} is {array.dtype} of the shape {array.shape}, which are no images",
            "Give uint8, N x H x W x 3 (RGB) or N x H x W (grey): images.transpose(0, 2, 3, 1) "
            "moves channels to the end.",
        )
    count, height, width = array.shape[:3]
    if channels == 1:
        array = np.repeat(array.reshape(count, height, width, 1), 3, axis=3)
    offsets = np.arange(count + 1, dtype=np.int64) * (3 * height * width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(array))]
    column = _blobs(pa.chunked_array([pa.Array.from_buffers(pa.large_binary(), count, buffers)]))
    return column, (width, height)


def _kind(
    name: str, pixels: npt.NDArray[Any] | None, column: pa.ChunkedArray | None, given: str | None
) -> tuple[str, pa.ChunkedArray]:
    """Return the kind of a further field, and its column."""
    of_images = "mask" if given != "image" and (given or names_mask(name)) else "image"
    if column is None:
        assert pixels is not None
        if of_images == "mask" and pixels.dtype == np.uint8 and pixels.ndim == 3:
            return "mask", _blobs(pa.chunked_array([pa.array(map(_png, pixels), pa.binary())]))
        with _reading(f"the column {name!r}"):
            column = pa.chunked_array([as_arrow(np.ascontiguousarray(pixels))])
    if given is not None:
        return given, _require_blobs(f"formats= has {given!r}", name, column)
    blobs = _blobs(column)
    if blobs is None:
        return "column", column
    if _is_text(column.type):
        first = next((one for chunk in column.chunks for one in chunk if one.is_valid), None)
        named = first is not None and is_image_name(first.as_py())
        return ("mask", blobs) if named and of_images == "mask" else ("column", column)
    values = (one for chunk in blobs.chunks for one in child_of(chunk, "bytes") if one.is_valid)
    first = next(values, None)
    is_image = first is None or kind_of(first.as_py()) != "other"
    return (of_images if is_image else "blob"), blobs


def _png(mask: npt.NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(mask).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _labels(
    name: str, arrays: Mapping[str, pa.ChunkedArray], classes: Sequence[str] | None, asked: bool
) -> tuple[pa.ChunkedArray, list[str]] | None:
    """Return labels as whole numbers, and the classes' names; None: they are others, unasked."""
    if name not in arrays:
        raise UsageError(f"label={name!r} has arrays, which are no classes", "Name another.")
    values = arrays[name].to_pylist()
    texts = isinstance(next(iter(values), None), str)
    ranks = None
    if texts:
        names = sorted({*values} - {None, ""}) if classes is None else classes
        ranks = {one: number for number, one in enumerate(names)}
    limit = None if classes is None else len(classes)
    if limit is not None and len(set(classes or ())) < limit:
        raise UsageError(f"classes={classes!r} names a class twice", "Name each class once.")
    numbers = np.zeros(len(values), np.int64)
    for row, value in enumerate(values):
        number = ranks.get(value) if ranks is not None else _whole(value, limit)
        if number is None:
            if not asked:
                return None
            raise UsageError(
                f"label={name!r}: row {row} has {value!r}, which is no class",
                "Leave such rows out; or give the column as a field, in fields= alone.",
            )
        numbers[row] = number
    if ranks is not None or classes is not None:
        return pa.chunked_array([as_arrow(numbers)]), list(ranks or classes or ())
    most = int(numbers.max(initial=-1)) + 1
    known = most <= _MOST_CLASSES and int(numbers.min(initial=0)) >= 0
    return pa.chunked_array([as_arrow(numbers)]), list(map(str, range(most if known else 0)))


def _whole(value: Any, limit: int | None) -> int | None:
    """Return a class's number; None for a value that is none."""
    if not isinstance(value, (bool, int, float)) or value != value or value != value // 1:
        return None
    return int(value) if limit is None or 0 <= value < limit else None


def _digest(base: str, column: pa.ChunkedArray) -> str:
    """Return a name of the images' content."""
    sums = [
        crc32c(memoryview(buffer)) if buffer is not None else 0
        for chunk in column.chunks
        for buffer in chunk.buffers()
    ]
    text = repr((base, [(one.offset, len(one)) for one in column.chunks], sums))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
