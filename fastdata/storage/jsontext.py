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
        found = json.loads(
            data,
            object_pairs_hook=_object,
            parse_constant=float if lenient else _refuse_constant,
        )
    except RecursionError:  # deeper than the interpreter goes
        raise ValueError(_TOO_DEEP) from None
    _check_depth(found)
    if "\\u" in data and not lenient:  # JSON may name surrogates, which no other text has
        json.dumps(found, ensure_ascii=False).encode()
    return found


_TOO_DEEP = f"it is nested more than {_MOST_DEPTH} deep"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"it has the field {name!r} twice")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check_depth(found: Any) -> None:
    level = [found] if isinstance(found, dict | list) else []
    for _ in range(_MOST_DEPTH + 1):
        if not level:
            return
        inner = chain.from_iterable(v.values() if isinstance(v, dict) else v for v in level)
        level = [value for value in inner if isinstance(value, dict | list)]
    raise ValueError(_TOO_DEEP)
