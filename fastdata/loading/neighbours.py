"""Orders of datasets whose neighbours are alike, or decoded together; warnings about them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastdata.decode.folders import folder_class
from fastdata.errors import FastdataError, MixingWarning, SlowPathWarning, warn
from fastdata.plan.order import BLOCK, OrderLike, mixes_neighbours
from fastdata.remote.urls import redact
from fastdata.storage.contents import DatasetContents
from fastdata.storage.listed import FilesSource
from fastdata.storage.source import Blocks, Source

#: Places of a dataset where two neighbours' labels are compared.
_PLACES = 64


def blocks_of(dataset: Any) -> Blocks | None:
    """Return the runs of a dataset's samples that are decoded together; None if none are.

    A `Subset` has none: its samples are in an order of its own.
    """
    if isinstance(dataset, DatasetContents):
        return dataset.source.blocks
    if not isinstance(dataset, ConcatDataset):
        return None
    parts = [(len(one), blocks_of(one)) for one in dataset.datasets]  # type: ignore[arg-type]
    known = [blocks for _, blocks in parts if blocks is not None]
    if not known:
        return None
    starts, first = [], 0
    for count, blocks in parts:
        starts.append((np.arange(0, count, BLOCK) if blocks is None else blocks.starts) + first)
        first += count
    return Blocks(np.concatenate(starts), min(blocks.window for blocks in known))


def warn_of_rereading(dataset: Any, order: OrderLike | None, sampler: Any) -> None:
    """Warn if an order decodes row groups again and again: they do not fit into memory together.

    Without an order, ``sampler`` decides, if there is one; else rows come as they lie.
    """
    while isinstance(sampler, BatchSampler):
        sampler = sampler.sampler
    if order is None and isinstance(sampler, _RANDOM):
        order = "random"
    whole = dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    blocks = blocks_of(dataset)
    if blocks is None or order in (None, "sequential") or len(blocks.starts) <= 2 * blocks.window:
        return
    if order == "random" or whole is not dataset:
        warn(
            f"{redact(str(getattr(dataset, 'path', type(dataset).__name__)))}: its images are "
            f"decoded a row group at a time, {len(blocks.starts):,} of them, and "
            f"memory holds {2 * blocks.window:,}. A random order of samples decodes each again and "
            'again. Leave order="random", samplers and Subset out, so that shuffle=True mixes '
            "samples within windows of row groups; or pack them: fastdata convert.",
            SlowPathWarning,
        )


#: Samplers in whose order neighbours are far from each other.
_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def warn_of_neighbours(dataset: Any, order: OrderLike) -> None:
    """Warn if batches in this order have fewer classes than a full shuffle's.

    They have if most neighbours share a label, as in a dataset packed class by class. Datasets
    that `fastdata convert` has shuffled are not checked.
    """
    if isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            warn_of_neighbours(part, order)
        return
    blocks = blocks_of(dataset)
    if not mixes_neighbours(order, len(dataset), None if blocks is None else len(blocks.starts)):
        return
    numbers = np.linspace(0, len(dataset) - 2, _PLACES).astype(np.int64)
    pairs, shuffled = np.stack([numbers, numbers + 1]), True
    while isinstance(dataset, Subset):
        pairs, dataset = np.asarray(dataset.indices)[pairs], dataset.dataset
        shuffled = False  # the subset's order is its own
    source: Source
    if isinstance(dataset, DatasetContents):
        source, place = dataset.source, redact(str(dataset.path))
        kind = "dataset" if dataset.folder is None else "imagefolder"
        if shuffled and source.capabilities.shuffled:
            return
    elif (base := folder_class()) is not None and isinstance(dataset, base):
        source, kind, place = FilesSource(dataset, dataset.root), "imagefolder", str(dataset.root)
    else:
        return
    try:
        labels = source.column("label", pairs.ravel() % len(source))
    except FastdataError:
        return  # reading the sample will raise it
    first, second = labels.reshape(2, -1)
    # Share of equal labels among random pairs, and among neighbours.
    chance = np.mean(first[:, None] == second[None, :])
    alike = np.mean(first == second)
    if alike <= (1 + chance) / 2:
        return
    warn(
        f"order={order!r} mixes neighbours only, and in {place} {alike:.0%} of "
        "neighbours have the same label: batches have fewer classes than a full shuffle's. Pack "
        f"it again, shuffled (fastdata convert {kind} --root {place} --to shards), or "
        'give order="random" or larger windows, order=fastdata.samplers.QuasiRandom(window=512).',
        MixingWarning,
    )
