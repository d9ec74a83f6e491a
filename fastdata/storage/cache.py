"""`Cache`: what an `ImageDataset` may keep on this machine from one epoch to the next."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fastdata.errors import UsageError
from fastdata.storage.paths import working_folder


@dataclass(frozen=True)
class Cache:
    """Place and size of a dataset's cache: the ``cache`` of `fastdata.ImageDataset`.

    A dataset behind a URL keeps pieces of its files, for all processes of this machine. Any other
    keeps the seek points that its images lack in a file, from the first epoch on.

    Attributes:
        path: The folder. None: a URL keeps no pieces; seek points lie beside the index, or in
            ``$FASTDATA_CACHE_DIR``.
        bytes: Most bytes of the pieces in the folder, or of the file of seek points. None for nine
            tenths of the free space, or for no limit. 0 for no seek points.

    Raises:
        UsageError: ``bytes`` is not a whole number from 0.
    """

    path: str | os.PathLike[str] | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None and (type(self.bytes) is not int or self.bytes < 0):
            raise UsageError(f"Cache(bytes={self.bytes!r})", "Give a number of bytes from 0.")
        if self.path is not None and "://" not in os.fspath(self.path):
            object.__setattr__(self, "path", os.path.join(working_folder(), self.path))
