"""DALI that cannot be built or fed, and what crosses the bus, on the CPU and on a simulated GPU."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from containers import pack_tree
from hangs import HANG
from jpegs import encode, picture
from loader_data import CROPS, WITH_INDEX, as_file, folder, same
from PIL import Image

torch = pytest.importorskip("torch")
dali = pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI (make setup)")

import simdali  # noqa: E402
import simgpu  # noqa: E402

from fastdata import DataLoader, ImageDataset  # noqa: E402
from fastdata.dali import DALILoader  # noqa: E402
from fastdata.errors import UsageError  # noqa: E402

needs_simulation = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="there is a real one"
)

#: Batches of eight, of 24 images.
OPTIONS: dict[str, Any] = {"batch_size": 8, "seed": 3, "num_workers": 2, **WITH_INDEX}
IMAGE = 24 * 24 * 3


@pytest.fixture(scope="module")
def photographs() -> Path:
    """24 JPEGs, of which one is CMYK, which fastdata decodes."""
    return packed(cmyk={9})


def packed(cmyk: set[int]) -> Path:
    root = folder()
    for number in range(24):
        path = root / "tree" / "class" / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = picture(70 + number, 50, number, 20)
        path.write_bytes(as_file(pixels, "JPEG", "CMYK") if number in cmyk else encode(pixels))
    pack_tree(root / "tree", root / "out", "folder")
    return root / "out"


class Feeding(dali.Pipeline):  # type: ignore[misc]
    """Pipeline of DALI that refuses some calls of ``feed_input``, of all pipelines."""

    refused: frozenset[int] = frozenset()
    calls = built = 0

    def __init__(self, **options: Any) -> None:
        Feeding.built += 1
        super().__init__(**options)

    def feed_input(self, *args: Any, **options: Any) -> None:
        Feeding.calls += 1
        if Feeding.calls in Feeding.refused:
            raise RuntimeError(f"call {Feeding.calls} refused")
        super().feed_input(*args, **options)


@pytest.fixture
def feeding() -> Iterator[type[Feeding]]:
    Feeding.calls = Feeding.built = 0
    Feeding.refused = frozenset()
    with mock.patch.object(dali, "Pipeline", Feeding):
        yield Feeding


def taken(loader: Any) -> tuple[list[Any], list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = [[one.cpu() for one in batch] for batch in loader]
    return batches, [str(one.message) for one in caught if "DALI" in str(one.message)]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_pipeline_that_cannot_be_built_leaves_the_pass_to_fastdata(
    photographs: Path, persistent: bool
) -> None:
    data = ImageDataset(photographs, CROPS)
    options = {**OPTIONS, "persistent_workers": persistent}
    loader, native = DALILoader(data, **options), DataLoader(data, **options)
    for _ in range(2):
        with mock.patch.object(dali, "Pipeline", side_effect=OSError("no driver")) as pipeline:
            found, told = taken(loader)
        assert same(found, list(native))
        assert told == [
            "DALI cannot build its pipeline; fastdata decodes this epoch natively: no driver"
        ]
        assert pipeline.call_count == 1  # it takes seconds
    # A driver that is back is used by the next pass.
    assert taken(loader)[1] == []
    assert loader.stats().kinds["jpeg"]["DALI"] == 23


def test_a_batch_that_cannot_be_fed_is_decoded_natively(
    photographs: Path, feeding: type[Feeding]
) -> None:
    """At every call: batches that DALI had taken before are DALI's all the same."""
    data = ImageDataset(photographs, CROPS)
    loader, native = DALILoader(data, **OPTIONS), DataLoader(data, **OPTIONS)
    wanted, _ = taken(loader)
    ours, calls = list(native), feeding.calls
    first = 2 * calls // 5  # two of five fill the pipeline
    for refused in range(first + 1, calls + 1):
        feeding.calls, feeding.refused = 0, frozenset({refused})
        loader.set_epoch(0)
        found, told = taken(loader)
        at = (refused - first - 1) * 3 // (calls - first)
        assert [same(one, other) for one, other in zip(found, wanted, strict=True)].count(
            False
        ) == 1
        assert same(found[at], ours[at]), refused
        assert len(told) == 1 and f"call {refused} refused" in told[0]


