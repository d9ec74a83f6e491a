"""Values of columns as files, for containers that have files instead of types."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from fastdata.storage.arrow import array_type, has_moments, moments_as_text
from fastdata.storage.fields import Field
from fastdata.storage.formats.npy import write_array

_NPY, _JSON = ".npy", ".json"


def is_text(field: Field) -> bool:
    """Return whether a column's values are written as they are: strings, and bytes."""
    kind = field.type
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def as_file(field: Field, value: Any) -> tuple[str, bytes]:
    """Return a value of `python_values` as the suffix and the bytes of a file.

    Strings are in UTF-8, bytes as they are, both without a suffix. Lists of a fixed number of
    numbers, also nested, are ``.npy``; with a null among the numbers, as all others, ``.json``.
    """
    if is_text(field):
        return "", value.encode() if isinstance(value, str) else bytes(value)
    form = array_type(field.type)
    if form is not None and not isinstance(value, np.ndarray):
        # Nulls in other rows make lists of this one, too.
        items = np.array(value, object)
        complete = all(item is not None for item in items.flat)
        value = items.astype(form[0]) if complete else value
    if isinstance(value, np.ndarray):
        if form is not None:
            return _NPY, write_array(value)
        value = value.tolist()
    elif has_moments(field.type):
        value = moments_as_text(pa.array([value], field.type))[0].as_py()
    return _JSON, json.dumps(value, ensure_ascii=False, default=str).encode()


def member_name(field: Field, suffix: str) -> str:
    """Return a field's name with the suffix of a value; once, if the name ends with it."""
    return field.name if f".{field.name}".endswith(suffix) else field.name + suffix


def member_names(field: Field) -> set[str]:
    """Return the names that members of a field may have."""
    if field.type is None or is_text(field):
        return {field.name}
    suffixes = (_JSON,) if array_type(field.type) is None else (_JSON, _NPY)
    return {member_name(field, suffix) for suffix in suffixes}
