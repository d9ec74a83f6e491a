"""Runs a training script as it is, with fastdata's DataLoader where it says torch's.

    run_script.py REPORT SCRIPT ARGUMENTS...

REPORT becomes JSON: for each pass over a loader, what the loader says of itself, and the labels.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torchvision_stub import import_torchvision

import fastdata

passes: list[dict[str, Any]] = []


class Recorded(fastdata.DataLoader):
    """fastdata's, noting what it gives."""

    def __iter__(self) -> Iterator[Any]:
        labels: list[int] = []
        passes.append({"explained": self.explain(), "labels": labels})
        for batch in super().__iter__():
            labels += batch[1].tolist()
            yield batch


if __name__ == "__main__":
    torch.set_num_threads(1)
    import_torchvision()
    report, script, *_ = sys.argv[1:]
    # The one line that is changed.
    torch.utils.data.DataLoader = Recorded  # type: ignore[misc]
    sys.argv[:] = sys.argv[2:]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    Path(report).write_text(json.dumps(passes))
