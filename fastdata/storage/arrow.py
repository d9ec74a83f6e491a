"""Arrow arrays made from buffers, and read as buffers.

``pyarrow.array`` and ``to_numpy`` import pandas on their first call where it is installed:
0.2 s and 40 MB in every worker process, for nothing. From buffers it is also less copying.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of values below 2 GiB; None is null. Integers and bytes need no pandas."""
    if not (pa.types.is_integer(kind) or kind in (pa.string(), pa.binary())):
        form = array_type(kind)
        if form and all(one is None or isinstance(one, np.ndarray) for one in values):
            return _arrays(values, kind, *form)
        if form and len(form[1]) > 1:
            # Arrow takes no arrays of several dimensions.
            values = [one.tolist() if isinstance(one, np.ndarray) else one for one in values]
        return pa.array(values, kind)
    valid = [value is not None for value in values]
    if not any(valid):
        return pa.nulls(len(values), kind)
    bitmap = None
    if not all(valid):
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        empty: Any = "" if kind == pa.string() else b"" if kind == pa.binary() else 0
        values = [empty if value is None else value for value in values]
    if kind == pa.string():
        values = [value.encode("utf-8") for value in values]
    if kind in (pa.string(), pa.binary()):
        offsets = np.fromiter(accumulate(map(len, values), initial=0), np.int32, len(values) + 1)
        buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    else:
        buffers = [bitmap, pa.py_buffer(np.asarray(values, numpy_type(kind)))]
    return pa.Array.from_buffers(kind, len(valid), buffers)


