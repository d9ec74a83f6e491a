"""Encodings of images: names, extensions of files, and which the core decodes."""

from __future__ import annotations

from fastdata import _native

#: The encodings an index may name, in the order of their codes (docs/formats/index.md).
ENCODINGS = _native.ENCODINGS

#: Encodings of JPEGs that the core decodes, if nothing else about them is unusual.
NATIVE_JPEGS = ("jpeg", "jpeg-progressive")
#: Codes of images that the core leaves to other decoders; other codes mean damage.
NOT_NATIVE = ("unsupported", "not_jpeg")
#: Pixels between seek points: 0.9% of a photograph's bytes (docs/design/0002-native-core.md).
DEFAULT_STRIDE = 128

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


def upright_size(width: int, height: int, orientation: int) -> tuple[int, int]:
    """Return the size of an image that is turned as an EXIF orientation says."""
    return (height, width) if 5 <= orientation <= 8 else (width, height)
