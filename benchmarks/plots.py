"""Plots of the loader benchmark as SVG, for light and dark pages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from typing import Any

from fastdata.benchmarks.figures import median, rows_of

#: Readable names of contenders.
NAMES = {
    "fastdata-lmdb": "fastdata, JPEGs as they are",
    "fastdata-raw": "fastdata, pixels ≤ 256",
    "fastdata-imagefolder": "fastdata, ImageFolder",
    "ffcv-raw256": "FFCV, pixels ≤ 256",
    "ffcv-raw": "FFCV, pixels ≤ 500",
    "ffcv-half": "FFCV, half pixels",
    "ffcv-500": "FFCV, JPEGs ≤ 500",
    "ffcv-q90": "FFCV, JPEGs of quality 90",
    "dali-cpu": "DALI on the CPU",
    "pillow-simd": "torch, Pillow-SIMD",
    "torch-uint8": "torch, Pillow",
    "spdl": "SPDL",
    "hf": "Hugging Face datasets",
    "torch-torchcodec": "torch, torchcodec",
    "litdata": "LitData",
    "streaming": "Streaming",
    "webdataset": "WebDataset",
}
#: Contenders that load JPEGs, or pixels of full size.
FULL_SIZE = [name for name in NAMES if "raw256" not in name and name != "fastdata-raw"]


def loaders(result: dict[str, Any], among: Collection[str] = (), *, narrow: bool = False) -> str:
    """Plot images a second of loaders with the most threads; of all, if none of ``among`` ran."""
    grouped = rows_of(result)
    most = max(threads for _, _, threads in grouped)
    speeds = {
        name: median(runs, "images/s") or 0.0
        for (case, name, threads), runs in grouped.items()
        if threads == most and case == ""
    }
    rows = [
        (NAMES.get(name, name), speeds[name], name.startswith("fastdata"))
        for name in [name for name in speeds if name in among] or speeds
    ]
    rows.sort(key=lambda row: -row[1])
    return _bars(f"images a second, {most} threads", rows, narrow=narrow)


#: Widths for a laptop's page and for a phone's, in units of the SVG's view box.
_WIDTH, _NARROW = 760, 380
#: Width of a character of 13 px in the fonts of `_STYLE`, a little above the average.
_CHARACTER = 7.0
# The colour scheme of the element that shows an image switches its dark mode.
_STYLE = """<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #24292f; }
.ours { fill: #3449c4; } .theirs { fill: #a45a00; } .strong { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .ours { fill: #9fb0ff; } .theirs { fill: #e3a857; }
}
</style>"""


def _bars(axis: str, rows: Sequence[tuple[str, float, bool]], *, narrow: bool) -> str:
    """Draw horizontal bars: name, value, whether it is ours. A narrow plot has names above bars."""
    whole, step, above = (_NARROW, 46, 18) if narrow else (_WIDTH, 26, 0)
    longest = max(len(name) * _CHARACTER * (1.1 if ours else 1) for name, _, ours in rows)
    left = 4 if narrow else 12 + longest
    room, height = whole - left - 70, step * len(rows)
    most = max(value for _, value, _ in rows)
    parts = []
    for number, (name, value, ours) in enumerate(rows):
        y, length = 10 + above + step * number, room * value / most
        strong = ' class="strong"' if ours else ""
        kind, place = "ours" if ours else "theirs", (left - 8, y + 14, name, "end")
        parts += [
            _text(*((left, y - 5, name, "start") if narrow else place), strong),
            f'<rect class="{kind}" x="{left:.1f}" y="{y}" width="{length:.1f}" height="18" '
            f'rx="2"><title>{escape(name)}: {value:,.0f}</title></rect>',
            _text(left + length + 6, y + 14, f"{value:,.0f}", "start", strong),
        ]
    parts.append(_text(left, height + 30, axis, "start"))
    said = "; ".join(f"{name}: {value:,.0f}" for name, value, _ in rows)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height + 40}" role="img">'
        f"<title>Images a second of each loader</title><desc>{escape(f'{axis}. {said}.')}</desc>"
    )
    return "\n".join((head, _STYLE, *parts, "</svg>")) + "\n"


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'
