"""Painter of synthetic photographs: the pixels, before any file format.

Overlapping shapes, noise in octaves and grain give the picture a photograph's bits a pixel. The
colours of its subject and background depend on its class.

Pixels are computed in integers, so that the same draws give the same pixels on every machine.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

MAX_CLASSES = 1000

_HUES = 25
_SHAPES = 30
#: Strength of the noise by octave, the finest (one value a pixel) first, for a detail of 256.
_STRENGTHS = (44, 58, 54, 48, 44, 44, 44)
#: Octaves that `detail` scales; the coarser ones are the picture's slow changes of light.
_FINE = 3


def paint(
    rng: np.random.Generator, width: int, height: int, class_index: int, detail: int
) -> Image.Image:
    """Paint a random photograph.

    Args:
        rng: Generator of every random choice.
        width: Pixels across, at least 16.
        height: Pixels down, at least 16.
        class_index: The picture's class, 0 to MAX_CLASSES - 1.
        detail: Strength of texture and grain: 0 is none, 128 a usual photograph, 1024 the most.

    Returns:
        An image of mode YCbCr and size (width, height), full range.
    """

    def between(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    # Steps of 7 in 25 keep neighbouring classes far apart.
    turn = 2 * math.pi * (class_index * 7 % _HUES) / _HUES
    hue = [round(100 * math.cos(turn)), round(100 * math.sin(turn))]
    tint, contrast, mood = between(3, 16), between(30, 160), between(50, 175)

    def colour(strength: int) -> list[int]:
        return [128 + part * strength // 100 for part in hue]

    planes = [Image.new("L", (width, height), level) for level in (mood, *colour(tint))]
    pens = [ImageDraw.Draw(plane) for plane in planes]

    def lay(box: tuple[int, int, int, int], corners: int, levels: list[int]) -> None:
        """Draw a polygon with corners on an ellipse."""
        left, top, across, down = box
        points = [
            (
                left + round(across * math.cos(2 * math.pi * corner / corners)),
                top + round(down * math.sin(2 * math.pi * corner / corners)),
            )
            for corner in range(corners)
        ]
        for pen, level in zip(pens, levels, strict=True):
            pen.polygon(points, fill=min(max(level, 6), 249))

    # A smooth picture has few edges as well as little grain.
    for number in range(_SHAPES * min(detail + 16, 96) // 96):
        # Sizes fall off as a power law: many small things, few large ones.
        radius = max(1, min(width, height) * between(60, 100) // (100 + 35 * number))
        box = (
            (between(0, width), between(0, height)),
            (
                radius * between(40, 160) // 100,
                radius * between(40, 160) // 100,
            ),
        )
        other = [level + between(-12, 12) for level in colour(tint)]
        lay((*box[0], *box[1]), between(3, 24), [mood + between(-contrast, contrast), *other])
    side = min(width, height) * between(32, 50) // 100
    centre = width * between(38, 62) // 100, height * between(38, 62) // 100
    lay((*centre, side, side), 3 + class_index % 6, [between(30, 225), *colour(between(22, 48))])

    luma, cb, cr = (np.asarray(plane).astype(np.int16) for plane in planes)
    luma += _octaves(rng, width, height, detail, contrast)
    grain = _noise(rng, width, height) * (12 * detail // 256) >> 8
    cb += grain
    cr += grain[::-1, ::-1]  # reuse the grain: drawing it is slow
    return Image.merge(
        "YCbCr",
        [Image.fromarray(np.clip(p, 0, 255).astype(np.uint8)) for p in (luma, cb, cr)],
    )


def _noise(rng: np.random.Generator, width: int, height: int) -> NDArray[np.int16]:
    """Return uniform noise from -128 to 127, int16 of shape (height, width)."""
    drawn = np.frombuffer(rng.bytes(width * height), np.int8)
    return drawn.astype(np.int16).reshape(height, width)


def _octaves(
    rng: np.random.Generator, width: int, height: int, detail: int, contrast: int
) -> NDArray[np.int16]:
    """Return noise of several scales, in grey levels about 0, int16 of shape (height, width).

    Args:
        rng: Generator of the noise.
        width: Columns.
        height: Rows.
        detail: Strength of the finer octaves; 256 is strong.
        contrast: Strength of the coarser octaves, in per cent.
    """
    total = np.zeros((height, width), np.int16)
    for octave, usual in enumerate(_STRENGTHS):
        columns, rows = max(2, -(-width >> octave)), max(2, -(-height >> octave))
        strength = usual * detail // 256 if octave < _FINE else usual * contrast // 100
        layer = _noise(rng, columns, rows) * min(strength, 255) >> 8
        if octave:
            levels = Image.fromarray((layer + 128).astype(np.uint8))
            levels = levels.resize((width, height), Image.Resampling.BILINEAR)
            layer = np.asarray(levels).astype(np.int16) - 128
        total += layer
    return total
