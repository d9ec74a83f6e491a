"""The benchmark of a training step that loaders feed: a small run, and what a trace says."""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from containers import pack_tree
from PIL import Image

torch = pytest.importorskip("torch")

from fastdata.benchmarks import gpu_decoders, pages, training  # noqa: E402


@pytest.fixture(scope="module")
def packed(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench") / "lmdb"
    pack_tree(made_tree / "train", out, "lmdb", unit_size=None, seek_points=128)
    return out


def test_a_small_run(packed: Path, made_tree: Path, tmp_path: Path) -> None:
    options = "--device=cpu --models=vit_tiny --batch=4 --seconds=0.01 --rounds=1 --threads=1"
    told = [
        "--workers=1",
        "--tree",
        str(made_tree / "train"),
        "--out",
        str(tmp_path / "training.json"),
    ]
    found = CliRunner().invoke(training.main, [str(packed), *options.split(), *told])
    assert found.exit_code == 0, found.output
    result = json.loads((tmp_path / "training.json").read_text())
    assert result["settings"]["seconds"] == 0.01 and datetime.fromisoformat(result["date"])
    assert re.fullmatch(r"[0-9a-f]{12}\+?|unknown", result["commit"])
    (found_here,) = result["workloads"].values()
    assert found_here["traces"] == {}  # nothing ran on a GPU
    missing = {"torchvision's CUDA decoder": "needs an NVIDIA GPU"}
    fed = [("fastdata", "1"), ("torch", "1")]
    for name, module in (("DALI", "nvidia.dali"), ("nvImageCodec", "nvidia.nvimgcodec")):
        if gpu_decoders.installed(module):
            fed.append((name, "1"))
        else:
            missing[name] = "not installed"
    assert found_here["missing"] == missing
    for name in missing:
        assert f"not measured: {name} (" in found.output
    alone = [("fastdata alone", "1"), ("torch alone", "1")]
    turns = [(name, count) for name, of in found_here["turns"].items() for count in of]
    assert sorted(turns) == sorted([("step", "0"), *fed, *alone])
    for of in found_here["turns"].values():
        for measured in of.values():
            assert len(measured) == 1
            for images, seconds, waited, cpu in measured:
                assert images % 4 == 0 < images and 0 <= waited <= seconds and cpu >= 0
    step, loaders = training.figures(found_here)
    assert sorted(row[:2] for row in step.rows[1:]) == sorted(map(list, fed))
    assert len(loaders.rows) == 2


def test_every_model_takes_its_recipes_batches(packed: Path, made_tree: Path) -> None:
    """Of each loader, with the recipe's augmentations and size."""
    for workload in training.WORKLOADS.values():
        tree, device = made_tree / "train", torch.device("cpu")
        made = training.Training(packed, tree, device, workload, 2)
        made.verify()
        loaders = [made.nothing, made.fastdata, made.torch]
        if "nvImageCodec" not in made.missing():
            loaders.append(partial(made.decoded, "nvImageCodec"))
        if "DALI" not in made.missing():
            loaders.append(made.dali)
        for loader in loaders:
            images, labels = next(iter(loader(1)))
            assert images.shape == (2, 3, workload.size, workload.size), loader
            assert images.dtype == torch.bfloat16 and labels.shape == (2,)
            assert images.is_contiguous(memory_format=torch.channels_last)
        made.step(images, labels)
    assert made.missing()["DALI"] in ("not installed", "fastdata.dali has no augmentations")


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A tree of nine JPEGs of one grey each, in three classes."""
    for number in range(9):
        path = tmp_path / "tree" / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40 + number, 30), (25 * number,) * 3).save(path)
    return tmp_path / "tree"


def test_a_decoders_images_are_the_trees(photographs: Path) -> None:
    """Each image at most once an epoch, as Pillow decodes it, with its label."""
    pytest.importorskip("nvidia.nvimgcodec", reason="needs nvImageCodec")
    device = torch.device("cpu")
    decode = gpu_decoders.DECODERS["nvImageCodec"].make(device, 1)
    about = device, 2, 4
    batches = gpu_decoders.Decoded(photographs, decode, lambda image: image[:, :16, :16], *about)
    for _ in range(3):
        seen = []
        for images, labels in islice(batches, 2):
            for image, label in zip(images, labels.tolist(), strict=True):
                number = round(float(image.float().mean()) / 25)
                assert label == number % 3 and (image.int() - 25 * number).abs().max() <= 2
                seen.append(number)
        assert len(set(seen)) == 8


def test_a_library_that_fails_is_named_and_the_others_go_on(
    packed: Path, photographs: Path
) -> None:
    pytest.importorskip("nvidia.nvimgcodec", reason="needs nvImageCodec")
    for path in photographs.rglob("*.jpg"):
        path.write_bytes(b"no image")
    device, workload = torch.device("cpu"), training.WORKLOADS["vit_tiny"]
    made = training.Training(packed, photographs, device, workload, 2)
    *_, (turns, missing) = training.measure(made, (1,), (), 0.0, 2)
    assert missing["nvImageCodec"].startswith("failed: ") and "nvImageCodec" not in turns
    assert len(turns["fastdata"]["1"]) == 2


def test_a_campaign_is_kept_after_each_round(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "training.json"
    options = "--device=cpu --models=vit_tiny --batch=4 --seconds=0 --rounds=2 --threads=1"
    nothing, rounds = training.Training.nothing, []

    def begin_round(made: Any, count: int) -> Any:
        if rounds:
            raise KeyboardInterrupt
        rounds.append(count)
        return nothing(made, count)

    monkeypatch.setattr(training.Training, "nothing", begin_round)
    CliRunner().invoke(training.main, [str(packed), *options.split(), "--out", str(out)])
    (workload,) = json.loads(out.read_text())["workloads"].values()
    assert len(workload["turns"]["step"]["0"]) == len(workload["turns"]["fastdata"]["1"]) == 1
    assert workload["missing"]["torch"] == "needs --tree"


def test_wrong_pixels_are_not_timed(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = training.Training(
        packed, None, torch.device("cpu"), training.WORKLOADS["resnet18"], 4
    )
    measured.verify()
    # Of a loader whose device normalises in another way:
    from fastdata.device import transfer

    def darker(source: Any, constants: Any, out: Any) -> None:
        out.copy_(source / 300)

    monkeypatch.setattr(transfer, "normalise", darker)
    with pytest.raises(SystemExit, match="nothing was timed"):
        measured.verify()


def test_too_large_a_batch_and_odd_numbers_are_refused(packed: Path) -> None:
    for options, said in (
        (["--batch=65"], "lower --batch"),
        (["--threads=1;2"], "1,2,4"),
        (["--models=alexnet"], "none of resnet18"),
    ):
        found = CliRunner().invoke(training.main, [str(packed), "--device=cpu", *options])
        assert found.exit_code == 2 and said in found.output


def test_what_a_trace_says() -> None:
    """Two kernels of 30 us with a gap of 40 between; of a copy's 20 us, 5 are beside them."""

    def event(cat: str, ts: float, dur: float, stream: int, size: int = 0) -> dict[str, Any]:
        return {"cat": cat, "ts": ts, "dur": dur, "args": {"stream": stream, "bytes": size}}

    kernels = [event("kernel", 0, 30, 7), event("kernel", 70, 30, 7), event("kernel", 60, 9, 20)]
    copies = [event("gpu_memcpy", 25, 20, 20, 2_000_000), event("gpu_memcpy", 0, 1, 20, 2048)]
    assert training.of_trace([*kernels, *copies, {"cat": "cpu_op"}]) == {
        "busy": pytest.approx(0.6),
        "copy_gb_s": pytest.approx(100),
        "copy_share": pytest.approx(0.2),
        "beside": pytest.approx(0.25),
    }
    assert training.of_trace(kernels) == {"busy": pytest.approx(0.69)}  # that of stream 20 is, too
    assert training.of_trace(copies) == {}


def test_the_committed_page_is_of_the_committed_results() -> None:
    docs = Path(__file__).resolve().parents[1] / "docs"
    page = CliRunner().invoke(pages.main, ["training", str(docs / "results")]).output
    assert page == (docs / "feeding.md").read_text()
