"""`ImageDataset`: packed images, or those of other libraries, as torch's ``DataLoader`` wants."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from fastdata.decode.folders import (
    SAMPLE_METHODS,
    folder_class,
    load_by_folder,
    own_method,
    require_folder,
    require_style,
    why_not_pillow,
)
from fastdata.decode.hub import require_hub, style_of
from fastdata.decode.limits import Limits
from fastdata.decode.memory import rows_of
from fastdata.decode.pillow import AS_STORED, RGB
from fastdata.decode.rows import common_size, decode_row, some_sizes
from fastdata.errors import NoAttributeError, UsageError, warn
from fastdata.loading.fields.images import Readable, Unreadable, other_style, overridden
from fastdata.loading.fields.samples import (
    NativeSamples,
    chosen_fields,
    require_callable,
    row_number,
    row_numbers,
    value_of,
)
from fastdata.loading.fields.targets import (
    TargetReader,
    joint_of,
    require_still,
    warn_of_boxes,
    warn_of_targets,
)
from fastdata.once import once
from fastdata.remote.options import RemoteOptions
from fastdata.remote.patterns import is_pattern
from fastdata.remote.urls import absolute, is_url, redact
from fastdata.staging.first_use import indexed, is_indexed_here
from fastdata.staging.staged import Original, tell_of_copy, telling_of_copy
from fastdata.storage.cache import Cache
from fastdata.storage.field_source import FieldSource, MissingError
from fastdata.storage.fields import IMAGES, LABEL, MASKS, outlines_among
from fastdata.storage.generation import require_same
from fastdata.storage.hugging_face import Hub, is_hub, open_hub, split_formats
from fastdata.storage.listed import FileList, FilesSource
from fastdata.storage.manifest import Manifest
from fastdata.storage.packed import IndexedSource
from fastdata.storage.parted import PartedSource, open_local
from fastdata.storage.paths import working_folder
from fastdata.storage.records import Row
from fastdata.storage.shapes import with_formats
from fastdata.storage.source import Blob, Source
from fastdata.storage.table_rows import TableRows
from fastdata.storage.tables import TableSource
from fastdata.text import class_name, human_count
from fastdata.transforms.compile import NO_IMAGE, Recipe, compile_recipe, first_of_ours
from fastdata.transforms.identity import pillow_changed
from fastdata.transforms.outcomes import Refusal, without_fixed_size

Transform: TypeAlias = Callable[[Image.Image], Any]


class ImageDataset(NativeSamples):
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
        further_transforms: Transforms of further fields of images, by field.
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
        given = dict(transform) if isinstance(transform, Mapping) else {"image": transform}
        transform = given.pop("image", None)
        named: dict[str, Any] = {f"transform[{name!r}]": one for name, one in given.items()}
        named |= {"transform": transform, "transforms": transforms}
        named |= {"target_transform": target_transform}
        require_callable(named)
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
        self._table: Any = path if isinstance(path, TableRows) else self.hub
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
        fixed = self._table is not None or is_pattern(path)  # where files are is known already
        self._place = os.fspath(path) if fixed else absolute(path)
        self._url = self._place if is_url(path) else None
        self.path: Path | str = Path(self._place) if self._url is None else redact(self._url)
        self.transform = transform
        self.target_transform, self.transforms = target_transform, transforms
        self.further_transforms = given
        self._given_fields, self._formats = fields, formats
        self.limits = limits or Limits()
        hub = self.opened_table if self.hub is not None else None
        self.style = style_of(color, exif_transpose, hub)
        self._check_style()
        self.cache = cache if isinstance(cache, Cache) or cache is None else Cache(cache)
        self._storage_options, self._remote = storage_options, remote
        self._index: Path | None = None
        self._generation = ""
        self._open()
        if self._is_staged:
            tell_of_copy(self.path, self.location)
        self._check_options()
        self._require_still(tell=True)
        unknown = [one for one in self._source.fields if one.name not in (formats or {})]
        for name in ("transform", "transforms"):
            warn_of_boxes(name, getattr(self, name), self._fields, unknown)
        if transforms is not None and fields is None:
            warn_of_targets(self.path, self._fields, self._source.fields)
        self._source.tell_decoded()
        if isinstance(self._source, IndexedSource):
            located = [one.name for one in self._source.fields if one.format]
            located += [MASKS] * bool(outlines_among(self._source.fields))
            shown = ", ".join(name for name in located if name in self._fields)
            fits = self.manifest.source.get("exif_transpose", self.exif_transpose)
            if shown and fits != self.exif_transpose:
                kind = "turned images" if fits else "stored images"
                warn(f"{self.path}: its {shown} are for {kind}. Give exif_transpose={fits}.")

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
        about: Any = {"image": image, "label": label, "key": key, "root": root, "classes": classes}
        rows: Any = rows_of(table, kinds=kinds, **about)
        return cls(rows, transform, target_transform, formats=formats, **options)

    def _check_options(self) -> None:
        """Raise `UsageError` for options that do not apply to this kind of dataset."""
        if self.is_remote:
            return
        if self.cache is not None and self.cache.path is not None and is_url(self.cache.path):
            raise UsageError(
                f"cache={redact(os.fspath(self.cache.path))!r} is a URL",
                "Give a place on this machine.",
            )
        if self._storage_options is not None or self._remote is not None:
            raise UsageError(
                f"{self.path}: storage_options= and remote= are for URLs", "Leave them out."
            )

    def _open(self, source: Source | None = None) -> None:
        self._decoder = None
        self._targets: list[int] | None = None
        self._source = self._open_source() if source is None else source
        self._source.upright = self.style.exif_transpose
        self._source.fields = with_formats(self._source.fields, self._formats, self.path)
        self.classes = list(self._source.classes or self._classes_of_objects())
        self._fields = self._chosen_fields()

    def _classes_of_objects(self) -> Sequence[str]:
        """Return the names of the classes that COCO's, VOC's or YOLO's labels number."""
        if not isinstance(self._source, (IndexedSource, PartedSource)):
            return ()
        about: Any = self.manifest.source
        while isinstance(about, Mapping) and "classes" not in about:
            about = about.get("of")  # a packed dataset's own source
        names = (about or {}).get("classes")
        return names if isinstance(names, list) and all(isinstance(x, str) for x in names) else ()

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
        about = self.path, self._source.fields, self._given_fields, self.further_transforms
        labels = self.target_transform is not None
        return chosen_fields(*about, joint=self.transforms is not None, labels=labels)

    def _require_still(self, tell: bool = False) -> None:
        """Raise `UsageError` for a transform that moves images away from their boxes or masks."""
        require_still(self.transform, self._fields, self._source.fields, self.path, tell)
        self._still = self.transform

    def _open_source(self) -> Source:
        if self.folder is not None:
            return FilesSource(self.folder, self.path, base=self._base)
        if self._table is not None:
            return TableSource(self.opened_table.rows)
        if self._index is None and is_indexed_here(self._place, self._storage_options):
            self._index = indexed(self._place, self._storage_options)
        if self._index is not None:  # in workers, that of the same files
            return self._open_folder(self._index)
        place = self._url or self.path
        original = Original.read(place, self._storage_options)
        copy = None if original is None else original.find_copy()
        if self._url is not None and copy is None:
            # Reading the manifest again would cost a round trip.
            return self._open_remote(self._url, None if original is None else original.text)
        return self._open_folder(copy or Path(self.path))

    def _open_folder(self, folder: Path) -> Source:
        guard = partial(telling_of_copy, folder)
        with guard():
            source = open_local(folder, guard)
        here = source.manifest.groups is None and source.capabilities.local
        if here and not is_url(source.manifest.root or ""):
            return source
        return self._open_remote(str(folder))

    def _open_remote(self, url: str, text: bytes | None = None) -> Source:
        from fastdata.remote.parted import open_remote  # not needed for local datasets

        return open_remote(url, self.cache, self._storage_options, self._remote, text)

    def _check_style(self) -> None:
        transforms = (self.transform, self.transforms, *self.further_transforms.values())
        ours = next(filter(None, map(first_of_ours, transforms)), None)
        require_style(self.style, ours, self.folder)

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_source", "_decoder", "_targets", "opened_table")
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        if isinstance(self._source, PartedSource):  # without parts that are added later
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
        known = (str(self.path), str(self._index))
        return self._table is None and self.folder is None and str(self.location) not in known

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
        values: dict[str, Any] = {"image": self.open_image(row)}
        reader = TargetReader(self._source.fields, joint)
        values |= reader.unmoved(self._source, row, values["image"].size, self.limits)
        values |= {name: self._value(name, row) for name in reader.joint.targets.keys() - values}
        return self.transforms(*reader.joint.sample(values))  # type: ignore[misc]

    def _value(self, name: str, row: int) -> Any:
        if name == "image":
            try:
                image = self.open_image(row)
            except MissingError:
                return None
            return image if self.transform is None else self.transform(image)
        found = value_of(self._source, name, row)
        if name == "label":
            return found if self.target_transform is None else self.target_transform(found)
        if isinstance(found, Blob):
            if not found.data and not (found.checked and found.channels):
                return None
            if self._source.field(name).kind == "blob":
                return found.data
            style = AS_STORED if self._source.field(name).kind == "mask" else self.style
            image = decode_row(FieldSource(self._source, name), row, self.limits, style)
            transform = self.further_transforms.get(name)
            return image if transform is None else transform(image)
        return found

    def described(self) -> Readable | Unreadable:
        """Return the description of its images for the core, or why that does not read them."""
        if reason := own_method(self, ImageDataset, *_METHODS):
            return overridden(reason)
        if self.style.color != "rgb":
            return other_style(self.style.color)
        self._require_still()
        folder, opener, files, what = self.folder, self._opened, None, repr(self)
        if folder is not None:
            if reason := own_method(folder, folder_class(), *SAMPLE_METHODS):
                return overridden(reason)
            if otherwise := why_not_pillow(folder):
                return Unreadable(*otherwise)
            files = list(folder.samples)  # the folder's own may be changed in place
            opener = partial(self._open_files, FileList(files, folder.classes))
            what = f"{type(folder).__name__} of {human_count(len(files), 'file')}"
        further = {
            name: self.further_transforms.get(name)
            for name in self.fields
            if name != "image" and self.is_image(name)
        }
        return Readable(
            what=what,
            dataset=self,
            path=self.path,
            source=self._source,
            limits=self.limits,
            cache=None if folder is None else self.cache,
            open=opener,
            transform=self.transforms or self.transform,
            target_transform=self.target_transform,
            joint=self.transforms is not None,
            recipe=self._compiled(),
            files=files,
            fields=self.fields,
            further={name: compile_recipe(one) for name, one in further.items()},
            without_transform=[name for name, one in further.items() if one is None],
            keys=self.fields if self.named else (),
        )

    def _open_files(self, files: FileList, learns: bool) -> Source:
        """Return the source of a folder's files, as they are listed now."""
        source = FilesSource(files, self.path, self._base)
        source.upright = self.style.exif_transpose
        if learns:
            source.learn(self.cache)
        return source

    def _opened(self, learns: bool) -> Source:
        """Return the source for a loader, which may keep what it learns of the images."""
        if learns and isinstance(self.source, IndexedSource):
            # A URL's cache limits the pieces of its files.
            nothing = self.cache is not None and self.cache.bytes == 0
            self.source.learn(Cache(bytes=0 if nothing else None) if self.is_remote else self.cache)
        if self._table is None or not learns:
            return self.source
        source = TableSource(self.opened_table.rows, self.source)
        source.learn(self.cache)
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
        transform, of_all = self.transforms or self.transform, self.transforms is not None
        joint = joint_of(self._source.fields, self.fields) if of_all else None
        if transform is not None and (reason := pillow_changed()):
            return Refusal(f"{reason}. Undo that.")
        sizes = partial(some_sizes, self.source, self.limits)
        recipe = compile_recipe(transform, None, joint, sizes)
        if isinstance(recipe, Refusal):
            size = self.image_size
            if size is not None and min(size) > 0:
                sized = compile_recipe(transform, size, joint, sizes)
                if isinstance(sized, Refusal):
                    return sized
                # Where all of it is a tail, torch's loader may as well do it.
                if any(
                    not sized.unknown or program.steps or program.pixels
                    for program in sized.programs
                ):
                    return sized
                first = sized.unknown[0]
                return recipe._replace(
                    reason=f"the core does not do {first.name} ({first.reason}). {first.hint}"
                )
        return recipe

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
            CorruptionError: The index is damaged; its label is that of no class.
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
    def source(self) -> Source:
        """Its rows, as the loader reads them."""
        return self._source

    @property
    def _indexed(self) -> IndexedSource | PartedSource:
        if not isinstance(self._source, (IndexedSource, PartedSource)):
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
    def location(self) -> Path | str:
        """The folder that is read: that of the staged copy, if there is one; or the URL."""
        return self._source.location

    @property
    def is_remote(self) -> bool:
        """Whether its images lie behind a URL; also if a staged copy is read."""
        return self._url is not None or not self._source.capabilities.local

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(width, height) of every image in pixels; None if they differ, or only files tell."""
        known = self._source.image_size
        return self._table_size if known is None and self._table is not None else known

    @once
    def _table_size(self) -> tuple[int, int] | None:
        return common_size(self._source, self.limits)

    def is_image(self, name: str) -> bool:
        """Return whether a name is that of a field of images, or of masks that stay as they are."""
        kinds = IMAGES if self.transforms is None else ("image",)
        return any(one.name == name and one.kind in kinds for one in self._source.fields)

    def column(self, name: str) -> npt.NDArray[Any] | pa.Array:
        """Return the values of a column in all samples, for samplers and statistics.

        Returns:
            A new NumPy array of the column's type, shape (N,) or (N, K, …), if each sample has one
            number, or an array of one shape; else an Arrow array of N values. Labels are int32.

        Raises:
            DatasetError: It cannot be read, or has changed.
            UsageError: There is no such column.
        """
        found = self._source.column(name)
        # Numbers share the memory that later lookups take them from.
        return found.copy() if isinstance(found, np.ndarray) else found

    @property
    def labels(self) -> npt.NDArray[np.int32]:
        """A new array of all labels, int32, shape (N,): for samplers that balance classes.

        Raises:
            UsageError: The dataset has none.
        """
        if LABEL not in self._source.fields:
            raise NoAttributeError(
                f"{self.path}: its samples have no labels",
                "Take column(name) for another column.",
            )
        return self._source.column("label").astype(np.int32)

    @property
    def targets(self) -> list[int]:
        """All labels in a list, as torchvision's datasets have them."""
        found = self._targets
        if found is None or self.folder is not None:  # a folder's samples may change
            found = self._targets = [int(label) for label in self.labels]
        return found

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


# Methods that decide which samples an `ImageDataset` has, and what they are.
_METHODS = (*SAMPLE_METHODS, "open_image", "row", "source")
