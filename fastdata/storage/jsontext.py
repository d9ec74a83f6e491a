"""JSON from files that may be damaged or made with ill intent: the one way to read it."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from typing import Any

#: Lists and objects in each other. What takes a value apart by recursion needs no guard then.
_MOST_DEPTH = 100


def parse_json(data: str | bytes, *, lenient: bool = False) -> Any:
    """Read one JSON value; raise ValueError if it names a field twice, or is nested too deeply.

    ``lenient``: NaN, infinities and halves of surrogate pairs may be in it. Python's own writer
    makes them, so they are in data that works elsewhere.
    """
    if isinstance(data, bytes):
        data = data.decode(json.detect_encoding(data) if lenient else "utf-8")
    try:
        value = json.loads(
            data, object_pairs_hook=_object, parse_constant=float if lenient else _refuse_constant
        )
    except RecursionError:  # deeper than the interpreter goes
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    if "\\u" in data and not lenient:  # JSON may name surrogates, which no other text has
        json.dumps(value, ensure_ascii=False).encode()
    return value


_TOO_DEEP = f"it is nested more than {_MOST_DEPTH} deep"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"it has the field {name!r} twice")
    return fields


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MOST_DEPTH + 1):
        if not level:
            return
        inner = chain.from_iterable(v.values() if isinstance(v, dict) else v for v in level)
        level = [value for value in inner if isinstance(value, dict | list)]
    raise ValueError(_TOO_DEEP)
