"""Tables of results, for a terminal or a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import click

from fastdata.text import aligned

Run = dict[str, Any]


class Spread(NamedTuple):
    """Median, smallest and largest of some measurements."""

    median: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        return "{:{form}} ({:{form}} to {:{form}})".format(*self, form=form or ".2f")

    def __str__(self) -> str:
        return format(self, ".2f")

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


class Figures(NamedTuple):
    """A table of text; the first column is left-aligned, the others are numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def show(self) -> None:
        """Print the table to standard output."""
        click.secho(self.title, bold=True)
        for line in aligned([self.columns, *self.rows], right=range(1, len(self.columns))):
            click.echo(line)

    def __str__(self) -> str:
        """Return the table as Markdown."""
        rule = ["---"] + ["---:"] * (len(self.columns) - 1)
        lines = ("|".join(cells) for cells in (self.columns, rule, *self.rows))
        return "".join(f"|{line}|\n" for line in lines)


class Metric(NamedTuple):
    """Figure of a run: ``part`` by ``whole``, with a factor; ``more`` of it may be better."""

    part: str
    whole: str = ""
    factor: float = 1.0
    form: str = ",.2f"
    more: bool = False
    spread: bool = False  # whether tables show it

    def value(self, run: Run) -> float | None:
        """Return the figure; None if it was not measured."""
        part, whole = run.get(self.part), run.get(self.whole, None if self.whole else 1)
        return self.factor * float(part) / float(whole) if part is not None and whole else None


#: By the headings of columns.
METRICS = {
    "images/s": Metric("images", "seconds", 1, ",.0f", more=True, spread=True),
    "first batch, s": Metric("first_s"),
    "CPU ms an image": Metric("cpu_s", "images", 1e3),
    "private, MB": Metric("peak_private_bytes", "", 1e-6, ",.0f"),
    "read, kB an image": Metric("bytes_read", "images", 1e-3, ",.0f"),
    "client CPU ms an image": Metric("client_cpu_s", "images", 1e3, ",.3f", spread=True),
    "requests an image": Metric("requests", "images", 1, ",.3f"),
    "waiting, %": Metric("waited_s", "seconds", 100, ",.0f"),
}
SPEED, CPU = METRICS["images/s"], METRICS["CPU ms an image"]


def metric(name: str) -> Metric:
    """Return a metric; one of a workload's own if it is none of `METRICS`."""
    return METRICS.get(name) or Metric(name, form=",.0f")


def median(runs: Iterable[Run], name: str) -> float | None:
    """Return the median of the known values of a metric."""
    known = [value for run in runs if (value := metric(name).value(run)) is not None]
    return statistics.median(known) if known else None


def rows_of(result: dict[str, Any]) -> dict[tuple[str, str, int], list[Run]]:
    """Return the runs by case, contender and number of threads; in the order of the results."""
    grouped: dict[tuple[str, str, int], list[Run]] = {}
    cases = dict.fromkeys(run["case"] for one in result["contenders"] for run in one["runs"])
    for case in cases:
        for contender in result["contenders"]:
            for run in contender["runs"]:
                if run["case"] == case:
                    at = case, contender["name"], run["threads"]
                    grouped.setdefault(at, []).append(run)
    return grouped


def ratios(these: list[Run], those: list[Run], value: Metric) -> Spread | None:
    """Return the ratios of two contenders by round; None if one of them was not measured.

    A machine's mood lasts longer than a round. Above 1, the first is better.
    """
    by_round = {run["round"]: value.value(run) for run in those}
    found = []
    for run in these:
        one, other = value.value(run), by_round.get(run["round"])
        if one and other:
            found.append(one / other if value.more else other / one)
    return Spread.of(found) if found else None


