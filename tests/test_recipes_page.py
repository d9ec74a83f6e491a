"""docs/recipes.md is what the compiler says; native recipes are right (make test-recipes)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_draws import differences, native, originals
from recipe_makers import recipes, small
from recipe_packages import need
from recipes_page import compiled, levels, page
from script_lines import lines_added

from fastdata.transforms.recipe import Recipe

need("timm", "open_clip", "transformers", "lightly", "dinov2")

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"

RECIPES = recipes()


def test_the_page_is_what_the_code_says() -> None:
    found = page()
    assert PAGE.read_text() == found, "run make recipes-page"
    native = [line for line in found.splitlines() if "| native" in line]
    assert sum(line.count("; ") + 1 for line in native) >= 136


def shrink(held: Any, seen: set[int]) -> None:
    """Makes the sizes in a library's transforms a quarter of what they are, for speed."""
    if id(held) in seen or isinstance(held, (str, bytes, torch.Tensor, np.ndarray, type)):
        return
    seen.add(id(held))
    if isinstance(held, (list, tuple, dict)):
        for part in held.values() if isinstance(held, dict) else held:
            shrink(part, seen)
    elif hasattr(held, "__dict__"):
        size = vars(held).get("size")
        if isinstance(size, int):
            held.size = size // 4
        elif isinstance(size, (list, tuple)) and all(isinstance(side, int) for side in size):
            held.size = tuple(side // 4 for side in size)
        shrink(list(vars(held).values()), seen)


@pytest.mark.parametrize("name", RECIPES)
def test_a_native_recipe_makes_what_its_original_makes(name: str) -> None:
    transform = RECIPES[name]()
    side = 32 if small(name) else 60
    with lines_added(transform):
        recipe = compiled(name, transform)
        if not isinstance(recipe, Recipe) or recipe.unknown:
            pytest.skip("the page says that it is not native")
        steps = [step for one in recipe.programs for step in (*one.steps, *one.pixels)]
        if not any(step.is_random for step in steps):
            # torch's bicubic kernels round and clamp otherwise than Pillow's, as the page says.
            bicubic = name.startswith("transformers") or "tensor, bicubic" in name
            assert int(levels(name, transform, recipe)) <= 1 + bicubic
            return
        if not small(name):
            shrink(transform, set())
        made = native(transform, side)
    assert differences(made, originals(transform, side)) == []
