"""torchvision's Python transforms, also where its C++ operators do not fit the torch there is.

PyPI's torchvision is built against CUDA; beside a CPU build of torch its operators cannot be
loaded, and importing it fails at the first registration for one of them. The transforms need none.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

_LIBRARIES: list[Any] = []


def import_torchvision() -> ModuleType:
    """Import torchvision with ``transforms.v2``, or skip the test where it is not installed."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed (make setup)")
    try:
        module = importlib.import_module("torchvision")
    except RuntimeError:
        module = _without_operators()
    importlib.import_module("torchvision.transforms.v2")
    return module


def _without_operators() -> ModuleType:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(library)  # dropped, it would take its definitions along

    def register_fake(*_: Any, **__: Any) -> Callable[[Any], Any]:
        return lambda function: function

    kept = torch.library.register_fake
    torch.library.register_fake = register_fake  # type: ignore[assignment]
    try:
        return importlib.import_module("torchvision")
    finally:
        torch.library.register_fake = kept
