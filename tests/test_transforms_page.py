"""docs/transforms.md is what the compiler says, of every transform that torchvision has."""

from __future__ import annotations

from pathlib import Path

from torchvision_stub import import_torchvision
from transforms_page import names, page

PAGE = Path(__file__).parents[1] / "docs" / "transforms.md"


def test_the_page_is_what_the_code_says() -> None:
    command = "python tests/transforms_page.py > docs/transforms.md"
    assert PAGE.read_text() == page(), f"run {command}"


def test_every_transform_of_torchvision_is_on_the_page() -> None:
    torchvision = import_torchvision()
    rows = PAGE.read_text().splitlines()
    for version, tv in ((1, torchvision.transforms), (2, torchvision.transforms.v2)):
        found = names(tv, version)
        assert len(found) > 35
        for name in found:
            assert sum(row.startswith(f"| `{name}` | v{version} |") for row in rows) == 1
