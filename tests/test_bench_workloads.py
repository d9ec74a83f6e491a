"""Each workload runs from end to end, and the page is made of the committed results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pillow_operations
import pytest
from hangs import HANG
from PIL import Image

pytest.importorskip("torch")
if not find_spec("torchvision"):
    pytest.skip("no torchvision", allow_module_level=True)

_REPOSITORY = Path(__file__).resolve().parents[1]
_WORKLOADS = _REPOSITORY / "benchmarks" / "workloads"
_SMALL = ["--seconds=0.1", "--warmup=0", "--rounds=1", "--threads=1", "--batch-size=4"]

#: Options that make a workload small, and modules that it needs.
_RUNS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "buckets": ([], ()),
    "hugging_face": (
        ["--case=shuffled", "--contender=torch", "--contender=fastdata"],
        ("datasets",),
    ),
    "in_place": (["--contender=webdataset", "--contender=in place"], ("webdataset",)),
    "kinds": (["--case=progressive JPEG"], ()),
    "packing": (
        ["--contender=tar, sync", "--contender=shards", "--contender=index of tars"],
        ("webdataset",),
    ),
    "pairs": ([], ("open_clip", "open_clip_train", "webdataset")),
    "remote": (["--case=nginx, random order"], ()),
    "request_rates": (
        ["--contender=ranges, default order", "--contender=cache folder, random order"],
        (),
    ),
    "scale": (["--case=five parts"], ("webdataset",)),
    "stored": (["--contender=pixels ≤ 256", "--contender=JPEGs as they are"], ()),
    "targets": (["--case=D-FINE, default"], ()),
}


def run(name: str, tree: Path, out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(_WORKLOADS), name, f"--tree={tree}", f"--work={out}"]
    done = subprocess.run(
        [*command, f"--out={out}", *_SMALL, *options],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        env={**os.environ, "FASTDATA_SCALE": "small", "FASTDATA_DEVICE": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    return result


@pytest.fixture(scope="module")
def tree(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for number, path in enumerate(sorted((made_tree / "train").glob("*/*.JPEG"))[:16]):
        target = root / f"class{number % 4}" / f"{number}.jpg"
        target.parent.mkdir(exist_ok=True)
        with Image.open(path) as image:  # batches of random crops hold on to no odd kinds
            image.convert("RGB").resize((96, 80 + number)).save(target, quality=90)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", _RUNS)
def test_a_small_run(name: str, tree: Path, tmp_path: Path) -> None:
    options, needs = _RUNS[name]
    if name == "remote" and not shutil.which("nginx"):
        pytest.skip("no nginx")
    for module in needs:
        pytest.importorskip(module)
    result = run(name, tree, tmp_path, *options)
    assert result["workload"] == name and len(result["contenders"]) > 1
    for contender in result["contenders"]:
        assert not contender["error"] and contender["runs"], contender["name"]
        for figures in contender["runs"]:
            figures.pop("client_cpu_s", None)  # a difference, and so small that it may be negative
            assert all(value >= 0 for value in figures.values() if isinstance(value, float))


@pytest.mark.slow
def test_wrong_batches_are_not_timed(tree: Path, tmp_path: Path) -> None:
    """Of a contender whose images are darker than the first one's."""
    for path in _WORKLOADS.glob("*.py"):
        shutil.copy(path, tmp_path)
    text = (tmp_path / "stored.py").read_text().replace('check="",', "")
    (tmp_path / "stored.py").write_text(text.replace('("jpeg", 256)', '("jpeg", 40)'))
    command = [sys.executable, str(tmp_path), "stored", f"--tree={tree}", f"--work={tmp_path}"]
    command += ["--contender=JPEGs as they are", "--contender=JPEGs ≤ 256", *_SMALL]
    done = subprocess.run(
        [*command, f"--out={tmp_path}"], capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 1
    good, bad = json.loads((tmp_path / "stored.json").read_text())["contenders"]
    assert good["runs"] and not bad["runs"] and "wrong pixels" in bad["error"]


def test_an_unknown_contender_is_no_empty_run(tmp_path: Path) -> None:
    command = [sys.executable, str(_WORKLOADS), "kinds", f"--tree={tmp_path}", "--contender=torhc"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 2 and "torhc" in done.stderr and "fastdata" in done.stderr


def test_the_committed_page_is_of_the_committed_results(tmp_path: Path) -> None:
    results = _REPOSITORY / "docs" / "results"
    for path in results.glob("*.json"):
        shutil.copy(path, tmp_path)
    command = [sys.executable, str(_WORKLOADS), "page", str(tmp_path)]
    page = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=True).stdout
    assert page == (_REPOSITORY / "docs" / "benchmarks.md").read_text()
    drawn = list(tmp_path.glob("*.svg"))
    assert len(drawn) == 2
    for path in drawn:
        assert path.read_text() == (results / path.name).read_text(), path.name


def test_the_core_and_the_tests_oracle_do_what_torchvision_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(_WORKLOADS)
    import operations
    from fastdata.benchmarks.adapters._torchvision import import_torchvision

    from fastdata import _native

    import_torchvision()
    pixels, before = operations.picture(97), _native.simd()
    for level in _native.simd_levels():
        operations.check(level, pixels, operations.operations(97))
    _native.set_simd(before)
    for name, case in operations.operations(97).items():
        torchvisions = np.asarray(case.run(Image.fromarray(pixels))).astype(int)
        oracles = pillow_operations.apply(pixels, case.operation, case.values)
        assert np.abs(torchvisions - oracles).max() <= case.within, name
    wrong = {"brightness": operations.operations(97)["brightness"]._replace(values=[1.31])}
    with pytest.raises(RuntimeError, match="brightness"):
        operations.check(before, pixels, wrong)
    _native.set_simd(before)
