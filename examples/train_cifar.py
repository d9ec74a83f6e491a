"""Train a ResNet-9 on CIFAR-10 with fastdata's loader or torch's: all else is the same.

fastdata convert cifar10          # makes cifar10-train-lmdb, cifar10-test-lmdb
python train_cifar.py cifar10-train-lmdb cifar10-test-lmdb --loader fastdata
python train_cifar.py cifar10-train-lmdb cifar10-test-lmdb --loader torch
"""

import argparse
import time
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fastdata
from fastdata import ImageDataset, transforms

LOADERS: dict[str, Any] = {"fastdata": fastdata.DataLoader, "torch": torch.utils.data.DataLoader}


def convolution(inputs: int, outputs: int, *after: nn.Module) -> nn.Sequential:
    """Return a convolution with batch norm and ReLU."""
    made = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(made, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True), *after)


class Residual(nn.Sequential):
    """Modules whose result is added to their input."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return images + super().forward(images)  # type: ignore[no-any-return, no-untyped-call]


def resnet9(classes: int, width: int) -> nn.Sequential:
    """Return a network of eight convolutions and one linear layer."""
    a, b, c, d = width, 2 * width, 4 * width, 8 * width
    first = [convolution(3, a), convolution(a, b, nn.MaxPool2d(2))]
    first += [Residual(convolution(b, b), convolution(b, b)), convolution(b, c, nn.MaxPool2d(2))]
    last = [convolution(c, d, nn.MaxPool2d(2)), Residual(convolution(d, d), convolution(d, d))]
    return nn.Sequential(
        *first, *last, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(d, classes)
    )


def evaluate(model: nn.Module, loader: Any) -> float:
    """Return the share of images that are classified rightly."""
    model.eval()
    with torch.no_grad():
        right = [(model(images).argmax(1) == labels).sum() for images, labels in loader]
    model.train()
    return int(sum(right)) / len(loader.dataset)


def main(words: list[str] | None = None) -> float:
    """Train by the options of a command line; return the accuracy at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--loader", choices=LOADERS, default="fastdata")
    parser.add_argument("--workers", type=int, default=1, help="threads, or torch's processes")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.4)
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    parser.add_argument("--seed", type=int, default=0)
    c = parser.parse_args(words)
    torch.manual_seed(c.seed)
    normalize = transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
    augment = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    data = ImageDataset(c.train, transforms.Compose((*augment, normalize)))
    test_data = ImageDataset(c.test, normalize)
    if data.classes != test_data.classes:
        parser.error(f"{c.train} and {c.test} have different classes: pack both from one source")
    options = {"batch_size": c.batch_size, "num_workers": c.workers}
    loader = LOADERS[c.loader](data, shuffle=True, drop_last=True, **options)
    test_loader = LOADERS[c.loader](test_data, **options)
    model = resnet9(len(data.classes), c.width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), c.lr, 0.9, weight_decay=5e-4, nesterov=True)
    steps = c.epochs * len(loader)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, c.lr, steps, cycle_momentum=False)
    began, accuracy = time.perf_counter(), 0.0
    for epoch in range(c.epochs):
        for images, labels in loader:
            images = images.contiguous(memory_format=torch.channels_last)
            loss = cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
        accuracy = evaluate(model, test_loader)
        passed = time.perf_counter() - began
        print(f"epoch {epoch + 1}: top-1 {accuracy:.4f}, {passed:.1f} s", flush=True)
    return accuracy


if __name__ == "__main__":
    main()
