"""`ImageDataset`: a packed dataset, or a folder of images, as torch's ``DataLoader`` wants it."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata.decode.codecs import Encoded, open_image
from fastdata.decode.limits import DEFAULT_MAX_PIXELS, DEFAULT_MAX_SCANS, MOST_BYTES, Limits
from fastdata.decode.pillow import COLORS, RGB, ImageInfo, Style
from fastdata.errors import CorruptionError, DatasetError, SampleError, UsageError, printable
from fastdata.remote.opening import RANGES, RemoteBlobs
from fastdata.remote.options import RemoteOptions
from fastdata.remote.urls import is_url, redact
from fastdata.staging.staged import find_staged, telling_of_copy
from fastdata.storage.blobs import Blobs
from fastdata.storage.files import read_file
from fastdata.storage.manifest import Manifest
from fastdata.storage.rows import Row
from fastdata.text import class_name, human_count
from fastdata.transforms.descriptions import Schedule, Transform
from fastdata.transforms.originals import changed, is_copied
from fastdata.transforms.torchvision import parts


class BatchDecoder(Protocol):
    """Decodes several samples of a dataset and does what its transforms say."""

    def samples(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """One (image, label) for each index from 0, as `ImageDataset.__getitem__` returns it."""


class ImageDataset:
    """A map-style dataset of images: ``dataset[i]`` is (image, label).

    Works as the dataset of ``torch.utils.data.DataLoader`` with any number of workers: it
    is picklable (a path and two functions), and may be used by several threads and after a
    fork. Opening takes the same time whatever the number of samples.

    Where a whole and current copy was made by ``fastdata stage``, that is read instead; where
    one is there but damaged, a warning names it.

    Where ``path`` is a URL that fsspec reaches (``gs://bucket/dataset``), the manifest and the
    index are fetched to this machine, and images as they are needed: see docs/remote-reading.md.

    Args:
        path: The packed dataset's folder, or its URL; or a dataset of torchvision's: an
            ``ImageFolder``, ``DatasetFolder`` or ``ImageNet``, which is then read as it lies, with
            its transforms where none are given here.
        transform: Applied to each image; None to return PIL images.
        target_transform: Applied to each label.
        staged: Whether to look for a staged copy.
        check: Whether the bytes that are decoded natively are checked against their checksums;
            ``dataset[i]`` and `read` always check.
        dct_scaling: Whether the core decodes at 1/2, 1/4 or 1/8 where the crop is so much larger
            than the target: faster, other pixels (docs/dataset.md says how near).
        max_pixels: Most pixels (width times height) of an image that is decoded; a larger one is
            an error of its sample, as a damaged one is. Default: where Pillow begins to warn of
            decompression bombs. None for no limit of fastdata's; what Pillow decodes it still
            refuses beyond twice its ``Image.MAX_IMAGE_PIXELS``.
        max_scans: Most scans of a JPEG that is decoded: each of a progressive one goes over all
            its pixels. None for no limit.
        color: What images are: "rgb", as Pillow's ``convert("RGB")`` makes them; "gray" (its
            ``convert("L")``), "rgba", or "unchanged": the mode that each is stored in, 16 bits kept
            where Pillow keeps them. All but "rgb" are off the native path, as Pillow converts them,
            and go with no transform of `fastdata.transforms`, whose images are RGB.
        exif_transpose: Whether images are turned as their EXIF orientation says, which torchvision
            does not; off the native path, too. EXIF data that cannot be read turn nothing.
        seek_cache_bytes: For torchvision's: memory for the seek points that its files gain in a
            loader's first epoch, which make the next ones faster; None for 256 MiB, about
            180,000 photographs of ImageNet's size; 0 for none.
        seek_cache_file: For torchvision's: where these are saved at an epoch's end, and read from.
        cache: For a URL: "ranges", the default, to fetch byte ranges and keep nothing; or a
            folder of this machine that keeps pieces of the files, for all its processes
            (write "./range" for one of such a name, which is taken for a slip of "ranges").
        cache_bytes: Most bytes of images in that folder; None for nine tenths of what is free.
        storage_options: For a URL: options of its fsspec driver.
        remote: For a URL: how it is read.

    Attributes:
        path: The folder that was asked for; of a URL its text without credentials.
        classes: Class names; a label is an index into them.
        folder: The dataset of torchvision's, if it is one.
        limits: What an image may cost.
        style: What images are brought to: color and orientation.

    Raises:
        DatasetError: There is no finished dataset at ``path``.
        VersionError: It was written by a newer fastdata.
        CorruptionError: It does not match its manifest.
        RemoteError: The URL cannot be reached.
        UsageError: Arguments contradict each other.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Any,
        transform: Callable[[Image.Image], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        staged: bool = True,
        check: bool = True,
        dct_scaling: bool = False,
        max_pixels: int | None = DEFAULT_MAX_PIXELS,
        max_scans: int | None = DEFAULT_MAX_SCANS,
        color: str = "rgb",
        exif_transpose: bool = False,
        seek_cache_bytes: int | None = None,
        seek_cache_file: str | os.PathLike[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        remote: RemoteOptions | None = None,
    ) -> None:
        for name, one in (("transform", transform), ("target_transform", target_transform)):
            if one is not None and not callable(one):
                raise UsageError(
                    f"{name}={one!r} cannot be called",
                    "Put several transforms into fastdata.transforms.Compose.",
                )
        self.folder: Any = None if isinstance(path, (str, os.PathLike)) else path
        if self.folder is not None:
            _check_folder(self.folder)
            path = self.folder.root
            transform = self.folder.transform if transform is None else transform
            if target_transform is None:
                target_transform = self.folder.target_transform
        self._url = os.fspath(path) if is_url(path) else None
        self.path: Path | str = Path(path) if self._url is None else redact(self._url)
        self.transform = transform
        self.target_transform = target_transform
        switches = {"staged": staged, "check": check, "dct_scaling": dct_scaling}
        switches["exif_transpose"] = exif_transpose
        for name, switch in switches.items():
            if switch not in (True, False):
                raise UsageError(f"{name}={switch!r}", "Give True or False.")
        self.check, self.dct_scaling = check, dct_scaling
        for name, limit in (("max_pixels", max_pixels), ("max_scans", max_scans)):
            if limit is not None and (type(limit) is not int or limit < 1):
                raise UsageError(f"{name}={limit!r}", "Give a whole number from 1, or None.")
        self.limits = Limits(max_pixels, max_scans)
        if color not in COLORS:
            raise UsageError(f"color={color!r}", f"Give one of {', '.join(map(repr, COLORS))}.")
        self.style = Style(color, bool(exif_transpose))
        self._check_style()
        self.seek_cache_bytes, self.seek_cache_file = seek_cache_bytes, seek_cache_file
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
        if self.folder is None and (seek_cache_bytes is not None or seek_cache_file is not None):
            raise UsageError(
                f"{path}: seek_cache_bytes= and seek_cache_file= are for torchvision's folders, "
                "and a packed dataset has its seek points in its index",
                "Leave them out; fastdata seek-points adds seek points to a dataset without any.",
            )
        if seek_cache_bytes is not None and (
            type(seek_cache_bytes) is not int or seek_cache_bytes < 0
        ):
            raise UsageError(
                f"seek_cache_bytes={seek_cache_bytes!r}", "Give a number of bytes; 0 for none."
            )
        self._open()

    def _open(self) -> None:
        # What decodes natively for `__getitems__`, and the transforms that it does; None if not
        # made yet.
        self._decoder: tuple[Any, BatchDecoder | None] | None = None
        self._targets: list[int] | None = None
        # What `image_size` has found; None if it was not asked yet.
        self._image_size: tuple[tuple[int, int] | None] | None = None
        self._blobs: Blobs | RemoteBlobs | None = None
        if self.folder is not None:
            self.classes = list(self.folder.classes)
            return
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

    def _check_style(self) -> None:
        """Sees that images will be of the style that was asked for.

        Raises:
            UsageError: What follows on opening them would undo it, or what opens them knows none.
        """
        color, transform = self.style.color, self.transform
        if isinstance(transform, Schedule):
            transform = transform.current
        ours = None if color == "rgb" else _first_of_ours(transform)
        if ours is not None:
            raise UsageError(
                f"color={color!r} and {type(ours).__name__} of fastdata.transforms, "
                "which makes RGB of all images",
                'Take color="rgb", or torchvision\'s transforms.',
            )
        if self.style != RGB and self.folder is not None and not _opens_by_pillow(self.folder):
            raise UsageError(
                f"color= and exif_transpose= where {class_name(self.folder)} has its own loader",
                "Leave loader= out, or do in it what they do.",
            )

    def _telling(self) -> AbstractContextManager[None]:
        """Errors about a staged copy say that it is one."""
        location = self.location
        return telling_of_copy(location) if isinstance(location, Path) else nullcontext()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_blobs", "_decoder", "_targets", "_image_size"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return len(self.blobs.index) if self.folder is None else len(self.folder.samples)

    def __add__(self, other: Any) -> Any:
        """Both, one after the other: a ``torch.utils.data.ConcatDataset``, as of torch's."""
        from torch.utils.data import ConcatDataset

        parts: list[Any] = [self, other]
        return ConcatDataset(parts)

    def __repr__(self) -> str:
        if self.folder is not None:
            name = type(self.folder).__name__
            return f"ImageDataset({name} of {human_count(len(self), 'file')} in {str(self.path)!r})"
        manifest = self.manifest
        staged = f", staged in {self.location}" if self.location != self.path else ""
        if isinstance(self._blobs, RemoteBlobs):
            staged = f", cached in {self._blobs.cache}" if self._blobs.cache else ", by ranges"
        samples = human_count(manifest.samples, "sample")
        classes = human_count(len(manifest.classes), "class", "classes")
        return (
            f"ImageDataset({str(self.path)!r}: {samples} of {classes} "
            f"in {manifest.container}{staged})"
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
            UsageError: The index is a slice, or no number.
        """
        index = whole_number(index)
        if self.style != RGB:
            self._check_style()  # the transform may be another one now
        image: Any = self.open_image(index)
        if self.transform is not None:
            image = self.transform(image)
        label: Any = self.row(index).label if self.folder is None else self._file(index)[1]
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
        transform = self.transform
        if isinstance(transform, Schedule):
            transform = transform.current
        transforms = (transform, self.target_transform)
        if self._decoder is None or self._decoder[0] != transforms:
            self._decoder = (transforms, _decoder_of(self))
        decoder = self._decoder[1]
        if decoder is None:
            return [self[index] for index in indices]
        return decoder.samples(indices)

    def open_image(self, index: int) -> Image.Image:
        """One sample's image, untransformed: a PIL image, of mode RGB unless ``color`` says so.

        Raises:
            IndexError: There is no such sample.
            DatasetError: Its file is missing, cut short, or has changed.
            SampleError: It cannot be decoded.
        """
        if self.folder is not None:
            return self._open_file(index)
        row = self.row(index)
        return self.decode(row, index, self._blob(row, index))

    def _open_file(self, index: int) -> Image.Image:
        path, _ = self._file(index)
        try:
            if _opens_by_pillow(self.folder):
                data = read_file(path, MOST_BYTES)
                return open_image(data, ImageInfo("", 0, 0, 3), self.limits, self.style)
            image: Image.Image = self.folder.loader(path)
            if isinstance(image, Image.Image):
                self.limits.check_size(*image.size)
        except FileNotFoundError:
            raise DatasetError(
                f"{path}: sample {index}: the file is missing",
                "Put it back, or make torchvision's dataset anew.",
            ) from None
        except SampleError as error:
            what, hint = f"{path}: sample {index}: it {error.what}", error.hint
            raise SampleError(what, hint or _FILE_HINT) from None
        except Exception as error:  # Pillow's plugins raise almost anything
            raise SampleError(f"{path}: sample {index}: {error}", _FILE_HINT) from None
        return image

    def _file(self, index: int) -> tuple[Any, int]:
        """(path, label) of a file of torchvision's."""
        samples: Sequence[tuple[Any, int]] = self.folder.samples
        if not -len(samples) <= index < len(samples):
            raise IndexError(f"there is no sample {index} among {len(samples)}")
        return samples[index]

    def decode(self, row: Row, index: int, data: bytes) -> Image.Image:
        """What `open_image` returns, of bytes that `read` has returned.

        Args:
            row: The sample's row.
            index: Its number.
            data: Its bytes.

        Raises:
            SampleError: They cannot be decoded.
        """
        with self._naming(row, index):
            return open_image(data, _info(row), self.limits, self.style)

    def encoded(self, index: int, data: bytes | None = None) -> Encoded:
        """One sample's image as it is stored, checked: its kind, its size, and then its pixels.

        Args:
            index: Its number.
            data: Its bytes, where `read` has returned them already.

        Raises:
            IndexError: There is no such sample.
            DatasetError: Its file is missing, cut short, or has changed.
            SampleError: It cannot be decoded.
            UsageError: The dataset is a folder of torchvision's, which has no index.
        """
        row = self.row(index)
        if data is None:
            data = self._blob(row, index)
        with self._naming(row, index):
            return Encoded(data, _info(row), self.limits, trusted=True)

    @contextmanager
    def _naming(self, row: Row, index: int) -> Iterator[None]:
        """Errors about a sample's image say which it is."""
        try:
            yield
        except SampleError as error:
            raise SampleError(
                f"{self.location}: sample {index} ({printable(row.key)}) {error.what}",
                error.hint
                or "Find all such samples with fastdata verify; pack without them by --skip-bad.",
            ) from None

    def row(self, index: int) -> Row:
        """What the index knows of a sample: key, label, size, encoding, extent, checksum.

        Raises:
            IndexError: There is no such sample.
            CorruptionError: The index is damaged; its label is that of no class.
            UsageError: The dataset is a folder of torchvision's, which has no index; or the index
                is a slice, or no number.
        """
        with self._telling():
            row: Row = self.blobs.index[whole_number(index)]
            if not 0 <= row.label < len(self.manifest.classes):
                raise self._no_class(row.label, f"sample {index} ({printable(row.key)})")
        return row

    def _no_class(self, label: int, where: str) -> CorruptionError:
        return CorruptionError(
            f"{self.location}: {where}: the index gives label {label}, but the dataset "
            f"has {human_count(len(self.manifest.classes), 'class', 'classes')}",
            "See what else is damaged with fastdata verify; copy or pack the dataset again.",
        )

    def _blob(self, row: Row, index: int) -> bytes:
        """A sample's bytes, checked."""
        with self._telling():
            data = self.blobs.read(row, index)
            if row.encoding == "raw" and len(data) != row.width * row.height * 3:
                raise CorruptionError(
                    f"{self.location}: sample {index} ({printable(row.key)}) is not {row.width} x "
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
            UsageError: It is one number alone.
        """
        if not isinstance(indices, Iterable):
            raise UsageError(
                f"read({indices!r}): it takes several samples' numbers",
                f"For one sample, give [{indices!r}].",
            )
        return [self._blob(self.row(index), index) for index in indices]

    @property
    def labels(self) -> npt.NDArray[np.int32]:
        """All labels, int32, shape (N,): for samplers that balance classes. Made anew."""
        if self.folder is not None:
            return np.array([label for _, label in self.folder.samples], np.int32)
        with self._telling():
            labels = self.blobs.index.column("label").astype(np.int32)
            for label in (labels.min(), labels.max()) if len(labels) else ():
                if not 0 <= label < len(self.manifest.classes):
                    raise self._no_class(int(label), "a sample")
            return labels

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(width, height) of every image in pixels, as of CIFAR's; None where they differ.

        None, too, of a dataset of torchvision's, whose sizes only its files tell.
        """
        if self.folder is not None:
            return None
        if self._image_size is None:
            with self._telling():
                found = self.blobs.index.common("width", "height")
            self._image_size = (None if found is None else (found[0], found[1]),)
        return self._image_size[0]

    @property
    def targets(self) -> list[int]:
        """All labels in a list, as torchvision's datasets have them."""
        if self.folder is not None:  # whose samples may be changed
            return [label for _, label in self.folder.samples]
        if self._targets is None:
            self._targets = self.labels.tolist()
        return self._targets

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(path, label) of each file, as torchvision's folders have them.

        Raises:
            AttributeError: The dataset is packed, so its samples are no files of their own.
        """
        if self.folder is None:
            raise AttributeError(
                f"{self.path}: a packed dataset has no samples or imgs, as its images are not "
                "files\nTake targets for the labels, row(i).key for a name, read([i]) for bytes."
            )
        samples: list[tuple[str, int]] = self.folder.samples
        return samples

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """As `samples`."""
        return self.samples

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class, as torchvision's datasets have it."""
        if self.folder is not None:
            found: dict[str, int] = self.folder.class_to_idx
            return found
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def is_remote(self) -> bool:
        """Whether it was named by a URL; also where a staged copy is read."""
        return self._url is not None

    @property
    def blobs(self) -> Blobs | RemoteBlobs:
        """Its index and files.

        Raises:
            UsageError: The dataset is a folder of torchvision's, which has no index.
        """
        if self._blobs is None:
            raise UsageError(
                f"{self.path}: a folder of torchvision's has no index and no manifest",
                "Make them with fastdata convert --to folder, which leaves the files in place.",
            )
        return self._blobs

    @property
    def manifest(self) -> Manifest:
        """What ``_dataset.json`` says."""
        return self.blobs.manifest

    @property
    def location(self) -> Path | str:
        """The folder that is really read: the staged copy's, where there is one; or the URL."""
        return self.path if self.folder is not None else self.blobs.path


def _info(row: Row) -> ImageInfo:
    """What the index says of an image."""
    return ImageInfo(row.encoding, row.width, row.height, row.channels)


def whole_number(index: Any) -> int:
    """A sample's number.

    Raises:
        UsageError: It is a slice, or no whole number.
    """
    try:
        return operator.index(index)
    except TypeError:
        raise UsageError(
            f"dataset[{index!r}]: a sample's number is a whole one",
            "For several samples take torch.utils.data.Subset(dataset, range(start, stop)).",
        ) from None


def folder_class() -> Any:
    """Torchvision's ``DatasetFolder``; None where torchvision is not in use."""
    return getattr(sys.modules.get("torchvision.datasets.folder"), "DatasetFolder", None)


#: What decides which samples a ``DatasetFolder`` has, and what they are.
FOLDER_METHODS = ("__getitem__", "__getitems__", "__len__")


#: What a ``DatasetFolder`` opens files by.
LOADERS = ("default_loader", "pil_loader")

#: What to do about a file of a torchvision folder's that cannot be decoded.
_FILE_HINT = "Repair the file, or make torchvision's dataset without it."


def own_method(dataset: Any, base: type, *names: str) -> str:
    """Say in a clause which of these methods a dataset does not have from its base; "" for none.

    Of torch's and torchvision's classes, also which is not what the library defines.
    """
    kind = type(dataset)
    for name in names:
        replaced = getattr(kind, name, None) is not getattr(base, name, None)
        if replaced or name in vars(dataset):
            return f"{class_name(dataset)} has its own {name}"
    return changed(base, *names) if is_copied(base.__module__) else ""


def _first_of_ours(transform: Any) -> Transform | None:
    """The first of `fastdata.transforms` in a pipeline, which may be torchvision's Compose."""
    if isinstance(transform, Transform):
        return transform
    return next(filter(None, map(_first_of_ours, parts(transform) or ())), None)


def _opens_by_pillow(folder: Any) -> bool:
    """Whether a ``DatasetFolder`` opens files by torchvision's own loader, and that by Pillow."""
    module = sys.modules["torchvision.datasets.folder"]
    if changed(module, *LOADERS):
        return False
    if folder.loader is module.default_loader:
        return bool(sys.modules["torchvision"].get_image_backend() == "PIL")
    return folder.loader is module.pil_loader


def _check_folder(folder: Any) -> None:
    base = folder_class()
    if base is None or not isinstance(folder, base):
        raise UsageError(
            f"{class_name(folder)} is neither a path nor a folder of torchvision's",
            "Give a packed dataset's path or URL, or torchvision.datasets.ImageFolder(root).",
        )
    if reason := own_method(folder, base, *FOLDER_METHODS):
        raise UsageError(
            f"{reason}, which would not be called",
            "Give the dataset to the DataLoader itself; or do in transform and target_transform "
            "what it does.",
        )


def _decoder_of(dataset: ImageDataset) -> BatchDecoder | None:
    """Makes the decoder of a dataset's ``__getitems__``; None where Pillow has to do."""
    # By name: it needs torch, and is above this module.
    found: BatchDecoder | None = import_module("fastdata.loading.prefix").native_prefix(dataset)
    return found
