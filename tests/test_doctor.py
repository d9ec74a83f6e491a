"""fastdata doctor on real datasets, some of them made slow."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from containers import pack_tree
from fastdata.converters.indexing import index
from jpegs import encode, picture
from loader_data import CONTAINERS, CROPS, as_file, dataset, images, tree
from tiers import slow
from torchvision_stub import import_torchvision

from fastdata import ImageDataset, stage
from fastdata.cli.commands import cli
from fastdata.doctor import diagnose, judge, report
from fastdata.errors import DataError, DatasetError, UsageError
from fastdata.maintenance.seek_points import add_seek_points
from fastdata.transforms import Compose, Normalize, RandomResizedCrop, Views

_TESTS = Path(__file__).resolve().parent


def codes(diagnosis: Any) -> list[str]:
    return [advice.code for advice in diagnosis.verdict.advice]


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastdata", "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def folder_of(root: Path, files: list[tuple[str, bytes]]) -> Path:
    for name, data in files:
        path = root / "class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


# What is made slow.


@pytest.fixture(scope="module")
def slow_reads(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that makes reads of $SLOW_FOLDER take $SLOW_US microseconds more."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("slow") / "slow_reads.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(_TESTS / "slow_reads.c")]
    subprocess.run([*command, "-ldl"], check=True)
    return str(library)


@pytest.fixture(scope="module")
def sample(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sample") / "lmdb"
    pack_tree(made_tree / "train", out, "lmdb", seek_points=False)
    return out


@pytest.mark.slow
def test_slow_reads_limit_until_the_dataset_is_staged(
    slow_reads: str, sample: Path, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    shutil.copytree(sample, path)
    place = Path(os.environ["FASTDATA_STAGE_ROOT"])
    place.mkdir()
    slow = {"LD_PRELOAD": slow_reads, "SLOW_FOLDER": str(path), "SLOW_US": "30000"}
    before = json.loads(doctor(str(path), "--seconds", "1", "--json", **slow).stdout)
    assert before["limit"] == "storage"
    threads = before["machine"]["threads"]
    assert 0 < before["rates"]["storage_warm"] < 34 * threads  # 30 ms each
    assert before["rates"]["decode"] > 2 * before["rates"]["storage_warm"]
    first = before["verdict"]["advice"][0]
    assert first["code"] == "stage"
    assert first["command"] == f"fastdata stage {path}"
    assert first["images_per_second"] > 2 * before["images_per_second"]

    stage(path)
    after = json.loads(doctor(str(path), "--seconds", "1", "--json", **slow).stdout)
    assert after["limit"] != "storage"
    assert after["data"]["location"].startswith(str(place))
    assert "stage" not in [advice["code"] for advice in after["verdict"]["advice"]]
    # What staging was said to give, it gives: at least half of it, on a machine that others share.
    assert after["images_per_second"] > before["images_per_second"] * 2


def test_seek_points_are_advised_until_there_are_some(sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(sample, path)
    # On one thread from memory, decoding limits.
    before = diagnose(path, seconds=0.2, num_workers=1)
    assert before.findings.data.seekable_share < 0.1
    assert before.verdict.limit == "decode"
    advice = next(one for one in before.verdict.advice if one.code == "seek_points")
    assert advice.command == f"fastdata seek-points {path}"
    add_seek_points(path, workers=1)
    after = diagnose(path, seconds=0.2, num_workers=1)
    assert after.findings.data.seekable_share == 1
    assert "seek_points" not in codes(after)


# Every kind of dataset.


@pytest.mark.parametrize(
    "container", [name if name in ("parquet", "folder") else slow(name) for name in CONTAINERS]
)
def test_every_container(container: str) -> None:
    diagnosis = diagnose(dataset(container), transform=CROPS, seconds=0.2)
    found, rates = diagnosis.findings, diagnosis.findings.rates
    assert found.data.container == container
    assert found.data.samples == 53
    assert 1 <= found.data.sampled <= 53  # all, if the machine is not too slow
    assert found.data.damaged == 0
    assert (found.data.root is None) == (container != "folder")
    assert rates.storage_warm > 0 and rates.decode > 0
    # Cold and slower than warm; or why it could not be had.
    assert (rates.storage_cold is None) == bool(found.cold_note)
    json.dumps(report.as_json(diagnosis))


def test_raw_pixels_and_a_dataset_with_its_own_transform() -> None:
    views = Views(CROPS, Compose((RandomResizedCrop(16), Normalize((0.5,) * 3, (0.5,) * 3))))
    found = diagnose(images(views, container="shards", kind="raw"), seconds=0.2).findings
    assert "Views" in found.transform
    assert (found.data.other_share, found.data.seekable_share) == (0, 1)
    assert found.rates.decode > 0


def test_a_tree_that_was_never_converted(tmp_path: Path) -> None:
    torchvision = import_torchvision()
    diagnosis = diagnose(tree(), transform=CROPS, seconds=0.2)
    data = diagnosis.findings.data
    assert (data.container, data.samples, data.seekable_share) == ("files", 53, 1)
    assert data.bytes == sum(path.stat().st_size for path in tree().rglob("*.*"))
    assert diagnosis.findings.rates.decode > 0
    assert not {"stage", "seek_points"} & set(codes(diagnosis))
    folder = ImageDataset(torchvision.datasets.ImageFolder(str(tree())), CROPS)
    listed = diagnose(folder, seconds=0.2).findings.data
    assert (listed.container, listed.bytes, listed.convert) == ("files", data.bytes, data.convert)
    root = tmp_path / "splits"
    root.mkdir()
    for split in ("val", "train"):
        (root / split).symlink_to(tree())
    splits = diagnose(root, transform=CROPS, seconds=0.2).findings.data
    assert splits.convert == f"fastdata convert imagefolder --root {root}/train"


def test_a_dataset_whose_files_are_gone_or_changed(tmp_path: Path) -> None:
    shutil.copytree(dataset("lmdb"), tmp_path / "data")
    file = tmp_path / "data" / "data.mdb"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DataError, match="none of 53 samples"):
        diagnose(tmp_path / "data", seconds=0.1)
    file.unlink()
    with pytest.raises(DatasetError, match=r"data\.mdb: no such file, though the dataset has it"):
        diagnose(tmp_path / "data")


def test_damaged_images_are_counted_and_left_out(tmp_path: Path) -> None:
    import_torchvision()
    root = folder_of(tmp_path / "tree", [("good.jpg", encode(picture(64, 48)))])
    folder_of(root, [("bad.jpg", b"no image"), ("cut.png", as_file(picture(9, 9), "PNG")[:60])])
    diagnosis = diagnose(root, seconds=0.2)
    assert (diagnosis.findings.data.sampled, diagnosis.findings.data.damaged) == (3, 2)
    damaged = dict(report.fact_lines(diagnosis))["damaged"]
    assert damaged == f"2 images: see fastdata convert imagefolder --root {tmp_path / 'tree'}"
    (root / "class" / "good.jpg").unlink()
    with pytest.raises(DataError, match="none of 2 samples"):
        diagnose(root, seconds=0.2)


BIG = picture(500, 400, 2, 20)
FILES = {
    "a/0.png": as_file(BIG, "PNG"),
    "a/1.jpg": as_file(BIG, "JPEG", progressive=True),
    "b/2.jpg": encode(BIG),
    "b/3.jpg": as_file(BIG, "JPEG", "CMYK"),
}


def dataset_of(kind: str, root: Path) -> Path:
    """Return a dataset of `FILES`: packed from what is gone, or in place."""
    source, out = root / "tree", root / "data"
    for name, data in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    if kind == "tree":
        return source
    if kind == "folder":
        index(source, out)
    elif kind == "archives":
        pack_tree(source, root / "shards", "shards")
        index(root / "shards", out, kind="webdataset")
    elif kind == "tables":
        table = pa.table({"image": [*FILES.values()], "label": [0, 0, 1, 1]})
        pq.write_table(table, root / "some.parquet")
        index(root / "some.parquet", out)
    else:
        pack_tree(source, out, kind, seek_points=False)
        shutil.rmtree(source)
    return out


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
@pytest.mark.parametrize("kind", ["lmdb", *map(slow, ("folder", "archives", "tables", "tree"))])
def test_every_command_that_is_advised_runs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    path = dataset_of(kind, tmp_path)
    found = diagnose(path, seconds=0.1).findings
    assert found.data.other_share == 0.5
    assert found.rates.storage_warm < 1e6  # reads of PNGs take time, which the core does not count
    assert set(found.data.other_kinds) == {"png (native)", "jpeg (Pillow)"}
    small = replace(found.machine, memory=1)
    slow = (replace(found.rates, storage_cold=1.0), replace(found.rates, decode=1.0))
    advised = {
        one.command: one.code
        for rates in slow
        for one in judge(replace(found, machine=small, rates=rates)).advice
        if one.command.startswith("fastdata ")
    }
    assert "reencode" in advised.values()
    for command, code in advised.items():
        (tmp_path / code).mkdir()
        monkeypatch.chdir(tmp_path / code)
        done = CliRunner().invoke(cli, shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output)


# The command.


def test_the_command() -> None:
    options = ["--seconds", "0.2", "--step-ms", "50000", "--batch-size", "4", "--size", "32"]
    done = CliRunner().invoke(cli, ["doctor", str(dataset()), *options])
    assert done.exit_code == 0, done.output
    assert "limits" in next(line for line in done.output.splitlines() if "training step" in line)
    assert "gains nothing" in done.output
    options = ["--seconds", "0.2", "--json", "--num-workers", "3", "--ranks", "2"]
    done = CliRunner().invoke(cli, ["doctor", str(dataset()), *options])
    about = json.loads(done.stdout)
    assert about["machine"]["threads"] == 3
    assert about["verdict"]["num_workers"] == max(1, about["machine"]["cpus"] // 2)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, ["DATASET"]),
        (["nowhere"], 1, ["nowhere", "no such folder"]),
        (["gs://bucket/data"], 2, ["gs://bucket/data", "behind a URL", "fastdata stage"]),
        (["DATA", "--step-ms", "5"], 2, ["step", "batch size"]),
    ],
)
def test_errors(arguments: list[str], code: int, says: list[str]) -> None:
    words = [str(dataset()) if word == "DATA" else word for word in arguments]
    done = CliRunner().invoke(cli, ["doctor", *words])
    assert done.exit_code == code, done.output
    assert isinstance(done.exception, SystemExit)
    assert all(part in done.stderr for part in says)


def test_arguments_that_make_no_sense() -> None:
    for options in (
        {"step_ms": 5},
        {"step_ms": -1, "batch_size": 4},
        {"batch_size": 0},
        {"num_workers": -1},
        {"ranks": 0},
        {"seconds": 0},
        {"transform": lambda image: image},
    ):
        with pytest.raises(UsageError):
            diagnose(dataset(), **options)
    with pytest.raises(UsageError):
        diagnose(images(), transform=CROPS)
