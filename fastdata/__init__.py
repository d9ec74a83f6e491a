"""fastdata feeds image data to PyTorch training.

``fastdata convert`` packs images into LMDB, Parquet or tar shards that any tool can read,
with an index beside them; `ImageDataset` reads them, and `DataLoader` makes batches of them.
Samplers are in `fastdata.samplers`, functions that collate in `fastdata.collate`, transforms in
`fastdata.transforms`, errors in `fastdata.errors`; a result's class is in the module of the
function that returns it.

All of them are imported when they are first used: packing needs no torch, and the command line
answers Ctrl-C before it imports anything that takes long.
"""

import os
from importlib import import_module

from fastdata.version import __version__

TYPE_CHECKING = False  # importing typing would take longer than all else here
if TYPE_CHECKING:
    from typing import Any

    from fastdata.dataset import ImageDataset
    from fastdata.device.loader import DeviceLoader
    from fastdata.device.ragged import Ragged
    from fastdata.loading.collate import fast_collate
    from fastdata.loading.loader import DataLoader
    from fastdata.loading.mixture import Mixture
    from fastdata.maintenance.verify import verify
    from fastdata.staging.stage import stage, unstage
    from fastdata.storage.cache import Cache

# Python finds a checkout's folder first where it starts in it.
if not any(name[:8] == "_native." and name[-3:] == ".so" for name in os.listdir(__path__[0])):
    raise ImportError(
        f"{__path__[0]} is fastdata's source, without its compiled core\n"
        "Run Python in another folder, or compile the core here: make setup."
    )

__all__ = [
    "Cache",
    "DataLoader",
    "DeviceLoader",
    "ImageDataset",
    "Mixture",
    "Ragged",
    "__version__",
    "fast_collate",
    "stage",
    "unstage",
    "verify",
]

# Public names, and the module that has each.
_MODULES = {
    "Cache": "fastdata.storage.cache",
    "DataLoader": "fastdata.loading.loader",
    "DeviceLoader": "fastdata.device.loader",
    "ImageDataset": "fastdata.dataset",
    "Mixture": "fastdata.loading.mixture",
    "Ragged": "fastdata.device.ragged",
    "fast_collate": "fastdata.loading.collate",
    "stage": "fastdata.staging.stage",
    "unstage": "fastdata.staging.stage",
    "verify": "fastdata.maintenance.verify",
}
# Modules of public names that come with `import fastdata`.
_WITH_IT = ("collate", "dataset", "decode", "errors", "remote", "samplers", "transforms")


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
