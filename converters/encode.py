"""How blobs are encoded: the source's bytes unchanged, a JPEG rewritten or new, or raw pixels."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from PIL import Image

from fastdata.decode.codecs import open_image
from fastdata.decode.engine import DecodeError, rewrite_baseline
from fastdata.decode.pillow import ImageInfo
from fastdata.errors import SampleError, UsageError
from fastdata.storage.encodings import NATIVE_JPEGS

ENCODINGS = ("original", "baseline", "jpeg", "raw")
DEFAULT_QUALITY = 90


@dataclass(frozen=True)
class Encoding:
    """How images are stored.

    Attributes:
        kind: ``original`` keeps every byte; ``baseline`` rewrites JPEGs that are progressive,
            arithmetic-coded, in several scans or have restart markers as baseline ones of the same
            pixels (`fastdata.decode.rewrite_baseline`), and keeps every byte of all else and of
            those with a scan missing or damaged; ``jpeg`` encodes anew, baseline; ``raw`` stores
            pixels, uint8, height x width x 3, RGB.
        max_side: The longer side is reduced to this many pixels where it is longer (as
            FFCV's ``max_resolution``); never enlarged. None keeps the size.
        quality: libjpeg's quality, 1 to 100; for ``jpeg``, where None means 90.
    """

    kind: str = "original"
    max_side: int | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ENCODINGS:
            raise UsageError(
                f"unknown encoding {self.kind}", f"Use --encoding {' or '.join(ENCODINGS)}."
            )
        if self.keeps_pixels and self.max_side is not None:
            raise UsageError(
                f"--max-side changes pixels, so it does not go with --encoding {self.kind}",
                "Add --encoding jpeg or --encoding raw.",
            )
        if self.kind != "jpeg" and self.quality is not None:
            raise UsageError(
                f"--quality has no meaning with --encoding {self.kind}", "Add --encoding jpeg."
            )
        if self.max_side is not None and self.max_side < 1:
            raise UsageError(f"--max-side {self.max_side} is not a size", "Use 1 or more.")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise UsageError(f"--quality {self.quality} is out of range", "Use 1 to 100.")

    @property
    def keeps_pixels(self) -> bool:
        """Whether what is stored decodes to the source's pixels."""
        return self.kind in ("original", "baseline")

    def options(self) -> dict[str, Any]:
        """What the manifest records."""
        if self.keeps_pixels:
            return {"encoding": self.kind}
        options: dict[str, Any] = {"encoding": self.kind, "max_side": self.max_side}
        if self.kind == "jpeg":
            options["quality"] = self.quality or DEFAULT_QUALITY
        return options

    def apply(self, data: bytes, info: ImageInfo) -> tuple[bytes, ImageInfo]:
        """Turns an image's bytes into its blob.

        Args:
            data: The image as the source has it.
            info: What it is.

        Returns:
            The blob, and what that is.

        Raises:
            SampleError: The image cannot be decoded, or not encoded as JPEG.
        """
        if self.kind == "original" or (self.kind == info.encoding == "raw" and self._fits(info)):
            return data, info
        if self.kind == "baseline":
            return _baseline(data, info)
        image = open_image(data, info)
        grey = info.channels == 1 and self.kind == "jpeg"
        if grey:
            image = image.convert("L")
        size = self._size(image.width, image.height)
        if size != image.size:
            image = image.resize(size, Image.Resampling.LANCZOS)
        if self.kind == "raw":
            return image.tobytes(), ImageInfo("raw", *size, 3)
        out = io.BytesIO()
        try:
            image.save(out, "JPEG", quality=self.quality or DEFAULT_QUALITY)
        except OSError as error:  # a side of more than 65,500 pixels
            raise SampleError(
                f"{image.width} x {image.height} pixels cannot be encoded as JPEG: {error}"
            ) from None
        return out.getvalue(), ImageInfo("jpeg", *size, 1 if grey else 3)

    def _fits(self, info: ImageInfo) -> bool:
        return self._size(info.width, info.height) == (info.width, info.height)

    def _size(self, width: int, height: int) -> tuple[int, int]:
        longer = max(width, height)
        if self.max_side is None or longer <= self.max_side:
            return width, height
        # Rounded down, like FFCV's resizer.
        return (
            max(1, width * self.max_side // longer),
            max(1, height * self.max_side // longer),
        )


def _baseline(data: bytes, info: ImageInfo) -> tuple[bytes, ImageInfo]:
    """A JPEG rewritten, if that can be done without loss; else the same."""
    if info.encoding not in NATIVE_JPEGS:
        return data, info
    try:
        return rewrite_baseline(data), info._replace(encoding="jpeg")
    except DecodeError:  # of a kind, or with damage, that Pillow alone knows
        return data, info


ORIGINAL = Encoding()
