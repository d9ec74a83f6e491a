"""DALI that cannot be built or fed, and what crosses the bus, on the CPU and on a simulated GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from containers import pack_tree
from jpegs import encode, picture
from loader_data import CROPS, WITH_INDEX, as_file, folder, same

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
    """Pipeline of DALI that refuses some calls of ``feed_input``, of all pipelines.

    Attributes:
        refused: Numbers of the calls.
        calls: How many there were.
        built: How many pipelines there were.
    """

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
    """A pass's batches, on the CPU, and what it warned of DALI."""
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
            "DALI cannot build its pipeline, so fastdata decodes this epoch natively: no driver"
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


@needs_simulation
def test_a_gpus_pipeline_that_cannot_be_built_leaves_the_pass_to_fastdata(
    photographs: Path,
) -> None:
    data = ImageDataset(photographs, CROPS)
    with (
        simgpu.simulated(),
        mock.patch.object(dali, "Pipeline", side_effect=OSError("no driver")),
    ):
        found, told = taken(DALILoader(data, device="cuda", **OPTIONS))
    assert same(found, list(DataLoader(data, **OPTIONS))) and len(told) == 1


@needs_simulation
@pytest.mark.parametrize("schedule", simgpu.schedules(4), ids=lambda one: str(one.pace))
@pytest.mark.parametrize(
    ("cmyk", "most"), [(set(), 0), ({9}, 1), ({9, 10, 14}, 3), ({*range(24)}, 24)]
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


@needs_simulation
@pytest.mark.filterwarnings("ignore:.*samples? could not be decoded")
def test_substitutes_of_bad_samples_copy_nothing_pageable() -> None:
    root = packed({9})
    for number in (3, 4, 17):
        (root.parent / "tree" / "class" / f"{number:02}.jpg").write_bytes(b"none")
    data = ImageDataset(root, CROPS, check=False)
    options = {**OPTIONS, "on_error": "skip"}
    wanted = list(DALILoader(data, **options))
    with simgpu.simulated() as gpus, simdali.simulated():
        found, _ = taken(DALILoader(data, device="cuda", **options))
        assert not gpus.pageable, "pageable memory is copied while the host waits"
    assert same(found, wanted)


@needs_simulation
def test_an_unknown_option_of_the_decoder_is_refused(photographs: Path) -> None:
    data = ImageDataset(photographs, CROPS)
    with simgpu.simulated(), pytest.raises(UsageError, match="has no output_type, widht") as found:
        DALILoader(data, device="cuda", decoder_options={"widht": 1, "output_type": 2})
    assert "hw_decoder_load" in found.value.hint
