"""Images for the native core's tests: made ones, and where the real ones are."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image, ImageFile


def save(image: Image.Image, out: io.BytesIO, **options) -> None:
    """Encodes a JPEG. Pillow gives libjpeg one buffer: noise at quality 100 needs a larger one."""
    with mock.patch.object(ImageFile, "MAXBLOCK", 1 << 24):
        image.save(out, "JPEG", **options)


SAMPLE = Path(
    os.environ.get("FASTDATA_IMAGENET_SAMPLE")
    or Path(__file__).resolve().parents[1] / ".." / "shared" / "imagenet-sample"
)


def sample_files() -> list[Path]:
    """The real photographs; skips the test where they are missing."""
    files = sorted(SAMPLE.glob("train/*/*.JPEG"))
    if not files:
        pytest.skip(f"no real images in {SAMPLE}: set FASTDATA_IMAGENET_SAMPLE")
    return files


def picture(width: int, height: int, seed: int = 0, noise: int = 60) -> np.ndarray:
    """Smooth gradients and edges under noise: every kind of block occurs."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack(
        [
            128 + 100 * np.sin(x / 9.0 + seed),
            (x * 7 + y * 3 + seed * 11) % 256,
            np.where((x // 5 + y // 7) % 2, 30, 220),
        ],
        axis=-1,
    )
    return np.clip(base + rng.integers(-noise, noise + 1, base.shape), 0, 255).astype(np.uint8)


SAMPLINGS = {"grey": None, "4:4:4": 0, "4:2:2": 1, "4:2:0": 2, "4:4:0": "4:4:0"}


def encode(pixels: np.ndarray, sampling: str = "4:2:0", quality: int = 90, **options) -> bytes:
    if sampling == "4:4:0":
        # Pillow cannot: a 4:2:2 image stands on its side.
        return _transpose_sampling(pixels, quality, **options)
    out = io.BytesIO()
    image = Image.fromarray(pixels)
    if sampling == "grey":
        save(image.convert("L"), out, quality=quality, **options)
    else:
        save(image, out, quality=quality, subsampling=SAMPLINGS[sampling], **options)
    return out.getvalue()


def _transpose_sampling(pixels: np.ndarray, quality: int, **options) -> bytes:
    """A 4:4:0 JPEG: 4:2:2 of an image whose MCU grid is one row, header rewritten: 2x1 is 1x2."""
    height, width = pixels.shape[:2]
    out = io.BytesIO()
    save(Image.fromarray(pixels), out, quality=quality, subsampling=1, **options)
    data = bytearray(out.getvalue())
    at = data.index(b"\xff\xc0") + 4
    mcus = -(-width // 16) * -(-height // 8)
    # As many MCUs of 8 x 16: one for one, in a grid that holds them.
    columns = next(c for c in range(int(mcus**0.5), 0, -1) if mcus % c == 0)
    rows = mcus // columns
    new_width, new_height = columns * 8 - width % 8, rows * 16 - height % 16
    data[at + 1 : at + 5] = new_height.to_bytes(2, "big") + new_width.to_bytes(2, "big")
    assert data[at + 7] == 0x21
    data[at + 7] = 0x12
    return bytes(data)


def requantised(data: bytes, step: Callable[[int], int]) -> bytes:
    """The JPEG with other quantisation tables: steps by their place in the zig-zag order."""
    head, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        segment = data[at:end]
        if segment[1] == 0xDB:
            tables = b""
            for number in segment[4::65]:  # of 8 bits, as encoders write them
                steps = [step(k) for k in range(64)]
                wide = max(steps) > 255
                values = b"".join(value.to_bytes(1 + wide, "big") for value in steps)
                tables += bytes([wide << 4 | number]) + values
            segment = b"\xff\xdb" + (len(tables) + 2).to_bytes(2, "big") + tables
        head, at = head + segment, end
    return head + data[at:]


def pillow(data: bytes) -> np.ndarray:
    """The oracle: Pillow's full decode, RGB."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def regions(width: int, height: int, rng: random.Random, count: int) -> list[tuple]:
    boxes = [
        (0, 0, width, height),
        (0, 0, 1, 1),
        (width - 1, height - 1, width, height),
        (0, height // 2, width, height // 2 + 1),
        (width // 2, 0, width // 2 + 1, height),
    ]
    for _ in range(count):
        x0, y0 = rng.randrange(width), rng.randrange(height)
        boxes.append((x0, y0, rng.randint(x0 + 1, width), rng.randint(y0 + 1, height)))
    return boxes
