"""SGD with momentum, fused where asked, and what weight decay applies to."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def parameter_groups(
    model: nn.Module, weight_decay: float, *, decay_norm_and_bias: bool
) -> list[dict[str, Any]]:
    """The model's parameters, those without weight decay apart.

    Args:
        model: Whose parameters.
        weight_decay: Of all others.
        decay_norm_and_bias: Whether biases and the parameters of batch norms decay too. They
            have one dimension; weights of convolutions and linear layers have more.
    """
    if decay_norm_and_bias:
        return [{"params": list(model.parameters()), "weight_decay": weight_decay}]
    weights = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    return [
        {"params": weights, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


def make_sgd(
    groups: list[dict[str, Any]], lr: float, momentum: float, *, nesterov: bool, fused: bool
) -> torch.optim.SGD:
    """SGD: one kernel for all parameters where fused, else a loop over them.

    Not fused is not torch's default (which is "foreach" on GPUs): the switch is to show what
    fusing gives.
    """
    return torch.optim.SGD(
        groups, lr, momentum, nesterov=nesterov, fused=fused, foreach=None if fused else False
    )
