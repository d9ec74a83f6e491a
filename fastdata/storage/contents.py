"""Contents of a dataset beside its pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata.errors import NoAttributeError
from fastdata.storage.fields import LABEL
from fastdata.storage.manifest import Manifest
from fastdata.storage.packed import IndexedSource
from fastdata.storage.parts import PartsSource
from fastdata.storage.source import Source


class DatasetContents:
    """Manifest, columns, labels and files of a dataset; some under torchvision's names."""

    path: Any
    folder: Any
    classes: list[str]
    _source: Source
    _targets: list[int] | None = None

    @property
    def _indexed(self) -> IndexedSource | PartsSource:
        if not isinstance(self._source, (IndexedSource, PartsSource)):
            raise NoAttributeError(
                f"{self.path}: a dataset of another library has no index and no manifest",
                "Make them of its files with fastdata convert.",
            )
        return self._source

    @property
    def manifest(self) -> Manifest:
        """Contents of ``_dataset.json``.

        Raises:
            UsageError: The dataset is a folder of torchvision's, which has none.
        """
        return self._indexed.manifest

    @property
    def source(self) -> Source:
        """Its rows, as the loader reads them."""
        return self._source

    @property
    def location(self) -> Path | str:
        """The folder that is read, of the staged copy if there is one; or the URL."""
        return self._source.location

    def column(self, name: str) -> npt.NDArray[Any] | pa.Array:
        """Return the values of a column in all samples, for samplers and statistics.

        Returns:
            A new NumPy array of the column's type, shape (N,) or (N, K, …), if each sample has one
            number, or an array of one shape; else an Arrow array of N values. Labels are int32.

        Raises:
            DatasetError: It cannot be read, or has changed.
            UsageError: There is no such column.
        """
        values = self._source.column(name)
        # Numbers share the memory that later lookups take them from.
        return values.copy() if isinstance(values, np.ndarray) else values

    @property
    def labels(self) -> npt.NDArray[np.int32]:
        """A new array of all labels, int32, shape (N,): for samplers that balance classes.

        Raises:
            UsageError: The dataset has none.
        """
        if LABEL not in self._source.fields:
            raise NoAttributeError(
                f"{self.path}: its samples have no labels", "Take column(name) for another column."
            )
        return self._source.column("label").astype(np.int32)

    @property
    def targets(self) -> list[int]:
        """All labels in a list, as torchvision's datasets have them."""
        if self._targets is None or self.folder is not None:  # a folder's samples may change
            self._targets = [int(label) for label in self.labels]
        return self._targets

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(path, label) of each file, as torchvision's folders have them.

        Raises:
            AttributeError: The dataset is packed, so its samples are no files of their own.
        """
        if self.folder is None:
            raise NoAttributeError(
                f"{self.path}: it has no samples or imgs, as its images are not files",
                "Take targets for the labels, row(i).key for a name, read([i]) for bytes.",
            )
        samples: list[tuple[str, int]] = self.folder.samples
        return samples

    imgs = samples

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class, as torchvision's datasets have it."""
        if self.folder is not None:
            return dict(self.folder.class_to_idx)
        return {name: label for label, name in enumerate(self.classes)}
