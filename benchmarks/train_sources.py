"""The data of a rung: torch's loaders over files and LMDB, and fastdata's, each on the device."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastdata.benchmarks.adapters._transforms import image_folder, train_crop
from fastdata.benchmarks.train_rungs import Setting
from PIL import Image
from torch.utils.data import Dataset, DistributedSampler

from fastdata import DataLoader, DeviceLoader, ImageDataset, fast_collate
from fastdata.errors import UsageError
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class _Crop:
    """A random crop: a PIL image, or what ToTensor and Normalize make of it."""

    def __init__(self, setting: Setting) -> None:
        self._size = setting.size
        self._bytes = setting.uint8

    def __call__(self, image: Image.Image) -> Any:
        image = train_crop(image.convert("RGB"), self._size)
        if self._bytes:
            return image
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)
        return pixels.sub_(_column(MEAN)).div_(_column(STD))


def _column(values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values).view(3, 1, 1)


class _Tree(Dataset[tuple[Any, int]]):
    """What torchvision's ImageFolder does."""

    def __init__(self, setting: Setting) -> None:
        self._samples = image_folder(setting.tree)
        self._transform = _Crop(setting)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._samples[index]
        with open(path, "rb") as file:
            return self._transform(Image.open(file)), label


class _Lmdb(Dataset[tuple[Any, int]]):
    """fastdata's LMDB read as anybody would, by py-lmdb; opened in each worker."""

    def __init__(self, setting: Setting) -> None:
        self._path = setting.lmdb
        self._labels = ImageDataset(setting.lmdb, staged=False).labels.tolist()
        self._transform = _Crop(setting)
        self._transaction: Any = None

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self._transaction is None:
            import lmdb

            environment = lmdb.open(
                self._path, readonly=True, lock=False, readahead=False, meminit=False
            )
            self._transaction = environment.begin(buffers=True)
        value = self._transaction.get(index.to_bytes(8, "big"))
        return self._transform(Image.open(io.BytesIO(value))), self._labels[index]


def image_dtype(setting: Setting, amp: torch.dtype) -> torch.dtype:
    """What images are on the device."""
    return amp if setting.amp else torch.float32


def classes(setting: Setting) -> int:
    """Number of classes."""
    return sum(1 for entry in Path(setting.tree).iterdir() if entry.is_dir())


def batches(
    setting: Setting, device: torch.device, amp: torch.dtype, rank: int, world_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images and labels on the device, epoch after epoch, without end.

    Raises:
        UsageError: There are too few images for a batch.
    """
    loader = _loader(setting, device, amp, rank, world_size)
    if not len(loader):
        raise UsageError(
            f"{setting.tree} has too few images for a batch of {setting.batch}",
            "Give --images, which repeats them, or smaller batches.",
        )
    return _forever(loader, setting, device, amp)


def _loader(
    setting: Setting, device: torch.device, amp: torch.dtype, rank: int, world_size: int
) -> Any:
    batch = setting.batch // world_size
    workers = -(-setting.workers // world_size)
    if setting.source == "fastdata":
        crops = Compose((RandomResizedCrop(setting.size), RandomHorizontalFlip()))
        loader: DataLoader[Any] = DataLoader(
            ImageDataset(setting.lmdb, transform=crops, staged=False),
            batch,
            shuffle=True,
            seed=0,
            num_workers=workers,
            pin_memory=setting.pin,
            persistent_workers=workers > 0,
            drop_last=True,
            rank=rank,
            world_size=world_size,
        )
        return DeviceLoader(
            loader,
            device,
            dtype=image_dtype(setting, amp),
            mean=MEAN,
            std=STD,
            channels_last=setting.channels_last,
        )
    dataset: Dataset[Any] = _Tree(setting) if setting.source == "tree" else _Lmdb(setting)
    sampler: DistributedSampler[Any] | None = None
    if world_size > 1:
        sampler = DistributedSampler(dataset, world_size, rank)
    return torch.utils.data.DataLoader(
        dataset,
        batch,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=workers,
        collate_fn=fast_collate if setting.uint8 else None,
        pin_memory=setting.pin,
        persistent_workers=workers > 0,
        drop_last=True,
    )


def _forever(
    loader: Any, setting: Setting, device: torch.device, amp: torch.dtype
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    layout = torch.channels_last if setting.channels_last else torch.contiguous_format
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) * 255 for v in (MEAN, STD))
    sampler = getattr(loader, "sampler", None)
    for epoch in itertools.count():
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)  # or every epoch would have the first one's order
        for images, labels in loader:
            images = images.to(device, non_blocking=setting.pin)
            labels = labels.to(device, non_blocking=setting.pin)
            if images.dtype == torch.uint8:
                images = ((images - mean) / std).to(image_dtype(setting, amp))
            yield images.contiguous(memory_format=layout), labels
