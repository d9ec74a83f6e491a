"""Trains a ResNet on ImageNet, or on any dataset of fastdata's, on one process or many.

    python examples/train_imagenet.py --train imagenet-train-lmdb --val imagenet-val-lmdb
    torchrun --nproc-per-node 8 examples/train_imagenet.py --config examples/configs/resnet50.yaml
    sbatch examples/train_imagenet.slurm

docs/training.md says more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from fastdata.examples.training.config import parse
from fastdata.examples.training.ranks import join
from fastdata.examples.training.trainer import Trainer

from fastdata.errors import FastdataError, UsageError


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains as the command line says.

    Args:
        arguments: The command line's; None for this program's own.

    Returns:
        What summary.json holds.

    Raises:
        FastdataError: An option or the data is wrong.
    """
    config = parse(arguments)
    with join(config.device) as ranks:
        return Trainer(config, ranks).run()


if __name__ == "__main__":
    try:
        main()
    except FastdataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
