"""docs/recipes.md is what the compiler says, of the real packages' recipes (make test-recipes)."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from fastdata.benchmarks import recipes
from fastdata.benchmarks.adapters import _views
from loader_data import images
from recipe_packages import need
from recipes_page import page
from torchvision_stub import import_torchvision

from fastdata import DataLoader

need("timm", "open_clip", "transformers")

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"


@pytest.mark.filterwarnings("ignore")
def test_the_page_is_what_the_code_says() -> None:
    found = page()
    assert PAGE.read_text() == found, "run make recipes-page"
    assert found.count("| native |") >= 25


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _views.NAMES)
def test_several_views_have_the_means_and_spreads_of_the_scripts(name: str) -> None:
    recipe = _views.recipe(name, import_torchvision().transforms)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    ours = DataLoader(images(recipes.given(recipe)), 10, seed=1, require_native=True)
    theirs = torch.utils.data.DataLoader(images(recipe), 10)
    contenders = (recipes._Contender("", loader, 1, 0) for loader in (ours, theirs))
    assert recipes._verify(*contenders, batches=5) == ""
