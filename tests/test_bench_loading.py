"""The loading benchmark: a small run from end to end, and the page made of it."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from containers import pack_tree
from jpegs import encode, picture

torch = pytest.importorskip("torch")

from fastdata.benchmarks import fields, kinds, loading, pages  # noqa: E402
from fastdata.benchmarks.adapters._transforms import random_resized_box  # noqa: E402

from fastdata import ImageDataset  # noqa: E402
from fastdata.errors import CorruptionError  # noqa: E402
from fastdata.transforms import RandomResizedCrop  # noqa: E402
from fastdata.transforms.compile import compile_recipe  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def packed(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench") / "lmdb"
    pack_tree(made_tree / "train", out, "lmdb", unit_size=None, seek_points=128)
    return out


def test_a_small_run(packed, tmp_path):
    arguments = ["--rounds=1", "--batch=8"]
    path = tmp_path / "loading.json"
    found = CliRunner().invoke(loading.main, [str(packed), *arguments, "--out", str(path)])
    assert found.exit_code == 0, found.output
    result = json.loads(path.read_text())
    assert result["samples"] == 64
    assert {len(values) for values in result["images_per_second"].values()} == {1}
    assert all(found[0] > 0 for found in result["images_per_second"].values())

    page = CliRunner().invoke(pages.main, ["loading", str(tmp_path)]).output
    for table in loading.figures(result):
        assert table.title in page
        assert str(table) in page


@pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")
def test_a_small_run_of_kinds(made_tree, tmp_path):
    path = tmp_path / "kinds.json"
    rewritten, *_ = kinds.REWRITTEN
    arguments = ["--images=16", "--threads=1", "--batch=4", "--rounds=1"]
    arguments += ["--kind=PNG", f"--kind={rewritten}"]
    root = str(made_tree / "train")
    found = CliRunner().invoke(kinds.main, [root, *arguments, "--out", str(path)])
    assert found.exit_code == 0, found.output
    result = json.loads(path.read_text())
    assert result["images"] == 16 and list(result["kinds"]) == ["PNG", rewritten]
    assert all(len(values) == 1 for values in result["kinds"]["PNG"]["cpu_milliseconds"].values())
    page = CliRunner().invoke(pages.main, ["kinds", str(tmp_path)]).output
    assert str(kinds.figures(result)) in page


def test_wrong_pixels_are_not_timed(packed):
    measured = loading.Loading(packed, 8)
    loading.verify(measured)
    # Of a loader that never flips:
    measured.program = compile_recipe(RandomResizedCrop(224)).programs[0]
    with pytest.raises(SystemExit, match="nothing was timed"):
        loading.verify(measured)


def test_too_large_a_batch_is_refused(packed):
    found = CliRunner().invoke(loading.main, [str(packed), "--batch", "64"])
    assert found.exit_code == 2
    assert "smaller --batch" in found.output


def test_the_transform_in_pillow_crops_as_torchvision_draws():
    uniform = random.Random(0).uniform
    boxes = np.array([random_resized_box(400, 300, uniform) for _ in range(500)])
    widths, heights = boxes[:, 2], boxes[:, 3]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + widths <= 400).all()
    assert (boxes[:, 1] + heights <= 300).all()
    share = widths * heights / (400 * 300)
    assert share.min() > 0.07
    assert 0.3 < share.mean() < 0.6
    assert (np.abs(np.log(widths / heights)) < np.log(4 / 3) + 0.05).all()


def test_a_dataset_with_holes_reads_as_the_one_it_is_made_from(tmp_path):
    images = [encode(picture(8, 8))] * 4096  # whole pieces of columns
    small = fields._pack(images, list(fields._TWO), tmp_path / "small", "parquet")
    fields.enlarge(small, tmp_path / "many", 10**6, 3)
    both = [
        ImageDataset(path, fields=("image", *fields._TWO, "key"))
        for path in (small, tmp_path / "many")
    ]
    assert [len(one) for one in both] == [4096, 10**6]
    for row in (0, 1, 2000, 4095):
        (image, *values), (other, *others) = (one[row] for one in both)
        assert image.tobytes() == other.tobytes() and values == others
    with pytest.raises(CorruptionError, match="damaged at row 4096"):
        both[1][4096]


@pytest.mark.parametrize("name", ["loading", "kinds", "pairs", "fields", "hugging-face-speed"])
def test_the_committed_page_is_of_the_committed_results(name, tmp_path):
    results = REPOSITORY / "docs" / "results"
    shutil.copy(results / f"{name}.json", tmp_path)
    page = CliRunner().invoke(pages.main, [name, str(tmp_path)]).output
    assert page == (REPOSITORY / "docs" / f"{name}.md").read_text()