def _arrays(
    values: Sequence[Any], kind: pa.DataType, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> pa.Array:
    """Return an array of lists of a fixed size, from arrays of one shape; None is null."""
    items = np.zeros((len(values), *shape), dtype)
    valid = np.array([value is not None for value in values])
    for place in np.flatnonzero(valid).tolist():
        items[place] = values[place]
    kinds = [kind]
    while pa.types.is_fixed_size_list(kinds[-1]):
        kinds.append(kinds[-1].value_type)
    flat = np.packbits(items, bitorder="little") if dtype == np.bool_ else items.reshape(-1)
    nested = pa.Array.from_buffers(kinds.pop(), items.size, [None, pa.py_buffer(flat)])
    for level, one in reversed(list(enumerate(kinds))):
        bitmap = None
        if not level and not valid.all():
            bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        count = math.prod(items.shape[: level + 1])
        nested = pa.Array.from_buffers(one, count, [bitmap], children=[nested])
    return nested


def array_type(kind: pa.DataType) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Return the dtype and shape of the arrays that lists of a fixed size are; None for others."""
    shape = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if not shape or not (str(kind) in _NUMBERS or pa.types.is_boolean(kind)):
        return None
    return numpy_type(kind), tuple(shape)


def item_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the items of lists of a fixed size, also nested; of others, the type."""
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def unsliced(column: pa.Array) -> pa.Array:
    """Return an array that begins where its memory begins.

    Of other arrays of lists of a fixed size in such lists, Arrow drops and takes wrong items.
    """
    return pa.concat_arrays([column]) if column.offset else column


def fixed_items(column: pa.Array) -> npt.NDArray[Any] | None:
    """Return numbers, (N,), or lists of a fixed size, (N, …); None if a null is inside a list."""
    column = unsliced(column).drop_null()
    shape = [len(column)]
    while pa.types.is_fixed_size_list(column.type):
        shape.append(column.type.list_size)
        column = column.flatten()
        if column.null_count:
            return None
    if pa.types.is_boolean(column.type):
        return as_numpy(column.cast(pa.uint8())).view(np.bool_).reshape(shape)
    return as_numpy(column).reshape(shape)


def as_numpy(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an array of numbers without nulls, as a view of its memory."""
    if not len(column):
        return np.empty(0, numpy_type(column.type))
    values = np.frombuffer(column.buffers()[1], numpy_type(column.type))
    return values[column.offset : column.offset + len(column)]


def validity(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which values of an array are not null."""
    return as_numpy(column.is_valid().cast(pa.uint8())).view(np.bool_)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column is stored with: without extensions, dictionaries and views."""
    return _rebuilt(kind, _plain)


def is_storable(kind: pa.DataType) -> bool:
    """Return whether a column can have a stored type: Parquet has no place for all of them."""
    types = pa.types
    if types.is_union(kind) or types.is_interval(kind) or types.is_run_end_encoded(kind):
        return False
    if types.is_struct(kind) and not kind.num_fields:
        return False
    if types.is_fixed_size_list(kind) and not kind.list_size:
        return False
    return all(is_storable(kind.field(place).type) for place in range(kind.num_fields))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without extensions, dictionaries and views; types inside it as they are."""
    types, kind = pa.types, _decoded(kind)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_list_view(kind):
        return pa.list_(kind.value_field)
    return pa.large_list(kind.value_field) if types.is_large_list_view(kind) else kind


def _decoded(kind: pa.DataType) -> pa.DataType:
    """Return a type without extensions and dictionaries; types inside it as they are."""
    while isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        extended = isinstance(kind, pa.BaseExtensionType)
        kind = kind.storage_type if extended else kind.value_type
    return kind


def _rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type after a change, with the same change of the types inside it, at any depth."""
    types, kind = pa.types, change(kind)

    def rebuilt(field: pa.Field) -> pa.Field:
        return field.with_type(_rebuilt(field.type, change))

    if types.is_struct(kind):
        return pa.struct([rebuilt(field) for field in kind])
    if types.is_map(kind):
        return pa.map_(rebuilt(kind.key_field), rebuilt(kind.item_field), kind.keys_sorted)
    if types.is_list(kind):
        return pa.list_(rebuilt(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(rebuilt(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(rebuilt(kind.value_field), kind.list_size)
    return kind


def has_nulls(column: pa.Array) -> bool:
    """Return whether a null is anywhere in an array, or in the items of its lists and structs."""
    if column.null_count:
        return True
    kind = column.type
    if pa.types.is_struct(kind):
        return any(map(has_nulls, column.flatten()))
    if pa.types.is_map(kind):
        return has_nulls(column.items)
    return pa.types.is_nested(kind) and has_nulls(column.flatten())


def python_values(column: pa.Array) -> list[Any]:
    """Return an array's values for `array`, which makes an array of its stored type of them.

    Lists of numbers are NumPy arrays, for speed; lists of a fixed size have the shape of
    `array_type`. Dates, moments and durations, at any depth, are whole numbers of their unit:
    Python's own lose nanoseconds and end in the year 9999.
    """
    kind = column.type
    counted = _counted(kind)
    if counted != kind:
        column = column.cast(counted)
    if array_type(kind) is not None and (items := fixed_items(column)) is not None:
        rest = iter(items)
        return [next(rest) if valid else None for valid in column.is_valid().to_pylist()]
    if (
        not pa.types.is_list(kind)
        or str(kind.value_type) not in _NUMBERS
        or column.flatten().null_count
    ):
        values: list[Any] = column.to_pylist()
        return values
    numbers = as_numpy(column.flatten())
    ends = np.cumsum(as_numpy(column.value_lengths().fill_null(0)), dtype=np.int64).tolist()
    pairs = zip([0, *ends], ends, column.is_valid().to_pylist(), strict=False)
    return [numbers[start:end] if valid else None for start, end, valid in pairs]


@lru_cache(maxsize=1024)
def _counted(kind: pa.DataType) -> pa.DataType:
    return _with_moments(_rebuilt(kind, _decoded), None)


def size_of(value: Any) -> int:
    """Return roughly the bytes of one of `python_values`."""
    match value:
        case None:
            return 0
        case str():
            return len(value) if value.isascii() else len(value.encode())
        case bytes():
            return len(value)
        case np.ndarray():
            return value.nbytes
        case list() | tuple():
            # Numbers are in lists by the thousand.
            numbers = value and isinstance(value[0], int | float)
            return 8 * len(value) if numbers else 4 + sum(map(size_of, value))
        case dict():
            return sum(map(size_of, value.values()))
    return 8


def has_moments(kind: pa.DataType) -> bool:
    """Return whether values of a type have dates, moments or durations, at any depth."""
    return bool(_with_moments(kind, pa.string()) != kind)


def moments_as_text(values: pa.Array) -> pa.Array:
    """Return an array with its dates, moments and durations, at any depth, as strings."""
    return values.cast(_with_moments(values.type, pa.string()))


def _with_moments(kind: pa.DataType, other: pa.DataType | None) -> pa.DataType:
    """Return a type with ``other``, or integers if None, instead of dates, moments, durations."""

    def change(one: pa.DataType) -> pa.DataType:
        if not (pa.types.is_temporal(one) and not pa.types.is_interval(one)):
            return one
        return other or (pa.int32() if one.bit_width == 32 else pa.int64())

    return _rebuilt(kind, change)


def update_digest(digest: Any, column: pa.Array) -> None:
    """Add a column's values to a hashlib hash; independent of pyarrow's version."""
    digest.update(b"%d %d;" % (len(column), column.null_count))
    if column.null_count == len(column):
        return
    if column.null_count:
        digest.update(validity(column).tobytes())
        column = unsliced(column).drop_null()
    kind = column.type
    if kind in (pa.string(), pa.binary()):
        offsets = np.frombuffer(column.buffers()[1], np.int32)
        offsets = offsets[column.offset : column.offset + len(column) + 1]
        digest.update(np.diff(offsets).tobytes())
        digest.update(memoryview(column.buffers()[2])[offsets[0] : offsets[-1]])
    elif str(kind) in _NUMBERS:
        digest.update(as_numpy(column).tobytes())
    elif pa.types.is_struct(kind):
        for child in column.flatten():
            update_digest(digest, child)
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        digest.update(as_numpy(column.value_lengths()).tobytes())
        update_digest(digest, column.flatten())
    else:
        digest.update(repr(python_values(column)).encode("utf-8", "surrogatepass"))


#: Arrow's names of numbers, and NumPy's where they differ.
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
_NUMBERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {*_FLOATS}


def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """Return NumPy's type for Arrow's integers and floats."""
    # Both call integer types by the same names. `to_pandas_dtype` asks for pandas.
    return np.dtype(_FLOATS.get(str(kind), str(kind)))


def as_arrow(column: npt.NDArray[Any] | pa.Array) -> pa.Array:
    """Return a column as an Arrow array; the inverse of `fastdata.storage.columns.as_column`."""
    if not isinstance(column, np.ndarray):
        return column
    values = pa.array(column.reshape(-1))
    for width in reversed(column.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, width)
    return values


def list_lengths(column: npt.NDArray[Any] | pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of items of each list of a column, (N,); a null has none."""
    if isinstance(column, np.ndarray):
        return np.full(len(column), column.shape[1], np.int64)
    return as_numpy(column.value_lengths().fill_null(0)).astype(np.int64)


def list_offsets(column: npt.NDArray[Any] | pa.Array) -> npt.NDArray[np.int64]:
    """Return where each list of a column begins among the items of all, and their end, (N + 1,)."""
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(list_lengths(column), out=offsets[1:])
    return offsets


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type's values are integers, floats or booleans."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def chunks_of(table: pa.Table, place: Sequence[str]) -> list[pa.Array]:
    """Return the chunks of a column, or of a field of its structs; extensions as stored."""
    first, *inner = place
    column, chunks = table.column(first), []
    for chunk in column.chunks or [pa.nulls(0, column.type)]:
        for name in inner:
            chunk = child_of(chunk, name)
        while isinstance(chunk, pa.ExtensionArray):
            chunk = chunk.storage
        chunks.append(chunk)
    return chunks


def child_of(array: pa.StructArray, name: str) -> pa.Array:
    """Return a field of structs, which is null where they are."""
    number = array.type.get_field_index(name)
    return array.flatten()[number] if array.null_count else array.field(number)


def column_path(schema: pa.Schema, column: str) -> list[str]:
    """Return the name of a column, which may have dots in it, and those of the fields inside."""
    for name in sorted(schema.names, key=len, reverse=True):
        if f"{column}.".startswith(f"{name}."):
            return [name, *filter(None, column[len(name) + 1 :].split("."))]
    return [column]


def nullable(chunks: Iterable[pa.Array]) -> bool:
    """Return whether a null is anywhere in some chunks."""
    return any(map(has_nulls, chunks))
