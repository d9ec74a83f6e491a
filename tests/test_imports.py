"""Imports between the package's modules: short chains, so that a module can be read by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fastdata

ROOT = Path(fastdata.__file__).parent
#: Most modules in a chain of imports.
LONGEST = 12


def at_import(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run when a module is imported."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If):
            for_checkers = "TYPE_CHECKING" in ast.unparse(node.test)
            yield from at_import(node.orelse if for_checkers else node.body + node.orelse)
        elif isinstance(node, ast.Try | ast.With | ast.ClassDef):
            yield from at_import(node.body)


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def test_chains_of_imports_are_short() -> None:
    known = modules()

    @cache
    def chain(module: str) -> tuple[str, ...]:
        longest: tuple[str, ...] = ()
        for node in at_import(ast.parse(known[module].read_text()).body):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                below = [f"{node.module}.{name}" for name in names]
                names = [name if name in known else node.module or "" for name in below]
            for name in names:
                if name in known and name != module:
                    longest = max(longest, chain(name), key=len)
        return (module, *longest)

    longest = max(map(chain, known), key=len)
    assert len(known) > 100
    assert len(longest) <= LONGEST, " > ".join(longest)
