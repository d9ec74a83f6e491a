"""`ImageDataset`: a packed dataset as torch's own ``DataLoader`` wants it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata.blobs import Blobs
from fastdata.errors import CorruptionError, SampleError
from fastdata.index import Row
from fastdata.manifest import Manifest
from fastdata.probe import ImageInfo, open_image
from fastdata.staged import find_staged, telling_of_copy


class ImageDataset:
    """A dataset that fastdata has packed, map-style: ``dataset[i]`` is (image, label).

    Works as the dataset of ``torch.utils.data.DataLoader`` with any number of workers: it
    is picklable (a path and two functions), and may be used by several threads and after a
    fork. Opening takes the same time whatever the number of samples.

    Where a whole and current copy was made by ``fastdata stage``, that is read instead; where
    one is there but damaged, a warning names it.

    Args:
        path: The dataset's folder.
        transform: Applied to each image; None to return PIL images.
        target_transform: Applied to each label.
        staged: Whether to look for a staged copy.

    Attributes:
        path: The folder that was asked for.
        classes: Class names; a label is an index into them.

    Raises:
        DatasetError: There is no finished dataset at ``path``.
        VersionError: It was written by a newer fastdata.
        CorruptionError: It does not match its manifest.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Callable[[Image.Image], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        staged: bool = True,
    ) -> None:
        self.path = Path(path)
        self.transform = transform
        self.target_transform = target_transform
        self._staged = staged
        self._open()

    def _open(self) -> None:
        copy = find_staged(self.path) if self._staged else None
        folder = copy or self.path
        with telling_of_copy(folder):
            self._blobs = Blobs(folder)
        self.classes = self._blobs.manifest.classes
        # What decodes natively for `__getitems__`, and the transforms that it does; None if not
        # made yet.
        self._head: tuple[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_blobs"], state["_head"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return len(self._blobs.index)

    def __repr__(self) -> str:
        manifest = self.manifest
        staged = f", staged in {self.location}" if self.location != self.path else ""
        return (
            f"ImageDataset({str(self.path)!r}: {manifest.samples} samples of "
            f"{len(manifest.classes)} classes in {manifest.container}{staged})"
        )

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """One sample.

        Args:
            index: Its number from 0; a negative one counts from the end.

        Returns:
            The image, a PIL image of mode RGB or what ``transform`` makes of it; and the
            label, an int or what ``target_transform`` makes of it.

        Raises:
            IndexError: There is no such sample.
            DatasetError: Its file is missing, cut short, or has changed.
            SampleError: It cannot be decoded.
        """
        image: Any = self.open_image(index)
        if self.transform is not None:
            image = self.transform(image)
        label: Any = self.row(index).label
        if self.target_transform is not None:
            label = self.target_transform(label)
        return image, label

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Several samples at once: what torch's own ``DataLoader`` calls.

        Where fastdata knows the transform, or how it begins (`fastdata.transforms`, or
        torchvision's crops, resizing, flips and conversions), the images are decoded and cropped
        natively: as ``__getitem__``, within 1 of 255, and several times faster.

        Args:
            indices: Numbers from 0; negative ones count from the end.

        Returns:
            One (image, label) for each.

        Raises:
            IndexError: There is no such sample.
            FastdataError: As ``__getitem__``.
        """
        if self.transform is None:
            return [self[index] for index in indices]
        transforms = (self.transform, self.target_transform)
        if self._head is None or self._head[0] != transforms:
            from fastdata.loading.head import head_of  # torch is needed only here

            self._head = (transforms, head_of(self))
        head = self._head[1]
        if head is None:
            return [self[index] for index in indices]
        found: list[tuple[Any, Any]] = head.samples(
            [index + len(self) if index < 0 else index for index in indices]
        )
        return found

    def open_image(self, index: int) -> Image.Image:
        """One sample's image, untransformed: a PIL image of mode RGB.

        Raises:
            IndexError: There is no such sample.
            DatasetError: Its file is missing, cut short, or has changed.
            SampleError: It cannot be decoded.
        """
        row = self.row(index)
        data = self._blob(row, index)
        try:
            return open_image(data, ImageInfo(row.encoding, row.width, row.height, row.channels))
        except SampleError as error:
            raise SampleError(
                f"{self.location}: sample {index} ({row.key}) {error.what}",
                "Find all such samples with fastdata verify; pack without them by --skip-bad.",
            ) from None

    def row(self, index: int) -> Row:
        """What the index knows of a sample: key, label, size, encoding, extent, checksum.

        Raises:
            IndexError: There is no such sample.
        """
        with telling_of_copy(self.location):
            row: Row = self._blobs.index[index]
        return row

    def _blob(self, row: Row, index: int) -> bytes:
        """A sample's bytes, checked."""
        with telling_of_copy(self.location):
            data = self._blobs.read(row, index)
            if row.encoding == "raw" and len(data) != row.width * row.height * 3:
                raise CorruptionError(
                    f"{self.location}: sample {index} ({row.key}) is not {row.width} x "
                    f"{row.height} pixels",
                    "Pack the dataset again.",
                )
        return data

    def read(self, indices: Iterable[int]) -> list[bytes]:
        """The encoded bytes of samples, checked against their checksums.

        Args:
            indices: Numbers from 0; negative ones count from the end.

        Returns:
            One blob for each, in the order asked.

        Raises:
            IndexError: There is no such sample.
            DatasetError: A file is missing, cut short, or has changed.
        """
        return [self._blob(self.row(index), index) for index in indices]

    @property
    def labels(self) -> npt.NDArray[np.int32]:
        """All labels, int32, shape (N,): for samplers that balance classes. Made anew."""
        with telling_of_copy(self.location):
            return self._blobs.index.column("label").astype(np.int32)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class, as torchvision's datasets have it."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def blobs(self) -> Blobs:
        """Its index and files."""
        return self._blobs

    @property
    def manifest(self) -> Manifest:
        """What ``dataset.json`` says."""
        return self._blobs.manifest

    @property
    def location(self) -> Path:
        """The folder that is really read: the staged copy's, where there is one."""
        return self._blobs.path
