"""MosaicML's Streaming's formats, imported without the libraries that its package needs."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

#: Packages whose own modules import the rest.
_PACKAGES = ("streaming", "streaming.base", "streaming.base.format")
#: Imported by the formats' modules, and used for other compression and for clouds alone.
_UNUSED = ("brotli", "snappy", "zstd")


def mds() -> Any:
    """Return the module ``streaming.base.format.mds``; skip the test if it is not installed."""
    if "streaming.base.format.mds" in sys.modules:
        return sys.modules["streaming.base.format.mds"]
    spec = find_spec("streaming")
    if spec is None or spec.origin is None:
        pytest.skip("no mosaicml-streaming (pip install --no-deps mosaicml-streaming)")
    root = Path(spec.origin).parent
    for name in _PACKAGES:
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    for name in _UNUSED:
        sys.modules[name] = mock.MagicMock()
    return import_module("streaming.base.format.mds")
