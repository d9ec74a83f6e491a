"""The training recipe on two processes: killed in the middle of an epoch, it goes on.

Real processes, started by torchrun and by the SLURM script; gloo, on the CPU.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import training_data
from fastdata.examples import train_imagenet
from fastdata.examples.training import checkpoint
from test_train_imagenet import assert_right_score, assert_same, samples

SCRIPT = Path(train_imagenet.__file__)
SMALL = ["--model", "resnet18", "--width", "8", "--image-size", "32", "--workers", "1"]
SMALL += ["--device", "cpu", "--batch-size", "4", "--epochs", "2", "--checkpoint-every", "1"]
SMALL += ["--log-samples", "--no-tensorboard", "--lr", "2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return training_data.packed(tmp_path_factory.mktemp("ranks"))


def environment(**more: str) -> dict[str, str]:
    told = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in told}
    return kept | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} | more


def torchrun(*arguments: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", "2", str(SCRIPT), *arguments]


def finish(command: list[str], **more: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=150, env=environment(**more)
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def kill_in_the_middle(command: list[str], out: Path) -> None:
    """Kills launcher and ranks at once, when rank 1 has made some steps of the first epoch."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()
    )
    try:
        log = out / "samples" / "rank-1.jsonl"
        deadline = time.monotonic() + 120
        while not log.exists() or log.read_text().count("\n") < 4:
            assert process.poll() is None, process.communicate()[1][-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        everyone = psutil.Process(process.pid).children(recursive=True)
    finally:
        for one in psutil.Process(process.pid).children(recursive=True):
            one.send_signal(signal.SIGKILL)
        process.kill()
        process.communicate()
    assert len(everyone) >= 2 or process.returncode == 0
    psutil.wait_procs(everyone, 10)


def seen(out: Path, ranks: int) -> Counter[tuple[int, int]]:
    """How often the ranks together have seen each sample in each epoch."""
    return Counter(
        (epoch, sample) for rank in range(ranks) for epoch, _, sample in samples(out, rank)
    )


ONCE = {(epoch, sample): 1 for epoch in range(2) for sample in range(160)}


def test_killed_and_resumed_is_as_undisturbed(data: dict[str, Path], tmp_path: Path) -> None:
    common = ["--train", str(data["train"]), "--val", str(data["val"]), *SMALL]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for _ in range(3):  # a busy machine may be late, and hit the end of an epoch
        shutil.rmtree(killed, ignore_errors=True)
        kill_in_the_middle(torchrun(*common, "--out", str(killed)), killed)
        state = checkpoint.load(killed / "checkpoint.pt")
        if state["step"] % 20:
            break
    assert 3 <= state["step"] < 40 and state["step"] % 20
    fewer = shutil.copytree(killed, tmp_path / "fewer")

    finish(torchrun(*common, "--out", str(killed), "--resume", "auto"))
    events = (killed / "samples" / "rank-0.jsonl").read_text().splitlines()
    assert {"resumed": state["step"]} in [json.loads(line) for line in events]
    assert seen(killed, 2) == ONCE

    run_by_slurm([*common, "--out", str(whole)], tmp_path)
    assert seen(whole, 2) == ONCE
    assert all(samples(killed, rank) == samples(whole, rank) for rank in range(2))
    one, other = checkpoint.load(killed / "checkpoint.pt"), checkpoint.load(whole / "checkpoint.pt")
    assert_same(one, other)
    summary = json.loads((whole / "summary.json").read_text())
    assert (summary["steps"], summary["world_size"]) == (40, 2)
    assert summary["val"]["samples"] == 53  # which two ranks cannot share evenly
    assert_right_score(whole, data["val"], summary["val"])
    resumed = json.loads((killed / "summary.json").read_text())
    assert resumed["val"] == summary["val"]

    resume_on_one_process(common, fewer, state["step"])


def run_by_slurm(arguments: list[str], folder: Path) -> None:
    """The batch script as SLURM would run it: on a node of its own, with two processes."""
    commands = folder / "bin"
    commands.mkdir()
    # What SLURM brings: the names of the nodes, and a start on each of them.
    (commands / "scontrol").write_text(
        '#!/bin/bash\n[ "$*" = "show hostnames one" ] && echo localhost\n'
    )
    (commands / "srun").write_text(
        '#!/bin/bash\nwhile [[ "$1" == --* ]]; do shift; done\nexec "$@"\n'
    )
    (commands / "python").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    for command in commands.iterdir():
        command.chmod(0o755)
    finish(
        ["bash", str(SCRIPT.with_suffix(".slurm")), *arguments],
        PATH=f"{commands}:{os.environ['PATH']}",
        SLURM_JOB_NODELIST="one",
        SLURM_JOB_NUM_NODES="1",
        SLURM_JOB_ID=str(os.getpid()),
        FASTDATA_PROCESSES="2",
        FASTDATA_TRAIN=str(SCRIPT),
    )


def resume_on_one_process(common: list[str], out: Path, step: int) -> None:
    """The same state fits another number of ranks: what is left is seen once, by one of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        done = train_imagenet.main([*common, "--out", str(out), "--resume", "auto"])
    finally:
        torch.set_num_threads(before)
    # Rank 1 is no more, and has not been told that its last steps were undone.
    past = Counter((epoch, sample) for epoch, at, sample in samples(out, 1) if at < step)
    assert past + seen(out, 1) == ONCE
    assert done["world_size"] == 1
    assert_right_score(out, Path(common[3]), done["val"])


def test_gradients_are_sent_once_a_step(tmp_path: Path) -> None:
    """With accumulation, DDP sends them with the last batch alone."""
    from fastdata.examples.training import setup
    from fastdata.examples.training.config import Config
    from fastdata.examples.training.ranks import Ranks
    from fastdata.examples.training.step import Stepper, weights
    from torch import distributed as dist

    from fastdata.plan.sharding import Epoch
    from fastdata.profile import StepTimer

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rdzv", rank=0, world_size=1)
    try:
        ranks = Ranks(0, 1, 0, torch.device("cpu"), True)
        config = Config(model="resnet18", width=8, batch_size=4, accumulate=3, device="cpu")
        model = setup.make_model(config, ranks, 4)
        stepper = Stepper(config, ranks, model, StepTimer(every=0))
        sent = []

        def hook(_, bucket):  # type: ignore[no-untyped-def] # DDP looks at annotations
            sent.append(len(batches))
            future: Any = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        stepper.model.register_comm_hook(None, hook)  # type: ignore[operator]
        images, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
        batches: list[int] = []
        for number, weight in enumerate(weights(Epoch(28, 4), config.accumulate)):
            batches.append(number)
            stepper.batch(images, labels, weight)
    finally:
        dist.destroy_process_group()
    assert set(sent) == {3, 6, 7}
