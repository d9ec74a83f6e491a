"""Packages whose transforms are tested in an environment of their own (make test-recipes)."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def need(*names: str) -> None:
    """Skip the module that calls this where one of the packages is not installed."""
    for name in names:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed (make test-recipes)", allow_module_level=True)
