"""The methods that fastdata's warnings show, put into the classes of scripts."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import fastdata
from fastdata import transforms
from fastdata.transforms.compile import compile_recipe

#: The class that a warning's hint is for, and the line for it; or the class alone.
_LINE = re.compile(r"Add this method to (\S+): def __fastdata__\(self\): return (.+?)  #")
_CLASS = re.compile(r"Add a method __fastdata__ to (\S+),()")


@contextmanager
def lines_added(transform: Any, others: Mapping[str, str] | None = None) -> Iterator[list[str]]:
    """Add the methods that warnings show to a script's classes; yield what these return."""
    lines: list[str] = []
    with ExitStack() as added:
        pending = True
        while pending:
            pending = False
            for unknown in compile_recipe(transform).unknown:
                found = _LINE.match(unknown.hint) or _CLASS.match(unknown.hint)
                if found is None:
                    continue
                kind: Any = pkgutil.resolve_name(found[1])
                line = found[2] or (others or {}).get(kind.__name__, "")
                if line and "__fastdata__" not in vars(kind):
                    names = {**vars(transforms), "fastdata": fastdata}
                    exec(f"def __fastdata__(self): return {line}", names)
                    kind.__fastdata__ = names["__fastdata__"]
                    added.callback(delattr, kind, "__fastdata__")
                    lines.append(line)
                    pending = True
        yield lines
