"""A bar chart of the stages; the one that limits has its own colour."""

from __future__ import annotations

from pathlib import Path

from fastdata.doctor.diagnosis import Diagnosis
from fastdata.doctor.plotting import INK, check, finish
from fastdata.doctor.report import human_rate, stage_lines

# Mid-tones, as the ink.
_STAGE = "#2b8cbe"
_LIMIT = "#d1495b"
_WHOLE = "#b07d2b"


def plot(diagnosis: Diagnosis, path: Path) -> None:
    """Draws the rates of all stages that were measured, on a logarithmic scale.

    Args:
        diagnosis: What `fastdata.doctor.diagnose` found.
        path: An ``.svg`` or ``.png``.

    Raises:
        UsageError: Another suffix, or matplotlib is not installed.
    """
    check(path)
    from matplotlib.figure import Figure

    verdict = diagnosis.verdict
    shown = [(line, line.rate) for line in stage_lines(diagnosis) if line.rate is not None]
    figure = Figure(figsize=(8, 1.4 + 0.4 * len(shown)), layout="constrained")
    axis = figure.subplots()
    colours = [
        _LIMIT if line.stage == verdict.limit else _STAGE if line.stage else _WHOLE
        for line, _ in shown
    ]
    bars = axis.barh([line.name for line, _ in shown], [rate for _, rate in shown], color=colours)
    axis.bar_label(bars, [human_rate(rate) for _, rate in shown], color=INK, padding=3)
    axis.invert_yaxis()  # the first stage on top
    axis.set_xscale("log")
    rates = [rate for _, rate in shown]
    axis.set_xlim(min(rates) / 3, max(rates) * 3)  # room for the numbers
    axis.set_xlabel("images/s")
    axis.set_ylabel("stage")
    name = Path(diagnosis.found.data.path).name
    axis.set_title(
        f"{name}: {verdict.limit} limits, {human_rate(verdict.images_per_second)} images/s"
    )
    axis.tick_params(which="minor", colors=INK)
    finish(figure, [axis], path)
