"""Loaders for training and validation: decoded by threads, normalised on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from fastdata.examples.training.config import Config
from fastdata.examples.training.ranks import Ranks

from fastdata import DataLoader, ImageDataset
from fastdata.plan.sharding import Epoch
from fastdata.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Transform,
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
        return replace(self.epoch, start=self.loader.state_dict()["position"])


def training(config: Config, ranks: Ranks) -> Data:
    """Random crops and flips of the training set, this rank's share."""
    crops = RandomResizedCrop(config.image_size), RandomHorizontalFlip()
    return _data(config, ranks, config.train, crops, order=config.order, on_error=config.on_error)


def validation(config: Config, ranks: Ranks) -> Data:
    """The middle of each image of the validation set, this rank's share; nothing is dropped."""
    middle = Resize(round(config.image_size * 256 / 224)), CenterCrop(config.image_size)
    # A bad image must not shift the others, as skipping does: it is black, and not counted.
    on_error = "zero" if config.on_error == "skip" else "raise"
    return _data(config, ranks, config.val, middle, order="sequential", on_error=on_error)


def _data(
    config: Config,
    ranks: Ranks,
    path: str,
    geometry: tuple[Transform, ...],
    *,
    order: str,
    on_error: str,
) -> Data:
    # What mixed precision would convert images to, they are normalised to.
    dtype = "float32" if config.amp == "none" else config.amp
    dataset = ImageDataset(path, Compose((*geometry, Normalize(MEAN, STD, dtype))))
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=config.batch_size,
        num_workers=config.workers or "auto",
        persistent_workers=True,
        order=order,
        seed=config.seed,
        shard="auto",
        device=ranks.device,
        fields=("image", "label", "index"),
        on_error=on_error,
        # Images come as channels-last.
        batch_transform=None if config.channels_last else _planar,
    )
    epoch = Epoch(len(dataset), config.batch_size, ranks.rank, ranks.world_size)
    return Data(dataset, loader, epoch)


def _planar(batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"image": batch["image"].contiguous()}


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
