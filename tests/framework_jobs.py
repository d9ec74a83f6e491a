"""Jobs for test_loader_frameworks.py: processes, each rank of which prints what it was given."""

from __future__ import annotations

import json
import linecache
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import distributed as dist
from torch.utils.data import (
    DistributedSampler,
    IterableDataset,
)
from torchvision_stub import import_torchvision

from fastdata import DataLoader, DeviceLoader
from fastdata.errors import FallbackWarning, SlowPathWarning
from fastdata.machine import usable_cpus


def folder(root: str) -> Any:
    torchvision = import_torchvision()
    transforms = torchvision.transforms
    pipeline = transforms.Compose([transforms.RandomCrop(32), transforms.ToTensor()])
    return torchvision.datasets.ImageFolder(root, pipeline)


def report(how: str, **values: Any) -> None:
    """One line for the test that has started this, whole even where ranks print together."""
    line = json.dumps({"rank": int(os.environ.get("RANK", "0")), "how": how, **values}) + "\n"
    os.write(sys.stdout.fileno(), line.encode())


def epoch_of(loader: Any) -> list[list[int]]:
    return [labels.tolist() for _, labels in loader]


def distributed(root: str, how: str) -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    dataset = folder(root)
    options: dict[str, Any] = {"batch_size": 3, "num_workers": 1}
    sampler = None
    if how == "shard":
        options |= {"shard": "auto", "shuffle": True, "seed": 1}
    elif how == "DistributedSampler":
        sampler = options["sampler"] = DistributedSampler(dataset, seed=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader(dataset, **options)
        epochs = []
        for epoch in range(2):
            if sampler is not None:
                loader.set_epoch(epoch)
            epochs.append(epoch_of(loader))
    said = [str(warning.message) for warning in caught if "ranks" in str(warning.message)]
    report(
        how,
        epochs=epochs,
        length=len(loader),
        explained=loader.explain(),
        warnings=said,
        threads=DataLoader(dataset, num_workers="auto").num_workers,
        cpus=usable_cpus(),
    )


class Stream(IterableDataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        return map(self.dataset.__getitem__, range(len(self.dataset)))


def accelerated(root: str, how: str) -> None:
    import_torchvision()
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    ours: dict[str, Any] = {} if how in ("prepared", "stream") else {"shard": "auto"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if how == "stream":
            loader: Any = DataLoader(Stream(folder(root)), 3, **ours)
        else:
            loader = DataLoader(folder(root), 3, shuffle=True, num_workers=1, **ours)
        loader = DeviceLoader(loader, "cpu") if how == "device" else loader
        loader = accelerator.prepare(loader)
    epochs = [epoch_of(loader) for _ in range(2)]
    base = getattr(loader, "base_dataloader", loader)
    gathered, steps = [], []
    for _, labels in loader:
        gathered.append(accelerator.gather_for_metrics(labels).tolist())
        with accelerator.accumulate():
            steps.append(accelerator.sync_gradients)
    with accelerator.accumulate():
        steps.append(accelerator.sync_gradients)
    report(
        how,
        epochs=epochs,
        length=None if how == "stream" else len(loader),
        explained=explain(base),
        kind=type(base).__name__,
        gathered=gathered,
        steps=steps,
        warnings=[str(one.message) for one in caught if one.category is SlowPathWarning],
    )


def explain(loader: Any) -> str:
    return loader.explain() if isinstance(loader, DataLoader) else type(loader).__module__


def lightning(root: str, how: str) -> None:
    import_torchvision()
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.seen: list[list[list[int]]] = []

        def on_train_epoch_start(self) -> None:
            self.seen.append([])

        def training_step(self, batch: Any, number: int) -> Any:
            images, labels = batch
            self.seen[-1].append(labels.tolist())
            return self.layer(images.mean(dim=(2, 3))).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    class Data(lightning.LightningDataModule):
        def train_dataloader(self) -> Any:
            ours: dict[str, Any] = {"shard": "auto", "seed": 3} if how == "shard" else {}
            dataset = folder(root)
            if how == "cmyk":  # which Pillow decodes
                path, label = dataset.samples[0]
                other = Path(tempfile.mkdtemp()) / "cmyk.jpg"
                Image.open(path).convert("CMYK").save(other)
                dataset.samples[0] = (str(other), label)
            return DataLoader(dataset, 3, shuffle=True, num_workers=1, **ours)

    two = how not in ("one process", "cmyk")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2 if two else 1,
        strategy="ddp" if two else "auto",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=f"{root}-{how}",  # it saves checkpoints, and asks loaders for their state
    )
    module = Module()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module, datamodule=Data())  # what warnings name
    told = [one for one in caught if issubclass(one.category, FallbackWarning)]
    loader: Any = trainer.train_dataloader
    report(
        how,
        epochs=module.seen,
        length=len(loader),
        explained=explain(loader),
        sampler=type(loader.sampler).__name__,
        told=[linecache.getline(one.filename, one.lineno) for one in told],
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for way in sys.argv[3:]:
        globals()[sys.argv[1]](sys.argv[2], way)
    if dist.is_initialized():
        dist.destroy_process_group()
