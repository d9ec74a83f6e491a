"""Loaders for training and validation: decoded by threads, normalised on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from fastdata.examples.training.config import Config
from fastdata.examples.training.ranks import Ranks

from fastdata import DataLoader, DeviceLoader, ImageDataset
from fastdata.plan.sharding import Epoch
from fastdata.transforms import (
    CenterCrop,
    Compose,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Data:
    """A loader, and how its epochs are cut.

    Attributes:
        dataset: What it loads.
        loader: Batches on the device: dicts of "image", "label" and "index".
        epoch: A whole epoch of this rank's.
    """

    dataset: ImageDataset
    loader: Any
    epoch: Epoch

    def remaining(self) -> Epoch:
        """What is left of the epoch that the loader is in."""
        position = self.loader.state_dict()["position"]
        one = self.epoch
        return Epoch(one.samples, one.batch_size, one.rank, one.world_size, one.drop_last, position)


def image_dtype(amp: str) -> str:
    """What images are normalised to: what mixed precision would convert them to."""
    return "float32" if amp == "none" else amp


def training(config: Config, ranks: Ranks) -> Data:
    """Random crops and flips of the training set, this rank's share."""
    crops = Compose((RandomResizedCrop(config.image_size), RandomHorizontalFlip()))
    return _data(config, ranks, config.train, crops, order=config.order, on_error=config.on_error)


def validation(config: Config, ranks: Ranks) -> Data:
    """The middle of each image of the validation set, this rank's share; nothing is dropped."""
    shorter = round(config.image_size * 256 / 224)
    middle = Compose((Resize(shorter), CenterCrop(config.image_size)))
    # A bad image must not shift the others, as skipping does: it is black, and not counted.
    on_error = "zero" if config.on_error == "skip" else "raise"
    return _data(config, ranks, config.val, middle, order="sequential", on_error=on_error)


def _data(
    config: Config, ranks: Ranks, path: str, transform: Compose, *, order: str, on_error: str
) -> Data:
    dataset = ImageDataset(path, transform=transform)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=config.batch_size,
        num_workers=config.workers or "auto",
        pin_memory=ranks.device.type == "cuda",
        persistent_workers=True,
        order=order,
        seed=config.seed,
        shard=(ranks.rank, ranks.world_size),
        fields=("image", "label", "index"),
        on_error=on_error,
    )
    on_device = DeviceLoader(
        loader,
        ranks.device,
        dtype=image_dtype(config.amp),
        mean=MEAN,
        std=STD,
        channels_last=config.channels_last,
    )
    epoch = Epoch(len(dataset), config.batch_size, ranks.rank, ranks.world_size)
    return Data(dataset, on_device, epoch)


def counted(data: Data) -> Iterator[tuple[Any, Any, torch.Tensor]]:
    """Batches of the validation set, and which of their samples count.

    Every rank has as many batches of the same sizes, so that none waits for another; what fills
    the last of them up was in another batch already.

    Yields:
        Images, labels, and a bool tensor on the device, shape (N,).
    """
    for number, batch in enumerate(data.loader):
        labels = batch["label"]
        counts = torch.from_numpy(~data.epoch.padding(number)).to(labels.device)
        yield batch["image"], labels, counts & batch.get("valid", counts)
