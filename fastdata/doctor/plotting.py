"""The style that all plots share: readable on light and on dark pages."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastdata.errors import UsageError

#: Of text and lines. A mid-tone: enough contrast with white and with black.
INK = "#808080"


def check(path: Path) -> None:
    """Whether a plot can be drawn, before anything is measured for it.

    Raises:
        UsageError: Another suffix than ``.svg`` or ``.png``, or matplotlib is not installed.
    """
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"{path}: plots are .svg or .png", "Name one of these.")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "plots need matplotlib, which is not installed", "pip install 'fastdata-torch[bench]'"
        )


def finish(figure: Any, axes: Iterable[Any], path: Path) -> None:
    """Colours a figure of matplotlib's for light and dark pages, and writes it."""
    for axis in axes:
        axis.patch.set_alpha(0)
        axis.tick_params(colors=INK)
        axis.title.set_color(INK)
        for label in (axis.xaxis.label, axis.yaxis.label):
            label.set_color(INK)
        for spine in axis.spines.values():
            spine.set_color(INK)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, transparent=True, metadata=metadata, dpi=120)
