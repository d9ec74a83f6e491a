"""fastdata feeds image data to PyTorch training.

``fastdata convert`` packs images into LMDB, Parquet or tar shards that any tool can read,
with an index beside them; `ImageDataset` reads them.
"""

from fastdata.dataset import ImageDataset
from fastdata.errors import DataError, DatasetError, FastdataError, UsageError
from fastdata.staging import stage, unstage
from fastdata.verification import verify
from fastdata.version import VERSION

__version__ = VERSION

__all__ = [
    "DataError",
    "DatasetError",
    "FastdataError",
    "ImageDataset",
    "UsageError",
    "__version__",
    "stage",
    "unstage",
    "verify",
]
