"""Runs that stop and resume deliver what uninterrupted ones deliver; `make campaign` runs all."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hangs import HANG
from loader_data import images
from torch.utils.data import Subset

from fastdata import DataLoader, Mixture
from fastdata.errors import UsageError
from fastdata.samplers import (
    BalancedSampler,
    QuasiRandom,
    RepeatSampler,
    TokenBudgetBatches,
    WeightedSampler,
)

pytestmark = pytest.mark.slow

#: Pairs that are drawn, and the seed of the first.
PAIRS = int(os.environ.get("FASTDATA_CAMPAIGN_RESUMES", "80"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))
#: Whether all ways and kinds are run, on one rank and on two.
WHOLE = bool(os.environ.get("FASTDATA_CAMPAIGN_FRAMEWORKS"))

KINDS = ["random", "sequential", "quasi-random", "repeats", "weighted", "balanced", "mixture"]
KINDS += ["budget"]


def loaders(kind: str, n: int, size: int, seed: int | None, shards: list[Any]) -> list[Any]:
    data: Any = Subset(images(), range(n))
    lengths = np.arange(n) % 4 + 1
    made = []
    for shard in shards:
        options: dict[str, Any] = {"seed": seed, "shard": shard, "fields": ("index",)}
        source: Any = data
        if kind == "mixture":
            source = Mixture({"a": data, "b": Subset(data, range((n + 1) // 2))}, samples=n, seed=2)
        elif kind == "budget":
            options["batch_sampler"] = TokenBudgetBatches(data, lengths, 6, 7)
        elif kind == "repeats":
            options["sampler"] = RepeatSampler(lengths / 1.5, seed=2)
        elif kind == "weighted":
            options["sampler"] = WeightedSampler(lengths, seed=2)
        elif kind == "balanced":
            options["sampler"] = BalancedSampler(lengths, seed=2)
        else:
            options["order"] = QuasiRandom(2) if kind == "quasi-random" else kind
        if kind != "budget":
            options["batch_size"] = size
        made.append(DataLoader(source, require_native=True, **options))
    return made


def drawn_shards(draw: random.Random) -> list[Any]:
    ranks = draw.choice([1, 1, 2, 3])
    return [draw.choice([None, "auto"])] if ranks == 1 else [(r, ranks) for r in range(ranks)]


def delivered(batches: Any) -> Counter[int]:
    return Counter(number for batch in batches for number in batch["index"].tolist())


def test_states_of_drawn_loaders_resume_each_sample_once_or_are_refused() -> None:
    refused = 0
    for run in range(SEED, SEED + PAIRS):
        draw = random.Random(run)
        kind, n, seed = draw.choice(KINDS), draw.randint(1, 40), draw.choice([None, 0, 5])
        saving = loaders(kind, n, draw.randint(1, 5), seed, drawn_shards(draw))
        epoch, named = draw.randint(0, 3), draw.random() < 0.5
        for loader in saving:
            if named:
                loader.set_epoch(epoch)
            for _ in range(0 if named else epoch):
                list(loader)
        passes = [iter(loader) for loader in saving]
        count = draw.randint(0, len(passes[0]))
        done = delivered(next(one) for one in passes for _ in range(count))
        states = [json.loads(json.dumps(loader.state_dict())) for loader in saving]
        assert all(state == states[0] for state in states)
        over = count == len(passes[0])
        assert states[0]["epoch"] == epoch + over
        assert states[0]["named"] == (epoch if named else -1)
        # The uninterrupted run.
        wanted = done + delivered(batch for one in passes for batch in one)
        if over:
            done, wanted = Counter(), delivered(batch for loader in saving for batch in loader)
        other = draw.choice(KINDS) if draw.random() < 0.1 else kind
        given = draw.choice([seed, seed, None, None, 0, 5])
        resuming = loaders(other, n, draw.randint(1, 5), given, drawn_shards(draw))
        about = f"run {run}: {kind}, {states[0]}; {other}, seed {given}"
        try:
            for loader in resuming:
                loader.load_state_dict(draw.choice(states))
        except UsageError:
            own = 0 if given is None and kind == "budget" else given
            assert other != kind or own not in (None, states[0]["seed"]), about
            refused += 1
            continue
        if draw.random() < 0.5:
            for loader in resuming:
                loader.set_epoch(epoch)
            if over:  # the loop counts epochs by itself, and this one has ended
                with pytest.warns(UserWarning, match="no batches left"):
                    assert not any(map(list, resuming)), about
        found = done + delivered(batch for loader in resuming for batch in loader)
        # Less than one position a rank is repeated.
        assert (wanted - found).total() < len(saving), about
        assert (found - wanted).total() < len(saving) + len(resuming), about
        if kind not in ("repeats", "weighted", "balanced"):
            assert set(found) == set(range(n)), about
    print(f"{PAIRS:,} pairs, {refused:,} of them refused")


def run(folder: Path, kinds: str, ways: str, ranks: int = 1) -> None:
    script = str(Path(__file__).with_name("resumed_runs.py"))
    command = [sys.executable, script, str(folder), kinds, ways]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command[1:1] = launcher
    alone = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if name not in alone}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    limit = None if WHOLE else HANG
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{ranks} ranks: {found['runs']:,} resumed runs")
    assert found["runs"]
    assert not found["wrong"], "\n".join(found["wrong"][:20])


def needs(name: str) -> pytest.MarkDecorator:
    lacks = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(lacks, reason=f"{name} is not installed (make setup)")


@needs("lightning")
def test_runs_under_lightning_resume(tmp_path: Path) -> None:
    run(tmp_path, "shuffle", "epoch;limited, step;two loaders, step")


@needs("accelerate")
def test_plain_runs_and_runs_under_accelerate_resume(tmp_path: Path) -> None:
    run(tmp_path, "device;budget", "plain;accelerate")


@needs("lightning")
@needs("accelerate")
@pytest.mark.skipif(not WHOLE, reason="FASTDATA_CAMPAIGN_FRAMEWORKS is not set")
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_runs_resume(tmp_path: Path, ranks: int) -> None:
    run(tmp_path, "all", "all", ranks)
