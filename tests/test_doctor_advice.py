"""The limit and the advice are a pure function of the measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fastdata.doctor import DatasetFacts, Findings, Machine, Rates, judge

DATA = DatasetFacts(
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
    return Findings(
        data=replace(DATA, **more.get("data", {})),
        machine=replace(MACHINE, **more.get("machine", {})),
        rates=replace(RATES, **rates),
    )


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
    # Of tables, whole row groups are read.
    tables = {"container": "tables", "convert": "fastdata convert dataset --root tables"}
    (advice,) = judge(found({"storage_cold": 100.0}, machine=small, data=tables)).advice
    assert advice.command == "fastdata convert dataset --root tables --to shards"
    # Of some kinds of data, packing would lose the annotations.
    assert codes_of(
        found({"storage_cold": 100.0}, machine=small, data={**tree, "convert": ""})
    ) == ["nothing"]


def test_slow_storage_is_left_by_staging() -> None:
    slow = found({"storage_cold": 100.0, "storage_warm": 100.0})
    assert judge(slow).limit == "storage"
    (advice,) = judge(slow).advice
    assert judge(slow).cores_per_gpu is None
    assert (advice.code, advice.command) == ("stage", "fastdata stage sets/one")
    assert advice.images_per_second == 8_000  # then decoding limits
    assert codes_of(replace(slow, data=replace(DATA, stage_bytes=10**11))) == ["nothing"]
    assert codes_of(replace(slow, data=replace(DATA, in_memory=True))) == ["nothing"]


def test_slow_decoding() -> None:
    slow = {"decode": 400.0}
    assert codes_of(found(slow)) == ["nothing"]
    (advice,) = judge(found(slow, data={"seekable_share": 0.0})).advice
    assert (advice.code, advice.command) == ("seek_points", "fastdata seek-points sets/one")
    pillow = {"data": {"other_share": 0.5, "other_kinds": ("jpeg-progressive (Pillow)",)}}
    (advice,) = judge(found(slow, **pillow)).advice
    assert advice.code == "reencode" and "50%" in advice.text and "progressive" in advice.text
    assert advice.images_per_second is None
    rewritable = {"data": {"rewritable_share": 0.5}}
    (advice,) = judge(found(slow, **rewritable)).advice
    assert advice.code == "rewrite" and "jpegtran" in advice.text
    for share in ("other_share", "rewritable_share"):
        assert codes_of(found(slow, data={share: 0.02})) == ["nothing"]
    (advice,) = judge(found({"decode": 50.0}, machine={"threads": 1})).advice
    assert (advice.code, advice.command) == ("workers", "DataLoader(num_workers=8)")
    assert advice.images_per_second is not None and 390 < advice.images_per_second < 400
    (advice,) = judge(found({**slow, "step": 1000.0})).advice
    assert advice.code == "cores" and "21 cores" in advice.text


def test_a_slow_consumer_leaves_nothing_to_gain() -> None:
    slow = found({"step": 200.0, "decode": 400.0}, data={"seekable_share": 0.0})
    verdict = judge(slow)
    assert (verdict.limit, verdict.images_per_second) == ("step", 200)
    assert math.isclose(verdict.loader_images_per_second, 1 / (1 / 50_000 + 1 / 400))
    assert codes_of(slow) == ["nothing"]
    assert (verdict.num_workers, verdict.cores_per_gpu) == (8, 5)
