"""`ImageDataset`: a packed dataset as torch's own ``DataLoader`` wants it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata.errors import CorruptionError, SampleError, UsageError
from fastdata.remote.opening import RANGES, RemoteBlobs
from fastdata.remote.options import RemoteOptions
from fastdata.remote.urls import is_url, redact
from fastdata.staging.staged import find_staged, telling_of_copy
from fastdata.storage.blobs import Blobs
from fastdata.storage.index import Row
from fastdata.storage.manifest import Manifest
from fastdata.storage.probe import ImageInfo, open_image


class ImageDataset:
    """A dataset that fastdata has packed, map-style: ``dataset[i]`` is (image, label).

    Works as the dataset of ``torch.utils.data.DataLoader`` with any number of workers: it
    is picklable (a path and two functions), and may be used by several threads and after a
    fork. Opening takes the same time whatever the number of samples.

    Where a whole and current copy was made by ``fastdata stage``, that is read instead; where
    one is there but damaged, a warning names it.

    Where ``path`` is a URL that fsspec reaches (``gs://bucket/dataset``), the manifest and the
    index are fetched to this machine, and images as they are needed: see docs/remote-reading.md.

    Args:
        path: The dataset's folder, or its URL.
        transform: Applied to each image; None to return PIL images.
        target_transform: Applied to each label.
        staged: Whether to look for a staged copy.
        cache: For a URL: "ranges", the default, to fetch byte ranges and keep nothing; or a
            folder of this machine that keeps pieces of the files, for all its processes
            (write "./range" for one of such a name, which is taken for a slip of "ranges").
        cache_bytes: Most bytes of images in that folder; None for nine tenths of what is free.
        storage_options: For a URL: options of its fsspec driver.
        remote: For a URL: how it is read.

    Attributes:
        path: The folder that was asked for; of a URL its text without credentials.
        classes: Class names; a label is an index into them.

    Raises:
        DatasetError: There is no finished dataset at ``path``.
        VersionError: It was written by a newer fastdata.
        CorruptionError: It does not match its manifest.
        RemoteError: The URL cannot be reached.
        UsageError: Arguments contradict each other.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Callable[[Image.Image], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        staged: bool = True,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        remote: RemoteOptions | None = None,
    ) -> None:
        self._url = os.fspath(path) if is_url(path) else None
        self.path: Path | str = Path(path) if self._url is None else redact(self._url)
        self.transform = transform
        self.target_transform = target_transform
        self._staged = staged
        self._cache = RANGES if cache is None else cache
        self._cache_bytes = cache_bytes
        self._storage_options = storage_options
        self._remote = remote
        given = (cache, cache_bytes, storage_options, remote)
        if self._url is None and any(option is not None for option in given):
            raise UsageError(
                f"{path}: cache=, cache_bytes=, storage_options= and remote= are for URLs",
                "Leave them out; fastdata stage copies a local dataset to a faster disk.",
            )
        self._open()

    def _open(self) -> None:
        self._blobs: Blobs | RemoteBlobs
        copy = None
        if self._staged:
            copy = find_staged(self._url or self.path, self._storage_options)
        if self._url is not None and copy is None:
            self._blobs = RemoteBlobs(
                self._url, self._cache, self._cache_bytes, self._storage_options, self._remote
            )
        else:
            folder = copy or Path(self.path)
            with telling_of_copy(folder):
                self._blobs = Blobs(folder)
        self.classes = self._blobs.manifest.classes
        # What decodes natively for `__getitems__`, and the transforms that it does; None if not
        # made yet.
        self._head: tuple[Any, Any] | None = None

    def _telling(self) -> AbstractContextManager[None]:
        """Errors about a staged copy say that it is one."""
        location = self.location
        return telling_of_copy(location) if isinstance(location, Path) else nullcontext()

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
        if isinstance(self._blobs, RemoteBlobs):
            staged = f", cached in {self._blobs.cache}" if self._blobs.cache else ", by ranges"
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
        return self.decode(row, index, self._blob(row, index))

    def decode(self, row: Row, index: int, data: bytes) -> Image.Image:
        """What `open_image` returns, of bytes that `read` has returned.

        Args:
            row: The sample's row.
            index: Its number.
            data: Its bytes.

        Raises:
            SampleError: They cannot be decoded.
        """
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
        with self._telling():
            row: Row = self._blobs.index[index]
        return row

    def _blob(self, row: Row, index: int) -> bytes:
        """A sample's bytes, checked."""
        with self._telling():
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
        with self._telling():
            return self._blobs.index.column("label").astype(np.int32)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class, as torchvision's datasets have it."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def is_remote(self) -> bool:
        """Whether it was named by a URL; also where a staged copy is read."""
        return self._url is not None

    @property
    def blobs(self) -> Blobs | RemoteBlobs:
        """Its index and files."""
        return self._blobs

    @property
    def manifest(self) -> Manifest:
        """What ``dataset.json`` says."""
        return self._blobs.manifest

    @property
    def location(self) -> Path | str:
        """The folder that is really read: the staged copy's, where there is one; or the URL."""
        return self._blobs.path
