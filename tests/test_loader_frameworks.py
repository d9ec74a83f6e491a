"""DataLoader under torchrun, Lightning and Accelerate: native, and every sample once."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hangs import HANG
from PIL import Image
from resume_page import check_resumes
from torchvision_stub import import_torchvision

pytestmark = pytest.mark.slow

JOBS = Path(__file__).with_name("framework_jobs.py")
SAMPLES = 13  # on two ranks with batches of 3, nothing comes out even


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every image has a class, so that its label says which it is."""
    import_torchvision()
    folder = tmp_path_factory.mktemp("frameworks")
    for number in range(SAMPLES):
        path = folder / f"{number:02}" / "0.jpg"
        path.parent.mkdir()
        pixels = np.full((40 + number, 50, 3), number * 10, np.uint8)
        Image.fromarray(pixels).save(path)
    return folder


Reports = dict[str, list[Any]]


def run(root: Path, job: str, *ways: str, ranks: int = 1) -> Reports:
    """Runs a job in some ways; what its ranks have reported of each, in their order."""
    command = [sys.executable, str(JOBS), job, str(root), *ways]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command[1:1] = launcher
    # Ranks are told by the launcher alone, and no machine's GPU is looked for.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    }
    environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG, env=environment, cwd=root.parent
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    assert len(found) == ranks * len(ways), done.stdout + done.stderr[-4000:]
    found.sort(key=lambda one: one["rank"])
    return {how: [one for one in found if one["how"] == how] for how in ways}


@pytest.fixture(scope="module")
def distributed(root: Path) -> Reports:
    return run(root, "distributed", "shard", "DistributedSampler", "not at all", ranks=2)


@pytest.fixture(scope="module")
def lightning(root: Path) -> Reports:
    return run(root, "lightning", "injected", "shard", ranks=2)


@pytest.fixture(scope="module")
def accelerated(root: Path) -> Reports:
    return run(root, "accelerated", "prepared", "shard", "device", "stream", ranks=2)


def assert_shares(found: list[Any], repeated: int) -> None:
    """In each epoch the ranks have all samples, of which so many twice, in as many batches."""
    for epoch in range(2):
        batches = [one["epochs"][epoch] for one in found]
        assert len({len(share) for share in batches}) == 1
        assert all(len(share) == one["length"] for share, one in zip(batches, found, strict=True))
        counts = Counter(label for share in batches for batch in share for label in batch)
        assert set(counts) == set(range(SAMPLES))
        assert sum(counts.values()) - SAMPLES == repeated and max(counts.values()) <= 2
    first, second = (found[0]["epochs"][epoch] for epoch in range(2))
    assert first != second  # another order


@pytest.mark.parametrize("how", ["shard", "DistributedSampler"])
def test_torchrun(distributed: Reports, how: str) -> None:
    found = distributed[how]
    assert_shares(found, 1)
    for rank, one in enumerate(found):
        assert one["explained"].startswith("native") and one["warnings"] == []
        told = f"sharding: rank {rank} of 2" if how == "shard" else "by the given sampler"
        assert told in one["explained"]
        # "auto" divides the CPUs among the ranks.
        assert one["threads"] == max(1, one["cpus"] // 2)


def test_a_loader_that_does_not_shard_says_so_once(distributed: Reports) -> None:
    for one in distributed["not at all"]:
        assert len(one["warnings"]) == 1
        assert "each of the 2 ranks of this job loads all samples" in one["warnings"][0]
        assert all(sum(map(len, epoch)) == SAMPLES for epoch in one["epochs"])


def lacks(name: str) -> bool:
    return importlib.util.find_spec(name) is None


@pytest.mark.parametrize(
    ("name", "kill"), [("A plain loop", 5), ("Lightning", 18), ("Accelerate", 14)]
)
def test_the_scripts_of_the_page_resume(tmp_path: Path, name: str, kill: int) -> None:
    if " " not in name and lacks(name.lower()):
        pytest.skip(f"{name} is not installed (make setup)")
    check_resumes(tmp_path, name, kill)


@pytest.mark.skipif(lacks("lightning"), reason="lightning is not installed (make setup)")
class TestLightning:
    def test_one_process(self, root: Path) -> None:
        found = run(root, "lightning", "one process", "cmyk")
        (one,) = found["one process"]
        assert one["explained"].startswith("native")
        assert_shares([one], 0)
        # A warning names the user's line.
        assert one["told"] == []
        (other,) = found["cmyk"]
        (line,) = other["told"]
        assert "trainer.fit(" in line

    @pytest.mark.parametrize("how", ["injected", "shard"])
    def test_two_processes(self, lightning: Reports, how: str) -> None:
        """Lightning adds a DistributedSampler, and must not to a loader that shards already."""
        found = lightning[how]
        assert_shares(found, 1)
        for one in found:
            assert one["explained"].startswith("native")
            wanted = "DistributedSampler" if how == "injected" else "ShardedSampler"
            assert one["sampler"] == wanted


@pytest.mark.skipif(lacks("accelerate"), reason="accelerate is not installed (make setup)")
class TestAccelerate:
    def test_one_process(self, root: Path) -> None:
        assert_shares(run(root, "accelerated", "prepared")["prepared"], 0)

    @pytest.mark.parametrize("how", ["prepared", "shard"])
    def test_two_processes(self, accelerated: Reports, how: str) -> None:
        """Accelerate shards torch's loader, and leaves alone one that shards itself."""
        found = accelerated[how]
        for one in found:
            if how == "shard":
                assert one["explained"].startswith("native") and one["kind"] == "DataLoader"
                assert one["warnings"] == []
            else:
                (said,) = one["warnings"]
                assert 'Give the DataLoader shard="auto" and device=accelerator.device' in said
        if how == "shard":
            assert_shares(found, 1)
        else:
            # Accelerate makes whole batches of it, by repeating samples from the beginning.
            assert_shares(found, 2 * 3 * 3 - SAMPLES)

    @pytest.mark.parametrize("how", ["prepared", "shard", "device", "stream"])
    def test_the_end_is_known(self, accelerated: Reports, how: str) -> None:
        """Metrics have no sample twice, and the last step is not put off to the next epoch."""
        for one in accelerated[how]:
            counts = Counter(label for batch in one["gathered"] for label in batch)
            assert counts == Counter(range(SAMPLES))
            assert one["steps"] == [False, True, True, False]
