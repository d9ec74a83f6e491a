"""Users' own transforms in fastdata's loader and in torch's, each with the same objects.

FASTDATA_RECIPES names a Python file whose function recipes() returns functions that make
transforms, by name; by default that of docs/recipes.md.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _workload import Workload, contenders, fastdata_loader, pack_tree, torch_files
from fastdata.benchmarks.adapters._serve import Request, serve

_TESTS = Path(__file__).resolve().parents[2] / "tests"
_KEPT = ExitStack()
_FILE = Path(os.environ.get("FASTDATA_RECIPES", _TESTS / "recipe_makers.py"))


def _makers() -> dict[str, Any]:
    sys.path[:0] = [str(_FILE.parent), str(_TESTS)]  # in worker processes, too
    made: dict[str, Any] = importlib.import_module(_FILE.stem).recipes()
    return made


WORKLOAD = Workload(
    "Recipes",
    contenders(__file__, {"torch": "", "fastdata": ""}, needs="torchvision"),
    cases=("MoCo v2, 2 views",),
    against="torch",
    check="random",
    options={"batch_size": 32, "rounds": 5},
)


class _Tensor:
    """Image processor of transformers as a function from an image to a tensor."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(self, image: Any) -> Any:
        return self._processor(image, return_tensors="pt")["pixel_values"][0]


def open_loader(request: Request) -> Any:
    """Open a loader of one recipe, which must be native in fastdata's."""
    transform, folder = _makers()[request.case](), Path(request.data)
    always = {"shuffle": True, "drop_last": True}
    if request.variant == "torch":
        original = _Tensor(transform) if hasattr(transform, "image_mean") else transform
        return torch_files(folder / "tree", original, request, **always)
    from script_lines import lines_added

    from fastdata import ImageDataset

    _KEPT.enter_context(lines_added(transform))
    dataset = ImageDataset(folder / "packed", transform=transform)
    return fastdata_loader(dataset, request, **always)


if __name__ == "__main__":
    serve(open_loader, pack_tree, packages=["fastdata", "torchvision"])
