"""Source of images beside masks: two folders with files of the same names."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from fastdata.converters.annotations import AnnotatedFolder, AnnotatedImages, Annotations

from fastdata.errors import SourceError


class MaskedImages(AnnotatedImages):
    """Source of images and their masks, by path; ``mask`` is a field of masks.

    The mask of ``<images>/a/b.jpg`` is ``<masks>/a/b.png``, with any suffix of images. An image
    without a mask, a mask without an image, and several of one name are bad samples. Names of
    images and masks end as ``image_ending`` and ``mask_ending`` say, before the suffix, such as
    ``_leftImg8bit``; others are left out. ``fields`` is ``mask`` or nothing.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        images: str = "images",
        masks: str = "masks",
        *,
        image_ending: str = "",
        mask_ending: str = "",
        fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        places = posixpath.normpath(images), posixpath.normpath(masks)
        folder = AnnotatedFolder(root, storage_options)
        annotations = _annotations(folder, *places, image_ending, mask_ending)
        super().__init__(annotations, root, fields, storage_options=storage_options)


def _annotations(
    folder: AnnotatedFolder, images: str, masks: str, image_ending: str, mask_ending: str
) -> Annotations:
    images_by_name, masks_by_name = (
        _by_name(folder, images, image_ending),
        _by_name(folder, masks, mask_ending),
    )
    origin = {"kind": "masks", "images": images, "masks": masks}
    rows = Annotations({"mask": pa.string()}, origin, masks=["mask"])
    for name in sorted({*images_by_name, *masks_by_name}):
        files, mask_files = images_by_name.get(name, []), masks_by_name.get(name, [])
        values: dict[str, str] | str
        if not files:
            values = f"{mask_files[0]}: has no image in {images}/"
        elif not mask_files:
            values = f"its mask {masks}/{name}{mask_ending}.png is missing"
        elif len(files) > 1 or len(mask_files) > 1:
            several = files if len(files) > 1 else mask_files
            values = f"{' and '.join(several)} have the same name; keep one of them"
        else:
            values = {"mask": mask_files[0]}
        rows.add(files[0] if files else None, values, name)
    return rows


def _by_name(folder: AnnotatedFolder, below: str, ending: str) -> dict[str, list[str]]:
    by_name = {
        name.removesuffix(ending): paths
        for name, paths in folder.images(below).items()
        if name.endswith(ending)
    }
    if not by_name:
        raise SourceError(
            f"{folder}/{below}: has no images" + (f" that end in {ending}" if ending else ""),
            "Name the folders in --root with --images and --masks.",
        )
    return by_name
