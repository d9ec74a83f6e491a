"""Batches of arrays by one copy each, for peers that take a collating function."""

from __future__ import annotations

from typing import Any

import numpy as np


def stack(samples: Any) -> tuple[Any, Any]:
    """Tensors of images and labels from a sequence of (array, label)."""
    import torch

    images, labels = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)
