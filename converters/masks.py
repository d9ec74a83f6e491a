"""Source of images beside masks: two folders with files of the same names."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from fastdata.converters.annotations import AnnotatedImages, Annotations, Folder

from fastdata.errors import SourceError


class MaskedImages(AnnotatedImages):
    """Source of images and their masks, by path; ``mask`` is a field of masks.

    The mask of ``<images>/a/b.jpg`` is ``<masks>/a/b.png``, with any suffix of images. An image
    without a mask, and a mask without an image, are bad samples. Names of images and masks end as
    ``image_ending`` and ``mask_ending`` say, before the suffix, such as ``_leftImg8bit``; others
    are left out. ``fields`` is ``mask`` or nothing.
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
        folder = Folder(root, storage_options)
        found = _annotations(folder, *places, image_ending, mask_ending)
        super().__init__(found, root, fields, storage_options=storage_options)


def _annotations(
    folder: Folder, images: str, masks: str, image_ending: str, mask_ending: str
) -> Annotations:
    found, beside = _by_name(folder, images, image_ending), _by_name(folder, masks, mask_ending)
    about = {"kind": "masks", "images": images, "masks": masks}
    rows = Annotations({"mask": pa.string()}, about, masks=["mask"])
    for name in sorted({*found, *beside}):
        values: dict[str, str] | str = {"mask": beside.get(name, "")}
        if name not in found:
            values = f"{beside[name]}: has no image in {images}/"
        elif name not in beside:
            values = f"its mask {masks}/{name}{mask_ending}.png is missing"
        rows.add(found.get(name), values, name)
    return rows


def _by_name(folder: Folder, below: str, ending: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, paths in folder.images(below).items():
        if not name.endswith(ending):
            continue
        if len(paths) > 1:
            raise SourceError(
                f"{folder}/{below}: two images have the name {name.removesuffix(ending)}",
                "Rename one, or move it away.",
            )
        found[name.removesuffix(ending)] = paths[0]
    if not found:
        raise SourceError(
            f"{folder}/{below}: has no images" + (f" that end in {ending}" if ending else ""),
            "Name the folders in --root with --images and --masks.",
        )
    return found
