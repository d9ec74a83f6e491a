"""Functions with one line changed, to see that a test notices."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any


def mutated(owner: Any, name: str, line: str, instead: str) -> Any:
    """Return a function with ``line``, a part of its source that occurs once, replaced."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    pattern = r"\n\s*".join(map(re.escape, line.split("\n")))
    found = list(re.finditer(pattern, source))
    assert len(found) == 1, f"{line!r} stands {len(found)} times in {name}"
    start, end = found[0].span()
    (indent,) = re.findall(r"^ *", source[source.rfind("\n", 0, start) + 1 :])
    changed = source[:start] + instead.replace("\n", f"\n{indent}") + source[end:]
    names: dict[str, Any] = {}
    code = compile(f"from __future__ import annotations\n{changed}", name, "exec")
    exec(code, vars(inspect.getmodule(function)), names)
    return names[name]
