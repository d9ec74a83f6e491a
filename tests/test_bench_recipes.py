"""People's own recipes beside torch's loader: what is timed, and what is not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import recipe_makers
from click.testing import CliRunner
from fastdata.benchmarks import recipes
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.packing import pack

from fastdata.errors import UsageError
from fastdata.transforms import Views

if find_spec("torchvision") is None:
    pytest.skip("no torchvision", allow_module_level=True)

SMALL: dict[str, Any] = {"threads": 1, "batch": 8, "batches": 2, "rounds": 2}


MOCO = "MoCo v2, 2 views"


class _Original(NamedTuple):
    """Its own pixels are not those that fastdata makes for it."""

    recipe: Any
    then: Callable[[Any], Any]

    def __call__(self, image: Any) -> list[Any]:
        return [self.then(view) for view in self.recipe(image)]

    def __fastdata__(self) -> Views:
        return Views(self.recipe.base_transform, count=2)


def _darker(view: Any) -> Any:
    return view - 9


def _failing(view: Any) -> Any:
    raise ZeroDivisionError("no such image")


def _absent() -> Any:
    raise ImportError("no module of that name")


def test_only_what_is_the_originals_is_timed_and_the_others_say_why(
    made_tree: Path, tmp_path: Path
) -> None:
    tree = made_tree / "train"
    pack(ImageFolder(tree), tmp_path / "set", container="lmdb")
    tv = recipes.import_torchvision().transforms
    moco = recipe_makers.recipes()[MOCO]
    makers: dict[str, Callable[[], Any]] = {"absent": _absent}
    makers["darker"] = lambda: _Original(moco(), _darker)
    makers["slow"] = lambda: tv.Compose([tv.RandomResizedCrop(9), str])
    makers["fails"] = lambda: _Original(moco(), _failing)
    makers[MOCO] = moco
    result = recipes.measure(makers, tmp_path / "set", tree, **SMALL)
    done = result["recipes"]
    assert done[MOCO]["error"] == ""
    assert {name: len(turns) for name, turns in done[MOCO]["turns"].items()} == {
        "fastdata": 2,
        "torch": 2,
    }
    assert done["absent"]["error"] == "it cannot be made: ImportError: no module of that name"
    assert "the images' mean is" in done["darker"]["error"]
    assert "require_native" in done["slow"]["error"]
    assert done["fails"]["error"] == "the original fails: ZeroDivisionError: no such image"
    assert recipes.ratio(result, MOCO, recipes.thrift) is not None
    assert recipes.ratio(result, "darker", recipes.thrift) is None
    assert [row[0] for row in recipes.figures(result).rows] == list(makers)


def test_a_run_that_was_cut_off_goes_on_with_what_its_file_lacks(
    made_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, file = made_tree / "train", tmp_path / "recipes.json"
    pack(ImageFolder(tree), tmp_path / "set", container="lmdb")
    makers = {"absent": _absent}
    monkeypatch.setattr(recipes, "makers_of", lambda path: makers)
    command = [str(tmp_path / "set"), str(tree), "--out", str(file)]
    assert CliRunner().invoke(recipes.main, command).exit_code == 0
    (row,) = json.loads(file.read_text())["recipes"].values()
    row["error"] = "as it was"
    kept = json.loads(file.read_text()) | {"recipes": {"absent": row}}
    file.write_text(json.dumps(kept))
    makers["another"] = _absent
    assert CliRunner().invoke(recipes.main, command).exit_code == 0
    rows = json.loads(file.read_text())["recipes"]
    assert list(rows) == ["absent", "another"] and rows["absent"]["error"] == "as it was"
    refused = CliRunner().invoke(recipes.main, [*command, "--batch", "7"])
    assert refused.exit_code == 2 and "name another file" in refused.output


def test_recipes_come_from_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    own = tmp_path / "own_recipes.py"
    own.write_text("recipes = lambda: {'plain': str}")
    assert recipes.makers_of(own) == {"plain": str}
    other = tmp_path / "no_recipes.py"
    other.write_text("")
    with pytest.raises(UsageError, match=r"no_recipes\.py: has no function recipes"):
        recipes.makers_of(other)
