"""Text for users: counts, shares, class names and tables."""

from __future__ import annotations

from collections.abc import Container, Sequence


def class_name(thing: object) -> str:
    """Return the qualified class name of an object, with its module unless it is builtin."""
    kind = type(thing)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__


def human_count(number: int, what: str, plural: str | None = None) -> str:
    """Return a count with its noun: "1 sample", "1,000 samples"; ``plural`` if irregular."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def human_size(width: int, height: int) -> str:
    """Return a size in pixels, height first: "32 x 32", "480 x 640 (H x W)"."""
    return f"{height} x {width}" + (" (H x W)" if height != width else "")


def human_share(share: float) -> str:
    """Return a share, 0 to 1, as a percentage: "20%"; "under 1%" instead of a rounded "0%"."""
    rounded = f"{share:.0%}"
    return "under 1%" if share > 0 and rounded == "0%" else rounded


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Return the lines of a table: columns two spaces apart, never truncated.

    Args:
        rows: Its cells, equally many in each row.
        right: Numbers of the right-aligned columns.
    """
    from rich.cells import cell_len  # imported late: rich is slow to import

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if number in right else cell + space)
        lines.append("  ".join(cells).rstrip())
    return lines


def is_utf8(name: str) -> bool:
    """Return whether a file name, as Python decodes it, is UTF-8 on the disk."""
    return name.encode("utf-8", "ignore").decode("utf-8") == name
