"""Warning about orders that mix only neighbours, for datasets whose neighbours are alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from fastdata.dataset import ImageDataset
from fastdata.decode.folders import folder_class
from fastdata.errors import FastdataError, MixingWarning, warn
from fastdata.plan.order import OrderLike, mixes_neighbours
from fastdata.remote.urls import redact
from fastdata.storage.listed import FilesSource
from fastdata.storage.source import Source

#: Places of a dataset where two neighbours' labels are compared.
_PLACES = 64


def warn_of_neighbours(dataset: Any, order: OrderLike) -> None:
    """Warn if batches in this order have fewer classes than a full shuffle's.

    They have if most neighbours share a label, as in a dataset packed class by class. Datasets
    that `fastdata convert` has shuffled are not checked.

    Args:
        dataset: The loader's dataset.
        order: The loader's order.
    """
    if isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            warn_of_neighbours(part, order)
        return
    if not mixes_neighbours(order, len(dataset)):
        return
    numbers = np.linspace(0, len(dataset) - 2, _PLACES).astype(np.int64)
    pairs, shuffled = np.stack([numbers, numbers + 1]), True
    while isinstance(dataset, Subset):
        pairs, dataset = np.asarray(dataset.indices)[pairs], dataset.dataset
        shuffled = False  # the subset's order is its own
    source: Source
    if isinstance(dataset, ImageDataset):
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
        'give order="random" or larger windows, order=fastdata.QuasiRandom(window=512).',
        MixingWarning,
    )
