"""Ladders that others have published, to be set beside one's own."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """One rung of a published ladder.

    Attributes:
        change: What was changed.
        batch: Images a step; None where it was not told.
        seconds: For 300 steps; None where only the rate was told.
        rate: Images a second; None where it follows from neither.
    """

    change: str
    batch: int | None = None
    seconds: float | None = None
    rate: float | None = None

    @property
    def images_per_second(self) -> float | None:
        """As published, or from batch and time."""
        if self.rate is None and self.seconds is not None and self.batch is not None:
            return 300 * self.batch / self.seconds
        return self.rate

    @property
    def seconds_for_300(self) -> float | None:
        """As published, or from batch and rate."""
        if self.seconds is None and self.rate is not None and self.batch is not None:
            return 300 * self.batch / self.rate
        return self.seconds


class Published(NamedTuple):
    """A ladder.

    Attributes:
        title: Network, data and hardware.
        note: What else is known of it.
        steps: Its rungs.
    """

    title: str
    note: str
    steps: tuple[Step, ...]


PUBLISHED = (
    Published(
        "ResNet-18 on ImageNet; one GPU, nodes of four, InfiniBand between two",
        "Seconds for 300 batches as published; images a second follow from them. "
        "The GPUs' model was not told.",
        (
            Step("one GPU, JPEG folders", 256, 336.5),
            Step("one GPU, tmpfs", 256, 88.0),
            Step("one GPU, mixed precision", 256, 70.1),
            Step("one GPU", 512, 161.0),
            Step("four GPUs, DataParallel", 512, 81.7),
            Step("four GPUs, more CPU threads and workers", 512, 60.2),
            Step("four GPUs, DDP", 512, 41.6),
            Step("four GPUs, DDP, FP16", 512, 38.8),
            Step("two such nodes", 512, 22.1),
        ),
    ),
    Published(
        "ResNet-18 at 224 x 224; one V100",
        "Images a second as published; workers, pinned memory and batch 512 are between the "
        "first two.",
        (
            Step("80 ms a step", 32, rate=400),
            Step("workers, pinned memory, batch 512, uint8 transfer", 512, rate=1670),
            Step("AMP, batch 1024", 1024, rate=2477),
            Step("compile", 1024, rate=3268),
        ),
    ),
    Published(
        "ResNet-50 on CIFAR-100; one V100",
        "Images a second as published; 81% scaling efficiency at 16 GPUs.",
        (
            Step("float32", 256, rate=680),
            Step("AMP", 256, rate=1800),
            Step("channels-last", 256, rate=2200),
            Step("fused SGD, autotuning, set_to_none", 256, rate=2530),
        ),
    ),
)
