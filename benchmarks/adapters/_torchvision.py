"""Import of torchvision beside a torch that its C++ operators were not built for.

PyPI's torchvision is built against CUDA; beside a CPU build of torch, importing it fails at the
first registration for an operator. Datasets and transforms need none.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_KEPT: list[Any] = []


def import_torchvision() -> Any:
    """Import torchvision with ``datasets`` and ``transforms``."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        pass
    import torch

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)  # dropped, it would take its definitions along
    register = torch.library.register_fake
    torch.library.register_fake = lambda *_, **__: lambda function: function
    try:
        return importlib.import_module("torchvision")
    finally:
        torch.library.register_fake = register
