"""torchvision's Python transforms, also where its C++ operators do not fit the torch there is."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import pytest
from fastdata.benchmarks.adapters import _torchvision


def import_torchvision() -> ModuleType:
    """Import torchvision with ``transforms.v2``, or skip the test where it is not installed."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed (make setup)")
    module: ModuleType = _torchvision.import_torchvision()
    importlib.import_module("torchvision.transforms.v2")
    return module
