"""The loader benchmark orders, refuses and reports contenders as they are."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from fastdata.benchmarks import bench, bench_figures, contenders, pages, plots
from fastdata.benchmarks.contenders import ADAPTERS, Contender
from fastdata.benchmarks.measure import save
from fastdata.converters.indexing import index
from PIL import Image
from sources import jpeg

from fastdata.cli import cli
from fastdata.errors import SlowPathWarning, UsageError

_TORCHVISION = pytest.mark.skipif(not find_spec("torchvision"), reason="no torchvision")
_REPOSITORY = Path(__file__).resolve().parents[1]

_ADAPTER = f"""
import sys, time, os
sys.path.insert(0, {str(ADAPTERS)!r})
import numpy as np
from PIL import Image
from _recipes import MEAN, STD
from _serve import serve
from _transforms import image_folder, val_crop

def open_loader(request):
    files = image_folder(request.data)
    if request.variant == "hang":
        time.sleep(60)
    if request.variant == "crash":
        raise RuntimeError("out of luck")
    if request.variant == "killed":
        os.kill(os.getpid(), 9)

    class Loader:
        def __iter__(self):
            for path, label in files:
                print("noise on stdout")
                image = np.asarray(val_crop(Image.open(path).convert("RGB"), request.size))
                if request.variant == "pixels":
                    image = np.roll(image, 30, 1)
                if request.variant == "dim":
                    image = (image * 0.95).astype(np.uint8)
                if request.variant == "labels":
                    label = 0
                if request.variant == "late" and not request.check:
                    image = image[:8]
                if request.variant == "slow":
                    time.sleep(0.3)
                if request.recipe:
                    image = ((image / 255 - MEAN) / STD).astype(np.float32).transpose(2, 0, 1)
                yield image[None], np.array([label])

    return Loader()

