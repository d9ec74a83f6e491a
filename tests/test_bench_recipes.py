"""Every adapter of the loader benchmark that has recipes translates each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fastdata.benchmarks.adapters._recipes import RECIPES
from fastdata.benchmarks.contenders import ADAPTERS

if not find_spec("torchvision"):
    pytest.skip("torchvision is not installed (make setup)", allow_module_level=True)

_BATCHES = f"""
import importlib, json, sys
sys.path.insert(0, {str(ADAPTERS)!r})
import numpy as np
from _recipes import RECIPES
from _serve import Request
adapter, variant, data = sys.argv[1:]
for name, recipe in RECIPES.items():
    request = Request(data, variant, 16, crop="val", size=recipe.size, dtype="float32",
                      recipe=name, order="sequential")
    loader = importlib.import_module(adapter).open_loader(request)
    images = np.array(next(iter(loader))[0])
    if name == "none":
        plain = images
    change = float(np.abs(images - plain).mean()) if images.shape == plain.shape else None
    print(json.dumps([name, images.shape, str(images.dtype), change]))
"""


@pytest.mark.parametrize(
    ("adapter", "variant"),
    [
        ("fastdata_loader", "imagefolder"),
        ("torch_loader", "tree"),
        ("torch_loader", "v2"),
        ("dali_pipeline", "cpu"),
    ],
)
def test_every_recipe_gives_images(adapter: str, variant: str, made_tree: Path) -> None:
    if adapter == "dali_pipeline":
        pytest.importorskip("nvidia.dali")
    command = [sys.executable, "-c", _BATCHES, adapter, variant, str(made_tree / "train")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in found] == list(RECIPES)
    for name, shape, dtype, change in found:
        size = RECIPES[name].size
        assert (shape, dtype) == ([16, 3, size, size], "float32")
        # Of values of some 2 in width: an augmentation shows, and is no noise.
        assert name == "none" or change is None or 0.1 < change < 2.0
