"""Text for people."""

from __future__ import annotations

import ast
from pathlib import Path

import fastdata
from fastdata.text import aligned, human_size

_REPOSITORY = Path(__file__).resolve().parent.parent


def test_no_message_cites_a_file_that_is_not_installed() -> None:
    """A wheel has neither docs/ nor tests/: docstrings may speak of them, messages may not."""
    sources = [*Path(fastdata.__file__).parent.rglob("*.py"),
               *(_REPOSITORY / "converters").rglob("*.py")]  # fmt: skip
    assert len(sources) > 100
    for path in sources:
        tree = ast.parse(path.read_text("utf-8"))
        prose = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in prose:
                text = node.value if isinstance(node.value, str) else ""
                assert "docs/" not in text and "tests/" not in text, f"{path}:{node.lineno}"


def test_columns_begin_or_end_together_and_nothing_is_cut() -> None:
    rows = [["name", "images/s", "note"], ["a" * 200, "12,345", ""], ["写真", "7", "wide"]]
    lines = aligned(rows, right=(1,))
    assert lines == [
        "name" + " " * 196 + "  images/s  note",
        "a" * 200 + "    12,345",
        "写真" + " " * 196 + "         7  wide",  # two columns a character
    ]


def test_sizes_are_height_first() -> None:
    assert human_size(320, 256) == "256 x 320 (H x W)" and human_size(8, 8) == "8 x 8"
