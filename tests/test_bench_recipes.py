"""People's own recipes beside torch's loader: what is timed, and what is not."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fastdata.benchmarks import recipes
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.packing import pack

if find_spec("torchvision") is None:
    pytest.skip("no torchvision", allow_module_level=True)

SMALL: dict[str, Any] = {"threads": 1, "batch": 8, "batches": 2, "rounds": 2}


class _Darker(recipes._SimCLR):
    """What it calls by itself is not what its views make."""

    def __call__(self, image: Any) -> list[Any]:
        return [view - 9 for view in super().__call__(image)]


def test_what_is_not_the_originals_is_not_timed(
    made_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = made_tree / "train"
    pack(ImageFolder(tree), tmp_path / "set", container="lmdb")
    makers = recipes.views()
    transforms = recipes.import_torchvision().transforms
    makers["darker"] = lambda: _Darker(transforms)
    makers["slow"] = lambda: transforms.Compose([transforms.RandomResizedCrop(9), str])
    monkeypatch.setattr(recipes, "known", lambda: makers)
    result = recipes.measure(("simclr", "darker", "slow"), tmp_path / "set", tree, **SMALL)
    done = result["recipes"]
    assert done["simclr"]["error"] == ""
    assert {name: len(turns) for name, turns in done["simclr"]["turns"].items()} == {
        "fastdata": 2,
        "torch": 2,
    }
    assert "the images' mean is" in done["darker"]["error"]
    assert "require_native" in done["slow"]["error"]
    assert recipes.ratio(result, "simclr", recipes.thrift) is not None
    assert recipes.ratio(result, "darker", recipes.thrift) is None
    assert [row[0] for row in recipes.figures(result).rows] == ["simclr", "darker", "slow"]