serve(open_loader)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Twelve small images in three classes."""
    root = tmp_path / "tree"
    for number in range(12):
        folder = root / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.radial_gradient("L").resize((240 + number, 250)).convert("RGB")
        image.save(folder / f"{number}.jpg")
    return root


def measure(tree: Path, tmp_path: Path, *variants: str, **options: Any) -> dict[str, Any]:
    adapter = tmp_path / "adapter.py"
    adapter.write_text(_ADAPTER)
    contenders = [Contender(variant, str(adapter), variant) for variant in variants]
    settings: dict[str, Any] = {"seconds": 0.4, "warmup": 0.1, "rounds": 2, "batch_size": 1}
    data = bench.Data(tmp_path / "work", tree=tree)
    return bench.bench(contenders, data, bench.Options(**settings | options), tmp_path)


def test_orders_a_slow_contender_behind(tree: Path, tmp_path: Path) -> None:
    result = measure(tree, tmp_path, "slow", "good")
    assert not bench_figures.failures(result)
    assert [row[0] for row in bench_figures.figures(result).rows] == ["good", "slow"]
    slow, good = result["contenders"]
    assert [run["round"] for run in good["runs"]] == [0, 1]
    for run in slow["runs"]:
        assert run["images"] / run["seconds"] < 1 / 0.3
        assert run["first_s"] >= 0.3


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ("pixels", "wrong pixels"),
        ("labels", "wrong labels"),
        ("crash", "out of luck"),
        ("killed", "SIGKILL"),
        ("late", "when timed"),
    ],
)
def test_refuses_and_says_why(tree: Path, tmp_path: Path, variant: str, reason: str) -> None:
    result = measure(tree, tmp_path, variant, "good", rounds=1)
    bad, good = result["contenders"]
    assert reason in bad["error"] and not bad["runs"]
    assert good["runs"] and not good["error"]
    assert bench_figures.failures(result) == [f"{variant}: {bad['error']}"]
    assert bench_figures.figures(result).rows[-1][:3] == [variant, "", "failed"]


def test_pixels_are_bounded_for_each_image_and_on_average(tree: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter.py"
    adapter.write_text(_ADAPTER)
    options = bench.Options(seconds=0.1, warmup=0, rounds=1, batch_size=1)
    dim = Contender("dim", str(adapter), "dim", tolerance=50.0)
    for mean, reason in ((None, ""), (1.0, "on average"), (50.0, "")):
        contenders = [replace(dim, mean_tolerance=mean)]
        data = bench.Data(tmp_path / "work", tree=tree)
        (found,) = bench.bench(contenders, data, options, tmp_path)["contenders"]
        assert (reason in found["error"]) and bool(found["error"]) == bool(reason)
        assert reason or 1.0 < found["mean_difference"] <= found["difference"] < 50.0


def test_results_are_kept_after_each_round(tree: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter.py"
    adapter.write_text(_ADAPTER)
    kept: list[int] = []
    bench.bench(
        [Contender("good", str(adapter), "good")],
        bench.Data(tmp_path / "work", tree=tree),
        bench.Options(seconds=0.1, warmup=0, rounds=2, batch_size=1),
        tmp_path,
        lambda result: kept.append(len(result["contenders"][0]["runs"])),
    )
    assert kept == [1, 2]


def _results(**rates: float) -> dict[str, Any]:
    """Results as the benchmark would give them, of so many images a second."""
    run = {"threads": 2, "seconds": 1.0, "first_s": 0.5, "import_s": 1.0, "cpu_s": 2.0}
    run |= {"bytes_read": 0, "peak_private_bytes": 10**8, "versions": {}, "round": 0}
    contenders = [
        {
            "name": name.replace("_", "-"),
            "error": "",
            "data_bytes": 10,
            "samples": 1,
            "runs": [run | {"images": rate}],
        }
        for name, rate in rates.items()
    ]
    return {"contenders": contenders}


def test_ratios_are_of_the_contenders_that_were_measured() -> None:
    result = _results(fastdata_lmdb=800.0, torch_uint8=90.0, dali_cpu=200.0)
    rows = bench_figures.ratios(result).rows
    assert [row[0].partition(": ")[0] for row in rows] == [
        "fastdata (LMDB) vs torch (uint8)",
        "fastdata (LMDB) vs DALI (CPU)",
    ]
    assert [row[1] for row in rows] == ["8.89 (8.89 to 8.89)", "4.00 (4.00 to 4.00)"]


def test_every_measure_in_which_a_peer_is_ahead_is_listed() -> None:
    result = _results(fastdata_lmdb=800.0, ffcv_500=900.0, torch_uint8=90.0, ffcv_raw=2000.0)
    torch = result["contenders"][2]["runs"][0]
    torch["peak_private_bytes"] = 10**7
    rows = bench_figures.losses(result).rows
    assert ["images/s, threads: 2", "fastdata-lmdb", "ffcv-500", "800", "900"] in rows
    assert ["private MB, threads: 2", "fastdata-lmdb", "torch-uint8", "100", "10"] in rows
    assert not [row for row in rows if row[2] == "ffcv-raw"]  # pixels stand beside pixels


def test_the_committed_page_is_of_the_committed_results(tmp_path: Path) -> None:
    results = _REPOSITORY / "docs" / "results"
    for path in (*results.glob("*.json"), results / "bench-notes.md"):
        shutil.copy(path, tmp_path)
    made = CliRunner().invoke(pages.main, ["benchmarks", str(tmp_path)])
    assert made.output == (_REPOSITORY / "docs" / "benchmarks.md").read_text()
    plots_made = list(tmp_path.glob("*.svg"))
    assert plots_made
    for path in plots_made:
        assert path.read_text() == (results / path.name).read_text(), path.name


def test_a_hanging_contender_is_killed(tree: Path, tmp_path: Path) -> None:
    (bad,) = measure(tree, tmp_path, "hang", timeout=3)["contenders"]
    assert "hung" in bad["error"] and not bad["runs"]


def test_json_to_table_plot_and_page(tree: Path, tmp_path: Path) -> None:
    result = measure(tree, tmp_path, "good", threads=(1, 2), rounds=1)
    path = tmp_path / "bench.json"
    save(result, path)
    assert bench.load(path) == json.loads(path.read_text())
    (bars,) = re.findall("<desc>(.*)</desc>", plots.loaders(bench.load(path)))
    assert bars.startswith("images a second, 2 threads. good: ")
    page = CliRunner().invoke(pages.main, ["benchmarks", str(tmp_path)])
    assert page.exit_code == 0 and "| good | 1 |" in page.output


def test_fastdata_and_torch_end_to_end(tree: Path, tmp_path: Path) -> None:
    options = ["--threads", "1", "--seconds", "0.3", "--rounds", "1"]
    command = ["bench", "--tree", str(tree), "--work", str(tmp_path / "work"), "--ways", "lmdb"]
    out = tmp_path / "out.json"
    plot = tmp_path / "out.svg"
    command += ["--against", "torch-uint8", "--batch-size", "4", "--out", str(out), *options]
    command += ["--plot", str(plot)]
    done = CliRunner().invoke(cli, [*command, "--json"])
    assert done.exit_code == 0, done.output
    result = bench.load(out)
    assert json.loads(done.stdout) == result
    assert [c["name"] for c in result["contenders"]] == ["fastdata-lmdb", "torch-uint8"]
    assert result["options"]["warmup"] == 0.3
    assert all(len(c["runs"]) == 1 for c in result["contenders"])
    named = {node.text for node in ElementTree.parse(plot).iter() if node.tag.endswith("text")}
    assert {"fastdata, JPEGs as they are", "torch, Pillow"} <= named


@_TORCHVISION
def test_what_leaves_the_augmentation_out_is_refused(tree: Path, tmp_path: Path) -> None:
    result = measure(tree, tmp_path, "plain", recipes=("none", "colorjitter"), rounds=1)
    (plain,) = result["contenders"]
    assert "wrong augmentation: it changes images by 0." in plain["error"] and not plain["runs"]
    for table in bench_figures.tables(result):
        assert [row[:3] for row in table.rows] == [["plain", "", "failed"]]


@_TORCHVISION
def test_recipes_end_to_end(made_tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "recipes.json"
    command = ["bench", "--tree", str(made_tree / "train"), "--work", str(tmp_path / "work")]
    command += ["--ways", "imagefolder", "--against", "torch-v2", "--recipe", "colorjitter"]
    command += ["--threads", "1", "--seconds", "0.2", "--warmup", "0", "--rounds", "1"]
    done = CliRunner().invoke(cli, [*command, "--batch-size", "16", "--out", str(out)])
    assert done.exit_code == 0, done.output
    (table,) = bench_figures.tables(bench.load(out))
    ours, theirs = sorted(table.rows)
    assert [ours[0], theirs[0]] == ["fastdata-imagefolder", "torch-v2"]
    assert all(float(row[5].replace(",", "")) > 0 for row in table.rows)  # the ceilings
    assert ours[7:] == ["", ""] and "(" in theirs[7] and "(" in theirs[8]
    shutil.copy(_REPOSITORY / "docs" / "results" / "augment.json", tmp_path)
    page = CliRunner().invoke(pages.main, ["augmentations", str(tmp_path)])
    assert page.exit_code == 0 and str(table) in page.output


def test_a_contender_without_recipes_is_refused(tree: Path) -> None:
    command = ["bench", "--tree", str(tree), "--ways", "lmdb", "--recipe", "simclr"]
    done = CliRunner().invoke(cli, [*command, "--against", "torch-lmdb"])
    assert done.exit_code == 2 and "it has no recipes" in done.output


def test_says_what_is_missing(tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["bench"]).exit_code == 2
    refused = CliRunner().invoke(cli, ["bench", "gs://bucket/dataset"])
    assert refused.exit_code == 2 and "is a URL" in refused.output
    refused = CliRunner().invoke(cli, ["bench", "--tree", str(tmp_path), "--plot", "out.png"])
    assert refused.exit_code == 2 and "out.png: plots are SVG files" in refused.output
    (tmp_path / "bench.json").write_text("[]")
    with pytest.raises(UsageError, match="no results of the loader benchmark"):
        bench.load(tmp_path / "bench.json")


def test_indexes_in_place_and_datasets_without_labels(tmp_path: Path) -> None:
    images = [jpeg(seed) for seed in range(12)]
    pq.write_table(pa.table({"image": images, "caption": ["x"] * 12}), tmp_path / "a.parquet")
    (tmp_path / "shards").mkdir()
    for number in range(2):
        (tmp_path / "0.jpg").write_bytes(images[number])
        with tarfile.open(tmp_path / f"shards/{number}.tar", "w") as tar:
            tar.add(tmp_path / "0.jpg", f"{number}.jpg")
    index(tmp_path / "shards", tmp_path / "parts", part_files=1, workers=1)
    chosen = bench.container_contender(tmp_path / "parts", contenders.FASTDATA)
    assert chosen.name == "fastdata-archives"
    index(tmp_path / "a.parquet", tmp_path / "tables", workers=1)
    given = ["--seconds", "0.2", "--rounds", "1", "--threads", "1", "--json"]
    with pytest.warns(SlowPathWarning):  # its columns are compressed
        done = CliRunner().invoke(cli, ["bench", str(tmp_path / "tables"), *given])
    assert done.exit_code == 0, done.output
    [found] = json.loads(done.stdout)["contenders"]
    assert found["name"] == "fastdata-tables" and found["samples"] == 12
