"""The loading benchmark: a small run from end to end, and the page made of it."""

from __future__ import annotations

import gc
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

from fastdata.benchmarks import fields, in_place, indexing, kinds, loading, pages  # noqa: E402
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


def test_a_small_run_in_place(made_tree, tmp_path):
    pytest.importorskip("webdataset")
    root = str(made_tree / "train")
    arguments = ["--images=24", "--threads=1", "--batch=4", "--batches=2", "--rounds=1"]
    out = ["--out", str(tmp_path / "in-place-speed.json")]
    found = CliRunner().invoke(in_place.main, [root, *arguments, *out])
    assert found.exit_code == 0, found.output
    result = json.loads((tmp_path / "in-place-speed.json").read_text())
    assert result["images"] == 24
    assert [turns[0][0] for turns in result["turns"].values()] == [8, 64, 64]

    out = ["--out", str(tmp_path / "indexing.json"), "--folder", str(tmp_path)]
    found = CliRunner().invoke(indexing.main, [root, "--shards=3", "--rows=20", *out])
    assert found.exit_code == 0, found.output
    indexed = json.loads((tmp_path / "indexing.json").read_text())
    assert indexed["samples"] == 60 and len(indexed["runs"]) == 1

    page = CliRunner().invoke(pages.main, ["in-place-speed", str(tmp_path)]).output
    for table in (*in_place.figures(result), indexing.figures(indexed)):
        assert str(table) in page


# webdataset leaves its last tar to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tars_made_for_benchmarks_read_as_webdataset_reads_them(made_tree, tmp_path):
    webdataset = pytest.importorskip("webdataset")
    in_place.write(made_tree / "train", 10, tmp_path / "tars", 2)
    tars = [str(path) for path in sorted((tmp_path / "tars").iterdir())]
    read = {one["__key__"]: one for one in webdataset.WebDataset(tars, shardshuffle=False)}
    gc.collect()
    files = in_place.listing(made_tree / "train")
    chosen = files[:: len(files) // 10][:10]
    assert len(read) == 10
    for number, (path, label) in enumerate(chosen):
        sample = read[f"{number:09}"]
        assert sample["jpg"] == Path(path).read_bytes()
        assert int(sample["cls"]) == json.loads(sample["json"])["label"] == label


def test_another_index_is_not_timed(made_tree, tmp_path):
    pytest.importorskip("webdataset")
    indexes = []
    for images in (8, 12):
        tars = tmp_path / f"tars-{images}"
        in_place.write(made_tree / "train", images, tars, 1)
        indexes.append(tmp_path / f"index-{images}")
        in_place.index(tars, indexes[-1], workers=1)
    loaders = in_place.Loaders(tars, indexes[1], indexes[0], 4, 1)
    with pytest.raises(SystemExit, match="packed: other keys or labels; nothing was timed"):
        loaders.check()


@pytest.mark.parametrize(
    "name", ["loading", "kinds", "pairs", "hugging-face-speed", "in-place-speed"]
)
def test_the_committed_page_is_of_the_committed_results(name, tmp_path):
    results = REPOSITORY / "docs" / "results"
    for path in results.glob("*.json"):
        shutil.copy(path, tmp_path)
    page = CliRunner().invoke(pages.main, [name, str(tmp_path)]).output
    assert page == (REPOSITORY / "docs" / f"{name}.md").read_text()
