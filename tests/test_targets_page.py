"""The examples of docs/targets.md run on made data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from annotated import write_coco, write_images, write_mask
from fastdata.converters import CocoImages, MaskedImages, pack
from torchvision_stub import import_torchvision

_PAGE = Path(__file__).parents[1] / "docs" / "targets.md"
_BLOCKS = re.findall(r"```python\n(.*?)```", _PAGE.read_text("utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("page")
    root = write_coco(found / "coco")
    files = sorted((root / "annotations").glob("*.json"))
    pack(CocoImages(root / "val2017", files), found / "boxes")
    write_images(found / "scenes-source" / "images", ["a.jpg", "b.jpg", "c.jpg"])
    for name in "abc":
        write_mask(found / "scenes-source" / "masks" / f"{name}.png")
    pack(MaskedImages(found / "scenes-source"), found / "scenes")
    return found


# An example skips an object without an outline.
@pytest.mark.filterwarnings("ignore:1 sample could not be decoded:UserWarning")
@pytest.mark.parametrize("number", range(len(_BLOCKS)))
def test_the_page_says_what_runs(
    folder: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_torchvision()
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    exec(_BLOCKS[number], names)
    assert names["loader"].explain().startswith("native")  # type: ignore[attr-defined]
