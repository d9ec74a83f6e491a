"""What a run is made of, from its options: each switch is thrown in one place here."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from fastdata.examples.training import optimiser, schedule
from fastdata.examples.training.config import Config
from fastdata.examples.training.ranks import Ranks
from fastdata.examples.training.resnet import ResNet
from fastdata.examples.training.step import Stepper, Sums
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastdata.errors import UsageError
from fastdata.profile import StepTimer


def make_model(config: Config, ranks: Ranks, classes: int) -> nn.Module:
    """The network, on its device; the same weights on every rank.

    Raises:
        UsageError: Batch norms are to be synchronised without GPUs.
    """
    torch.manual_seed(config.seed)
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


def steps_of_run(config: Config, batches: int) -> tuple[int, int]:
    """Optimiser steps of the run, and of the warm-up, for so many batches an epoch."""
    steps = math.ceil(batches / config.accumulate)
    return config.epochs * steps, round(config.warmup_epochs * steps)


def make_stepper(
    config: Config, ranks: Ranks, model: nn.Module, batches: int, timer: StepTimer
) -> Stepper:
    """Optimiser, schedule, precision, and the model as it is called in training.

    Args:
        config: The options.
        ranks: Who takes part.
        model: With the weights to begin from.
        batches: Of an epoch, on this rank.
        timer: Times the phases.
    """
    torch.backends.cudnn.benchmark = config.cudnn_autotune
    images = config.batch_size * config.accumulate * ranks.world_size
    sgd = optimiser.make_sgd(
        optimiser.parameter_groups(
            model, config.weight_decay, decay_norm_and_bias=config.decay_norm_and_bias
        ),
        schedule.scaled(config.lr, config.lr_scaling, images),
        config.momentum,
        nesterov=config.nesterov,
        fused=config.fused,
    )
    steps, warmup = steps_of_run(config, batches)

    def factor(step: int) -> float:
        return schedule.factor(step, steps=steps, warmup=warmup, decay=config.decay)

    wrapped: nn.Module = model
    no_sync: Any = nullcontext
    if ranks.distributed:
        ids = [ranks.local_rank] if ranks.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
        no_sync = wrapped.no_sync
    if config.compile:
        # Of the wrapped model, so that torch cuts the graph where gradients can be sent.
        wrapped = torch.compile(wrapped, backend=config.compile_backend)  # type: ignore[assignment]
    return Stepper(
        model=wrapped,
        optimiser=sgd,
        scaler=torch.amp.GradScaler(ranks.device.type, enabled=config.amp == "float16"),
        schedule=torch.optim.lr_scheduler.LambdaLR(sgd, factor),
        loss=nn.CrossEntropyLoss(label_smoothing=config.label_smoothing),
        autocast=autocast(config, ranks.device),
        set_to_none=config.set_to_none,
        no_sync=no_sync,
        sums=Sums(ranks.device),
        timer=timer,
    )
