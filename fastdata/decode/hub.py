"""Datasets of the library ``datasets``: whether they are as it makes them, and their images."""

from __future__ import annotations

from typing import Any

from fastdata.decode.pillow import COLORS, Style
from fastdata.errors import UsageError
from fastdata.storage.hugging_face import Hub, dataset_class
from fastdata.transforms.identity import own_method

#: Colours for the modes that images of `datasets` are converted to.
_COLORS = {None: "rgb", "RGB": "rgb", "L": "gray", "RGBA": "rgba"}
#: Methods that decide which samples a dataset has, and what they are.
HUB_METHODS = ("__getitem__", "__getitems__", "__len__", "_getitem")


def require_hub(dataset: Any) -> None:
    """Raise UsageError unless a dataset of `datasets` has its own methods, and no transform."""
    if reason := own_method(dataset, dataset_class(), *HUB_METHODS):
        raise UsageError(
            f"{reason}, which would not be called",
            "Give the dataset to the DataLoader itself; or do in transform what it does.",
        )
    if dataset.format["type"] == "custom":
        raise UsageError(
            "the datasets.Dataset has a transform of its own (with_transform or set_transform), "
            "which would not be called",
            "Write ImageDataset(dataset.with_format(None), transform=...), where transform takes "
            "one image.",
        )


def style_of(color: str | None, exif_transpose: bool | None, hub: Hub | None) -> Style:
    """Return the style of images: by default as the library `datasets` has it, else "rgb".

    Raises:
        UsageError: There is no such colour.
    """
    if color is None and hub is not None:
        if hub.mode not in _COLORS:
            raise UsageError(
                f"{hub.rows.location}: its images are of mode {hub.mode!r}, by their "
                f"datasets.Image(mode={hub.mode!r})",
                "Write dataset.cast_column(NAME, datasets.Image()), or give color=.",
            )
        color = _COLORS[hub.mode]
    color = "rgb" if color is None else color
    if color not in COLORS:
        raise UsageError(f"color={color!r}", f"Give one of {', '.join(map(repr, COLORS))}.")
    return Style(color, hub is not None if exif_transpose is None else bool(exif_transpose))
