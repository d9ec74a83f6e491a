"""Options of torch's DataLoader, and of peers' that take the same: collating with one copy."""

from __future__ import annotations

from typing import Any

import numpy as np


def loader_options(request: Any) -> dict[str, Any]:
    """Return the options; a check uses no workers, which change the order of some peers' data."""
    workers = 0 if request.check else request.threads
    return {
        "batch_size": request.batch_size,
        "num_workers": workers,
        "persistent_workers": workers > 0,
        "collate_fn": stack,
    }


def stack(samples: Any) -> tuple[Any, Any]:
    """Return tensors of images and labels from a sequence of (array, label)."""
    import torch

    images, labels = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)
