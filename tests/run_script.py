"""run_script.py REPORT SCRIPT ARGUMENTS...: a training script with fastdata's DataLoader.

REPORT becomes JSON: what the loader says of itself in each pass, and numbers of its samples.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torchvision_stub import import_torchvision

import fastdata
from fastdata.transforms import Compose

passes: list[dict[str, Any]] = []


class Recorded(fastdata.DataLoader):
    def __iter__(self) -> Iterator[Any]:
        samples: list[int] = []
        passes.append({"explained": self.explain(), "samples": samples})
        for batch in super().__iter__():
            samples += map(_number, batch[1])
            yield batch


def _number(target: Any) -> int:
    return int(target["image_id"] if isinstance(target, dict) else target)


def _offer(presets: Any) -> None:
    for name, kind in vars(presets).items():
        if name.endswith(("PresetTrain", "PresetEval")):
            kind.__fastdata__ = lambda self: Compose([self.transforms])


def _nms(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    from torchvision.ops import box_iou

    left, kept = scores.argsort(descending=True), []
    while len(left):
        best = left[:1]
        kept.append(best)
        left = left[box_iou(boxes[best], boxes[left])[0] <= threshold]
    return torch.cat(kept) if kept else left


def import_models() -> None:
    """Import torchvision, with a box suppression in Python where its C++ operators are missing."""
    import_torchvision()
    if not importlib.import_module("torchvision.extension")._has_ops():
        boxes = importlib.import_module("torchvision.ops.boxes")
        boxes._assert_has_ops = lambda: None
        torch.library.impl("torchvision::nms", "cpu", _nms)


if __name__ == "__main__":
    torch.set_num_threads(1)
    import_models()
    report, script, *_ = sys.argv[1:]
    # The one line that is changed.
    torch.utils.data.DataLoader = Recorded  # type: ignore[misc]
    sys.argv[:] = sys.argv[2:]
    sys.path.insert(0, str(Path(script).parent))
    if Path(script).with_name("presets.py").exists():
        _offer(importlib.import_module("presets"))
    runpy.run_path(script, run_name="__main__")
    Path(report).write_text(json.dumps(passes))
