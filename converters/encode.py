"""Encoding of blobs: the source's bytes, a re-encoded JPEG, or raw pixels."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from PIL import ExifTags, Image

from fastdata.decode.pillow import ImageInfo, open_image
from fastdata.errors import SampleError, UsageError
from fastdata.text import human_size

ENCODINGS = ("original", "jpeg", "raw")
DEFAULT_QUALITY = 90


@dataclass(frozen=True)
class Encoding:
    """Encoding of stored images.

    Attributes:
        kind: ``original`` keeps every byte. ``jpeg`` re-encodes as baseline. ``raw`` stores
            pixels, uint8, height x width x 3, RGB. Neither turns pixels: the EXIF orientation, and
            no other EXIF data, is kept in the JPEG and in the index.
        max_side: Most pixels of the longer side; larger images are reduced (as with FFCV's
            ``max_resolution``), smaller ones never enlarged. None keeps the size.
        quality: libjpeg's quality, 1 to 100, for ``jpeg``; None for 90.
    """

    kind: str = "original"
    max_side: int | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ENCODINGS:
            raise UsageError(
                f"unknown encoding {self.kind}", f"Use --encoding {' or '.join(ENCODINGS)}."
            )
        if self.kind == "original" and self.max_side is not None:
            raise UsageError(
                "--max-side changes pixels, but --encoding original keeps them",
                "Add --encoding jpeg or --encoding raw.",
            )
        if self.kind != "jpeg" and self.quality is not None:
            raise UsageError(
                f"--quality has no effect with --encoding {self.kind}", "Add --encoding jpeg."
            )
        if self.max_side is not None and self.max_side < 1:
            raise UsageError(f"--max-side {self.max_side} is not a size", "Use 1 or more.")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise UsageError(f"--quality {self.quality} is out of range", "Use 1 to 100.")

    def options(self) -> dict[str, Any]:
        """Return the options for the manifest."""
        if self.kind == "original":
            return {"encoding": self.kind}
        options: dict[str, Any] = {"encoding": self.kind, "max_side": self.max_side}
        if self.kind == "jpeg":
            options["quality"] = self.quality or DEFAULT_QUALITY
        return options

    def apply(self, data: bytes, info: ImageInfo) -> tuple[bytes, ImageInfo]:
        """Turn an image's bytes into its blob; return it with its encoding and size."""
        fits = self._size(info.width, info.height) == (info.width, info.height)
        if self.kind == "original" or (self.kind == info.encoding == "raw" and fits):
            return data, info
        image = open_image(data, info)
        grey = info.channels == 1 and self.kind == "jpeg"
        if grey:
            image = image.convert("L")
        size = self._size(image.width, image.height)
        if size != image.size:
            image = image.resize(size, Image.Resampling.LANCZOS)
        if self.kind == "raw":
            return image.tobytes(), ImageInfo("raw", *size, 3, info.orientation)
        out = io.BytesIO()
        settings: dict[str, Any] = {"quality": self.quality or DEFAULT_QUALITY}
        if info.orientation != 1:
            settings["exif"] = Image.Exif()
            settings["exif"][ExifTags.Base.Orientation] = info.orientation
        try:
            image.save(out, "JPEG", **settings)
        except OSError as error:  # a side of more than 65,500 pixels
            raise SampleError(
                f"{human_size(image.width, image.height)} cannot be encoded as JPEG: {error}"
            ) from None
        return out.getvalue(), ImageInfo("jpeg", *size, 1 if grey else 3, info.orientation)

    def _size(self, width: int, height: int) -> tuple[int, int]:
        longer = max(width, height)
        if self.max_side is None or longer <= self.max_side:
            return width, height
        # Round down, like FFCV's resizer.
        return (max(1, width * self.max_side // longer), max(1, height * self.max_side // longer))


ORIGINAL = Encoding()
