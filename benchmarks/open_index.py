"""How long it takes to open an index, and what memory that takes, by number of rows.

Each measurement is a fresh process whose imports are done before the clock starts.

    python -m fastdata.benchmarks.open_index --rows 1280000,100000000
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from fastdata.benchmarks.measure import Figures, Spread, machine

from fastdata.storage.index import ROWS_PER_BATCH, Row, rows_to_batch, write_index

_OPEN = """
import sys, time
from pathlib import Path
import psutil
from fastdata.storage.index import Index
process = psutil.Process()
path, rows = Path(sys.argv[1]), int(sys.argv[2])
memory = process.memory_full_info().uss
begun = time.perf_counter()
index = Index(path, rows)
opened = time.perf_counter()
index[rows // 2]
read = time.perf_counter()
memory = process.memory_full_info().uss - memory
print(opened - begun, read - opened, memory)
"""


@click.command()
@click.option("--rows", default="1000,1280000", show_default=True, help="Row counts.")
@click.option("--rounds", default=5, show_default=True)
@click.option(
    "--work", type=click.Path(path_type=Path), help="Where to write. [default: a temporary folder]"
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here."
)
def main(rows: str, rounds: int, work: Path | None, json_path: Path | None) -> None:
    """Measure opening an index."""
    results = []
    for count in map(int, rows.split(",")):
        with tempfile.TemporaryDirectory(dir=work, prefix="fastdata-bench-") as folder:
            path = Path(folder) / "index.arrow"
            make_index(path, count)
            runs = [_open(path, count) for _ in range(rounds)]
            results.append({"rows": count, "index_bytes": path.stat().st_size, "runs": runs})
    result = {"benchmark": "open", "machine": machine(), "results": results}
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1) + "\n")
    figures(result).show()


def figures(result: dict[str, Any]) -> Figures:
    """The results as people read them."""
    rows = []
    for entry in result["results"]:
        opened, read, memory = (Spread.of([run[i] for run in entry["runs"]]) for i in range(3))
        rows.append(
            [
                f"{entry['rows']:,}",
                f"{entry['index_bytes'] / 1e6:,.0f}",
                str(Spread(*(value * 1e3 for value in opened))),
                str(Spread(*(value * 1e3 for value in read))),
                f"{memory.median / 1e6:.1f}",
            ]
        )
    return Figures(
        "Opening an index",
        ["rows", "index MB", "open, ms", "first row, ms", "private MB"],
        rows,
    )


def make_index(path: Path, rows: int) -> None:
    """Writes an index of so many rows; its batches repeat, which opening cannot tell."""
    batch = rows_to_batch(
        [
            Row(f"n01440764/n01440764_{n:05d}", n % 1000, 0, None, n * 110_000, 110_000, 500, 375,
                3, "jpeg", n)
            for n in range(min(rows, ROWS_PER_BATCH))
        ]
    )  # fmt: skip
    whole, rest = divmod(rows, ROWS_PER_BATCH)
    batches: list[pa.RecordBatch] = [batch] * whole + ([batch.slice(0, rest)] if rest else [])
    write_index(path, batches)


def _open(path: Path, rows: int) -> list[float]:
    out = subprocess.run(
        [sys.executable, "-c", _OPEN, str(path), str(rows)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [float(value) for value in out.split()]


if __name__ == "__main__":
    main()
