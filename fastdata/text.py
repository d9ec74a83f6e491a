"""Text for people: numbers and classes of things, and tables."""

from __future__ import annotations

from collections.abc import Container, Sequence


def class_name(thing: object) -> str:
    """The class of a thing with its module, as two libraries may have classes of one name."""
    kind = type(thing)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__


def human_count(number: int, what: str, plural: str | None = None) -> str:
    """A number of things: "1 sample", "1,000 samples"; ``plural`` where an s does not make it."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def human_share(share: float) -> str:
    """A part of something, 0 to 1: "20%"; "under 1%" where rounding would leave none of it."""
    told = f"{share:.0%}"
    return "under 1%" if share > 0 and told == "0%" else told


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Lines of a table: columns two spaces apart, never cut, however narrow the terminal is.

    Args:
        rows: Its cells, as many in each row.
        right: Numbers of the columns that end together, not begin.
    """
    from rich.cells import cell_len  # what only counts does not wait for rich

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if number in right else cell + space)
        lines.append("  ".join(cells).rstrip())
    return lines