def table(
    result: dict[str, Any],
    columns: Sequence[str],
    *,
    title: str = "",
    against: str = "",
    most: bool = False,
    sort: bool = False,
) -> Figures:
    """Return a table with a row for each case, contender and number of threads.

    Args:
        result: The results.
        columns: Headings of `METRICS`, "stored, kB an image", or a workload's own figures; beside
            another contender also `BESIDE`. Those that no run has are left out.
        title: The title.
        against: Contender that has no rows, and that the others are compared with round by round.
        most: Whether to show runs with the most threads alone.
        sort: Whether to show the fastest first.
    """
    grouped, stored = rows_of(result), {c["name"]: _stored(c) for c in result["contenders"]}
    counts: dict[tuple[str, str], list[int]] = {}
    for case, name, count in grouped:
        counts.setdefault((case, name), []).append(count)
    rows: list[tuple[float, list[str]]] = []
    for (case, name, count), runs in grouped.items():
        if name == against or (most and count != max(counts[case, name])):
            continue
        near = [n for n in counts.get((case, against), []) if n <= count] or [0]
        peers = grouped.get((case, against, max(near)), [])
        cells = [case, name, str(count)]
        for column in columns:
            if column in BESIDE:
                cells.append(_beside(runs, peers, column))
            else:
                cells.append(stored[name] if column == STORED else _cell(runs, column, not against))
        rows.append((median(runs, "images/s") or 0.0, cells))
    if sort:
        rows.sort(key=lambda row: -row[0])
    heads = ["case", "contender", "threads"]
    heads += [
        {"beside": f"{against}, images/s", "times": f"times {against}"}.get(c, c) for c in columns
    ]
    shown = [n for n in range(len(heads)) if n < 3 or {c[n] for _, c in rows} != {"—"}]
    shown = [n for n in shown if n > 2 or len({cells[n] for _, cells in rows}) > 1]
    shown = shown if shown and shown[0] < 2 else [1, *shown]
    blank = [""] * (len(shown) - 2)
    failed = [[c["name"], "failed", *blank] for c in result["contenders"] if c["error"]]
    lines = [[cells[n] for n in shown] for _, cells in rows]
    return Figures(title or result["workload"], [heads[n] for n in shown], lines + failed)


def beside(result: dict[str, Any]) -> str:
    """Return a sentence on the first contender beside the last one; "" if one was not measured."""
    grouped = {at[1]: runs for at, runs in rows_of(result).items()}
    first, last = (result["contenders"][at]["name"] for at in (0, -1))
    found = ratios(grouped.get(first, []), grouped.get(last, []), SPEED)
    same = first == last or found is None
    return "" if same else f"{first} loads {found:.1f} times as many images a second as {last}"


#: Columns beside another contender: its images/s, and ratios by round.
BESIDE = ("beside", "times", "by CPU time")


def _beside(runs: list[Run], peers: list[Run], column: str) -> str:
    if column == "beside":
        return _cell(peers, "images/s")
    found = ratios(runs, peers, SPEED if column == "times" else CPU)
    if found is None:
        return "—"
    form = ".2f" if found.median < 3 else ".1f"
    return f"{found:{form}}" if column == "times" else f"{found.median:{form}}"


STORED = "stored, kB an image"
#: Columns of the table of loaders.
LOADERS = (*list(METRICS)[:4], STORED)


def _cell(runs: list[Run], name: str, spread: bool = False) -> str:
    known = [value for run in runs if (value := metric(name).value(run)) is not None]
    if not known:
        return "—"
    found, form = Spread.of(known), metric(name).form
    return format(found, form) if spread and metric(name).spread else f"{found.median:{form}}"


def _stored(contender: dict[str, Any]) -> str:
    size, samples = contender.get("data_bytes"), contender.get("samples")
    return f"{size / samples / 1e3:,.0f}" if size and samples else "—"


def transposed(result: dict[str, Any], title: str = "", without: Sequence[str] = ()) -> Figures:
    """Return a table with a column for each contender, and a row for each of their own figures."""
    grouped = {at: runs for at, runs in rows_of(result).items() if at[1] not in without}
    names = dict.fromkeys(name for runs in grouped.values() for run in runs for name in run)
    rows = [
        [name, *(_cell(runs, name) for runs in grouped.values())]
        for name in names
        if name not in ("case", "threads", "round", "load", "filled")
    ]
    return Figures(title or result["workload"], ["", *(name for _, name, _ in grouped)], rows)


def failures(result: dict[str, Any]) -> list[str]:
    """Return the errors of contenders."""
    return [f"{c['name']}: {c['error']}" for c in result["contenders"] if c["error"]]
