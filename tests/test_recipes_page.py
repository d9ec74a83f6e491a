"""docs/recipes.md is what the compiler says, of the real packages' recipes (make test-recipes)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

if any(importlib.util.find_spec(name) is None for name in ("timm", "open_clip", "transformers")):
    pytest.skip("timm and others are not installed (make test-recipes)", allow_module_level=True)

from recipes_page import page

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"


@pytest.mark.filterwarnings("ignore")
def test_the_page_is_what_the_code_says() -> None:
    found = page()
    assert PAGE.read_text() == found, "run make recipes-page"
    assert found.count("| native |") >= 25
