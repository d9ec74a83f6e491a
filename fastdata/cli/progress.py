"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from fastdata.errors import printable
from fastdata.storage.files import human_bytes
from fastdata.text import human_count

#: Seconds between two lines where there is no terminal.
_LINE_EVERY = 10.0
#: Least columns of a terminal with a bar and the remaining time.
_WITH_BAR = 60


class _Title(TextColumn):
    """Title in one line, cut if the terminal is too narrow."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class ProgressReport:
    """Display of the progress of a long operation; a context manager.

    Serves as the ``progress`` of `fastdata.converters.pack`; other operations call `advance`.
    """

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = printable(title)  # it contains file names
        self._stream = stream or sys.stderr
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._total = self._done = 0
        self._begun = self._last_line = time.monotonic()
        if self._stream.isatty():
            console = Console(file=self._stream)
            # Cut the title, never the figures.
            columns: list[ProgressColumn] = [
                _Title("", table_column=Column(no_wrap=False)),
                TaskProgressColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
            ]
            if console.width >= _WITH_BAR:
                columns.insert(1, BarColumn())
                columns.append(TimeRemainingColumn(table_column=Column(no_wrap=True)))
            self._bar = Progress(*columns, console=console, transient=True)

    def __enter__(self) -> ProgressReport:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=None, rate="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def listed(self, records: int) -> None:
        """Show the number of images found so far."""
        self._show(f"{human_count(records, 'image')} found", None)

    def start(self, images: int, size: int, done_images: int = 0, done_size: int = 0) -> None:
        """Begin the work; ``size`` is 0 if unknown, ``done_*`` the work of an earlier run."""
        self._total, self._done = images, done_images
        self._begun = time.monotonic()
        if done_images:
            self._line(f"resuming: {done_images:,} of {human_count(images, 'image')} done")

    def advance(self, images: int, size: int) -> None:
        """Show the images and bytes done since `start`."""
        seconds = max(time.monotonic() - self._begun, 1e-3)
        rate = f"{images / seconds:,.0f} images/s"
        if size:
            rate += f", {human_bytes(size / seconds)}/s"
        self._show(rate, self._done + images)

    def images(self, done: int, total: int) -> None:
        """Show the images done of a total; the first call begins."""
        if not self._total:
            self.start(total, 0)
        self.advance(done, 0)

    def size(self, done: int, total: int) -> None:
        """Show the bytes done of a total; the first call begins."""
        if not self._total:
            self.start(total, 0)
        seconds = max(time.monotonic() - self._begun, 1e-3)
        self._show(f"{human_bytes(done / seconds)}/s", done)

    def finishing(self, what: str) -> None:
        """Show the remaining step after all images."""
        self._show(f"writing {what}", self._total)

    def _show(self, rate: str, done: int | None) -> None:
        if self._bar is not None and self._task is not None:
            total = self._total if done is not None else None
            self._bar.update(self._task, completed=done or 0, total=total, rate=rate)
        elif time.monotonic() - self._last_line >= _LINE_EVERY:
            left = ""
            if done is not None and self._total:
                left = f" ({done:,} of {self._total:,}"
                if done > self._done:
                    seconds = time.monotonic() - self._begun
                    remaining = seconds * (self._total - done) / (done - self._done)
                    left += f", {remaining:,.0f} s left"
                left += ")"
            self._line(rate + left)

    def _line(self, text: str) -> None:
        self._last_line = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(f"{self._title}: {text}", highlight=False, markup=False)
        else:
            print(f"{self._title}: {text}", file=self._stream, flush=True)
