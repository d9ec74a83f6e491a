"""fastdata feeds image data to PyTorch training.

``fastdata convert`` packs images into LMDB, Parquet or tar shards that any tool can read,
with an index beside them; `ImageDataset` reads them, and `DataLoader` makes batches of them.
Errors are in `fastdata.errors`; a result's class is in the module of the function that returns it.

Names that need torch are imported when they are first used, so packing works without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastdata import dataset
from fastdata.dataset import ImageDataset
from fastdata.maintenance.verify import verify
from fastdata.staging.stage import stage, unstage
from fastdata.version import VERSION

if TYPE_CHECKING:
    from fastdata.device.loader import DeviceLoader
    from fastdata.loading.collate import fast_collate
    from fastdata.loading.iterable import ShardedIterable
    from fastdata.loading.loader import DataLoader

__version__ = VERSION

__all__ = [
    "DataLoader",
    "DeviceLoader",
    "ImageDataset",
    "ShardedIterable",
    "__version__",
    "fast_collate",
    "stage",
    "unstage",
    "verify",
]

# Public names that need torch, and the module that has each.
_NEED_TORCH = {
    "DataLoader": "fastdata.loading.loader",
    "DeviceLoader": "fastdata.device.loader",
    "ShardedIterable": "fastdata.loading.iterable",
    "fast_collate": "fastdata.loading.collate",
}


def _decoder_of(images: ImageDataset) -> dataset.BatchDecoder | None:
    from fastdata.loading.prefix import native_prefix  # torch is needed only here

    return native_prefix(images)


dataset.decoder_of = _decoder_of


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_NEED_TORCH[name]), name)
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
    return sorted(globals().keys() | _NEED_TORCH.keys())
