"""CIFAR-10 and CIFAR-100, from the published Python archives.

The archives contain pickles, and a pickle can run any code. So a restricted unpickler reads
them, which admits arrays of bytes and nothing else.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import pickletools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from fastdata.converters.records import ImageSource, Record
from fastdata.converters.trees import read_file, source_tree

from fastdata.errors import FastdataError, SourceError, UsageError
from fastdata.remote.files import SourceFile
from fastdata.storage.formats.tars import read_member

_SIDE = 32  # pixels
_PIXELS = 3 * _SIDE * _SIDE
_MOST_UNPACKED = 512 << 20  # bytes of an archive; the published ones have under 200 MB


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


class _Kind:
    """Substitute for ``numpy.dtype`` in a pickle."""

    def __init__(self, name: object, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Substitute for ``numpy.ndarray`` in a pickle.

    NumPy's own class trusts any state: for a dtype of objects, it takes bytes for addresses.
    """

    values: Any = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_column, data = state
        if kind.name != b"u1":
            raise pickle.UnpicklingError(f"it has an array of {kind.name!r}")
        values = np.frombuffer(data, np.uint8)
        self.values = values.reshape(shape, order="F" if by_column else "C")


#: Classes that the published pickles refer to, by NumPy's names of that time.
_ADMITTED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            # A new class each time: a pickle can set a class's attributes.
            return type(name, (_ADMITTED[module, name],), {})
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}") from None


def _unpickle(data: bytes) -> dict[bytes, Any]:
    for opcode, argument, _ in pickletools.genops(data):
        # The unpickler allocates memory for all memo places up to the named one.
        if "PUT" in opcode.name and int(argument or 0) > len(data):
            raise pickle.UnpicklingError(f"it names place {argument} of its memo")
    content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    if not isinstance(content, dict):
        raise pickle.UnpicklingError("it has no dictionary")
    return content


class Cifar(ImageSource):
    """One split of CIFAR-10 or CIFAR-100.

    Samples are raw pixels, in the order of the published batches; a key is ``<batch>/<row>``.
    Labels and class names are the published (fine) ones. ``kind`` is ``cifar10`` or ``cifar100``.
    ``root`` is the folder with the archive or with its unpacked files, or its URL. ``split`` is
    ``train`` or ``test``.
    """

    def __init__(
        self,
        kind: str,
        root: str | os.PathLike[str],
        split: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._published, self._options = _CIFAR[kind], storage_options
        published = self._published
        if split not in published.splits:
            raise UsageError(f"{kind} has no split {split}", "Use --split train or --split test.")
        tree = source_tree(root, storage_options)
        is_unpacked = tree.root.rpartition("/")[2] == published.folder
        self._folder = tree if is_unpacked else tree / published.folder
        self._archive: SourceFile | None = None
        if self._folder.file(published.meta) is None:
            self._archive = tree.file(published.archive)
            if self._archive is None:
                raise SourceError(
                    f"{tree}: holds neither {published.archive} nor {published.folder}/",
                    "Give their folder with --root.",
                )
        self._batches = published.splits[split]
        with self._reading(published.meta):
            meta = _unpickle(self._read(published.meta))
            self.classes = [name.decode("utf-8") for name in meta[published.names]]
        self.inputs = [self._folder.location if self._archive is None else self._archive.location]
        self.about = {"kind": kind, "split": split, "root": str(tree)}

    def _read(self, name: str) -> bytes:
        if self._archive is not None:
            with self._archive.open() as file, gzip.GzipFile(fileobj=file) as unpacked:
                return read_member(unpacked, f"{self._published.folder}/{name}", _MOST_UNPACKED)
        return read_file(f"{self._folder.root}/{name}", self._options)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except FastdataError:  # the file cannot be reached; it may be intact
            raise
        except Exception as error:  # an unpickler raises almost anything on foreign bytes
            where = self._folder if self._archive is None else self._archive
            raise SourceError(
                f"{where}: {name} differs from the published file: {error!r}",
                "Download the archive again.",
            ) from None

    def records(self) -> Iterator[Record]:
        """Yield the images; hold one batch in memory."""
        for name in self._batches:
            with self._reading(name):
                batch = _unpickle(self._read(name))
                labels = batch[self._published.labels]
                planes = batch[b"data"].values.reshape(-1, 3, _SIDE, _SIDE)
                known = range(len(self.classes))
                if not all(type(label) is int and label in known for label in labels):
                    raise ValueError("labels do not fit the classes")
                rows = list(zip(labels, planes, strict=True))
            for row, (label, image) in enumerate(rows):
                pixels = np.ascontiguousarray(image.transpose(1, 2, 0)).tobytes()
                place = f"{name}/{row:05d}", int(label), "", 0, _PIXELS, 0
                yield Record(*place, pixels=(_SIDE, _SIDE, pixels))
