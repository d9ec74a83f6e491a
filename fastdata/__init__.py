"""fastdata feeds image data to PyTorch training.

``fastdata convert`` packs images into LMDB, Parquet or tar shards that any tool can read,
with an index beside them; `ImageDataset` reads them.
"""

from fastdata.dataset import ImageDataset
from fastdata.errors import (
    BusyError,
    CorruptionError,
    DataError,
    DatasetError,
    FastdataError,
    SampleError,
    SpaceError,
    UsageError,
    VersionError,
)
from fastdata.index import Row
from fastdata.manifest import Manifest
from fastdata.staging import Staged, Unstaged, stage, unstage
from fastdata.verification import Verification, verify
from fastdata.version import VERSION

__version__ = VERSION

__all__ = [
    "BusyError",
    "CorruptionError",
    "DataError",
    "DatasetError",
    "FastdataError",
    "ImageDataset",
    "Manifest",
    "Row",
    "SampleError",
    "SpaceError",
    "Staged",
    "Unstaged",
    "UsageError",
    "Verification",
    "VersionError",
    "__version__",
    "stage",
    "unstage",
    "verify",
]
