"""Values of columns as text, for containers that have files instead of types."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from fastdata.storage.arrow import has_moments, moments_as_text
from fastdata.storage.fields import Field


def is_text(field: Field) -> bool:
    """Return whether a column's values are written as they are: strings, and bytes."""
    kind = field.type
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def as_text(field: Field, value: Any) -> bytes:
    """Return a value of `python_values`: strings in UTF-8, bytes as they are, others as JSON."""
    if is_text(field):
        return value.encode() if isinstance(value, str) else bytes(value)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif has_moments(field.type):
        value = moments_as_text(pa.array([value], field.type))[0].as_py()
    return json.dumps(value, ensure_ascii=False, default=str).encode()
