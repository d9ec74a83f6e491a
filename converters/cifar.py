"""CIFAR-10 and CIFAR-100, from the python archives as published.

The archives hold pickles. A pickle can run any code, so these are read by an unpickler
that knows NumPy's arrays, of which they are made, and nothing else.
"""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fastdata.converters.imagefolder import require_folder
from fastdata.converters.records import Record

from fastdata.errors import SourceError, UsageError

_SIDE = 32  # pixels
_PIXELS = 3 * _SIDE * _SIDE


class _Published(NamedTuple):
    archive: str
    folder: str
    splits: dict[str, list[str]]
    meta: str
    labels: bytes
    names: bytes


_CIFAR = {
    "cifar10": _Published(
        archive="cifar-10-python.tar.gz",
        folder="cifar-10-batches-py",
        splits={"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
        meta="batches.meta",
        labels=b"labels",
        names=b"label_names",
    ),
    "cifar100": _Published(
        archive="cifar-100-python.tar.gz",
        folder="cifar-100-python",
        splits={"train": ["train"], "test": ["test"]},
        meta="meta",
        labels=b"fine_labels",
        names=b"fine_label_names",
    ),
}

#: What the published pickles refer to, by the names that NumPy had for it then.
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}") from None


class Cifar:
    """One split of CIFAR-10 or CIFAR-100.

    Samples are raw pixels, in the order of the published batches; a key is
    ``<batch>/<row>``. Labels and class names are the published (fine) ones.

    Args:
        kind: ``cifar10`` or ``cifar100``.
        root: The folder with the archive, or with what was unpacked from it.
        split: ``train`` or ``test``.

    Raises:
        SourceError: The data is missing, or not what was published.
    """

    root: str | None = None  # there are no image files to leave in place

    def __init__(self, kind: str, root: str | os.PathLike[str], split: str) -> None:
        self._published = _CIFAR[kind]
        if split not in self._published.splits:
            raise UsageError(f"{kind} has no split {split}", "Use --split train or --split test.")
        root = require_folder(Path(root))
        self._folder = root / self._published.folder
        self._archive = root / self._published.archive
        if root.name == self._published.folder:
            self._folder = root
        if not self._folder.is_dir() and not self._archive.is_file():
            raise SourceError(
                f"{root}: holds neither {self._published.archive} nor {self._published.folder}/",
                "Say where they are with --root.",
            )
        self._batches = self._published.splits[split]
        meta = self._load(self._published.meta)
        try:
            self.classes = [name.decode("utf-8") for name in meta[self._published.names]]
        except (KeyError, AttributeError, TypeError) as error:
            raise self._unexpected(self._published.meta, error) from None
        self.inputs = [self._folder if self._folder.is_dir() else self._archive]
        self.about = {"kind": kind, "split": split, "root": str(root)}

    def _load(self, name: str) -> dict[bytes, Any]:
        """Unpickles one file, from the folder if it is there, else from the archive."""
        try:
            if self._folder.is_dir():
                data = (self._folder / name).read_bytes()
            else:
                with tarfile.open(self._archive, "r:gz") as tar:
                    file = tar.extractfile(f"{self._published.folder}/{name}")
                    data = file.read() if file else b""
            loaded = _Unpickler(io.BytesIO(data), encoding="bytes").load()
            if not isinstance(loaded, dict):
                raise pickle.UnpicklingError("it holds no dictionary")
        except Exception as error:  # an unpickler raises almost anything on foreign bytes
            raise self._unexpected(name, error) from None
        return loaded

    def _unexpected(self, name: str, error: Exception) -> SourceError:
        where = self._folder if self._folder.is_dir() else self._archive
        return SourceError(
            f"{where}: {name} is not as published: {error!r}", "Download the archive again."
        )

    def records(self) -> Iterator[Record]:
        """Yields the images batch by batch; holds one batch in memory."""
        for name in self._batches:
            batch = self._load(name)
            try:
                labels = batch[self._published.labels]
                planes = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, _SIDE, _SIDE)
                if len(labels) != len(planes) or not all(
                    0 <= label < len(self.classes) for label in labels
                ):
                    raise ValueError("labels do not fit the images")
            except (KeyError, ValueError, TypeError, OverflowError) as error:
                raise self._unexpected(name, error) from None
            for row, (label, image) in enumerate(zip(labels, planes, strict=True)):
                pixels = np.ascontiguousarray(image.transpose(1, 2, 0)).tobytes()
                key = f"{name}/{row:05d}"
                yield Record(key, int(label), "", 0, _PIXELS, 0, pixels=(_SIDE, _SIDE, pixels))
