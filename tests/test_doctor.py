"""fastdata doctor on real datasets, some of them made slow; and its recordings of real loaders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from containers import pack_tree
from jpegs import encode, picture
from loader_data import CONTAINERS, CROPS, as_file, dataset, images, tree
from torchvision_stub import import_torchvision

from fastdata import ImageDataset, stage
from fastdata.cli import cli
from fastdata.doctor import Alternatives, Findings, diagnose, judge, page_cache, report
from fastdata.doctor.page_cache import Extent
from fastdata.errors import DataError, DatasetError, UsageError
from fastdata.machine import usable_cpus
from fastdata.maintenance.seek_points import add_seek_points
from fastdata.transforms import Compose, Normalize, RandomResizedCrop, Views

_TESTS = Path(__file__).resolve().parent


def codes(diagnosis: Any) -> list[str]:
    return [advice.code for advice in diagnosis.verdict.advice]


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fastdata", "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def folder_of(root: Path, files: list[tuple[str, bytes]]) -> Path:
    """A tree of one class."""
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
    """The images of ``fastdata sample``, packed without seek points."""
    out = tmp_path_factory.mktemp("sample") / "lmdb"
    pack_tree(made_tree / "train", out, "lmdb", seek_points=False)
    return out


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


def limited_by_decoding(found: Findings) -> Findings:
    """Return findings with rates that do not depend on other work of this machine.

    Whatever would make decoding faster, as far as it was measured, makes it twice as fast.
    """
    slow = dict.fromkeys(("decode", "decode_core", "decode_all"), 100.0)
    rates = replace(found.rates, storage_cold=1e4, storage_warm=1e4, loader=None, **slow)
    measured = {name: rate and 200.0 for name, rate in asdict(found.alternatives).items()}
    return replace(found, rates=rates, alternatives=Alternatives(**measured))


def test_seek_points_are_advised_until_there_are_some(sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(sample, path)
    before = diagnose(path, seconds=0.5, num_workers=1).found
    assert before.data.seekable_share < 0.1
    assert before.alternatives.decode_seekable
    verdict = judge(limited_by_decoding(before))
    assert verdict.limit == "decode"
    advice = next(one for one in verdict.advice if one.code == "seek_points")
    assert (advice.basis, advice.command) == ("measured", f"fastdata seek-points {path}")
    assert advice.images_per_second == 200

    add_seek_points(path, workers=1)
    after = diagnose(path, seconds=0.5, num_workers=1).found
    assert after.data.seekable_share == 1
    assert after.alternatives.decode_seekable is None
    assert "seek_points" not in [one.code for one in judge(limited_by_decoding(after)).advice]


def test_images_that_pillow_decodes_are_slow_and_named(tmp_path: Path) -> None:
    pixels = picture(500, 400, 2, 20)
    files = [(f"{n}.jpg", as_file(pixels, "JPEG", "CMYK", progressive=True)) for n in range(6)]
    files += [(f"b{n}.jpg", encode(pixels)) for n in range(2)]
    root = folder_of(tmp_path / "tree", files)
    pack_tree(root, tmp_path / "data", "lmdb")
    diagnosis = diagnose(tmp_path / "data", seconds=1.5)
    data = diagnosis.found.data
    assert diagnosis.verdict.limit == "decode"
    assert data.pillow_share == 0.75
    assert data.pillow_kinds == ("jpeg-progressive",)
    assert "reencode" in codes(diagnosis)
    advice = next(one for one in diagnosis.verdict.advice if one.code == "reencode")
    assert "75%" in advice.text
    assert advice.command == f"fastdata convert imagefolder --root {root} --encoding jpeg"


def test_a_slow_consumer_leaves_nothing_to_gain(
    sample: Path, recwarn: pytest.WarningsRecorder
) -> None:
    diagnosis = diagnose(sample, seconds=0.5, step_ms=60_000, batch_size=32)
    assert [str(warning.message) for warning in recwarn] == []  # such as Pillow's of broken EXIF
    assert diagnosis.found.data.damaged == 0
    assert diagnosis.verdict.limit == "step"
    assert codes(diagnosis) == ["nothing"]
    assert diagnosis.found.rates.step == 32 / 60
    assert diagnosis.verdict.cores_per_gpu == 1


def test_a_fast_consumer_needs_more_cores() -> None:
    diagnosis = diagnose(dataset(), seconds=0.5, step_ms=0.001, batch_size=1000)
    verdict = diagnosis.verdict
    assert verdict.limit != "step"
    assert verdict.cores_per_gpu is not None and verdict.core_images_per_second is not None
    assert verdict.cores_per_gpu >= 1e9 / verdict.core_images_per_second


@pytest.mark.gpu
def test_copies_to_the_gpu_are_measured() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    diagnosis = diagnose(dataset(), seconds=0.5)
    assert diagnosis.found.rates.host_to_device is not None
    assert diagnosis.found.rates.host_to_device > 0
    assert diagnosis.found.notes["host to device"] == torch.cuda.get_device_name()


# Every kind of dataset.


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container(container: str) -> None:
    diagnosis = diagnose(dataset(container), transform=CROPS, seconds=0.4)
    found, rates = diagnosis.found, diagnosis.found.rates
    assert found.data.container == container
    assert found.data.samples == 53
    assert 16 <= found.data.sampled <= 53  # all, if the machine is not too slow
    assert found.data.damaged == 0
    assert (found.data.root is None) == (container != "folder")
    for rate in (rates.storage_warm, rates.decode, rates.decode_core, rates.loader):
        assert rate is not None and rate > 0
    assert "native" in found.notes["loader"]
    # Cold and slower than warm; or why it could not be had.
    assert (rates.storage_cold is None) == bool(found.notes["storage, cold"])
    json.dumps(report.as_json(diagnosis))


def test_raw_pixels_and_a_dataset_with_its_own_transform() -> None:
    opened = images(container="shards", kind="raw")
    diagnosis = diagnose(opened, seconds=0.4)
    assert "24 x 24" in diagnosis.found.transform
    assert diagnosis.found.data.pillow_share == 0
    assert diagnosis.found.data.seekable_share == 1
    assert "seek_points" not in codes(diagnosis)


def test_several_views() -> None:
    views = Views(CROPS, Compose((RandomResizedCrop(16), Normalize((0.5,) * 3, (0.5,) * 3))))
    diagnosis = diagnose(dataset(), transform=views, seconds=0.4)
    one = diagnose(dataset(), transform=CROPS, seconds=0.4)
    assert "2 views" in diagnosis.found.transform
    # The second has 16 x 16 pixels of three float32.
    assert diagnosis.found.batch_bytes == one.found.batch_bytes + 16 * 16 * 3 * 4
    assert "native" in diagnosis.found.notes["loader"]


def test_a_tree_that_was_never_converted() -> None:
    import_torchvision()
    diagnosis = diagnose(tree(), transform=CROPS, seconds=0.6)
    data, rates = diagnosis.found.data, diagnosis.found.rates
    assert (data.container, data.samples, data.estimated) == ("files", 53, False)
    assert data.bytes == sum(path.stat().st_size for path in tree().rglob("*.*"))
    assert data.learnt_share == 1
    assert rates.loader is not None and rates.loader > 0
    assert "stage" not in codes(diagnosis)
    folder = ImageDataset(import_torchvision().datasets.ImageFolder(str(tree())), CROPS)
    listed = diagnose(folder, seconds=0.4).found
    # A busy machine reads fewer of the samples in the time that each diagnosis has, and what the
    # first dropped from the page cache may not have been read again.
    shares = ("seekable_share", "pillow_share", "pillow_kinds", "rewritable_share")
    left = {name: getattr(data, name) for name in (*shares, "sampled", "cached_share")}
    assert replace(listed.data, **left) == data
    assert listed.transform == diagnosis.found.transform


def test_a_tree_of_splits_is_to_be_converted_split_by_split(tmp_path: Path) -> None:
    for split in ("val", "train"):
        (tmp_path / split).symlink_to(tree())
    assert diagnose(tmp_path, transform=CROPS, seconds=0.2).found.data.convert == (
        f"fastdata convert imagefolder --root {tmp_path}/train"
    )


def test_one_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = folder_of(
        tmp_path / "tree\nerror: all is lost", [("one.png", as_file(picture(9, 7), "PNG"))]
    )
    (root / "notes.txt").touch()
    diagnosis = diagnose(root, seconds=0.2)
    assert diagnosis.found.data.sampled == 1
    assert "files, 1 image, " in (told := dict(report.fact_lines(diagnosis))["dataset"])
    assert told.endswith(" (.txt 1 left out)")
    report.show(diagnosis)
    shown = capsys.readouterr().out
    assert "/tree\\x0aerror: all is lost" in shown and "\nerror: " not in shown
    pack_tree(root, tmp_path / "data", "lmdb")
    assert diagnose(tmp_path / "data", seconds=0.2).found.data.pillow_kinds == ("png",)


def test_a_dataset_whose_files_are_gone_is_told_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    pack_tree(
        folder_of(tmp_path / "in", [("1.jpg", encode(picture(8, 8)))]), tmp_path / "out", "lmdb"
    )
    (tmp_path / "out" / "data.mdb").unlink()
    begun: list[str] = []
    with pytest.raises(DatasetError, match=r"data\.mdb: no such file, though the dataset has it"):
        diagnose(tmp_path / "out", progress=begun.append)
    assert begun == ["opening"]


def test_without_torch(tmp_path: Path) -> None:
    script = """
        import sys
        sys.modules["torch"] = None
        from fastdata.doctor import diagnose
        found = diagnose(sys.argv[1], seconds=0.3).found
        print(found.rates.decode > 0, found.rates.loader, found.notes["loader"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(dataset())],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True None torch is not installed\n", done.stderr


def test_tasks_of_srun_that_are_bound_have_their_cpus_for_themselves() -> None:
    """Two real processes; the number that the loader takes by itself is what is told."""
    cpus = sorted(os.sched_getaffinity(0))
    script = """
        import sys
        sys.modules["torch"] = None
        from fastdata.doctor import diagnose, report
        found = diagnose(sys.argv[1], seconds=0.1)
        print(found.found.machine.ranks, found.found.machine.threads, found.verdict.num_workers)
        print(dict(report.fact_lines(found))["num_workers"])
    """
    step = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "here",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_NODEID": "0",
    }

    def command(task: int, code: str) -> dict[str, Any]:
        rank = {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}
        bound = ["taskset", "-c", str(cpus[-task]), sys.executable, "-c", code, str(dataset())]
        return {"args": bound, "env": os.environ | step | rank, "text": True}

    waits = command(1, "print(flush=True); input()")
    with subprocess.Popen(**waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        done = subprocess.run(**command(0, textwrap.dedent(script)), capture_output=True)
        other.communicate("\n")
    bound = ", this one bound to CPUs of its own" if len(cpus) > 1 else ""
    first, told = done.stdout.splitlines()
    assert first == "2 1 1", done.stderr
    assert told == "1 (" + (f"2 ranks{bound}" if bound else "1 CPU, 2 ranks") + ")"


def test_damaged_images_are_counted_and_left_out(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "tree", [("good.jpg", encode(picture(64, 48)))])
    folder_of(root, [("bad.jpg", b"no image"), ("cut.png", as_file(picture(9, 9), "PNG")[:60])])
    diagnosis = diagnose(root, seconds=0.2)
    assert (diagnosis.found.data.sampled, diagnosis.found.data.damaged) == (1, 2)
    assert "sample 0" in diagnosis.found.data.damage
    (root / "class" / "good.jpg").unlink()
    with pytest.raises(DataError, match="none of 2 samples can be decoded"):
        diagnose(root, seconds=0.2)


def test_bytes_that_have_changed_are_not_measured(tmp_path: Path) -> None:
    shutil.copytree(dataset("lmdb"), tmp_path / "data")
    (file,) = (tmp_path / "data").glob("*.mdb")
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DataError, match="none of 53 samples can be read"):
        diagnose(tmp_path / "data", seconds=10)


