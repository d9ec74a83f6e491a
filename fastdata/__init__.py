"""fastdata feeds image data to PyTorch training.

``fastdata convert`` packs images into LMDB, Parquet or tar shards that any tool can read,
with an index beside them; `ImageDataset` reads them, and `DataLoader` makes batches of them.
Errors are in `fastdata.errors`; a result's class is in the module of the function that returns it.

All of them are imported when they are first used: packing needs no torch, and the command line
answers Ctrl-C before it imports anything that takes long.
"""

from importlib import import_module

TYPE_CHECKING = False  # importing typing would take longer than all else here
if TYPE_CHECKING:
    from typing import Any

    from fastdata.dataset import ImageDataset
    from fastdata.device.loader import DeviceLoader
    from fastdata.device.ragged import Ragged
    from fastdata.loading.collate import fast_collate
    from fastdata.loading.loader import DataLoader
    from fastdata.loading.mixture import Mixture
    from fastdata.loading.padded import Padded, collate_padded, collate_patches
    from fastdata.loading.planned import AspectRatioBatches, TokenBudgetBatches
    from fastdata.loading.samplers import (
        BalancedSampler,
        MPerClassSampler,
        RepeatSampler,
        WeightedSampler,
    )
    from fastdata.maintenance.verify import verify
    from fastdata.plan.order import QuasiRandom
    from fastdata.staging.stage import stage, unstage
    from fastdata.storage.cache import Cache

#: setup.cfg reads it from here.
__version__ = "0.1.0"

__all__ = [
    "AspectRatioBatches",
    "BalancedSampler",
    "Cache",
    "DataLoader",
    "DeviceLoader",
    "ImageDataset",
    "MPerClassSampler",
    "Mixture",
    "Padded",
    "QuasiRandom",
    "Ragged",
    "RepeatSampler",
    "TokenBudgetBatches",
    "WeightedSampler",
    "__version__",
    "collate_padded",
    "collate_patches",
    "fast_collate",
    "stage",
    "unstage",
    "verify",
]

# Public names, and the module that has each.
_MODULES = {
    "AspectRatioBatches": "fastdata.loading.planned",
    "BalancedSampler": "fastdata.loading.samplers",
    "Cache": "fastdata.storage.cache",
    "DataLoader": "fastdata.loading.loader",
    "DeviceLoader": "fastdata.device.loader",
    "ImageDataset": "fastdata.dataset",
    "MPerClassSampler": "fastdata.loading.samplers",
    "Mixture": "fastdata.loading.mixture",
    "Padded": "fastdata.loading.padded",
    "QuasiRandom": "fastdata.plan.order",
    "Ragged": "fastdata.device.ragged",
    "RepeatSampler": "fastdata.loading.samplers",
    "TokenBudgetBatches": "fastdata.loading.planned",
    "WeightedSampler": "fastdata.loading.samplers",
    "collate_padded": "fastdata.loading.padded",
    "collate_patches": "fastdata.loading.padded",
    "fast_collate": "fastdata.loading.collate",
    "stage": "fastdata.staging.stage",
    "unstage": "fastdata.staging.stage",
    "verify": "fastdata.maintenance.verify",
}
# Modules of public names that come with `import fastdata`.
_WITH_IT = ("dataset", "decode", "errors", "remote", "transforms")


def __getattr__(name: str) -> "Any":
    if name in _WITH_IT:
        return import_module(f"fastdata.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"fastdata.{name} needs torch\nInstall it: pip install 'fastdata-torch[torch]'.",
            name="torch",
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _MODULES.keys())
