"""Tiers of parametrised tests: `make test` runs what is not slow, `make test-all` everything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def first_of(values: Iterable[Any], count: int = 1) -> list[Any]:
    return [slow(value) if at >= count else value for at, value in enumerate(values)]
