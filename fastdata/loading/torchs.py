"""Torch's own loader, for what the native path does not do."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch.utils.data

from fastdata.device.delivery import transformed
from fastdata.device.transfer import map_tensors
from fastdata.loading.drawn import drawn_options
from fastdata.loading.prefix import PrefixDataset
from fastdata.loading.stream import RankStream

#: Scripts may put `fastdata.DataLoader` in the place of torch's, under torch's name.
_Torchs = torch.utils.data.DataLoader
_HAS_IN_ORDER = "in_order" in inspect.signature(_Torchs).parameters


def in_order_option(in_order: bool) -> dict[str, Any]:
    """Return the argument ``in_order``, if this torch has it."""
    return {"in_order": in_order} if _HAS_IN_ORDER else {}


def torch_loader(
    loader: Any, prefixed: bool, ranks: tuple[int, int] | None
) -> torch.utils.data.DataLoader[Any]:
    """Return torch's loader over the dataset of a `fastdata.DataLoader`, with its arguments.

    Args:
        loader: The loader.
        prefixed: Whether fastdata decodes in the workers.
        ranks: Rank and world size to split a stream by; None for other datasets.
    """
    dataset: Any = PrefixDataset(loader.dataset) if prefixed else loader.dataset
    options: dict[str, Any] = {"collate_fn": loader.collate_fn}
    if ranks is not None:
        options["dataset"] = RankStream(dataset, *ranks, loader.drop_last)
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.seed is not None:
        options |= drawn_options(loader, dataset)
    elif loader.batch_sampler is not None:
        options |= {"dataset": dataset, "batch_sampler": loader.batch_sampler}
    else:
        options |= {"dataset": dataset, "sampler": loader.sampler, "batch_size": None}
    same = {name: getattr(loader, name) for name in _SAME}
    return _Torchs(**same, **in_order_option(getattr(loader, "in_order", True)), **options)


#: Arguments that torch's loader takes over.
_SAME = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
)


def let_torch_refuse(dataset: Any, batch_size: Any, options: Mapping[str, Any]) -> None:
    """Raise torch's own error for arguments that torch refuses, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _Torchs(dataset, batch_size, **options)
        except ValueError as error:
            raise error from None
        except Exception:  # of a type that it does not check
            return


def zero_invalid(batch: Any, batch_transform: Callable[[Any], Any] | None) -> Any:
    """Zero bad samples on the device, which has normalised the zeros of the host."""
    if isinstance(batch, Mapping):
        images, valid = batch.get("image", []), batch["valid"]
    else:
        images, valid = batch[0], batch[-1]
    map_tensors(images, lambda view: view.masked_fill_(~valid.view(-1, 1, 1, 1), 0))
    return transformed(batch, batch_transform)
