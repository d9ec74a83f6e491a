"""Plots of the pages, as SVG: on light and on dark pages, with names that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

#: Widths for a laptop's page and for a phone's, in units of the SVG's view box.
WIDTH, NARROW = 760, 380
#: Size of a character of 13 px in the fonts of `_STYLE`, a little above the average.
_CHARACTER, _LINE = 7.0, 17.0
# The colour scheme of the element that shows an image switches its dark mode.
_STYLE = """<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #24292f; }
.faint { stroke: #d0d7de; } .axis { stroke: #57606a; } .lead { stroke: #8c959f; }
.ours { fill: #3449c4; } .theirs { fill: #a45a00; } .strong { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .faint { stroke: #3d444d; } .axis, .lead { stroke: #9198a1; }
  .ours { fill: #9fb0ff; } .theirs { fill: #e3a857; }
}
</style>"""


class Point(NamedTuple):
    """One named point of a plot."""

    name: str
    x: float
    y: float
    ours: bool


def bars(
    title: str, axis: str, rows: Sequence[tuple[str, float, bool]], *, narrow: bool = False
) -> str:
    """Draw horizontal bars.

    Args:
        title: Description for readers who cannot see the plot.
        axis: The measure and its unit.
        rows: Name, value, and whether it is ours, from top to bottom.
        narrow: Whether to draw for a phone, with names above their bars.
    """
    whole, step, above = (NARROW, 46, 18) if narrow else (WIDTH, 26, 0)
    left = 4 if narrow else 12 + max(_width(name, ours) for name, _, ours in rows)
    room, height = whole - left - 70, step * len(rows)
    most = max(value for _, value, _ in rows)
    parts = []
    for number, (name, value, ours) in enumerate(rows):
        y, length = 10 + above + step * number, room * value / most
        strong = ' class="strong"' if ours else ""
        parts += [
            _text(left, y - 5, name, "start", strong)
            if narrow
            else _text(left - 8, y + 14, name, "end", strong),
            f'<rect class="{_kind(ours)}" x="{left:.1f}" y="{y}" width="{length:.1f}" height="18" '
            f'rx="2"><title>{escape(name)}: {value:,.0f}</title></rect>',
            _text(left + length + 6, y + 14, f"{value:,.0f}", "start", strong),
        ]
    parts.append(_text(left, height + 30, axis, "start"))
    said = "; ".join(f"{name}: {value:,.0f}" for name, value, _ in rows)
    return _svg(title, f"{axis}. {said}.", height + 40, parts, whole)


def scatter(title: str, x_axis: str, y_axis: str, points: Sequence[Point]) -> str:
    """Draw named points on logarithmic axes; names of crowded points stand in a column."""
    # Leave room below for columns.
    heights = [*(p.y for p in points), min(p.y for p in points) / 2.5]
    frame = _Frame([p.x for p in points], heights, x_axis, y_axis)
    parts = frame.parts()
    for crowd in _crowds(points, frame):
        at = [frame.place(point.x, point.y) for point in crowd]
        middle = sum(y for _, y in at) / len(at)
        alone = len(crowd) == 1
        for number, (point, (x, y)) in enumerate(zip(crowd, at, strict=True)):
            width = _width(point.name, point.ours)
            if alone:
                left = x + 10 if x + 10 + width < frame.right else x - 10 - width
            elif len(crowd) < 4:
                left = min(x for x, _ in at) - 14 - width
            else:
                left = max(x for x, _ in at) + 40 + 8 * len(crowd)
            level = middle + (number - (len(crowd) - 1) / 2) * _LINE
            if not alone:
                parts.append(
                    _stroke("lead", x, y, left - 3 if left > x else left + width + 3, level)
                )
            strong = ' class="strong"' if point.ours else ""
            anchor, name_x = ("start", left) if left > x else ("end", left + width)
            parts.append(_text(name_x, level + 4, point.name, anchor, strong))
            parts.append(
                f'<circle class="{_kind(point.ours)}" cx="{x:.1f}" cy="{y:.1f}" r="5">'
                f"<title>{escape(point.name)}: {point.y:,.0f}, {point.x:,.0f}</title></circle>"
            )
    said = "; ".join(f"{p.name}: {p.x:,.0f} and {p.y:,.0f}" for p in points)
    return _svg(title, f"{x_axis}, and {y_axis}. {said}.", _Frame.HEIGHT + 50, parts)


def _crowds(points: Sequence[Point], frame: _Frame) -> list[list[Point]]:
    """Group points whose names would overlap; each group is sorted from top to bottom."""
    crowds: list[list[Point]] = []
    for point in sorted(points, key=lambda point: -point.y):
        x, y = frame.place(point.x, point.y)
        for crowd in crowds:
            above, over = frame.place(crowd[-1].x, crowd[-1].y)
            if abs(x - above) < 40 and y - over < _LINE:
                crowd.append(point)
                break
        else:
            crowds.append([point])
    return crowds


class _Frame:
    """Two logarithmic axes."""

    HEIGHT = 440

    def __init__(self, xs: Sequence[float], ys: Sequence[float], x_axis: str, y_axis: str) -> None:
        self.left, self.top, self.right = 84.0, 16.0, WIDTH - 20.0
        self._x, self._y = _beyond(xs), _beyond(ys)
        self._names = x_axis, y_axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates of a point in the plot."""
        across, up = _along(self._x, x), _along(self._y, y)
        return self.left + across * (self.right - self.left), self.HEIGHT - up * (
            self.HEIGHT - self.top
        )

    def parts(self) -> list[str]:
        """Return the axes, their ticks and their names."""
        parts = []
        for value in _ticks(self._x):
            x, _ = self.place(value, self._y[0])
            parts.append(_stroke("faint", x, self.top, x, self.HEIGHT))
            parts.append(_text(x, self.HEIGHT + 18, f"{value:,.0f}", "middle"))
        for value in _ticks(self._y):
            _, y = self.place(self._x[0], value)
            parts.append(_stroke("faint", self.left, y, self.right, y))
            parts.append(_text(self.left - 8, y + 4, f"{value:,.0f}", "end"))
        parts.append(_stroke("axis", self.left, self.HEIGHT, self.right, self.HEIGHT))
        parts.append(_stroke("axis", self.left, self.top, self.left, self.HEIGHT))
        middle = (self.left + self.right) / 2
        parts.append(_text(middle, self.HEIGHT + 40, self._names[0], "middle"))
        turned = f' transform="rotate(-90 14 {self.HEIGHT / 2})"'
        parts.append(_text(14, self.HEIGHT / 2, self._names[1], "middle", turned))
        return parts


def _width(name: str, strong: bool) -> float:
    return len(name) * _CHARACTER * (1.1 if strong else 1)


def _beyond(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis, a little beyond the values."""
    return min(values) / 1.25, max(values) * 1.25


def _along(ends: tuple[float, float], value: float) -> float:
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def _ticks(ends: tuple[float, float]) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten between the ends."""
    powers = range(math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1])) + 1)
    values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [value for value in values if ends[0] <= value <= ends[1]]


def _kind(ours: bool) -> str:
    return "ours" if ours else "theirs"


def _stroke(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _svg(title: str, said: str, height: float, parts: Sequence[str], width: float = WIDTH) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{escape(title)}</title><desc>{escape(said)}</desc>"
    )
    return "\n".join((head, _STYLE, *parts, "</svg>")) + "\n"
