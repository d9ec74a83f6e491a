"""Lines that design notes name are the definitions of the functions beside them.

Run as a script, this renews the numbers.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
NOTES = sorted((REPOSITORY / "docs" / "design").glob("0*.md"))
NAMED = re.compile(r"^([\w/]+\.py):(\d+)( +)([\w.]+)", re.MULTILINE)


@cache
def definitions(path: str) -> dict[str, int]:
    """Return the line of each function of a module, by its qualified name."""
    lines: dict[str, int] = {}

    def visit(parent: ast.AST, prefix: str) -> None:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                lines[prefix + node.name] = node.lineno
                visit(node, f"{prefix}{node.name}.")

    visit(ast.parse((REPOSITORY / "fastdata" / path).read_text()), "")
    return lines


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.stem)
def test_lines_are_those_of_their_functions(note: Path) -> None:
    for path, line, _, name in NAMED.findall(note.read_text()):
        assert definitions(path).get(name) == int(line), f"{path} {name}: run {__file__}"


def renew(named: re.Match[str]) -> str:
    path, line, spaces, name = named.groups()
    place = f"{path}:{definitions(path)[name]}"
    return place + " " * (len(f"{path}:{line}{spaces}") - len(place)) + name


if __name__ == "__main__":
    for one in NOTES:
        one.write_text(NAMED.sub(renew, one.read_text()))
