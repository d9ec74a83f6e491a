"""The loader benchmark orders, refuses and reports contenders as they are."""

from __future__ import annotations

import json
import random
import re
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from fastdata.benchmarks import contenders, data, figures, harness, plots
from fastdata.benchmarks.adapters._transforms import random_resized_box
from fastdata.benchmarks.contenders import Contender
from fastdata.benchmarks.pixels import PillowCheck
from fastdata.benchmarks.processes import ADAPTERS
from fastdata.converters.indexing import index
from PIL import Image
from sources import jpeg
from torchvision_stub import import_torchvision

from fastdata.cli.commands import cli
from fastdata.dataset import ImageDataset
from fastdata.errors import SlowPathWarning, UsageError

_ADAPTER = f"""
import sys, time, os
sys.path.insert(0, {str(ADAPTERS)!r})
import numpy as np
from PIL import Image
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
                yield image[None], np.array([label])

    return Loader()

serve(open_loader)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
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
    chosen = [Contender(variant, str(adapter), variant) for variant in variants]
    return of(chosen, tree, tmp_path, **options)


def of(
    chosen: list[Contender], tree: Path, tmp_path: Path, keep: Any = lambda _: None, **options: Any
) -> dict[str, Any]:
    settings: dict[str, Any] = {"seconds": 0.4, "warmup": 0.1, "rounds": 2, "batch_size": 1}
    where = harness.BenchmarkData(tmp_path / "work", tree=tree)
    about = harness.MeasureOptions(**settings | options)
    return harness.measure(chosen, where, about, PillowCheck(where.small), keep=keep)


def shown(result: dict[str, Any]) -> list[list[str]]:
    return figures.table(result, figures.LOADERS, sort=True).rows


def test_orders_a_slow_contender_behind(tree: Path, tmp_path: Path) -> None:
    result = measure(tree, tmp_path, "slow", "good")
    assert not figures.failures(result)
    assert [row[0] for row in shown(result)] == ["good", "slow"]
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
    assert figures.failures(result) == [f"{variant}: {bad['error']}"]
    assert shown(result)[-1][:2] == [variant, "failed"]


def test_an_image_that_pillow_refuses_is_named(tree: Path, tmp_path: Path) -> None:
    image = tree / "class0" / "0.jpg"
    image.write_bytes(image.read_bytes()[:900])
    (result,) = measure(tree, tmp_path, "good", rounds=1)["contenders"]
    assert str(image) in result["error"]


def test_pixels_are_bounded_for_each_image_and_on_average(tree: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter.py"
    adapter.write_text(_ADAPTER)
    dim = Contender("dim", str(adapter), "dim", tolerance=50.0)
    for mean, reason in ((None, ""), (1.0, "on average"), (50.0, "")):
        chosen = [replace(dim, mean_tolerance=mean)]
        (found,) = of(chosen, tree, tmp_path, seconds=0.1, warmup=0, rounds=1)["contenders"]
        assert (reason in found["error"]) and bool(found["error"]) == bool(reason)
        if not reason:
            checked = found["checks"][""]
            assert 1.0 < checked["mean_difference"] <= checked["difference"] < 50.0


def test_results_are_kept_after_each_round(tree: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter.py"
    adapter.write_text(_ADAPTER)
    kept: list[int] = []

    def keep(result: dict[str, Any]) -> None:
        kept.append(len(result["contenders"][0]["runs"]))

    chosen = [Contender("good", str(adapter), "good")]
    of(chosen, tree, tmp_path, keep, seconds=0.1, warmup=0)
    assert kept == [1, 2]


def _results(**rates: list[float]) -> dict[str, Any]:
    """Results as the benchmark would give them, of so many images a second in each round."""
    about = {"case": "", "threads": 2, "seconds": 1.0, "cpu_s": 2.0}
    return {
        "workload": "loaders",
        "contenders": [
            {
                "name": name,
                "error": "",
                "runs": [about | {"round": n, "images": one} for n, one in enumerate(several)],
            }
            for name, several in rates.items()
        ],
    }


def test_ratios_are_taken_round_by_round() -> None:
    result = _results(ours=[800.0, 400.0, 900.0], theirs=[100.0, 200.0, 100.0])
    columns = ("beside", "images/s", "times", "by CPU time", "private, MB")
    found = figures.table(result, columns, against="theirs")
    assert found.columns == [
        "contender",
        "theirs, images/s",
        "images/s",
        "times theirs",
        "by CPU time",
    ]
    assert found.rows == [["ours", "100", "800", "8.0 (2.0 to 9.0)", "8.0"]]


def test_a_hanging_contender_is_killed(tree: Path, tmp_path: Path) -> None:
    (bad,) = measure(tree, tmp_path, "hang", timeout=3)["contenders"]
    assert "hung" in bad["error"] and not bad["runs"]


def test_json_to_plot(tree: Path, tmp_path: Path) -> None:
    result = measure(tree, tmp_path, "good", threads=(1, 2), rounds=1)
    path = tmp_path / "bench.json"
    harness.save(result, path)
    assert harness.load(path) == json.loads(path.read_text())
    (bars,) = re.findall("<desc>(.*)</desc>", plots.loaders(harness.load(path)))
    assert bars.startswith("images a second, 2 threads. good: ")


def test_fastdata_and_torch_end_to_end(tree: Path, tmp_path: Path) -> None:
    options = ["--threads", "1", "--seconds", "0.3", "--rounds", "1"]
    command = ["bench", "--tree", str(tree), "--work", str(tmp_path / "work"), "--ways", "lmdb"]
    out = tmp_path / "out.json"
    plot = tmp_path / "out.svg"
    command += ["--against", "torch-uint8", "--batch-size", "4", "--out", str(out), *options]
    command += ["--plot", str(plot)]
    done = CliRunner().invoke(cli, [*command, "--json"])
    assert done.exit_code == 0, done.output
    result = harness.load(out)
    assert json.loads(done.stdout) == result
    assert [c["name"] for c in result["contenders"]] == ["fastdata-lmdb", "torch-uint8"]
    assert result["options"]["warmup"] == 0.3
    assert all(len(c["runs"]) == 1 for c in result["contenders"])
    named = {node.text for node in ElementTree.parse(plot).iter() if node.tag.endswith("text")}
    assert {"fastdata, JPEGs as they are", "torch, Pillow"} <= named


def test_says_what_is_missing(tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["bench"]).exit_code == 2
    refused = CliRunner().invoke(cli, ["bench", "gs://bucket/dataset"])
    assert refused.exit_code == 2 and "is a URL" in refused.output
    refused = CliRunner().invoke(cli, ["bench", "--tree", str(tmp_path), "--plot", "out.png"])
    assert refused.exit_code == 2 and "out.png: plots are SVG files" in refused.output
    (tmp_path / "bench.json").write_text("[]")
    with pytest.raises(UsageError):
        harness.load(tmp_path / "bench.json")


def test_says_which_peers_are_left_out_and_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FASTDATA_BENCH_ENVIRONMENTS", str(tmp_path))
    unfinished = tmp_path / "ffcv" / "bin" / "python"  # of a build that failed
    unfinished.parent.mkdir(parents=True)
    unfinished.touch()
    names = {peer.name for peer in contenders.choose(None, contenders.PEERS)}
    said = capsys.readouterr().err
    assert "ffcv-raw" not in names and "make bench-peers PEERS=ffcv" in said
    assert {peer.name for peer in contenders.PEERS} - names <= set(re.findall(r"[\w-]+", said))
    with pytest.raises(UsageError, match="make bench-peers PEERS=ffcv"):
        contenders.choose(["ffcv"], contenders.PEERS)


def test_indexes_in_place_and_datasets_without_labels(tmp_path: Path) -> None:
    images = [jpeg(seed) for seed in range(12)]
    pq.write_table(pa.table({"image": images, "caption": ["x"] * 12}), tmp_path / "a.parquet")
    (tmp_path / "shards").mkdir()
    for number in range(2):
        (tmp_path / "0.jpg").write_bytes(images[number])
        with tarfile.open(tmp_path / f"shards/{number}.tar", "w") as tar:
            tar.add(tmp_path / "0.jpg", f"{number}.jpg")
    index(tmp_path / "shards", tmp_path / "parts", part_files=1, workers=1)
    chosen = contenders.of_dataset(ImageDataset(tmp_path / "parts").manifest)
    assert [one.name for one in chosen] == ["fastdata-archives", "torch"]
    index(tmp_path / "a.parquet", tmp_path / "tables", workers=1)
    given = ["--seconds", "0.2", "--rounds", "1", "--threads", "1", "--json"]
    with pytest.warns(SlowPathWarning):  # its columns are compressed
        done = CliRunner().invoke(cli, ["bench", str(tmp_path / "tables"), *given])
    assert done.exit_code == 0, done.output
    ours, torchs = json.loads(done.stdout)["contenders"]
    assert ours["name"] == "fastdata-tables" and ours["samples"] == torchs["samples"] == 12
    assert len(ours["runs"]) == len(torchs["runs"]) == 1


def test_peers_read_the_files_that_torchvision_reads(tmp_path: Path) -> None:
    for number, name in enumerate(("b/0.png", "b/deep/1.JPEG", "b/a/2.jpg", "a/3.bmp", "b/x.txt")):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("txt"):
            path.touch()
        else:
            Image.radial_gradient("L").resize((240 + number, 250)).save(path)
    tv = import_torchvision()
    listed = data.listing(tmp_path / "photos")
    assert listed == tv.datasets.ImageFolder(tmp_path / "photos").samples and len(listed) == 4


@pytest.mark.slow
def test_ctrl_c_shows_what_is_finished(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(harness._Measurement):
        def measure(self, contender: Contender, *given: Any) -> None:
            if contender.name == "torch-uint8":
                raise KeyboardInterrupt
            super().measure(contender, *given)

    monkeypatch.setattr(harness, "_Measurement", Stopped)
    given = ["--seconds", "0.1", "--warmup", "0", "--threads", "1", "--batch-size", "2"]
    done = CliRunner().invoke(cli, ["bench", str(tree), *given])
    assert done.exit_code == 130
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["fastdata-imagefolder"]


def test_small_classes_leave_as_many_images_to_check(tmp_path: Path) -> None:
    for classes, images in ((60, 1), (2, 30), (9, 6)):
        tree = tmp_path / f"{classes}"
        for number in range(classes * images):
            path = tree / f"class{number % classes:02}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        small = data.small_tree(tree, tmp_path / "small", 48)
        labels = {label for _, label in data.listing(small)}
        assert len(data.listing(small)) == 48 and len(labels) == min(classes, max(8, 48 // images))


def test_filling_the_page_cache_reads_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3 << 20))
    (tmp_path / "link").symlink_to(tmp_path / "file")

    def read() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("rchar")).split()[1])

    before = read()
    assert data.fill(tmp_path)
    assert 3 << 20 <= read() - before < 4 << 20


def test_the_crop_in_pillow_is_drawn_as_torchvision_draws() -> None:
    uniform = random.Random(0).uniform
    boxes = np.array([random_resized_box(400, 300, uniform) for _ in range(500)])
    widths, heights = boxes[:, 2], boxes[:, 3]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + widths <= 400).all() and (boxes[:, 1] + heights <= 300).all()
    share = widths * heights / (400 * 300)
    assert share.min() > 0.07 and 0.3 < share.mean() < 0.6
    assert (np.abs(np.log(widths / heights)) < np.log(4 / 3) + 0.05).all()
