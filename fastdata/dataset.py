"""`ImageDataset`: packed images, or other libraries' datasets, as torch's ``DataLoader`` wants."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image

from fastdata.decode.folders import (
    SAMPLE_METHODS,
    folder_class,
    load_by_folder,
    require_folder,
    require_style,
    why_not_pillow,
)
from fastdata.decode.hub import require_hub, style_of
from fastdata.decode.limits import Limits
from fastdata.decode.memory import rows_of
from fastdata.decode.pillow import AS_STORED, RGB
from fastdata.decode.rows import common_size, decode_row
from fastdata.errors import UsageError
from fastdata.loading.fields.names import (
    chosen_fields,
    joint_of,
    require_callable,
    row_number,
    row_numbers,
)
from fastdata.loading.fields.readable import (
    Readable,
    Unreadable,
    images_among,
    other_style,
    overridden,
)
from fastdata.loading.fields.samples import NativeSamples, value_of
from fastdata.loading.fields.targets import require_still, warn_of_fields, warn_of_targets
from fastdata.once import once
from fastdata.remote.options import RemoteOptions
from fastdata.staging.place import DatasetPlace
from fastdata.storage.cache import Cache
from fastdata.storage.contents import DatasetContents
from fastdata.storage.field_source import FieldSource, MissingError
from fastdata.storage.hugging_face import Hub, is_hub, open_hub, split_formats
from fastdata.storage.learnt import LearningSource
from fastdata.storage.listed import FileList, FilesSource
from fastdata.storage.packed import IndexedSource, require_same
from fastdata.storage.parts import PartsSource
from fastdata.storage.paths import working_folder
from fastdata.storage.records import Row
from fastdata.storage.row_groups import warn_of_row_groups
from fastdata.storage.shapes import with_formats
from fastdata.storage.source import Blob, Source
from fastdata.storage.table_view import TableView
from fastdata.storage.tables import TableSource
from fastdata.text import class_name, human_count
from fastdata.transforms.compile import compile_for_images, compile_recipe, first_of_ours
from fastdata.transforms.identity import own_method
from fastdata.transforms.outcomes import Refusal, without_fixed_size
from fastdata.transforms.recipe import NO_IMAGE, Recipe

if TYPE_CHECKING:
    from fastdata.loading.fields.decoder import SampleDecoder
    from fastdata.transforms.joint import Joint

Transform: TypeAlias = Callable[[Image.Image], Any]


class ImageDataset(DatasetContents, NativeSamples):
    """A map-style dataset of images: ``dataset[i]`` is (image, label), or a dict of given fields.

    Works as the dataset of ``torch.utils.data.DataLoader`` with any number of workers: it is
    picklable, and may be used by several threads and after a fork. Opening takes the same time
    whatever the number of samples.

    A complete and current copy of ``fastdata stage`` in its default place is read instead, until
    ``fastdata stage --unstage`` removes it; a warning names damage.

    If ``path`` is a URL that fsspec reaches (``gs://bucket/dataset``), the manifest and the
    index are fetched to this machine, and images as they are needed: see docs/remote.md.

    Args:
        path: The dataset's folder, or its URL; or what is indexed on first use: tars of WebDataset
            (``shards/*.tar``), Parquet, a folder of either, of ``save_to_disk``'s or of images
            alone, their URL, or ``hf://datasets/owner/name``; or a dataset of torchvision's: an
            ``ImageFolder``, ``DatasetFolder`` or ``ImageNet``, which is then read in place, with
            its transforms unless others are given here; or a ``datasets.Dataset``, which is read
            in place, too (docs/guides/hugging-face.md).
        transform: Applied to each image; None to return PIL images. With several fields of images,
            a dict of such functions by field.
        target_transform: Applied to each label.
        transforms: Applied to an image and its targets together, instead of both: one of
            ``torchvision.transforms.v2`` or of `fastdata.transforms`. It is called with (image,
            target): the target is the one other field, or a dict of several by name. Boxes, key
            points and masks follow the image; see docs/targets.md.
        fields: Keys of ``dataset[i]``, which is then a dict in this order (with ``transforms``,
            the contents of image and target): fields of the dataset, "key" (the sample's name),
            "index" (its number) and, with ``transforms``, "geometry": how the image was cut,
            resized, flipped and warped. None for a tuple of the image and, if there is one, the
            label. Other fields are not read.
        formats: Formats of columns whose values lie in the image, ``{"boxes": "xywh"}``, in place
            of those that it was packed with; "" for none (docs/formats/fields.md). For a
            ``datasets.Dataset`` also "image" or "mask": the kind of a column of images.
        limits: Pixels and scans of an image that is decoded (`fastdata.decode.Limits`). An image
            beyond them is an error of its sample, as a damaged one is. Pillow still refuses what it
            decodes beyond twice its ``Image.MAX_IMAGE_PIXELS``.
        color: Colour of images: "rgb", the default, by Pillow's ``convert("RGB")``; "gray" (its
            ``convert("L")``), "rgba", or "unchanged": the mode that each is stored in, with 16
            bits if Pillow keeps them. All but "rgb" are off the native path, as Pillow converts
            them, and exclude transforms of `fastdata.transforms`, whose images are RGB.
        exif_transpose: Whether to turn images as their EXIF orientation says, which torchvision
            does not; for a ``datasets.Dataset`` by default, as that does. Crops and targets then
            lie in the turned image. Unreadable EXIF data turn nothing; masks are never turned.
        cache: What to keep on this machine from epoch to epoch: a path, or a `fastdata.Cache` of a
            path and a number of bytes. For a URL, the path is a folder for pieces of files;
            without it none are kept. For a dataset on this machine, it is a folder for the seek
            points that the first epoch finds; without it they lie beside the index, or in
            ``$FASTDATA_CACHE_DIR``.
        storage_options: For a URL: options of its fsspec driver.
        remote: For a URL: how to read it.

    Attributes:
        path: The folder, or the URL without credentials.
        classes: Class names; a label, or each of an image's ``labels``, is a place among them.
        field_transforms: Transforms of other fields of images, by field.
        folder: The dataset of torchvision's, if it is one.
        hub: The ``datasets.Dataset``, if it is one.
        cache: The cache, as a `fastdata.Cache`; None if none was given.
        style: Colour and orientation of images.

    Raises:
        DatasetError: There is no finished dataset at ``path``.
        VersionError: A newer fastdata wrote it.
        CorruptionError: It does not match its manifest.
        RemoteError: The URL cannot be reached.
        UsageError: Arguments contradict each other, or do not apply to this kind of dataset.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Any,
        transform: Transform | Mapping[str, Transform] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        transforms: Callable[..., Any] | None = None,
        fields: Sequence[str] | None = None,
        formats: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        color: str | None = None,
        exif_transpose: bool | None = None,
        cache: str | os.PathLike[str] | Cache | None = None,
        storage_options: Mapping[str, Any] | None = None,
        remote: RemoteOptions | None = None,
    ) -> None:
        by_field = dict(transform) if isinstance(transform, Mapping) else {"image": transform}
        transform = by_field.pop("image", None)
        named: dict[str, Any] = {f"transform[{name!r}]": one for name, one in by_field.items()}
        named |= {"transform": transform, "transforms": transforms}
        require_callable({**named, "target_transform": target_transform})
        if exif_transpose not in (None, True, False):
            raise UsageError(f"exif_transpose={exif_transpose!r}", "Give True or False.")
        if not isinstance(limits, (Limits, type(None))):
            raise UsageError(f"limits={limits!r}", "Give a fastdata.decode.Limits.")
        if transforms is not None and any(one is not None for one in (transform, target_transform)):
            raise UsageError(
                "transforms= takes images and targets, and another transform is given, too",
                "Make that a part of transforms=.",
            )
        self.hub: Any = path if is_hub(path) else None
        self._table: Any = path if isinstance(path, TableView) else self.hub
        self._base = working_folder()  # of relative paths, wherever the process is later
        self.folder: Any = None
        self._kinds: dict[str, str] = {}
        if self._table is not None:
            if self.hub is not None:
                require_hub(self.hub)
                formats, self._kinds = split_formats(formats)
            path = self.opened_table.rows.location
        elif not isinstance(path, (str, os.PathLike)):
            self.folder = path
            require_folder(self.folder)
            path = self.folder.root
            if transforms is None:
                transform = self.folder.transform if transform is None else transform
                require_callable({"transform": transform})
                if target_transform is None:
                    target_transform = self.folder.target_transform
        self.cache = cache if isinstance(cache, Cache) or cache is None else Cache(cache)
        fixed = self._table is not None
        self._place = DatasetPlace(path, self.cache, storage_options, remote, fixed)
        self.path: Path | str = self._place.path
        self.transform = transform
        self.target_transform, self.transforms = target_transform, transforms
        self.field_transforms = by_field
        self._given_fields, self._formats = fields, formats
        self.limits = limits or Limits()
        hub = self.opened_table if self.hub is not None else None
        self.style = style_of(color, exif_transpose, hub)
        self._check_style()
        self._generation = ""
        self._open()
        if not self.is_remote:
            self._place.require_local_options()
        self._require_still(tell=True)
        by_name = {"transform": self.transform, "transforms": transforms}
        warn_of_fields(self.path, self._source, self._fields, formats or {}, by_name)
        if transforms is not None and fields is None:
            warn_of_targets(self.path, self._fields, self._source.fields)
        if self._source.capabilities.row_groups:
            warn_of_row_groups(str(self._source.location))

    @classmethod
    def from_table(
        cls,
        table: Any,
        transform: Transform | Mapping[str, Transform] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        image: str | None = None,
        label: str | None = None,
        key: str | None = None,
        classes: Sequence[str] | None = None,
        root: str | os.PathLike[str] = "",
        formats: Mapping[str, str] | None = None,
        **options: Any,
    ) -> ImageDataset:
        """Read images that a table in memory holds or lists; nothing is written.

        An image is a path, the bytes of a file, a dict of ``bytes`` and ``path``, or pixels of one
        array, uint8, shape (N, H, W, 3) or (N, H, W). Other columns are fields; bytes are images,
        masks or blobs, by their content and the column's name; a column of paths whose name says
        mask has masks.

        Args:
            table: A table of pandas, polars or pyarrow, or any with Arrow's C stream; a dict of
                columns; or a list of images, of (image, label) or of dicts.
            transform: As for `ImageDataset`.
            target_transform: As for `ImageDataset`.
            image: The column of images; None for one with a usual name, or the only one.
            label: The column of classes: names, or whole numbers, also as 0.0 or True. None for
                ``label``, if it has such.
            key: The column of samples' names; None for ``key``, if there is one, else the paths.
            classes: Class names, by label. None for the labels' names, sorted, or their numbers.
            root: Folder of relative paths.
            formats: As for `ImageDataset`; also "mask" or "image" for a column of images.
            options: Further arguments of `ImageDataset`.

        Raises:
            UsageError: The table has no images or no such column, or a row has no class.
        """
        if isinstance(transform, Sequence) and not any(map(callable, transform)):
            hint = "Give labels in the table: a column, or (image, label) in each row."
            raise UsageError(f"transform= cannot be called: {class_name(transform)}", hint)
        formats, kinds = split_formats(formats)
        columns: Any = {"image": image, "label": label, "key": key}
        rows: Any = rows_of(table, kinds=kinds, root=root, classes=classes, **columns)
        return cls(rows, transform, target_transform, formats=formats, **options)

    def _open(self, source: Source | None = None) -> None:
        self._decoder = None
        self._targets = None
        self._source = self._open_source() if source is None else source
        self._source.upright = self.style.exif_transpose
        self._source.fields = with_formats(self._source.fields, self._formats, self.path)
        self.classes = list(self._source.classes or ())
        if not self.classes and isinstance(self._source, (IndexedSource, PartsSource)):
            self.classes = self.manifest.object_classes
        self._fields = self._chosen_fields()

    @property
    def exif_transpose(self) -> bool:
        """Whether images are turned as their EXIF orientation says."""
        return self.style.exif_transpose

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the contents of ``dataset[i]``, in order; others may be set.

        Raises:
            UsageError: There is no such field, or a transform has none.
        """
        return self._fields

    @fields.setter
    def fields(self, names: Sequence[str] | None) -> None:
        before = self._given_fields, self._fields
        self._given_fields = names
        try:
            self._fields = self._chosen_fields()
            self._require_still()
        except UsageError:
            self._given_fields, self._fields = before
            raise

    def _chosen_fields(self) -> tuple[str, ...]:
        """Return the fields of a sample, as the user chose them."""
        return chosen_fields(
            self.path,
            self._source.fields,
            self._given_fields,
            self.field_transforms,
            joint=self.transforms is not None,
            labels=self.target_transform is not None,
        )

    def _require_still(self, tell: bool = False) -> None:
        """Raise `UsageError` for a transform that moves images away from their boxes or masks."""
        require_still(self.transform, self._fields, self._source.fields, self.path, tell)
        self._still = self.transform

    def _open_source(self) -> Source:
        if self.folder is not None:
            return FilesSource(self.folder, self.path, base=self._base)
        if self._table is not None:
            return TableSource(self.opened_table.rows)
        return self._place.open()

    def _check_style(self) -> None:
        transforms = (self.transform, self.transforms, *self.field_transforms.values())
        ours = next(filter(None, map(first_of_ours, transforms)), None)
        require_style(self.style, ours, self.folder)

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_source", "_decoder", "_targets", "opened_table")
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        if isinstance(self._source, PartsSource):  # without parts that are added later
            state["_source"] = self._source
        return {**state, "_generation": self._source.generation}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open(state.get("_source"))
        require_same(self._source, self._generation)

    def __len__(self) -> int:
        return len(self._source)

    def __add__(self, other: Any) -> Any:
        """Return both, one after the other: a ``torch.utils.data.ConcatDataset``, as torch does."""
        from torch.utils.data import ConcatDataset

        parts: list[Any] = [self, other]
        return ConcatDataset(parts)

    @property
    def _is_staged(self) -> bool:
        others = self._table is not None or self.folder is not None
        return not others and self._place.is_copy(self.location)

    def __repr__(self) -> str:
        where = f", staged in {self.location}" if self._is_staged else ""
        return f"ImageDataset({str(self.path)!r}: {self._source.summary}{where})"

    def __getitem__(self, index: int) -> Any:
        """Return one sample.

        Args:
            index: Its number from 0; a negative one counts from the end.

        Returns:
            A tuple of image and label, or a dict of the fields that were given; or what
            ``transforms`` returns. Its values:

            - an image: a PIL image of mode RGB, or what its transform returns;
            - a mask: a PIL image of the mode in which it is stored;
            - the label: an int, or what ``target_transform`` returns;
            - a blob: its ``bytes``;
            - a number: a NumPy scalar of its type;
            - a list of m numbers, or of m arrays of one shape: a NumPy array, shape (m,) or
              (m, K, …);
            - any other value, and all values of a column with nulls: Python objects.

            None where a sample has no value.

        Raises:
            IndexError: There is no such sample.
            DatasetError: Its file is missing, cut short, or has changed.
            SampleError: It cannot be decoded.
            UsageError: The index is a slice, or no number.
        """
        row = row_number(index, len(self))
        if self.style != RGB:
            self._check_style()  # the transform may be another one now
        if self.transforms is not None:
            return self._joint_sample(row)
        if self.transform is not self._still:
            self._require_still()
        values = {name: self._value(name, row) for name in self.fields}
        return values if self.named else tuple(values.values())

    @property
    def named(self) -> bool:
        """Whether a sample is a dict by field: fields were given, and no ``transforms``."""
        return self._given_fields is not None and self.transforms is None

    def _joint_sample(self, row: int) -> Any:
        """Return a sample after the joint transform."""
        joint = joint_of(self._source.fields, self.fields)
        # The core alone does these: transforms of fastdata take images.
        if joint.names("geometry") or first_of_ours(self.transforms) is not None:
            decoder, recipe = self.decoder, without_fixed_size(self._compiled())
            if decoder is None:
                reason = getattr(recipe, "reason", recipe)
                raise UsageError(f"transforms= cannot be done: {reason}")
            return decoder.samples([row])[0]
        (sample,) = self._stored_decoder(joint).drawn(np.array([row]), 0, lambda key: None)
        return self.transforms(*sample)  # type: ignore[misc]

    def _stored_decoder(self, joint: Joint) -> SampleDecoder:
        """Return the decoder of samples as they are stored, for transforms that Python calls."""
        from fastdata.loading.fields.decoder import stored_decoder  # imports torch

        settings, kept = (self.fields, self.limits), self._decoder or {}
        if kept.get("stored", (None,))[0] != settings:
            readable = self._readable(
                what=repr(self),
                open=lambda learns: self._source,
                transform=self.transforms,
                recipe=NO_IMAGE,
            )
            kept["stored"] = settings, stored_decoder(readable, joint, self._stored_image)
        self._decoder = kept
        return kept["stored"][1]  # type: ignore[return-value]

    def _stored_image(self, name: str, row: int) -> Any:
        return self.open_image(row) if name == "image" else self._value(name, row)

    def _value(self, name: str, row: int) -> Any:
        if name == "image":
            try:
                image = self.open_image(row)
            except MissingError:
                return None
            return image if self.transform is None else self.transform(image)
        value = value_of(self._source, name, row)
        if name == "label":
            return value if self.target_transform is None else self.target_transform(value)
        if not isinstance(value, Blob):
            return value
        kind = self._source.field(name).kind
        if not value.data and not (value.checked and value.channels):
            return None
        if kind == "blob":
            return value.data
        style = AS_STORED if kind == "mask" else self.style
        image = decode_row(FieldSource(self._source, name), row, self.limits, style)
        transform = self.field_transforms.get(name)
        return image if transform is None else transform(image)

    def described(self) -> Readable | Unreadable:
        """Return the description of its images for the core, or why that does not read them."""
        if reason := own_method(self, ImageDataset, *_METHODS):
            return overridden(reason)
        if self.style.color != "rgb":
            return other_style(self.style.color)
        self._require_still()
        folder, files, what = self.folder, None, repr(self)
        opener: Callable[[bool], Source] = self._opened
        if folder is not None:
            if reason := own_method(folder, folder_class(), *SAMPLE_METHODS):
                return overridden(reason)
            if otherwise := why_not_pillow(folder):
                return Unreadable(*otherwise)
            files = list(folder.samples)  # the folder's own may be changed in place
            opener = partial(self._opened, files=FileList(files, folder.classes))
            what = f"{type(folder).__name__} of {human_count(len(files), 'file')}"
        joint = self.transforms is not None
        images = images_among(self._source.fields, joint)
        by_field = {
            name: self.field_transforms.get(name)
            for name in self.fields
            if name != "image" and name in images
        }
        return self._readable(
            what=what,
            cache=None if folder is None else self.cache,
            open=opener,
            transform=self.transforms or self.transform,
            target_transform=self.target_transform,
            joint=joint,
            recipe=self._compiled(),
            files=files,
            field_recipes={name: compile_recipe(one) for name, one in by_field.items()},
            without_transform=[name for name, one in by_field.items() if one is None],
            keys=self.fields if self.named else (),
        )

    def _readable(self, **aspects: Any) -> Readable:
        """Return the description of the stored samples; ``aspects`` are its other attributes."""
        place: Any = {"path": self.path, "source": self._source, "limits": self.limits}
        return Readable(dataset=self, fields=self.fields, **place, **aspects)

    def _opened(self, learns: bool, files: FileList | None = None) -> Source:
        """Return the source for a loader, which may keep what it learns of the images."""
        source, cache = self._source, self.cache
        if files is not None:
            source = FilesSource(files, self.path, self._base)
            source.upright = self.exif_transpose
        elif self._table is not None and learns:
            source = TableSource(self.opened_table.rows, source)
        elif self.is_remote:
            # A URL's cache limits the pieces of its files.
            cache = Cache(bytes=0 if cache is not None and cache.bytes == 0 else None)
        if learns and isinstance(source, LearningSource):
            source.learn(cache)
        return source

    @once
    def opened_table(self) -> Hub:
        """The rows of the table or the ``datasets.Dataset`` that is read."""
        if self.hub is None:
            return Hub(self._table, None)
        return open_hub(self.hub, self._kinds, self._base)

    def _compiled(self) -> Recipe | Refusal:
        """Return the transform, compiled for images of any size, else for their one size."""
        if "image" not in self.fields:
            return NO_IMAGE
        joint = None
        if self.transforms is not None:
            joint = joint_of(self._source.fields, self.fields)
        transform = self.transforms or self.transform
        return compile_for_images(transform, joint, lambda: self.image_size)

    def open_image(self, index: int) -> Image.Image:
        """Return one sample's image, untransformed: a PIL image, RGB unless ``color`` differs.

        Raises:
            IndexError: There is no such sample.
            DatasetError: Its file is missing, cut short, or has changed.
            SampleError: It cannot be decoded.
        """
        row, source = row_number(index, len(self)), self._source
        if isinstance(source, FilesSource) and why_not_pillow(self.folder):
            image: Image.Image = load_by_folder(self.folder, source, row, self.limits)
            return image
        return decode_row(source, row, self.limits, self.style)

    def row(self, index: int) -> Row:
        """Return the index's record of a sample: key, label, size, encoding, extent, checksum.

        Raises:
            IndexError: There is no such sample.
            CorruptionError: The index is damaged; its label is of no class.
            UsageError: The dataset has no index; or ``index`` is a slice, or no number.
        """
        return self._indexed.row(row_number(index, len(self)))

    def read(self, indices: Iterable[int]) -> list[bytes]:
        """Return the encoded bytes of samples; compare packed ones with their checksums.

        Args:
            indices: Numbers from 0; negative ones count from the end.

        Returns:
            One blob for each, in the order asked.

        Raises:
            IndexError: There is no such sample.
            DatasetError: A file is missing, cut short, or has changed.
            UsageError: It is one number alone.
        """
        return [self._source.encoded(row).data for row in row_numbers(indices, len(self))]

    @property
    def is_remote(self) -> bool:
        """Whether its images lie behind a URL; also if a staged copy is read."""
        return self._place.is_remote or not self._source.capabilities.local

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(width, height) of every image in pixels; None if they differ, or only files tell."""
        known = self._source.image_size
        return self._table_size if known is None and self._table is not None else known

    @once
    def _table_size(self) -> tuple[int, int] | None:
        return common_size(self._source, self.limits)


# Methods that decide which samples an `ImageDataset` has, and what they are.
_METHODS = (*SAMPLE_METHODS, "open_image", "row", "source")
