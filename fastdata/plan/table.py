"""`PlanTable`: the batches of an epoch, before any of them is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.plan.sharding import Epoch
from fastdata.text import aligned, human_count

#: Characters of a bar.
_BAR = 24


@dataclass(frozen=True, eq=False)
class PlanTable:
    """Batches of an epoch, step by step; ``print`` shows a summary.

    Attributes:
        classes: The size classes, in words.
        unit: Unit of cost: "rows", "pixels", or the unit of lengths.
        size: Place of each step's class among the classes, (steps,).
        rows: Rows of each batch, (steps, ranks); those that are repeated count.
        cost: Cost of each batch, (steps, ranks).
        room: Most that a batch of each step could cost, (steps,).
        repeated: Number of rows that are repeated, so that each rank has as many batches.
        dropped: Number of rows that are in no batch.
    """

    classes: Sequence[str]
    unit: str
    size: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    cost: npt.NDArray[np.int64]
    room: npt.NDArray[np.int64]
    repeated: int = 0
    dropped: int = 0

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.size)

    @property
    def fill(self) -> float:
        """The cost of all batches, as a share of the most that they could cost."""
        room = int(self.room.sum()) * self.rows.shape[1]
        return int(self.cost.sum()) / room if room else 1.0

    @property
    def imbalance(self) -> npt.NDArray[np.float64]:
        """By how much the costliest rank of each step exceeds the mean of its ranks, (steps,)."""
        excess: npt.NDArray[np.float64] = self.cost.max(1) / self.cost.mean(1) - 1
        return excess

    def to_dict(self) -> dict[str, Any]:
        """Return its figures as JSON values, by class."""
        rows = [int(self.rows[self.size == at].sum()) for at in range(len(self.classes))]
        steps = np.bincount(self.size, minlength=len(self.classes)).tolist()
        imbalance = self.imbalance
        return {
            "steps": len(self),
            "ranks": self.rows.shape[1],
            "repeated": self.repeated,
            "dropped": self.dropped,
            "unit": self.unit,
            "fill": self.fill,
            "imbalance": float(imbalance.mean()) if len(self) else 0.0,
            "largest_imbalance": float(imbalance.max(initial=0)),
            "classes": [
                {"name": name, "steps": count, "rows": total}
                for name, count, total in zip(self.classes, steps, rows, strict=True)
            ],
        }

    def __str__(self) -> str:
        steps, ranks = self.rows.shape
        each = f"{human_count(steps, 'step')} on {human_count(ranks, 'rank')}"
        if not steps:
            return each + f", {human_count(self.dropped, 'row')} dropped" * bool(self.dropped)
        lines: list[Any] = [("size", "steps", "rows of a batch", "rows", "")]
        totals = [int(self.rows[self.size == at].sum()) for at in range(len(self.classes))]
        for at, name in enumerate(self.classes):
            of_class = self.size == at
            if not of_class.any():
                continue
            least, most = (int(f(self.rows[of_class])) for f in (np.min, np.max))
            spread = f"{most:,}" if least == most else f"{least:,} to {most:,}"
            bar = "█" * round(_BAR * totals[at] / max(totals))
            lines.append((name, f"{of_class.sum():,}", spread, f"{totals[at]:,}", bar or "▏"))
        imbalance = self.imbalance
        summary = [f"{each}, {human_count(sum(totals), 'row')}"]
        summary += [f"{human_count(self.repeated, 'row')} repeated"] * bool(self.repeated)
        summary += [f"{human_count(self.dropped, 'row')} dropped"] * bool(self.dropped)
        return "\n".join(
            [
                ", ".join(summary),
                *(line.rstrip() for line in aligned(lines, (1, 2, 3))),
                f"{self.unit} of a batch: {self.cost.mean():,.0f} on average, "
                f"{self.cost.min():,} to {self.cost.max():,}; {self.fill:.2%} of the room",
                f"imbalance of ranks: {imbalance.mean():.2%} on average, "
                f"{imbalance.max():.2%} at most",
            ]
        )


def table_of(epoch: Epoch) -> PlanTable:
    """Return the table of batches of one size, in an order that need not be known."""
    steps, ranks = len(epoch), epoch.world_size
    rows = np.full((steps, ranks), epoch.batch_size)
    repeated = 0
    if steps and not epoch.drop_last:
        rows[-1] = len(epoch.positions(steps - 1))
        repeated = int(rows.sum()) - (epoch.samples - epoch.start)
    dropped = epoch.samples - epoch.start + repeated - int(rows.sum())
    size, room = np.zeros(steps, np.int64), np.full(steps, epoch.batch_size)
    return PlanTable(("batch",), "rows", size, rows, rows, room, repeated, dropped)
