"""Ranks of the training script as processes, forked by a server that has imported torch once."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import socket
import sys
from pathlib import Path
from typing import Any

import training_models

_CONTEXT: Any = multiprocessing.get_context("forkserver")
# The last of these is what an optimizer imports when it is made.
_CONTEXT.set_forkserver_preload(["training_models", "torch._dynamo"])


def _run(environ: dict[str, str], arguments: list[str], output: Path) -> None:
    os.environ.update(environ)
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    import torch

    training_models.register()
    from fastdata.examples import train_imagenet

    torch.set_num_threads(1)
    saves, fsync = 0, os.fsync

    def strike_and_sync(file: Any) -> None:
        nonlocal saves
        saves += 1
        training_models.strike("save", saves)
        fsync(file)

    os.fsync = strike_and_sync  # a checkpoint is half done: the old one is still under its name
    sys.exit(train_imagenet.main(arguments))


def run(
    folder: Path, *arguments: str, ranks: int = 2, accident: str = "", timeout: float = 120
) -> list[tuple[int, str]]:
    """Runs the script on ranks, with gloo; returns the exit status and output of each."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    processes = []
    for rank in range(ranks):
        environ = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        environ |= {} if "cuda" in arguments else {"CUDA_VISIBLE_DEVICES": ""}
        environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environ |= {"OMP_NUM_THREADS": "1", training_models.ACCIDENT: accident}
        output = folder / f"rank-{rank}.txt"
        processes.append(_CONTEXT.Process(target=_run, args=(environ, [*arguments], output)))
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout)
        assert not any(process.is_alive() for process in processes), "a rank waits for ever"
    finally:
        for process in processes:
            process.kill()
            process.join()
    outputs = [(folder / f"rank-{rank}.txt").read_text() for rank in range(ranks)]
    return [(one.exitcode, text) for one, text in zip(processes, outputs, strict=True)]
