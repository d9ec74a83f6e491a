"""Runs under Lightning, Accelerate and a plain loop that stop after any step and resume.

`python resumed_runs.py FOLDER KINDS WAYS`, each "all" or names between semicolons; prints JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loader_data import images
from torch import distributed as dist
from torch.utils.data import Subset
from torchvision_stub import import_torchvision

from fastdata import DataLoader, DeviceLoader, Mixture
from fastdata.samplers import AspectRatioBatches, RepeatSampler, TokenBudgetBatches

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
SAMPLES, BATCH, EPOCHS = 13, max(1, 4 // RANKS), 3

Batch = list[int]


def loader_of(kind: str) -> Any:
    """Return a loader of 13 samples that delivers their keys; of the same samples on one rank."""
    data: Any = Subset(images(), range(SAMPLES))
    options: dict[str, Any] = {"fields": ("key",), "num_workers": 2, "require_native": True}
    if RANKS > 1:
        options["shard"] = "auto"
    lengths = np.arange(SAMPLES) % 3 + 2
    made: dict[str, Callable[[], Any]] = {
        "shuffle": lambda: DataLoader(data, BATCH, True, seed=3, **options),
        "drop_last": lambda: DataLoader(data, BATCH, True, seed=3, drop_last=True, **options),
        "quasi-random": lambda: DataLoader(data, BATCH, seed=3, order="quasi-random", **options),
        "device": lambda: DeviceLoader(DataLoader(data, BATCH, True, seed=3, **options), "cpu"),
        "sent": lambda: DataLoader(data, BATCH, True, seed=3, device="cpu", **options),
        "mixture": lambda: DataLoader(
            Mixture(
                {"a": (Subset(data, range(7)), 0.3), "b": (Subset(data, range(7, SAMPLES)), 0.7)},
                samples=SAMPLES,
            ),
            BATCH,
            **options,
        ),
        "repeats": lambda: DataLoader(
            data, BATCH, sampler=RepeatSampler(lengths / lengths.mean(), seed=4), **options
        ),
        # Lightning has one number of batches for all epochs, which differ with other seeds.
        "budget": lambda: DataLoader(
            data, batch_sampler=TokenBudgetBatches(data, lengths, 9, 5, seed=1), **options
        ),
        "ratios": lambda: DataLoader(
            data, batch_sampler=AspectRatioBatches(data, 3, ratios=[0.8, 1.2], seed=4), **options
        ),
    }
    return made[kind]()


KINDS = "shuffle;drop_last;quasi-random;device;sent;mixture;repeats;budget;ratios"


def with_shorter(loader: Any) -> list[Any]:
    shard = "auto" if RANKS > 1 else None
    shorter = Subset(images(), range(5))
    return [loader, DataLoader(shorter, 2, True, seed=6, shard=shard, fields=("key",))]


def numbers(batch: Any) -> Batch:
    if isinstance(batch, list):
        return [number for one in batch for number in numbers(one)]
    return [int(Path(key).stem) for key in batch["key"]]


def plain(kind: str, folder: Path) -> Iterator[tuple[str, list[Batch], list[Batch]]]:
    """The loop of docs/loader.md, and those that count their epochs by themselves."""
    whole, states = [], []
    loader = loader_of(kind)
    for epoch in range(EPOCHS):
        for batch in loader:
            whole.append(numbers(batch))
            states.append(json.loads(json.dumps([epoch, loader.state_dict()])))
    for step, (own, state) in enumerate(states):
        for how, first in (("state", state["epoch"]), ("set", state["epoch"]), ("own", own)):
            resumed, found = loader_of(kind), []
            resumed.load_state_dict(state)
            for epoch in range(first, EPOCHS):
                if how != "state":
                    resumed.set_epoch(epoch)
                found += [numbers(batch) for batch in resumed]
            yield f"plain, {how}, after step {step}", found, whole[step + 1 :]


def accelerated(kind: str, folder: Path) -> Iterator[tuple[str, list[Batch], list[Batch]]]:
    from accelerate import Accelerator

    def prepared() -> tuple[Any, Any]:
        accelerator = Accelerator(cpu=True)
        loader = loader_of(kind)
        if RANKS > 1:
            loader = accelerator.prepare(loader)
        accelerator.register_for_checkpointing(loader)
        return accelerator, loader

    accelerator, loader = prepared()
    whole: list[Batch] = []
    for _ in range(EPOCHS):
        for batch in loader:
            accelerator.save_state(str(folder / f"{len(whole)}"))
            whole.append(numbers(batch))
    for step in range(len(whole)):
        again, resumed = prepared()
        again.load_state(str(folder / f"{step}"))
        first = resumed.state_dict()["epoch"]
        found = [numbers(batch) for _ in range(first, EPOCHS) for batch in resumed]
        yield f"accelerate, load_state, after step {step}", found, whole[step + 1 :]


def trained(kind: str, folder: Path, how: str) -> Iterator[tuple[str, list[Batch], list[Batch]]]:
    import lightning
    from lightning.pytorch import callbacks as known

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen, self.before = torch.nn.Linear(1, 1), [], 0

        def training_step(self, batch: Any, number: int) -> Any:
            self.seen.append(numbers(batch))
            return self.layer(torch.ones(1, 1)).sum() * 0

        def validation_step(self, batch: Any, number: int) -> None: ...

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["batches"] = len(self.seen)

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.before = checkpoint["batches"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    class Saves(known.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.save_checkpoint(f"{folder}/{kind}-{how}/step={trainer.global_step}.ckpt")

    every: dict[str, Any] = {"dirpath": folder / f"{kind}-{how}", "filename": "{step}"}
    every |= {"save_top_k": -1}
    callback, options, validates = WAYS[how]
    made = Saves() if callback is None else known.ModelCheckpoint(**every, **callback)

    def fit(callbacks: list[Any], checkpoint: str | None) -> Module:
        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=RANKS,
            strategy="ddp" if RANKS > 1 else "auto",
            callbacks=callbacks,
            default_root_dir=folder,  # of the checkpoint that Lightning saves beside the hook's
            **{"max_epochs": EPOCHS, "enable_checkpointing": bool(callbacks), **options},
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=kind not in ("budget", "ratios"),
            num_sanity_val_steps=0,
        )
        trainer.fit(
            module,
            with_shorter(loader_of(kind)) if how.startswith("two loaders") else loader_of(kind),
            torch.utils.data.DataLoader(range(2)) if validates else None,  # type: ignore[arg-type]
            ckpt_path=checkpoint,
        )
        return module

    whole = fit([made], None).seen
    for path in sorted((folder / f"{kind}-{how}").glob("*.ckpt")):
        resumed = fit([], str(path))
        about = f"{how}, after {resumed.before} batches: {path.stem}"
        yield about, resumed.seen, whole[resumed.before :]


#: Arguments of a ModelCheckpoint (None: saved in a hook), of the Trainer, and whether it validates.
WAYS: dict[str, tuple[dict[str, Any] | None, dict[str, Any], bool]] = {
    "epoch": ({}, {}, False),
    "step": ({"every_n_train_steps": 1}, {}, False),
    "time": ({"train_time_interval": timedelta(0)}, {}, False),
    "hook": (None, {}, False),
    "two epochs": ({"every_n_epochs": 2}, {}, False),
    "validated": ({}, {}, True),
    "validated, step": ({"every_n_train_steps": 1}, {}, True),
    "validated, halves": ({}, {"val_check_interval": 2}, True),
    "validated, epoch": ({"save_on_train_epoch_end": True}, {}, True),
    "limited, epoch": ({}, {"limit_train_batches": 3}, False),
    "limited, step": ({"every_n_train_steps": 1}, {"limit_train_batches": 3}, False),
    "limited, validated": ({}, {"limit_train_batches": 3}, True),
    "accumulated": ({"every_n_train_steps": 1}, {"accumulate_grad_batches": 2}, False),
    "two loaders, step": ({"every_n_train_steps": 1}, {}, False),
    "two loaders, limited": ({"every_n_train_steps": 1}, {"limit_train_batches": 3}, False),
    # Saved at an epoch's end, Lightning 2.6 goes on with one batch, and then with the next epoch.
    "max_steps, step": ({"every_n_train_steps": 1}, {"max_steps": 9}, False),
}


def main(folder: Path, kinds: str, ways: str) -> None:
    import_torchvision()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    runs, wrong = 0, []
    asked = [*WAYS, "plain", "accelerate"] if ways == "all" else ways.split(";")
    for how, kind in itertools.product(asked, (KINDS if kinds == "all" else kinds).split(";")):
        own = folder / f"{kind}-{how}"
        own.mkdir(exist_ok=True)
        by_name = {"plain": plain, "accelerate": accelerated}
        found = by_name[how](kind, own) if how in by_name else trained(kind, folder, how)
        for name, got, wanted in found:
            runs += 1
            if got != wanted:
                wrong.append(f"{kind}, {name}: {got}, not {wanted}")
        print(f"{how}, {kind}: {runs} runs, {len(wrong)} wrong", file=sys.stderr)
    if dist.is_initialized():
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, wrong)
        wrong = [one for part in every for one in part]
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"runs": runs, "wrong": wrong}), flush=True)
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
