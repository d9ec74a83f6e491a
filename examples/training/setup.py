"""Model, optimiser and precision, from the options."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from fastdata.examples.training.config import Config
from fastdata.examples.training.ranks import Ranks
from fastdata.examples.training.resnet import ResNet
from torch import nn

from fastdata.errors import UsageError


def make_model(config: Config, ranks: Ranks, classes: int) -> nn.Module:
    """The network, on its device; the same weights on every rank.

    Raises:
        UsageError: Batch norms are to be synchronised without GPUs.
    """
    torch.manual_seed(config.seed)
    torch.backends.cudnn.benchmark = config.cudnn_autotune
    model: nn.Module = ResNet(
        config.model, classes, width=config.width, bias_before_norm=config.bias_before_norm
    )
    if config.sync_batch_norm:
        if ranks.device.type != "cuda":
            raise UsageError(
                "sync_batch_norm needs GPUs: torch has no such batch norm for CPUs",
                "Leave --sync-batch-norm out.",
            )
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    layout = torch.channels_last if config.channels_last else torch.contiguous_format
    # Its annotations know nothing of layouts.
    return model.to(ranks.device, memory_format=layout)  # type: ignore[call-overload, no-any-return]


def autocast(config: Config, device: torch.device) -> AbstractContextManager[Any]:
    """Mixed precision as asked for; may be entered again and again."""
    if config.amp == "none":
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, config.amp))


def make_sgd(config: Config, model: nn.Module) -> torch.optim.SGD:
    """SGD. Biases and the parameters of batch norms, of one dimension, decay only if asked to."""
    parameters = list(model.parameters())
    decayed = [p for p in parameters if p.ndim > 1 or config.decay_norm_and_bias]
    others = [p for p in parameters if p.ndim <= 1 and not config.decay_norm_and_bias]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.SGD(
        groups,
        config.lr,
        config.momentum,
        nesterov=config.nesterov,
        fused=config.fused,
        # Without fusing torch's default would be "foreach" on GPUs: this shows what fusing gives.
        foreach=None if config.fused else False,
    )
