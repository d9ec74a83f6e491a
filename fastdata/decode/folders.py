"""Torchvision's ``DatasetFolder``: whether it is one, unchanged, and opens files by Pillow."""

from __future__ import annotations

import sys
from typing import Any

from PIL import Image

from fastdata.decode.limits import Limits
from fastdata.decode.pillow import RGB, Style
from fastdata.errors import FastdataError, SampleError, UsageError
from fastdata.storage.listed import FilesSource
from fastdata.text import class_name
from fastdata.transforms.identity import changed, fresh_look, own_method

#: Methods that decide which samples a dataset of torch's has, and what they are.
SAMPLE_METHODS = ("__getitem__", "__getitems__", "__len__")


def folder_class() -> Any:
    """Return torchvision's ``DatasetFolder``; None if torchvision is not imported."""
    return getattr(sys.modules.get("torchvision.datasets.folder"), "DatasetFolder", None)


_HINT = (
    "Give a packed dataset's path or URL, a datasets.Dataset, or "
    "torchvision.datasets.ImageFolder(root). Arrays, lists and tables: ImageDataset.from_table."
)
#: Hints for datasets of the library ``datasets``, by the beginning of their classes' names.
_HINTS = {
    "datasets.dataset_dict.DatasetDict": "Give one of its splits: dataset['train'].",
    "datasets.": "Load it without streaming=True; or index its files with fastdata index.",
}


def require_folder(folder: Any) -> None:
    """Raise UsageError unless a ``DatasetFolder`` has torchvision's own methods."""
    base = folder_class()
    if base is None or not isinstance(folder, base):
        several = (hint for name, hint in _HINTS.items() if class_name(folder).startswith(name))
        raise UsageError(
            f"{class_name(folder)} is neither a path nor a dataset that is read in place",
            next(several, _HINT),
        )
    with fresh_look():
        reason = own_method(folder, base, *SAMPLE_METHODS)
    if reason:
        raise UsageError(
            f"{reason}, which would not be called",
            "Give the dataset to the DataLoader itself; or do in transform and target_transform "
            "what it does.",
        )


def other_labels(folder: Any) -> str:
    """Say in a clause that labels of a ``DatasetFolder`` are not 64-bit integers; "" if all are."""
    others = {type(label).__name__ for _, label in folder.samples} - {"int", "int64"}
    return f"{class_name(folder)} has labels of type {min(others)}, not int" if others else ""


def why_not_pillow(folder: Any) -> tuple[str, str] | None:
    """Return why a folder's files are not opened by Pillow, and a remedy; None if they are."""
    if folder is None:  # a list of files
        return None
    module = sys.modules["torchvision.datasets.folder"]
    if reason := changed(module):
        return reason, "Undo that, and do in the transform what it does."
    if folder.loader not in (module.default_loader, module.pil_loader):
        hint = "Leave loader= out, and do in the transform what it does."
        return f"{class_name(folder)} has its own loader", hint
    by_default = folder.loader is module.default_loader
    if by_default and sys.modules["torchvision"].get_image_backend() != "PIL":
        return "torchvision's image backend is not PIL", (
            'Call torchvision.set_image_backend("PIL").'
        )
    return None


def require_style(style: Style, step: Any, folder: Any) -> None:
    """Check that images can have the style that was asked for.

    Raises:
        UsageError: A transform of fastdata would undo it, or the folder's loader knows no style.
    """
    if style.color != "rgb" and step is not None:
        raise UsageError(
            f"color={style.color!r} and {type(step).__name__} of fastdata.transforms, "
            "which makes RGB of all images",
            'Take color="rgb", or torchvision\'s transforms.',
        )
    if style != RGB and folder is not None and why_not_pillow(folder):
        raise UsageError(
            f"color= and exif_transpose= where {class_name(folder)} has its own loader",
            "Leave loader= out, or do in it what they do.",
        )


def load_by_folder(folder: Any, source: FilesSource, row: int, limits: Limits) -> Any:
    """Return what a folder's own loader makes of one of its files."""
    try:
        image = folder.loader(source.path(row))
        if isinstance(image, Image.Image):
            limits.check_size(*image.size)
    except FileNotFoundError:
        raise source.problem(row, "the file is missing", "file_missing") from None
    except SampleError as error:
        raise source.problem(row, f"it {error.what}", hint=error.hint) from None
    except FastdataError:
        raise
    except Exception as error:  # a loader may raise anything
        raise source.problem(row, str(error)) from None
    return image
