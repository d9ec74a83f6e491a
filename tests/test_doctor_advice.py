"""The limit and the advice are a pure function of the measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fastdata.doctor import Data, Findings, Machine, Rates, judge

SPEEDS = st.floats(1, 1e6)
MAYBE = st.none() | SPEEDS
SHARES = st.floats(0, 1)

DATA = Data(
    path="sets/one",
    location="sets/one",
    container="lmdb",
    root=None,
    convert="fastdata convert imagefolder --root sets/tree",
    samples=1000,
    bytes=10**8,
    stage_bytes=10**8,
    in_memory=False,
)
MACHINE = Machine(
    cpus=8,
    ranks=1,
    rank_cpus=8,
    threads=8,
    memory=10**10,
    stage_place="/dev/shm",
    stage_room=10**10,
)
RATES = Rates(storage_cold=5_000.0, storage_warm=50_000.0, decode=8_000.0)


def found(rates: dict[str, Any], **more: Any) -> Findings:
    """Findings of a quick machine, but for what is given."""
    return Findings(
        data=replace(DATA, **more.get("data", {})),
        machine=replace(MACHINE, **more.get("machine", {})),
        rates=replace(RATES, **rates),
    )


@st.composite
def findings(draw: st.DrawFn) -> Findings:
    """Anything that could be measured."""
    container = draw(st.sampled_from(("lmdb", "parquet", "shards", "folder", "files")))
    cpus = draw(st.integers(1, 64))
    share = draw(st.integers(1, cpus))
    data = replace(
        DATA,
        container=container,
        location=draw(st.sampled_from(("sets/one", "/mnt/copy"))),
        root="sets/tree" if container in ("folder", "files") else None,
        bytes=draw(st.integers(1, 10**12)),
        stage_bytes=draw(st.integers(1, 10**12)),
        in_memory=draw(st.booleans()),
        seekable_share=draw(st.just(1.0) | SHARES),
        pillow_share=draw(st.just(0.0) | SHARES),
        rewritable_share=draw(st.just(0.0) | SHARES),
    )
    machine = replace(
        MACHINE,
        cpus=cpus,
        ranks=draw(st.integers(1, 8)),
        rank_cpus=share,
        threads=draw(st.just(share) | st.integers(1, 64)),
        memory=draw(st.integers(1, 10**12)),
        stage_room=draw(st.integers(0, 10**12)),
    )
    rates = Rates(draw(SPEEDS), draw(SPEEDS), storage_cold=draw(MAYBE), step=draw(MAYBE))
    return Findings(data=data, machine=machine, rates=rates)


@given(findings())
def test_the_slowest_stage_limits(measured: Findings) -> None:
    verdict, rates = judge(measured), measured.rates
    held = min(1.0, measured.machine.memory / measured.data.bytes)
    warm, cold = rates.storage_warm, rates.storage_cold
    if cold is None or measured.data.in_memory:
        held, cold = 1.0, warm
    reading = held / warm + (1 - held) / min(cold, warm)
    loader = 1 / (reading + 1 / rates.decode)
    assert math.isclose(verdict.loader_images_per_second, loader)
    assert math.isclose(verdict.images_per_second, min(loader, rates.step or math.inf))
    if verdict.limit == "step":
        assert rates.step is not None and rates.step <= loader * (1 + 1e-9)
    else:
        assert rates.step is None or rates.step >= loader * (1 - 1e-9)
        slower = max(reading, 1 / rates.decode)
        limit = reading if verdict.limit == "storage" else 1 / rates.decode
        assert math.isclose(limit, slower)
    assert verdict.num_workers == measured.machine.rank_cpus
    assert (verdict.cores_per_gpu is None) == (rates.step is None)
    if verdict.cores_per_gpu is not None and rates.step is not None:
        core = verdict.core_images_per_second
        assert verdict.cores_per_gpu * core >= rates.step * (1 - 1e-9)
        assert (verdict.cores_per_gpu - 1) * core < max(rates.step, core) * (1 + 1e-9)


@given(findings())
def test_advice_is_worth_taking_and_never_what_is_so_already(measured: Findings) -> None:
    verdict = judge(measured)
    data, machine = measured.data, measured.machine
    codes = [advice.code for advice in verdict.advice]
    assert codes and len(set(codes)) == len(codes)
    assert codes == ["nothing"] or "nothing" not in codes
    for advice in verdict.advice:
        if advice.images_per_second is not None:
            assert advice.images_per_second > verdict.images_per_second * 1.05
    if verdict.limit == "step":
        assert codes == ["nothing"]
    staged = data.in_memory or data.location != data.path
    if staged or data.container == "files" or not verdict.fits_stage:
        assert "stage" not in codes
    if data.root is None or data.in_memory:
        assert "convert" not in codes
    if data.seekable_share == 1:
        assert "seek_points" not in codes
    if data.pillow_share <= 0.02:
        assert "reencode" not in codes
    if data.rewritable_share <= 0.02:
        assert "rewrite" not in codes
    if machine.threads >= verdict.num_workers:
        assert "workers" not in codes
    if data.in_memory or machine.memory >= data.bytes:
        assert "order" not in codes
    if (verdict.cores_per_gpu or 0) <= verdict.num_workers:
        assert "cores" not in codes
    if verdict.limit != "storage":
        assert not {"stage", "convert", "order"} & set(codes)
    if verdict.limit != "decode":
        assert not {"seek_points", "reencode", "rewrite", "workers", "cores"} & set(codes)


def codes_of(measured: Findings) -> list[str]:
    return [advice.code for advice in judge(measured).advice]


def test_cold_storage_limits_where_memory_cannot_hold_the_dataset() -> None:
    small = {"memory": 10**7, "stage_room": 10**7}
    slow = found({"storage_cold": 100.0}, machine=small)
    verdict = judge(slow)
    assert verdict.limit == "storage"
    assert math.isclose(verdict.images_per_second, 1 / (0.9 / 100 + 0.1 / 50_000 + 1 / 8_000))
    assert codes_of(slow) == ["order"]
    # With memory for it, only the first epoch is slow.
    assert judge(found({"storage_cold": 100.0})).limit == "decode"
    # Single files belong into a container.
    tree = {"container": "files", "root": "sets/tree"}
    assert codes_of(found({"storage_cold": 100.0}, machine=small, data=tree)) == ["convert"]
    # Of some kinds of data, packing would lose the annotations.
    assert codes_of(
        found({"storage_cold": 100.0}, machine=small, data={**tree, "convert": ""})
    ) == ["nothing"]


def test_slow_storage_is_left_by_staging() -> None:
    slow = found({"storage_cold": 100.0, "storage_warm": 100.0})
    assert judge(slow).limit == "storage"
    (advice,) = judge(slow).advice
    assert (advice.code, advice.command) == ("stage", "fastdata stage sets/one")
    assert advice.images_per_second == 8_000  # then decoding limits
    assert codes_of(replace(slow, data=replace(DATA, stage_bytes=10**11))) == ["nothing"]
    assert codes_of(replace(slow, data=replace(DATA, in_memory=True))) == ["nothing"]


def test_slow_decoding() -> None:
    slow = {"decode": 400.0}
    assert codes_of(found(slow)) == ["nothing"]
    (advice,) = judge(found(slow, data={"seekable_share": 0.0})).advice
    assert (advice.code, advice.command) == ("seek_points", "fastdata seek-points sets/one")
    pillow = {"data": {"pillow_share": 0.5, "pillow_kinds": ("jpeg-progressive",)}}
    (advice,) = judge(found(slow, **pillow)).advice
    assert advice.code == "reencode" and "50%" in advice.text and "progressive" in advice.text
    assert advice.images_per_second is None
    rewritable = {"data": {"rewritable_share": 0.5}}
    (advice,) = judge(found(slow, **rewritable)).advice
    assert advice.code == "rewrite" and advice.command.endswith("--encoding baseline")
    for share in ("pillow_share", "rewritable_share"):
        assert codes_of(found(slow, data={share: 0.02})) == ["nothing"]
    (advice,) = judge(found({"decode": 50.0}, machine={"threads": 1})).advice
    assert (advice.code, advice.command) == ("workers", "DataLoader(num_workers=8)")
    assert advice.images_per_second is not None and 390 < advice.images_per_second < 400
    (advice,) = judge(found({**slow, "step": 1000.0})).advice
    assert advice.code == "cores" and "21 cores" in advice.text


def test_a_slow_consumer_leaves_nothing_to_gain() -> None:
    slow = found({"step": 200.0, "decode": 400.0}, data={"seekable_share": 0.0})
    assert judge(slow).limit == "step"
    assert codes_of(slow) == ["nothing"]
