"""The benchmark of many parts: a small run from end to end, and the page made of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from fastdata.benchmarks import pages, scale

from fastdata import ImageDataset, verify


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_small_run(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    arguments = [str(tmp_path / "made"), "--small", "--rounds=1", "--out", str(path)]
    found = CliRunner().invoke(scale.main, arguments)
    assert found.exit_code == 0, found.output
    result = json.loads(path.read_text())
    assert list(result["cases"]) == list(scale.SHAPES)
    for orders in result["cases"].values():
        for (run,) in orders.values():
            assert run["batch_bytes"] > 128 * result["image_bytes"]
    page = CliRunner().invoke(pages.main, ["scale", str(tmp_path)]).output
    for table in scale.figures(result):
        assert str(table) in page
    # What is measured are sound datasets, whose parts follow each other.
    made = tmp_path / "made" / "5-3-400"
    dataset = ImageDataset(made)
    assert len(dataset) == 6000
    assert dataset.row(1205).key == "0000/000005"
    assert verify(made / "part-000004", workers=1).problems == []