def test_a_batch_that_dali_cannot_decode_is_decoded_natively(photographs: Path) -> None:
    data = ImageDataset(photographs, CROPS)
    loader, native = DALILoader(data, **OPTIONS), DataLoader(data, **OPTIONS)
    wanted, ours = taken(loader)[0], list(native)
    outputs = dali.Pipeline.outputs
    for bad in range(3):
        left = 2 + bad  # two fill the pipeline

        def failing(*args: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                raise RuntimeError("Failed to decode sample #3")
            return outputs(*args, **named)

        loader.set_epoch(0)
        with mock.patch.object(dali.Pipeline, "outputs", failing):
            found, told = taken(loader)
        for number, batch in enumerate(found):
            assert same(batch, (ours if number == bad else wanted)[number])
        assert len(told) == 1 and "failed for a batch" in told[0] and "sample #3" in told[0]


@needs_simulation
def test_a_gpus_pipeline_begins_with_a_whole_batch_of_photographs(photographs: Path) -> None:
    """A JPEG engine takes no small images, and reserves memory for the first batch."""
    data = ImageDataset(photographs, CROPS)
    fed: list[list[Any]] = []

    def feed(pipeline: Any, name: str, data: Any, *args: Any, **options: Any) -> None:
        if name == "data":
            fed.append([Image.open(io.BytesIO(one.tobytes())) for one in data])
        feed_input(pipeline, name, data, *args, **options)

    feed_input = dali.Pipeline.feed_input
    fed_by = mock.patch.object(dali.Pipeline, "feed_input", feed)
    with simgpu.simulated(), simdali.simulated():
        loader = DALILoader(data, device="cuda", prefetch_queue_depth=3, **OPTIONS)
        with fed_by:
            taken(loader)
    for batch in fed[:3]:
        assert [one.size for one in batch] == [(512, 512)] * OPTIONS["batch_size"]
        assert batch[0].layer[0][1:3] == (2, 2) and "progressive" not in batch[0].info  # 4:2:0
    assert all(min(one.size) < 512 for batch in fed[3:] for one in batch)


@needs_simulation
@pytest.mark.parametrize("schedule", simgpu.schedules(4), ids=lambda one: str(one.pace))
@pytest.mark.parametrize(
    ("cmyk", "most"),
    [
        ({9, 10, 14}, 3),
        *(pytest.param({*range(n)}, n, marks=pytest.mark.slow) for n in (0, 1, 24)),
    ],
)
def test_only_what_fastdata_decodes_crosses_the_bus(
    cmyk: set[int], most: int, schedule: simgpu.Schedule
) -> None:
    """And nothing from memory that is not page-locked, nor into page-locked memory in vain."""
    data = ImageDataset(packed(cmyk), CROPS)
    wanted = list(DALILoader(data, shuffle=False, **OPTIONS))
    with simgpu.simulated(schedule) as gpus, simdali.simulated():
        with mock.patch.object(gpus, "when_read", wraps=gpus.when_read) as reads:
            loader = DALILoader(data, shuffle=False, device="cuda", **OPTIONS)
            found, _ = taken(loader)
        sent = sum(call.args[0].nbytes for call in reads.call_args_list)
        assert not gpus.pageable, "pageable memory is copied while the host waits"
        locked = gpus.locked
    assert same(found, wanted)
    small = 24 * 3 * 8  # labels, indices and slots
    assert most * IMAGE <= sent <= most * IMAGE + small
    batches = {number // 8 for number in cmyk}
    assert locked <= len(batches) * 8 * IMAGE + 2 * small


def test_dali_that_takes_longer_than_the_timeout(photographs: Path) -> None:
    """It cannot be interrupted: the error comes once it is done. The next pass is right."""
    data = ImageDataset(photographs, CROPS)
    options = {**OPTIONS, "persistent_workers": True}
    loader, slow = DALILoader(data, **options), DALILoader(data, **options, timeout=HANG)
    wanted = list(loader)
    assert same(list(slow), wanted)
    outputs, clock, passed = dali.Pipeline.outputs, time.monotonic, 0.0

    def late(*args: Any, **named: Any) -> Any:
        nonlocal passed
        passed += HANG
        return outputs(*args, **named)

    def later() -> float:
        return clock() + passed

    with (
        mock.patch.object(time, "monotonic", later),
        mock.patch.object(dali.Pipeline, "outputs", late),
        pytest.raises(RuntimeError, match=f"timed out after {HANG} seconds"),
    ):
        next(iter(slow))
    slow.set_epoch(0)
    assert same(list(slow), wanted)


@needs_simulation
@pytest.mark.parametrize("device", ["cuda:2", "cuda:5"])
def test_a_gpu_that_is_not_there_is_refused(photographs: Path, device: str) -> None:
    data = ImageDataset(photographs, CROPS)
    with simgpu.simulated(devices=2):
        for make in (DataLoader, DALILoader):
            with pytest.raises(UsageError, match=f"'{device}': torch finds 2 cuda devices here"):
                make(data, device=device)
