"""The limit and the advice are a pure function of the measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fastdata.doctor import Alternatives, Data, Findings, Machine, Rates, bottleneck, judge
from fastdata.doctor.advice import held_later, memory_rate, overall, stage_rates, storage_rate

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
    estimated=False,
    stage_bytes=10**8,
    in_memory=False,
    cached_share=0.0,
    cached_how="cachestat",
    seekable_share=1.0,
    pillow_share=0.0,
    pillow_kinds=(),
    learnt_share=0.0,
    sampled=100,
    damaged=0,
    damage="",
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
RATES = Rates(
    storage_cold=5_000.0,
    storage_warm=50_000.0,
    read_cpu_s=1e-5,
    decode_core=1_000.0,
    decode=8_000.0,
    decode_all=8_000.0,
)


def found(rates: dict[str, Any], **more: Any) -> Findings:
    """Findings of a quick machine, but for what is given."""
    return Findings(
        data=replace(DATA, **more.get("data", {})),
        machine=replace(MACHINE, **more.get("machine", {})),
        rates=replace(RATES, **rates),
        alternatives=Alternatives(**more.get("alternatives", {})),
    )


@st.composite
def findings(draw: st.DrawFn) -> Findings:
    """Anything that could be measured."""
    container = draw(st.sampled_from(("lmdb", "parquet", "shards", "folder", "files")))
    tree = container in ("folder", "files")
    cpus, ranks = draw(st.integers(1, 64)), draw(st.integers(1, 8))
    share = draw(st.integers(1, cpus))
    threads = draw(st.just(share) | st.integers(1, 64))
    data = replace(
        DATA,
        container=container,
        location=draw(st.sampled_from(("sets/one", "/mnt/copy"))),
        root="sets/tree" if tree else None,
        bytes=draw(st.integers(1, 10**12)),
        stage_bytes=draw(st.integers(1, 10**12)),
        in_memory=draw(st.booleans()),
        cached_share=draw(st.none() | SHARES),
        seekable_share=draw(st.just(1.0) | SHARES),
        pillow_share=draw(st.just(0.0) | SHARES),
        rewritable_share=draw(st.just(0.0) | SHARES),
    )
    machine = replace(
        MACHINE,
        cpus=cpus,
        ranks=ranks,
        rank_cpus=share,
        threads=threads,
        memory=draw(st.integers(1, 10**12)),
        stage_room=draw(st.integers(0, 10**12)),
    )
    rates = Rates(
        storage_cold=draw(MAYBE),
        storage_warm=draw(SPEEDS),
        read_cpu_s=draw(st.floats(0, 0.1)),
        decode_core=draw(SPEEDS),
        decode=draw(SPEEDS),
        decode_all=draw(SPEEDS),
        host_to_device=draw(MAYBE),
        step=draw(MAYBE),
        loader=draw(MAYBE),
    )
    other = Alternatives(*(draw(MAYBE) for _ in range(2)))
    return Findings(data=data, machine=machine, rates=rates, alternatives=other)


@given(
    stages=st.dictionaries(
        st.sampled_from(("storage", "decode", "host to device", "step")),
        SPEEDS,
        min_size=1,
    ),
    loader=MAYBE,
)
def test_the_slowest_stage_limits(stages: dict[str, float], loader: float | None) -> None:
    limit = bottleneck(stages, loader)
    slowest = min(stages.values())
    if loader is None or set(stages) == {"step"} or loader >= slowest:
        assert stages[limit] == slowest
    else:
        # The loader is slower than each: then the step is not what limits.
        loading = [rate for name, rate in stages.items() if name != "step"]
        assert limit != "step" and stages[limit] == min(loading)


@given(findings())
def test_a_verdict_is_of_what_was_measured(measured: Findings) -> None:
    verdict = judge(measured)
    stages = stage_rates(measured, held_later(measured))
    assert verdict.limit == bottleneck(stages, measured.rates.loader)
    assert verdict.images_per_second == overall(stages, measured.rates.loader)
    assert verdict.num_workers == measured.machine.rank_cpus
    assert (verdict.cores_per_gpu is None) == (measured.rates.step is None)
    if verdict.cores_per_gpu is not None:
        core = verdict.core_images_per_second
        assert core is not None and measured.rates.step is not None
        assert verdict.cores_per_gpu * core >= measured.rates.step * (1 - 1e-9)
        assert verdict.cores_per_gpu == 1 or (verdict.cores_per_gpu - 1) * core < (
            measured.rates.step * (1 + 1e-9)
        )


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
            assert advice.basis in ("measured", "estimated")
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
        assert "memory" not in codes
    if (verdict.cores_per_gpu or 0) <= verdict.num_workers:
        assert "cores" not in codes
    reading = {"stage", "convert", "order", "memory"}
    decoding = {"seek_points", "reencode", "rewrite", "workers"}
    if verdict.limit != "storage":
        assert not reading & set(codes)
    if verdict.limit != "decode":
        assert not (decoding | {"cores"}) & set(codes)


@given(slow=st.floats(1, 500), better=SPEEDS, step=MAYBE, loader=MAYBE)
def test_seek_points_that_are_added_are_not_advised_again(
    slow: float, better: float, step: float | None, loader: float | None
) -> None:
    before = found(
        {"decode": slow, "step": step, "loader": loader},
        alternatives={"decode_seekable": better},
        data={"seekable_share": 0.0},
    )
    advice = judge(before).advice[0]
    if advice.code == "seek_points":
        assert advice.images_per_second is not None
        after = judge(
            replace(
                before,
                rates=replace(before.rates, decode=better, loader=None),
                data=replace(before.data, seekable_share=1.0),
            )
        )
        assert after.images_per_second >= advice.images_per_second * (1 - 1e-9)
        assert "seek_points" not in [one.code for one in after.advice]
    elif step is None and loader is None:
        assert better <= slow * 1.05


@given(slow=st.floats(1, 500), read_cpu_s=st.floats(0, 1), step=MAYBE)
def test_a_staged_dataset_is_not_to_be_staged_again(
    slow: float, read_cpu_s: float, step: float | None
) -> None:
    before = found(
        {"storage_cold": slow, "storage_warm": slow, "read_cpu_s": read_cpu_s, "step": step}
    )
    advice = judge(before).advice[0]
    if advice.code == "stage":
        assert advice.images_per_second is not None
        faster = replace(before.rates, storage_cold=None, storage_warm=memory_rate(before.rates))
        after = judge(replace(before, rates=faster, data=replace(DATA, in_memory=True)))
        assert after.images_per_second >= advice.images_per_second * (1 - 1e-9)
        assert "stage" not in [one.code for one in after.advice]


@given(cold=SPEEDS, warm=SPEEDS, held=SHARES)
def test_storage_lies_between_cold_and_warm(cold: float, warm: float, held: float) -> None:
    rate = storage_rate(cold, warm, held)
    assert rate is not None
    assert min(cold, warm) * (1 - 1e-9) <= rate <= warm * (1 + 1e-9)
    assert storage_rate(None, warm, held) == warm


def codes_of(measured: Findings) -> list[str]:
    return [advice.code for advice in judge(measured).advice]


def test_cold_storage_limits_where_memory_cannot_hold_the_dataset() -> None:
    small = {"memory": 10**7, "stage_room": 10**7}
    slow = found({"storage_cold": 100.0}, machine=small)
    verdict = judge(slow)
    assert verdict.limit == "storage"
    assert math.isclose(verdict.images_per_second, 1 / (0.9 / 100 + 0.1 / 50_000))
    assert codes_of(slow) == ["memory"]
    # With memory for it, only the first epoch is slow.
    verdict = judge(found({"storage_cold": 100.0}))
    assert (verdict.first_epoch_limit, verdict.limit) == ("storage", "decode")
    # Single files belong into a container; neighbours may be read in order.
    tree = {"container": "files", "root": "sets/tree"}
    assert "convert" in codes_of(found({"storage_cold": 100.0}, machine=small, data=tree))
    other = {"storage_in_order": 4_000.0}
    first = judge(found({"storage_cold": 100.0}, machine=small, alternatives=other)).advice[1]
    assert (first.code, first.basis) == ("order", "measured")


def test_slow_storage_is_left_by_staging() -> None:
    slow = found({"storage_cold": 100.0, "storage_warm": 100.0})
    assert judge(slow).limit == "storage"
    (advice,) = judge(slow).advice
    assert (advice.code, advice.command) == ("stage", "fastdata stage sets/one")
    assert advice.images_per_second == 8_000  # then decoding limits
    assert codes_of(replace(slow, data=replace(DATA, stage_bytes=10**11))) == ["nothing"]


def test_what_reading_from_memory_gives_is_no_more_than_the_loader_did_from_there() -> None:
    slow = {"storage_cold": 100.0, "decode": 1_000.0, "loader": 800.0}
    advice = judge(found(slow, machine={"memory": 10**7})).advice[0]
    assert advice.code == "stage" and advice.images_per_second is not None
    assert 790 < advice.images_per_second < 820


def test_slow_decoding() -> None:
    slow = {"decode": 400.0, "decode_core": 50.0, "decode_all": 400.0}
    assert codes_of(found(slow)) == ["nothing"]
    seekable = {"alternatives": {"decode_seekable": 1500.0}, "data": {"seekable_share": 0.0}}
    (advice,) = judge(found(slow, **seekable)).advice
    assert (advice.code, advice.command) == ("seek_points", "fastdata seek-points sets/one")
    assert (advice.images_per_second, advice.basis) == (1500.0, "measured")
    pillow = {"data": {"pillow_share": 0.5, "pillow_kinds": ("jpeg-progressive",)}}
    (advice,) = judge(found(slow, **pillow)).advice
    assert advice.code == "reencode" and "50%" in advice.text and "progressive" in advice.text
    assert advice.images_per_second is None
    rewritable = {"data": {"rewritable_share": 0.5}}
    (advice,) = judge(found(slow, **rewritable)).advice
    assert advice.code == "rewrite" and advice.command.endswith("--encoding baseline")
    assert "50% of the images are progressive JPEGs" in advice.text
    for share in ("pillow_share", "rewritable_share"):
        assert codes_of(found(slow, data={share: 0.02})) == ["nothing"]
    few = {**slow, "decode": 50.0}
    (advice,) = judge(found(few, machine={"threads": 1})).advice
    assert (advice.code, advice.command) == ("workers", "DataLoader(num_workers=8)")
    assert advice.images_per_second == 400
    (advice,) = judge(found({**slow, "step": 1000.0})).advice
    assert advice.code == "cores" and "21 cores" in advice.text


def test_a_tree_whose_loader_is_slower_than_decoding_is_to_be_converted() -> None:
    rates = {"decode": 1000.0, "storage_warm": 9000.0, "storage_cold": None, "loader": 600.0}
    files = {"container": "files", "root": "sets/tree"}
    tree = found(rates, data=files)
    (advice,) = [one for one in judge(tree).advice if one.code == "container"]
    assert advice.command.endswith("--to lmdb")
    assert (advice.images_per_second, advice.basis) == (1000.0, "estimated")
    fast = found(rates | {"loader": 990.0}, data=files)
    assert "container" not in [one.code for one in judge(fast).advice]


def test_a_slow_consumer_leaves_nothing_to_gain() -> None:
    slow = found(
        {"step": 200.0, "decode": 400.0, "loader": 390.0},
        alternatives={"decode_seekable": 1500.0},
        data={"seekable_share": 0.0},
    )
    assert judge(slow).limit == "step"
    assert codes_of(slow) == ["nothing"]
    # But where the loader as a whole is slower still, it is what limits.
    assert judge(replace(slow, rates=replace(slow.rates, loader=150.0))).limit == "decode"
