"""Arguments of `fastdata.DataLoader`: what contradicts what, and what needs which path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch.utils.data import IterableDataset

from fastdata.device.ahead import Destination
from fastdata.device.normalise import dtype_name, three
from fastdata.errors import UsageError
from fastdata.loading.choice import Choice
from fastdata.loading.iterator import ON_ERROR
from fastdata.loading.sampler import ShardedSampler
from fastdata.loading.seek_cache import DEFAULT_BYTES
from fastdata.plan.order import ORDERS, is_order
from fastdata.transforms.compile import Recipe

#: Arguments that only the native path can honour, and what they are by default.
NATIVE_ONLY: Mapping[str, Any] = {
    "dtype": None,
    "mean": None,
    "std": None,
    "views": 1,
    "on_error": "raise",
    "return_index": False,
    "return_key": False,
    "batch_transform": None,
    "dct_scaling": False,
    "check": True,
    "seek_cache_bytes": DEFAULT_BYTES,
    "seek_cache_file": None,
}

#: Those of them that a device takes over, if the loader has one.
ON_DEVICE = ("dtype", "mean", "std", "batch_transform")

#: What may decode on the native path.
BACKENDS = ("native", "dali")


def check_native(choice: Choice, given: Mapping[str, Any]) -> Choice:
    """Refuses what cannot be honoured; puts the loader's own output format into the recipe.

    Args:
        choice: The path to take.
        given: The arguments of `NATIVE_ONLY`.

    Raises:
        UsageError: They contradict each other, the transform, or the path.
    """
    if given["on_error"] not in ON_ERROR:
        raise UsageError(f"on_error={given['on_error']!r}", f"Give one of {', '.join(ON_ERROR)}.")
    views = given["views"]
    if isinstance(views, bool) or not isinstance(views, int) or views < 1:
        raise UsageError(f"views={views!r}", "Give the number of crops of each sample.")
    size = given["seek_cache_bytes"]
    if not isinstance(size, int) or size < 0:
        raise UsageError(f"seek_cache_bytes={size!r}", "Give a number of bytes; 0 for none.")
    if choice.path != "native":
        for name, default in NATIVE_ONLY.items():
            # Arrays, as mean and std may be, have no truth value.
            if given[name] is not default and (default is None or given[name] != default):
                raise UsageError(
                    f"{name}={given[name]!r} needs the native path, which is not taken: "
                    f"{choice.reason}",
                    "Leave it out, or change what stands in the way.",
                )
        return choice
    if given["seek_cache_file"] is not None and not (choice.images and choice.images.learns):
        raise UsageError(
            "seek_cache_file= is for folders of images that have no index; this dataset has one",
            "Add seek points to it with fastdata index.",
        )
    return _with_format(choice, given["dtype"], given["mean"], given["std"])


def check_backend(choice: Choice, backend: str) -> None:
    """Refuses a backend that there is not, or that would not be used.

    Raises:
        UsageError: Likewise.
    """
    if backend not in BACKENDS:
        raise UsageError(f"backend={backend!r}", f"Give one of {', '.join(BACKENDS)}.")
    if backend != "native" and choice.path != "native":
        raise UsageError(
            f"backend={backend!r} can do what the native path can, and that is not taken: "
            f"{choice.reason}",
            "Leave it out, or change what stands in the way.",
        )


def _with_format(
    choice: Choice,
    dtype: str | torch.dtype | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> Choice:
    if dtype is None and mean is None and std is None:
        return choice
    name = "float32" if dtype is None else dtype_name(dtype)
    if name == "uint8" and not (mean is std is None):
        raise UsageError("mean= and std= are for floats, but dtype is uint8", "Leave one out.")
    assert choice.recipe is not None
    _check_bytes(choice.recipe)
    return choice.with_output(dtype=name, mean=three("mean", mean), std=three("std", std))


def check_device(choice: Choice, where: Destination) -> None:
    """Refuses to normalise on a device what the transform has normalised already.

    Raises:
        UsageError: Both say what becomes of pixels.
    """
    if where.normalisation is not None and choice.path == "native":
        assert choice.recipe is not None
        _check_bytes(choice.recipe)


def _check_bytes(recipe: Recipe) -> None:
    if any(program.output.dtype != "uint8" for program in recipe.programs):
        raise UsageError(
            "both the transform and the loader's dtype=, mean= or std= say what becomes of pixels",
            "Leave one of them out.",
        )


def find_ranks(
    distributed: bool, rank: int | None, world_size: int | None
) -> tuple[int, int] | None:
    """This rank and the world size; None where the loader is not asked to shard.

    Raises:
        UsageError: The arguments contradict each other, or torch.distributed is not initialised.
    """
    if distributed:
        if rank is not None or world_size is not None:
            raise UsageError(
                "distributed=True asks torch.distributed for the rank, and rank= or world_size= "
                "were given too",
                "Leave one out.",
            )
        if not (dist.is_available() and dist.is_initialized()):
            raise UsageError(
                "distributed=True, but torch.distributed is not initialised",
                "Call torch.distributed.init_process_group first, or give rank= and world_size=.",
            )
        return dist.get_rank(), dist.get_world_size()
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise UsageError("rank= and world_size= belong together", "Give both, or neither.")
    return rank, world_size


def own_sampler(
    dataset: Any,
    batch_size: int | None,
    shuffle: bool | None,
    drop_last: bool,
    order: str | None,
    seed: int | None,
    ranks: tuple[int, int] | None,
    samplers: Sequence[Any],
) -> ShardedSampler:
    """The sampler for an order, a seed or ranks of ours.

    Raises:
        UsageError: They contradict torch's arguments.
    """
    if order is not None and not is_order(order):
        raise UsageError(f"order={order!r}", f"Give one of {', '.join(ORDERS)}.")
    if any(sampler is not None for sampler in samplers):
        raise UsageError(
            "a sampler was given, and order=, distributed= or rank= as well",
            "Leave one of them out.",
        )
    if isinstance(dataset, IterableDataset):
        raise UsageError(
            "order=, seed=, distributed= and rank= have no meaning with an IterableDataset",
            "Let the dataset shard itself, as fastdata.ShardedIterable does.",
        )
    if order is not None and shuffle is not None and shuffle == (order == "sequential"):
        raise UsageError(
            f"order={order!r} and shuffle={shuffle} contradict each other", "Leave one out."
        )
    rank, world_size = ranks or (0, 1)
    return ShardedSampler(
        dataset,
        batch_size or 1,
        order=order or ("random" if shuffle else "sequential"),
        seed=seed or 0,
        rank=rank,
        world_size=world_size,
        drop_last=drop_last,
    )
