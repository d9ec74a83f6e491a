"""Models of the tests of the training script: ``--model tiny``."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torchvision_stub import import_torchvision

#: What befalls a rank: "RANK:PHASE:CALL:WHAT", PHASE "train", "val" or "save", WHAT a signal's
#: number or "nan"; calls of a phase count from 1.
ACCIDENT = "FASTDATA_TEST_ACCIDENT"


def strike(phase: str, call: int) -> bool:
    """Send this process its signal if the call is that of the accident; return whether it is."""
    words = os.environ.get(ACCIDENT, "").rpartition(":")
    if words[0] != f"{os.environ.get('RANK')}:{phase}:{call}":
        return False
    if words[2] != "nan":
        os.kill(os.getpid(), int(words[2]))
    return True


class Tiny(nn.Sequential):
    """Two convolutions: learns colours in a few steps."""

    def __init__(self, classes: int, dropout: float, norm: bool) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.BatchNorm2d(8) if norm else nn.Identity(),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 16, 3, 2, 1),
            nn.BatchNorm2d(16) if norm else nn.Identity(),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(16, classes),
        )
        self.seen: list[Any] = []
        self.evaluated = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = super().forward(images)
        if self.training:
            self.seen.append((images, logits))
            if strike("train", len(self.seen)) and os.environ[ACCIDENT].endswith("nan"):
                return logits * float("nan")
        else:
            self.evaluated += 1
            strike("val", self.evaluated)
        return logits


def tiny(num_classes: int, dropout: float = 0.2, norm: bool = True) -> nn.Module:
    return Tiny(num_classes, dropout, norm)


def register() -> None:
    models = import_torchvision().models
    if "tiny" not in models.list_models():
        models._api.register_model()(tiny)
