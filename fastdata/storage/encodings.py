"""Names of image encodings, and the extensions of their files."""

from __future__ import annotations

from fastdata import _native

#: The encodings an index may name, in the order of their codes (docs/formats/index.md).
ENCODINGS = _native.ENCODINGS

#: The file extension of a blob in each encoding.
EXTENSIONS = {
    "raw": "npy",  # shards put NumPy's header before raw pixels (docs/formats/shards.md)
    "jpeg": "jpg",
    "jpeg-progressive": "jpg",
    "jpeg-other": "jpg",
    "png": "png",
    "webp": "webp",
    "bmp": "bmp",
    "gif": "gif",
    "tiff": "tiff",
    "ppm": "ppm",
    "avif": "avif",
    "heic": "heic",
    "jxl": "jxl",
    "other": "img",
    "jpeg-arithmetic": "jpg",
}

#: torchvision.datasets.folder.IMG_EXTENSIONS; compared in lower case.
_TORCHVISION = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
#: Those, and the kinds that torchvision leaves out.
IMAGE_EXTENSIONS = (*_TORCHVISION, ".gif", ".avif", ".heic", ".heif", ".jxl")


def is_image_name(name: str) -> bool:
    """Return whether a file's name has an image's extension."""
    return name.lower().endswith(IMAGE_EXTENSIONS)