# The page cache.


@pytest.fixture
def disk_file(tmp_path: Path) -> Path:
    """A file on a disk, which the page cache holds."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(5 << 20))
    path.read_bytes()
    try:
        page_cache.cached_bytes(Extent(path, 0, 1))
    except OSError as error:
        pytest.skip(f"this system does not tell what is in the page cache: {error}")
    return path


def test_what_is_dropped_is_not_in_the_page_cache(disk_file: Path) -> None:
    whole, part = Extent(disk_file, 0, 5 << 20), Extent(disk_file, (4 << 20) + 5, 1 << 20)
    assert page_cache.resident_share([whole]) == 1
    page_cache.drop([part])
    if page_cache.resident_share([part]) == 1:
        pytest.skip("this file system is in memory")
    assert page_cache.resident_share([part]) == 0
    assert page_cache.resident_share([whole]) > 0.5
    assert page_cache.resident_share([Extent(disk_file, 0, 2 << 20)]) == 1


# The command.


def test_the_table() -> None:
    options = ["--seconds", "0.4", "--step-ms", "50000", "--batch-size", "4", "--size", "32"]
    done = CliRunner().invoke(cli, ["doctor", str(dataset()), *options])
    assert done.exit_code == 0, done.output
    for words in (
        "storage, warm",
        "decode, one core",
        "training step",
        "num_workers",
        "page cache",
    ):
        assert words in done.output
    assert "limits" in next(line for line in done.output.splitlines() if "training step" in line)
    assert "gains nothing" in done.output


def test_a_loader_slower_than_its_stages_is_named_as_the_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    diagnosis = diagnose(dataset(), transform=CROPS, seconds=0.3)
    rates = replace(
        diagnosis.found.rates,
        storage_cold=26_300.0,
        storage_warm=30_000.0,
        decode=40_000.0,
        host_to_device=None,
        loader=8_000.0,
    )
    found = replace(diagnosis.found, rates=rates)
    report.show(diagnosis._replace(found=found, verdict=judge(found)))
    shown = capsys.readouterr().out.splitlines()
    marked = [line for line in shown if "limits" in line]
    assert [line.startswith("the loader as a whole") for line in marked] == [True, False]
    assert "the loader as a whole: 8,000 images/s" in marked[1]
    assert "the slowest of them is storage" in marked[1]


def test_a_machine_that_others_use_is_told_to_be_busy() -> None:
    hogs = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        for _ in range(3 * usable_cpus())
    ]
    try:
        diagnosis = diagnose(dataset(), transform=CROPS, seconds=0.5)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    rates, lost = diagnosis.found.rates, diagnosis.found.machine.cpu_lost
    threads = min(diagnosis.found.machine.threads, usable_cpus())
    # Rates agree with each other, however crude the correction is.
    most = 1.001 * (rates.decode_core or 0) * threads
    assert rates.decode is not None and rates.decode <= most
    assert rates.loader is not None and rates.loader <= most
    assert rates.storage_cold is None or rates.storage_cold <= (rates.storage_warm or 0)
    # With as many as four runnable threads for a CPU, a thread has it a quarter of the time.
    assert lost > 0.3
    told = dict(report.fact_lines(diagnosis))["busy"]
    assert told.startswith(f"others had the CPUs for {lost:.0%} of the time")
    alone = replace(diagnosis.found, machine=replace(diagnosis.found.machine, cpu_lost=0.0))
    assert "busy" not in dict(report.fact_lines(diagnosis._replace(found=alone)))


def test_a_validation_crop_and_more_workers_than_are_right() -> None:
    done = CliRunner().invoke(
        cli,
        f"doctor {dataset()} --seconds 0.3 --crop val --size 56 --json --num-workers 3 --ranks 2",
    )
    about = json.loads(done.stdout)
    assert "shorter side 64" in about["transform"] and "centre crop of 56" in about["transform"]
    assert about["machine"]["threads"] == 3
    assert about["verdict"]["num_workers"] == max(1, about["machine"]["cpus"] // 2)
    assert any(line["name"] == "decode, 3 threads" for line in about["stages"])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, ["DATASET"]),
        (["nowhere"], 1, ["nowhere", "no such folder"]),
        (["gs://bucket/data"], 2, ["gs://bucket/data", "behind a URL", "fastdata stage"]),
        (["DATA", "--step-ms", "5"], 2, ["--step-ms needs --batch-size"]),
    ],
)
def test_errors(arguments: list[str], code: int, says: list[str]) -> None:
    words = [str(dataset()) if word == "DATA" else word for word in arguments]
    done = CliRunner().invoke(cli, ["doctor", *words])
    assert done.exit_code == code, done.output
    assert isinstance(done.exception, SystemExit)
    for part in says:
        assert part in done.stderr


def test_arguments_that_make_no_sense(tmp_path: Path) -> None:
    for options in (
        {"step_ms": 5},
        {"step_ms": -1, "batch_size": 4},
        {"batch_size": 0},
        {"num_workers": -1},
        {"ranks": 0},
        {"seconds": 0},
    ):
        with pytest.raises(UsageError):
            diagnose(dataset(), **options)
    with pytest.raises(UsageError, match="cannot be measured"):
        diagnose(dataset(), transform=[lambda image: image])
    with pytest.raises(DatasetError, match="no dataset here"):
        diagnose(tmp_path)
